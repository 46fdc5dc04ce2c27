//! The gateway: checks a token on the WebSocket upgrade and forwards one mailbox.
//!
//! In reading order:
//!
//! - [`args`], [`config`]: what was typed, and what it means.
//! - [`accept`]: connections become tasks.
//! - [`upgrade`]: from a connection to an admitted one: [`head`] reads the request, [`admission`] judges it, [`refusal`]
//!   holds every answer that is no 101.
//! - `gateway`: from an admitted connection to a session: the broker's part of an upgrade.
//! - [`session`]: one client and its mailbox, from the 101 to the end.
//! - [`outbox`]: what a session has taken and not yet settled. Pure.
//! - `requeues`: what a client gave back, and when it goes. Pure.
//! - `expiry`: how long a token lets its session live.
//! - `liveness`: is the peer there, and does it read? Pure.
//! - `wire`: the WebSocket as the session uses it.
//! - [`end`]: why a session stopped; [`counts`]: what the gateway has done.

pub mod accept;
mod admin;
pub mod admission;
pub mod args;
pub mod config;
pub mod counts;
pub mod end;
mod expiry;
mod gateway;
pub mod head;
mod liveness;
pub mod metrics;
pub mod outbox;
pub mod refusal;
mod requeues;
mod roster;
pub mod session;
pub mod summary;
pub mod upgrade;
mod wire;

use std::{io, sync::Arc, time::Duration};

use broker::mailboxes::{Mailboxes, Options};
use service::shutdown::Shutdown;
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::{
    accept::{Limits, accept_loop},
    config::Config,
    counts::Summary,
    gateway::Gateway,
};

/// Of the time for a drain, what is kept for closing the broker connections.
const BROKER_CLOSE_SHARE: u32 = 8;
/// The most that closing the broker connections may take.
const BROKER_CLOSE_MAX: Duration = Duration::from_secs(1);

/// Why the gateway could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The listener is of no use.
    #[error("the listener is of no use: {0}")]
    Listener(#[from] io::Error),
}

/// Runs the gateway on `listener` until `shutdown`, and returns what it did. A broker that is absent is waited for; until
/// it is there, upgrades are answered 503.
pub async fn run(config: Config, listener: TcpListener, shutdown: Shutdown) -> Result<Summary, RunError> {
    let address = listener.local_addr()?;
    config.warnings.iter().for_each(|warning| warn!("{warning}"));
    let options = Options {
        name: format!("auth-proxy {}", config.id),
        heartbeat: config.heartbeat,
        request_timeout: config.broker_timeout,
        ack_interval: config.ack_interval,
        lanes_max: config.max_lanes,
        declare_channels: config.declare_channels,
    };
    let for_broker = (config.drain_timeout / BROKER_CLOSE_SHARE).min(BROKER_CLOSE_MAX);
    let limits = Limits { drain_timeout: config.drain_timeout - for_broker, ..Limits::from(&config) };
    let mailboxes = Mailboxes::start(config.endpoints.clone(), &options);
    let gateway = Gateway::new(&config, limits.drain_timeout, mailboxes.clone(), &shutdown);
    info!("AuthProxy {}: serving WebSockets on {address}", config.id);

    let served = accept_loop(listener, limits, shutdown.clone(), |accepted| Arc::clone(&gateway).serve(accepted)).await;

    tokio::select! {
        () = mailboxes.close(for_broker) => {}
        () = shutdown.forced() => {}
    }
    let summary = gateway.counts().summary(&served);
    info!("{summary}");
    Ok(summary)
}
