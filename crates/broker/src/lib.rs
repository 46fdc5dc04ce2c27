//! Everything that knows AMQP, and nothing that knows WebSockets.
//!
//! In reading order:
//!
//! - [`endpoint`]: one broker URL, parsed and printable without its password.
//! - [`connection`]: one connect over a list of endpoints.
//! - [`screen`]: what of a message the client library cannot read, replaced before it gets there.
//! - [`link`]: a connection that comes back.
//! - [`topology`]: the exchanges and queues as the definitions name them.
//! - `declarer`: declare, bind and look, on channels of their own.
//! - [`ledger`]: which tags of a lane are settled, and the fewest acks that say so. Pure.
//! - `live`: one life of a lane's channel, with its ledger and the writer of its acks.
//! - `lane`: a channel shared by many subscriptions: consume, leave, rebuild.
//! - `seat`: a subscription as its lane sees it.
//! - [`pool`]: which lane takes a subscription.
//! - [`properties`]: what a producer said about a message.
//! - [`subscription`]: what a session holds: deliveries in, settlements out.
//! - [`claims`]: one owner per queue within this process; the newest wins.
//! - `control`: the same across proxies.
//! - [`mailboxes`]: the front door: who wants deliveries claims a mailbox.
//! - `subscribing`: from a claim to a subscription.
//! - [`vitals`]: how it stands with the broker, in numbers.
//! - [`publisher`]: publishing with confirms, on connections of its own.

pub mod claims;
pub mod connection;
mod control;
mod declarer;
pub mod endpoint;
mod lane;
pub mod ledger;
pub mod link;
mod live;
pub mod mailboxes;
pub mod pool;
pub mod properties;
pub mod publisher;
pub mod screen;
mod seat;
mod subscribing;
pub mod subscription;
pub mod topology;
pub mod vitals;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic elsewhere: what our locks guard is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
