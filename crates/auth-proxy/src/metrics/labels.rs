//! What metrics are split by. Every list is closed: nothing that a client chooses is ever a label.

use std::fmt::{self, Write as _};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use protocol::close::CloseCode;

use crate::{end::End, outbox::Dialect, refusal::Refusal};

/// How a session talks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByDialect {
    pub(crate) dialect: Dialect,
}

/// What became of a connection of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByResult {
    pub(crate) result: UpgradeResult,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByCode {
    pub(crate) code: Close,
}

/// Why a message is back in its mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WhyRequeued {
    pub(crate) cause: Requeue,
}

/// Why a message is dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WhyRejected {
    pub(crate) cause: Rejection,
}

/// Why a message's time of sending is not believed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WhyNotBelieved {
    pub(crate) cause: Disbelief,
}

/// Which connection to the broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByPurpose {
    pub(crate) purpose: &'static str,
}

/// The end of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum UpgradeResult {
    /// Answered with 101.
    Accepted,
    /// The client left before its answer.
    Gone,
    /// Answered with something else.
    Refused(Refusal),
}

impl UpgradeResult {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [Self::Accepted, Self::Gone].into_iter().chain(Refusal::ALL.map(Self::Refused))
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Gone => "gone",
            Self::Refused(refusal) => refusal.label(),
        }
    }
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Close {
    /// The client closed, with whatever code.
    Client,
    /// The connection broke.
    Gone,
    /// Nothing had ended it when the time for the drain was over, or at a second signal.
    CutOff,
    /// Its task panicked.
    Panicked,
    /// The proxy closed.
    Code(CloseCode),
}

impl Close {
    /// Without the codes that only clients send.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let ours = CloseCode::ALL.iter().filter(|code| !matches!(code, CloseCode::Normal | CloseCode::GoingAway));
        [Self::Client, Self::Gone, Self::CutOff, Self::Panicked].into_iter().chain(ours.map(|code| Self::Code(*code)))
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Gone => "gone",
            Self::CutOff => "cut_off",
            Self::Panicked => "panicked",
            Self::Code(code) => code.label(),
        }
    }
}

impl From<&End> for Close {
    fn from(end: &End) -> Self {
        match end.close_code() {
            Some(code) => Self::Code(code),
            None if matches!(end, End::Gone(_)) => Self::Gone,
            None => Self::Client,
        }
    }
}

/// Why a message is dropped, or dead-lettered where the policy says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rejection {
    /// Above the size limit.
    TooLarge,
    /// A nack without requeue.
    Client,
}

impl Rejection {
    pub(crate) const ALL: [Self; 2] = [Self::TooLarge, Self::Client];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::Client => "client",
        }
    }
}

/// Why a message is back in its mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Requeue {
    /// A nack with requeue.
    Client,
    /// Not acked when its session ended.
    SessionEnd,
}

impl Requeue {
    pub(crate) const ALL: [Self; 2] = [Self::Client, Self::SessionEnd];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::SessionEnd => "session_end",
        }
    }
}

/// Why a message's time of sending says nothing of how long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Disbelief {
    /// It is ahead of the clock here: two clocks that differ.
    Ahead,
    /// It is longer ago than any message can have waited: a time in another unit, most likely.
    LongAgo,
}

impl Disbelief {
    pub(crate) const ALL: [Self; 2] = [Self::Ahead, Self::LongAgo];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Ahead => "ahead",
            Self::LongAgo => "long_ago",
        }
    }
}

/// The word for a dialect in labels and tables.
pub(crate) fn dialect_label(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Raw => "raw",
        Dialect::V1 => "v1",
    }
}

macro_rules! label_values {
    ($($type:ty => $label:expr;)+) => {
        $(impl EncodeLabelValue for $type {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
                encoder.write_str($label(*self))
            }
        })+
    };
}

label_values! {
    Dialect => dialect_label;
    UpgradeResult => UpgradeResult::label;
    Close => Close::label;
    Rejection => Rejection::label;
    Requeue => Requeue::label;
    Disbelief => Disbelief::label;
}
