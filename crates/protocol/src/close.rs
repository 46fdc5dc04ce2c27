//! Why a session ended: the closed table of close codes (RFC 6455, section 7.4). Close frames,
//! log lines, metric labels and the table in the README all come from it.
//!
//! 1000–1015 mean what the RFC says. In the private range 4000–4499 says "come back" and
//! 4500–4999 "stay away", so a client can obey a code that is newer than itself.

/// A code that this product sends or obeys. The number is the value on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum CloseCode {
    /// The client is done.
    Normal = 1000,
    /// The client's page or program goes away.
    GoingAway = 1001,
    /// The client broke RFC 6455.
    Protocol = 1002,
    /// A text message of the client was not UTF-8.
    NotUtf8 = 1007,
    /// The client sent more than it may.
    TooBig = 1009,
    /// Our fault; the log says more.
    Internal = 1011,
    /// The token's `exp` and the leeway are over.
    TokenExpired = 4001,
    /// The proxy shuts down; the mailbox and what is in it stay.
    Draining = 4002,
    /// The socket took no byte for the write deadline.
    DoesNotRead = 4003,
    /// A ping stayed without its pong.
    NoPong = 4004,
    /// The broker is away for longer than the operator allows.
    BrokerUnavailable = 4005,
    /// Neither ack nor nack came while something waited for one.
    AckTimeout = 4006,
    /// A token given during the session is no good.
    TokenInvalid = 4500,
    /// The client broke the rules of its subprotocol.
    ContractBroken = 4501,
    /// The operator shut this identity out.
    Revoked = 4503,
    /// A limit of the operator's.
    LimitReached = 4504,
    /// A newer connection of the same instance took the mailbox over.
    Replaced = 4506,
}

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

/// A row of the table: everything that is said about a code.
struct Row {
    label: &'static str,
    reason: &'static str,
    meaning: &'static str,
    advice: &'static str,
    duty: Duty,
}

impl CloseCode {
    /// Every code, ascending.
    pub const ALL: &[CloseCode] = &[
        CloseCode::Normal,
        CloseCode::GoingAway,
        CloseCode::Protocol,
        CloseCode::NotUtf8,
        CloseCode::TooBig,
        CloseCode::Internal,
        CloseCode::TokenExpired,
        CloseCode::Draining,
        CloseCode::DoesNotRead,
        CloseCode::NoPong,
        CloseCode::BrokerUnavailable,
        CloseCode::AckTimeout,
        CloseCode::TokenInvalid,
        CloseCode::ContractBroken,
        CloseCode::Revoked,
        CloseCode::LimitReached,
        CloseCode::Replaced,
    ];

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

    /// The text for the close frame: at most 123 bytes, what RFC 6455 leaves for it.
    #[must_use]
    pub fn reason(self) -> &'static str {
        self.row().reason
    }

    /// The `snake_case` name in logs and metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.row().label
    }

    /// What happened, as the README's table says it.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        self.row().meaning
    }

    /// What the client should do, as the README's table says it, for people who write one.
    #[must_use]
    pub fn advice(self) -> &'static str {
        self.row().advice
    }

    /// What the client should do, for a program to match on. "Mend" is [`Duty::Stop`]: a program
    /// cannot mend itself, and unmended it would be closed again.
    #[must_use]
    pub fn duty(self) -> Duty {
        self.row().duty
    }

    #[rustfmt::skip] // a table
    fn row(self) -> Row {
        let row = |label, reason, meaning, advice, duty| Row { label, reason, meaning, advice, duty };
        use Duty::{Leave, NewToken, Reconnect, ReconnectWithBackoff, Stop};
        match self {
            Self::Normal => row("normal", "goodbye", "client leaves", "–", Leave),
            Self::GoingAway => row("going_away", "going away", "client leaves", "–", Leave),
            Self::Protocol => row("protocol", "WebSocket protocol error", "WebSocket protocol error", "mend", Stop),
            Self::NotUtf8 => row("not_utf8", "text is not UTF-8", "not UTF-8", "mend", Stop),
            Self::TooBig => row("too_big", "message too big", "too big", "mend", Stop),
            Self::Internal => row("internal", "internal error", "our fault", "reconnect with backoff", ReconnectWithBackoff),
            Self::TokenExpired => row("token_expired", "token expired", "token expired", "get a new token, reconnect", NewToken),
            Self::Draining => row("draining", "draining", "draining (SIGTERM), raw and v1", "reconnect within the window in `bye` (raw: in the close reason)", Reconnect),
            Self::DoesNotRead => row("does_not_read", "does not read", "does not read (write deadline)", "reconnect with backoff", ReconnectWithBackoff),
            Self::NoPong => row("no_pong", "no pong", "no pong", "reconnect", Reconnect),
            Self::BrokerUnavailable => row("broker_unavailable", "broker unavailable", "broker unavailable longer than the operator allows", "reconnect with backoff", ReconnectWithBackoff),
            Self::AckTimeout => row("ack_timeout", "no ack", "neither ack nor nack for `--ack-timeout` while something waits for one", "reconnect", Reconnect),
            Self::TokenInvalid => row("token_invalid", "token invalid", "token invalid", "stop", Stop),
            Self::ContractBroken => row("contract_broken", "contract broken", "contract broken", "stop", Stop),
            Self::Revoked => row("revoked", "revoked", "revoked", "stop", Stop),
            Self::LimitReached => row("limit_reached", "limit reached", "limit reached", "stop", Stop),
            Self::Replaced => row("replaced", "replaced by a newer connection", "replaced by a newer connection of the same instance", "stop", Stop),
        }
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

#[cfg(test)]
mod tests;
