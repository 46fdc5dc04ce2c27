//! The values of `Sec-WebSocket-Protocol` (RFC 6455, section 1.9) that mean something here.

/// A frame is a message body, nothing else; also what a client gets that offers no subprotocol.
pub const RAW: &str = "rabbitmq-msg.raw";

/// JSON text frames with end-to-end acks.
pub const V1: &str = "rabbitmq-msg.v1";

/// Browsers cannot set `Authorization`, so they offer `bearer.<token>` beside one of the dialects.
/// It is never selected in the answer: a token does not belong in a reply, and a browser that
/// offered nothing else could not accept one.
pub const BEARER_PREFIX: &str = "bearer.";
