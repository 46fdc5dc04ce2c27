//! Why a session stopped. A session does not fail, it ends.

use std::fmt;

use protocol::close::{CloseCode, RetryWindow};
use tokio_tungstenite::tungstenite;

/// Why a session stopped.
#[derive(Debug)]
pub enum End {
    /// The client closed, with this code if it gave one.
    Closed(Option<u16>),
    /// The connection broke, or was closed without a close frame.
    Gone(String),
    /// The token's time is over.
    Expired,
    /// A newer connection of the same instance came.
    Replaced,
    /// The proxy shuts down; the client comes back within this window.
    Draining(RetryWindow),
    /// The socket took nothing for too long.
    DoesNotRead,
    /// No answer to a ping.
    NoPong,
    /// Neither ack nor nack for too long, of a client that has something to answer.
    NoAck,
    /// The broker was away for longer than the operator allows.
    BrokerUnavailable,
    /// The client broke the rules of its dialect.
    ContractBroken(String),
    /// The mailbox cannot be restored.
    MailboxLost(String),
    /// The client broke the WebSocket protocol; the code says how.
    Protocol(CloseCode, String),
}

impl From<tungstenite::Error> for End {
    fn from(error: tungstenite::Error) -> Self {
        use tungstenite::{Error, error::ProtocolError};
        let text = error.to_string();
        match error {
            Error::ConnectionClosed | Error::AlreadyClosed => Self::Closed(None),
            Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) | Error::Io(_) => Self::Gone(text),
            Error::Capacity(_) => Self::Protocol(CloseCode::TooBig, text),
            Error::Utf8(_) => Self::Protocol(CloseCode::NotUtf8, text),
            Error::Protocol(_) | Error::AttackAttempt => Self::Protocol(CloseCode::Protocol, text),
            _ => Self::Protocol(CloseCode::Internal, text),
        }
    }
}

impl End {
    /// What the client is told; nothing when it was the client that left.
    pub fn close_code(&self) -> Option<CloseCode> {
        match self {
            Self::Closed(_) | Self::Gone(_) => None,
            Self::Expired => Some(CloseCode::TokenExpired),
            Self::Replaced => Some(CloseCode::Replaced),
            Self::Draining(_) => Some(CloseCode::Draining),
            Self::DoesNotRead => Some(CloseCode::DoesNotRead),
            Self::NoPong => Some(CloseCode::NoPong),
            Self::NoAck => Some(CloseCode::AckTimeout),
            Self::BrokerUnavailable => Some(CloseCode::BrokerUnavailable),
            Self::ContractBroken(_) => Some(CloseCode::ContractBroken),
            Self::MailboxLost(_) => Some(CloseCode::Internal),
            Self::Protocol(code, _) => Some(*code),
        }
    }

    /// The text of the close frame.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Draining(window) => window.to_string(),
            _ => self.close_code().map_or("", CloseCode::reason).to_owned(),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(code) = self.close_code() {
            write!(f, "{} {}", code.code(), code.label())?;
        }
        match self {
            Self::Closed(None) => f.write_str("closed by the client"),
            Self::Closed(Some(code)) => write!(f, "closed by the client with {code}"),
            Self::Gone(cause) => write!(f, "the connection was lost: {cause}"),
            Self::MailboxLost(cause) | Self::ContractBroken(cause) | Self::Protocol(_, cause) => {
                write!(f, " ({cause})")
            }
            _ => Ok(()),
        }
    }
}
