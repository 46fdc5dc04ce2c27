//! Everything that knows AMQP, and nothing that knows WebSockets.
//!
//! In reading order:
//!
//! - [`endpoint`]: one broker URL, parsed and printable without its password.
//! - [`connection`]: one connect over a list of endpoints.
//! - [`publisher`]: publishing with confirms, on connections of its own.

pub mod connection;
pub mod endpoint;
pub mod publisher;
