//! The dialect `rabbitmq-msg.v1` from the client's side: end-to-end acks, refreshed tokens, resumed sessions.
//!
//! In reading order:

pub(crate) mod acks; // gathers acks; pure
mod counts;
pub(crate) mod dialogue; // what a frame means and what is said when; pure
pub(crate) mod link; // reads while a frame of ours goes out
pub(crate) mod liveness; // when a ping asks; pure
pub(crate) mod refresh; // when a new token is sent; pure
pub(crate) mod session; // drives one session over its socket // what is counted beside messages

pub use counts::Counts;
pub(crate) use counts::Note;
