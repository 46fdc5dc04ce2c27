//! What every binary does around its work. It knows nothing of AMQP, WebSockets or messages.
//!
//! In reading order:
//!
//! - [`cli`]: options, their environment variables, and bad usage in one line.
//! - [`telemetry`]: log lines on stdout, as text or JSON.
//! - [`program`]: the frame of a program: a runtime, and signals from its first moment.
//! - [`shutdown`]: two phases, begun and forced, and the signals that start them.
//! - [`descriptors`]: how many files and sockets the process may have.
//! - [`backoff`]: how long to wait before the next try.

pub mod backoff;
pub mod cli;
pub mod descriptors;
pub mod program;
pub mod shutdown;
pub mod telemetry;
