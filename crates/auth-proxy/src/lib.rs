//! The gateway: checks a token on the WebSocket upgrade and forwards one mailbox.
//!
//! In reading order:
//!
//! - [`args`], [`config`]: what was typed, and what it means.
//! - [`accept`]: connections become tasks.
//! - [`upgrade`]: from a connection to an admitted one: [`head`] reads the request, [`admission`] judges it, [`refusal`]
//!   holds every answer that is no 101.

pub mod accept;
pub mod admission;
pub mod args;
pub mod config;
pub mod head;
pub mod refusal;
pub mod upgrade;
