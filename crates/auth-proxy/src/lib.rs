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
//! - [`end`]: why a session stopped.
//! - [`metrics`]: what the gateway counts; `roster`: who is connected; [`summary`]: the last line of a run.
//! - `admin`: the operator's port.

pub mod accept;
mod admin;
pub mod admission;
pub mod args;
pub mod config;
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
    accept::{Limits, Lobby, accept_loop},
    admin::{Admin, Readiness},
    config::Config,
    gateway::Gateway,
    metrics::Metrics,
    summary::Summary,
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

/// Where a gateway listens.
#[derive(Debug)]
pub struct Listeners {
    /// For WebSockets.
    pub clients: TcpListener,
    /// For the operator, if at all.
    pub admin: Option<TcpListener>,
}

/// Runs the gateway on `listeners` until `shutdown`, and returns what it did. A broker that is absent is waited for; until
/// it is there, upgrades are answered 503. The operator's port answers to the end.
pub async fn run(config: Config, listeners: Listeners, shutdown: Shutdown) -> Result<Summary, RunError> {
    let address = listeners.clients.local_addr()?;
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
    let of_broker = mailboxes.clone();
    let metrics = Metrics::new(Box::new(move || of_broker.vitals()));
    let gateway = Gateway::new(&config, limits.drain_timeout, mailboxes.clone(), Arc::clone(&metrics), &shutdown);
    let lobby = Lobby::new(&limits, metrics.upgrades.clone());
    let readiness = Readiness::of(mailboxes.clone(), Arc::clone(&gateway), lobby.clone(), shutdown.clone());
    let admin = Admin::new(config.id.clone(), Arc::clone(&metrics), readiness);
    info!("AuthProxy {}: serving WebSockets on {address}", config.id);

    let work = async {
        let handler = |accepted| Arc::clone(&gateway).serve(accepted);
        let served = accept_loop(listeners.clients, limits, lobby, shutdown.clone(), handler).await;
        tokio::select! {
            () = mailboxes.close(for_broker) => {}
            () = shutdown.forced() => {}
        }
        Summary::new(&metrics.totals(), &served)
    };
    let summary = tokio::select! {
        summary = work => summary,
        never = admin::serve(listeners.admin, admin) => match never {},
    };
    info!("{summary}");
    Ok(summary)
}
