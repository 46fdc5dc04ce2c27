//! Names, tokens, frames and close codes: what is said on the wire. No tokio, no AMQP.
