//! Publishes numbered messages to consumers, with confirms.
//!
//! Each producer is a task with a channel of its own. It sends the same numbered message to every consumer, each
//! interval or as fast as confirms allow, and counts how each publish ended.
//!
//! In reading order:

pub mod args; // what is typed
mod config; // what it means
mod producer; // one of them
mod run; // all producers, from the first connect to the totals
mod totals; // what was sent and how it ended

pub use args::Args;
pub use config::{Config, ConfigError};
pub use run::{RunError, run};
pub use totals::Totals;
