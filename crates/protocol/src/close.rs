//! Why a session ended: the closed table of close codes (RFC 6455, section 7.4). Close frames,
//! log lines, metric labels and the table in the README all come from it.
//!
//! 1000–1015 mean what the RFC says. In the private range 4000–4499 says "come back" and
//! 4500–4999 "stay away", so a client can obey a code that is newer than itself.

use std::fmt::{self, Display, Formatter};

use crate::text::digits;

/// What RFC 6455, section 5.5, leaves for the reason in a close frame, in bytes.
pub const REASON_BYTES_MAX: usize = 123;

/// What a client does after a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Duty {
    /// Nothing: the client itself said goodbye.
    Leave,
    /// Connect again, soon (after a drain: within the window that the close reason or `bye` names).
    Reconnect,
    /// Connect again, with growing, jittered pauses.
    ReconnectWithBackoff,
    /// Get a new token and connect with it; the old one would be refused.
    NewToken,
    /// Do not connect again: the same client would meet the same end until somebody changes
    /// something.
    Stop,
}

/// The enum, the list of its variants and what is said about each, from one table:
/// `Name = code, "label", "reason"; "meaning" => "advice", Duty;`
macro_rules! close_codes {
    ($($(#[$doc:meta])+ $name:ident = $code:literal, $label:literal, $reason:literal;
        $meaning:literal => $advice:literal, $duty:ident;)+) => {
        /// A code that this product sends or obeys. The number is the value on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum CloseCode {
            $($(#[$doc])+ $name = $code),+
        }

        impl CloseCode {
            /// Every code, ascending.
            pub const ALL: &[CloseCode] = &[$(CloseCode::$name),+];

            /// The `snake_case` name in logs and metrics.
            #[must_use]
            pub fn label(self) -> &'static str {
                match self { $(CloseCode::$name => $label),+ }
            }

            /// The text for the close frame, at most [`REASON_BYTES_MAX`] bytes. With
            /// [`Draining`](Self::Draining) a [`RetryWindow`] says more.
            #[must_use]
            pub fn reason(self) -> &'static str {
                match self { $(CloseCode::$name => $reason),+ }
            }

            /// What happened, as the README's table says it.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(CloseCode::$name => $meaning),+ }
            }

            /// What the client should do, as the README's table says it, for people who write one.
            #[must_use]
            pub fn advice(self) -> &'static str {
                match self { $(CloseCode::$name => $advice),+ }
            }

            /// What the client should do, for a program to match on. "Mend" is [`Duty::Stop`]: a
            /// program cannot mend itself, and unmended it would be closed again.
            #[must_use]
            pub fn duty(self) -> Duty {
                match self { $(CloseCode::$name => Duty::$duty),+ }
            }
        }
    };
}

close_codes! {
    /// The client is done.
    Normal = 1000, "normal", "goodbye";
        "client leaves" => "–", Leave;
    /// The client's page or program goes away.
    GoingAway = 1001, "going_away", "going away";
        "client leaves" => "–", Leave;
    /// The client broke RFC 6455.
    Protocol = 1002, "protocol", "WebSocket protocol error";
        "WebSocket protocol error" => "mend", Stop;
    /// A text message of the client was not UTF-8.
    NotUtf8 = 1007, "not_utf8", "text is not UTF-8";
        "not UTF-8" => "mend", Stop;
    /// The client sent more than it may.
    TooBig = 1009, "too_big", "message too big";
        "too big" => "mend", Stop;
    /// Our fault; the log says more.
    Internal = 1011, "internal", "internal error";
        "our fault" => "reconnect with backoff", ReconnectWithBackoff;
    /// The token's `exp` and the leeway are over.
    TokenExpired = 4001, "token_expired", "token expired";
        "token expired" => "get a new token, reconnect", NewToken;
    /// The proxy shuts down; the mailbox and what is in it stay.
    Draining = 4002, "draining", "draining";
        "draining (SIGTERM), raw and v1" => "reconnect within the window in `bye` (raw: in the close reason)", Reconnect;
    /// The socket took no byte for the write deadline.
    DoesNotRead = 4003, "does_not_read", "does not read";
        "does not read (write deadline)" => "reconnect with backoff", ReconnectWithBackoff;
    /// A ping stayed without its pong.
    NoPong = 4004, "no_pong", "no pong";
        "no pong" => "reconnect", Reconnect;
    /// The broker is away for longer than the operator allows.
    BrokerUnavailable = 4005, "broker_unavailable", "broker unavailable";
        "broker unavailable longer than the operator allows" => "reconnect with backoff", ReconnectWithBackoff;
    /// Neither ack nor nack came while something waited for one.
    AckTimeout = 4006, "ack_timeout", "no ack";
        "neither ack nor nack for `--ack-timeout` while something waits for one" => "reconnect", Reconnect;
    /// A token given during the session is no good.
    TokenInvalid = 4500, "token_invalid", "token invalid";
        "token invalid" => "stop", Stop;
    /// The client broke the rules of its subprotocol.
    ContractBroken = 4501, "contract_broken", "contract broken";
        "contract broken" => "stop", Stop;
    /// The operator shut this identity out.
    Revoked = 4503, "revoked", "revoked";
        "revoked" => "stop", Stop;
    /// A limit of the operator's.
    LimitReached = 4504, "limit_reached", "limit reached";
        "limit reached" => "stop", Stop;
    /// A newer connection of the same instance took the mailbox over.
    Replaced = 4506, "replaced", "replaced by a newer connection";
        "replaced by a newer connection of the same instance" => "stop", Stop;
}

impl CloseCode {
    /// The number on the wire.
    #[must_use]
    pub fn code(self) -> u16 {
        self as u16
    }

    /// The code with this number, `None` when it is not one of ours.
    #[must_use]
    pub fn from_code(code: u16) -> Option<CloseCode> {
        Self::ALL.iter().copied().find(|known| known.code() == code)
    }
}

/// What a client does after this code, known or not. An unknown one from 4500 to 4999 says stay
/// away; every other, a load balancer's 1012 or 1013 among them and the 1006 that stands for "no
/// close frame at all", is answered by coming back carefully.
#[must_use]
pub fn duty_of(code: u16) -> Duty {
    match CloseCode::from_code(code) {
        Some(known) => known.duty(),
        None if (4500..=4999).contains(&code) => Duty::Stop,
        None => Duty::ReconnectWithBackoff,
    }
}

/// When the clients of a draining proxy come back: each at a random moment of this window, counted
/// from the close, so that they do not all knock at the next proxy at once. Its `Display` is the
/// reason of a raw session's 4002, at most [`REASON_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryWindow {
    /// The earliest moment, in ms.
    pub min_ms: u64,
    /// The latest, in ms; not below `min_ms`.
    pub max_ms: u64,
}

const RETRY_BEFORE: &str = "draining; reconnect after ";
const RETRY_AFTER: &str = " ms";

impl Display for RetryWindow {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{RETRY_BEFORE}{}-{}{RETRY_AFTER}", self.min_ms, self.max_ms)
    }
}

impl RetryWindow {
    /// Reads the reason of a close frame back; `None` when it names no window.
    #[must_use]
    pub fn from_reason(reason: &str) -> Option<RetryWindow> {
        let (min, max) = reason.strip_prefix(RETRY_BEFORE)?.strip_suffix(RETRY_AFTER)?.split_once('-')?;
        let (min_ms, max_ms) = (digits(min)?, digits(max)?);
        (min_ms <= max_ms).then_some(RetryWindow { min_ms, max_ms })
    }
}

#[cfg(test)]
mod tests;
