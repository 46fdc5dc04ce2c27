//! What every binary does around its work. It knows nothing of AMQP, WebSockets or messages.
//!
//! In reading order:

pub mod backoff;
pub mod cli; // options, their environment variables, and bad usage in one line
pub mod shutdown; // two phases, begun and forced, and the signals that start them
pub mod telemetry; // log lines on stdout, as text or JSON // how long to wait before the next try
