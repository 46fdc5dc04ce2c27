//! What is said on the wire: names, tokens, close codes, frames and load bodies.
//!
//! Pure functions over bytes and text. No I/O, no tokio, no AMQP: whoever holds a socket or a
//! channel (`auth-proxy`, `consumers`, `producers`, `broker`) asks here what to say on it, so that
//! both ends say the same. Nothing here panics, whatever the input.
//!
//! In reading order:

/// The broker's names: exchanges, and the queue that belongs to one consumer instance.
pub mod names;

/// Who may have that queue: JSON Web Tokens, minted and verified.
#[cfg(feature = "token")]
pub mod token;

/// How a client asks for a dialect of ours, and how a browser carries its token.
pub mod subprotocol;

/// A message body becomes WebSocket frames.
pub mod frame;

/// The dialect with acks from end to end.
pub mod v1;

/// Why a session ended, and what its client should do now.
pub mod close;

/// The bodies that `producers` send and `consumers` recognise.
pub mod load;

/// Foreign text, in log lines and as numbers.
pub mod text;
