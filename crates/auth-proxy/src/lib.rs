//! The gateway: checks a token on the WebSocket upgrade and forwards one mailbox.
