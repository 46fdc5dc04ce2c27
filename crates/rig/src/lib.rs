//! Test support: a real RabbitMQ, the proxy in process, a client driven step by step. A failure is a failed test, so what
//! goes wrong here panics with what was seen.
//!
//! ```no_run
//! use rig::{Dial, Node, Proxy, Vhost, wait_until, PATIENCE};
//! # async fn example() {
//! let vhost = Vhost::new(&Node::shared().await).await; // its own exchanges, users' rights and policy
//! let proxy = Proxy::start(&vhost, &["--window", "4"]);
//! let mut client = Dial::to(proxy.addr()).consumer("alice").connect().await;
//! vhost.publisher().await.publish("alice", "hello").await;
//! assert_eq!(client.text().await, "hello");
//! client.reset();
//! let gone = "the proxy has noticed";
//! wait_until(PATIENCE, gone, async || vhost.consumers().await, |consumers| consumers.is_empty()).await;
//! # }
//! ```
//!
//! In reading order:
//!
//! - [`node`]: the RabbitMQ that tests share, or one to kill and restart.
//! - [`vhost`]: a vhost per test: URLs, policy, exact counts, faults, publishing, frames written by hand.
//! - [`proxy`]: the proxy in this process.
//! - [`admin`]: what its operator sees.
//! - [`client`]: a WebSocket, frame by frame; [`tokens`] for it, good and odd.
//! - [`crowd`]: v1 clients by the hundred that read, ack and note what they saw.
//! - [`http`]: requests by hand and their complete answers.
//! - [`program`]: the built binaries, their lines, signals and exit codes.
//! - [`relay`]: a network that stalls, swallows and cuts.
//! - [`wait`]: deadlines that say what was awaited.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of it is test code"
)]

pub mod admin;
pub mod client;
pub mod crowd;
pub mod http;
pub mod node;
pub mod program;
pub mod proxy;
pub mod relay;
pub mod tokens;
pub mod vhost;
pub mod wait;

pub use admin::{Admin, Counts};
pub use client::{Client, Dial, Received};
pub use crowd::Crowd;
pub use node::Node;
pub use program::{Program, ProxyProcess};
pub use proxy::Proxy;
pub use relay::Relay;
pub use vhost::{Message, Outcome, Publisher, Vhost};
pub use wait::{PATIENCE, wait_until, within};
