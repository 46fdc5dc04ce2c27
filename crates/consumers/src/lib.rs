//! Connects instances of consumers by the thousand, receives what the auth-proxy pushes, and says what
//! arrived, how fast, and what is missing. It knows WebSockets and tokens; it knows no AMQP.
//!
//! In reading order:

pub mod args; // what can be typed
pub mod behaviour; // who behaves badly on purpose; pure
pub mod config; // what was meant, checked before a socket opens
mod dial; // one connect: TCP, token, upgrade
mod farewell; // the ways out of a connection
mod fleet; // all instances: started, printed, ended in time
mod instance; // one instance: a task that connects, receives, comes back
mod latency; // how long messages were on their way; bounded
pub mod limits; // file descriptors and local ports
mod policy; // what follows a failed or ended connection; pure
mod raw; // one connection in the raw dialect
pub mod report; // the last words
mod rounds; // the same message at all instances is one line; pure
mod status; // connects, drops and notices in few lines; pure
pub mod tally; // received, missing, come again, out of order; pure
pub mod v1; // one connection in v1
mod world; // what instances share and hand in

pub use args::Args;
pub use config::Config;
pub use report::Totals;

use std::time::Duration;

use protocol::names::consumer_id;
use protocol::token::TokenError;
use service::shutdown::Shutdown;

/// Why a run could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No token can be made, so no instance could connect.
    #[error("no token can be made: {0}")]
    Token(#[from] TokenError),
}

/// Runs all instances until `shutdown` begins, the configured duration is over, or no instance is left that
/// may come back; then prints the report, the totals last. A forced `shutdown` skips the goodbyes. From the
/// beginning of the shutdown it takes 10 s at most, whatever the server does.
///
/// # Errors
/// Only before anything is opened; what happens to connections is told in the log and the totals.
///
/// # Cancel safety
/// Dropped half way, all connections are closed without a goodbye and nothing is printed.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<Totals, RunError> {
    config.minter.mint(&consumer_id(*config.consumers.start()), config.client.as_deref(), Duration::from_secs(1))?;
    if config.development_key {
        tracing::warn!("Tokens are signed with the public development key; give --jwt-secret-file for another");
    }
    for warning in limits::prepare(&config) {
        tracing::warn!("{warning}");
    }
    for line in config.misbehaving() {
        tracing::warn!("{line}");
    }
    let mut fleet = fleet::Fleet::start(&config, shutdown);
    fleet.watch(config.duration).await;
    Ok(fleet.finish())
}
