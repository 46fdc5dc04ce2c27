//! What a client of a crowd has seen.

use std::collections::HashSet;

use protocol::names::HEADER_REPUBLISHED;
use protocol::v1::{Event, Message};

/// A message as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// In the how manieth session of this client: 1, 2, …
    pub session: usize,
    /// Its message-id.
    pub id: Option<String>,
    /// Its body as text.
    pub body: String,
    /// As flagged.
    pub redelivered: bool,
    /// Its producer says that it is a further copy.
    pub republished: bool,
}

impl Arrival {
    pub(super) fn of(session: usize, message: &Message<'_>) -> Arrival {
        Arrival {
            session,
            id: message.message_id.as_deref().map(str::to_owned),
            body: String::from_utf8_lossy(message.body()).into_owned(),
            redelivered: message.redelivered,
            republished: message.headers.contains_key(HEADER_REPUBLISHED),
        }
    }

    /// What tells it from other messages.
    pub fn key(&self) -> &str {
        self.id.as_deref().unwrap_or(&self.body)
    }
}

/// What one client has seen so far.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Upgrades that succeeded.
    pub sessions: usize,
    /// Of each session, whether its mailbox still existed.
    pub resumed: Vec<Option<bool>>,
    /// Messages, in order. Each was acked, if acks were not [held](super::Member::hold) then.
    pub arrivals: Vec<Arrival>,
    /// Notices, in order.
    pub notices: Vec<Event>,
    /// How sessions ended: with a close code, or without a word.
    pub ends: Vec<Option<u16>>,
    /// Upgrades that were refused with 503.
    pub refusals: usize,
}

impl Notes {
    /// How many different messages there were.
    pub fn distinct(&self) -> usize {
        self.arrivals.iter().map(Arrival::key).collect::<HashSet<_>>().len()
    }

    /// Whether this was the body of a message.
    pub fn has(&self, body: &str) -> bool {
        self.arrivals.iter().any(|arrival| arrival.body == body)
    }

    /// Messages that came again and did not say so, neither as redelivered nor as published again.
    pub fn unflagged(&self) -> Vec<&Arrival> {
        let mut seen = HashSet::new();
        let again = self.arrivals.iter().filter(|arrival| !seen.insert(arrival.key()));
        again.filter(|arrival| !arrival.redelivered && !arrival.republished).collect()
    }

    /// How many came flagged as redelivered.
    pub fn redelivered(&self) -> usize {
        self.arrivals.iter().filter(|arrival| arrival.redelivered).count()
    }

    /// Short enough for a failure.
    pub(super) fn in_short(&self) -> String {
        let Notes { sessions, resumed, arrivals, notices, ends, refusals } = self;
        let (arrived, last) = (arrivals.len(), arrivals.last());
        let ended = format!("ends {ends:?}, {refusals} refusals");
        format!("{sessions} sessions {resumed:?}, {arrived} arrivals, last {last:?}, {notices:?}, {ended}")
    }
}
