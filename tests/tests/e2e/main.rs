//! End to end: the programs on a real RabbitMQ. One binary, so that there is one link; a module per subject.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of it is test code"
)]

mod acks;
mod admin;
mod alarms;
mod bodies;
mod client_frames;
mod cold_start;
mod consumers_v1;
mod contract;
mod control;
mod crowd;
mod drain;
mod expiry;
mod faults;
mod giving_up;
mod handover;
mod identities;
mod killed;
mod no_loss;
mod odd_names;
mod outage;
mod poison;
mod properties_v1;
mod refresh;
mod refusals;
mod republish;
mod returning;
mod sharing;
mod slow;
mod stopping;
mod takeover;
mod totals;
mod vitals;

use protocol::names::Address;

/// The mailbox of a consumer of the default client, first instance.
fn queue(consumer: &str) -> String {
    let address = Address { client: "consumer".into(), consumer: consumer.into(), instance: "1".into() };
    address.queue().expect("a name that fits").to_string()
}
