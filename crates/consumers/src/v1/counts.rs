//! What v1 sessions count beside messages, and what of it people hear while it runs.

use std::fmt;
use std::ops::AddAssign;

use protocol::v1::Event;

/// A server's reason is cut here.
const REASON_CHARS: usize = 120;

/// Sums over sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that were acked.
    pub acked: u64,
    /// Frames that it took.
    pub acks: u64,
    /// Reconnects that found their mailbox.
    pub resumed: u64,
    /// Reconnects that did not, or were not told: what had waited there is gone.
    pub not_resumed: u64,
    /// Tokens exchanged on the live connection.
    pub refreshed: u64,
    /// `error` frames, and tokens without an answer in time.
    pub refresh_failed: u64,
    /// Notices that the proxy lost its broker.
    pub broker_lost: u64,
    /// Notices that it is back.
    pub broker_back: u64,
    /// Notices that the mailbox was gone and was made anew.
    pub queue_recreated: u64,
    /// Frames that broke the contract; each ended its connection.
    pub bad_frames: u64,
}

impl Counts {
    /// Counts a notice.
    pub(crate) fn notice(&mut self, event: Event) {
        match event {
            Event::BrokerLost => self.broker_lost += 1,
            Event::BrokerBack => self.broker_back += 1,
            Event::QueueRecreated => self.queue_recreated += 1,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.acked += other.acked;
        self.acks += other.acks;
        self.resumed += other.resumed;
        self.not_resumed += other.not_resumed;
        self.refreshed += other.refreshed;
        self.refresh_failed += other.refresh_failed;
        self.broker_lost += other.broker_lost;
        self.broker_back += other.broker_back;
        self.queue_recreated += other.queue_recreated;
        self.bad_frames += other.bad_frames;
    }
}

/// The report's line on v1.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acked, acks, resumed, not_resumed, refreshed, refresh_failed, .. } = self;
        let Self { broker_lost, broker_back, queue_recreated, bad_frames, .. } = self;
        write!(
            f,
            "Sessions: {acked} acked in {acks} frames, {resumed} resumed, {not_resumed} not resumed, {refreshed} tokens \
             refreshed, {refresh_failed} refreshes failed, {bad_frames} bad frames; notices: {broker_lost} broker-lost, \
             {broker_back} broker-back, {queue_recreated} queue-recreated"
        )
    }
}

/// Something that the server said and that people should hear. Displays in words that many instances can share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// A notice.
    Notice(Event),
    /// After a reconnect.
    NotResumed,
    /// An `error` frame, or its lack.
    RefreshFailed { reason: String, last: bool },
}

impl Note {
    /// The reason is the server's own text: made safe for a line, and cut.
    pub(crate) fn refresh_failed(reason: &str, last: bool) -> Self {
        let reason = protocol::text::Escaped(reason).to_string().chars().take(REASON_CHARS).collect();
        Self::RefreshFailed { reason, last }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Notice(Event::BrokerLost) => f.write_str("broker-lost, deliveries pause"),
            Self::Notice(Event::BrokerBack) => f.write_str("broker-back, deliveries go on"),
            Self::Notice(Event::QueueRecreated) => f.write_str("queue-recreated, what was in the mailbox is gone"),
            Self::NotResumed => f.write_str("the mailbox was gone at the reconnect, there may be a gap"),
            Self::RefreshFailed { reason, last: false } => write!(f, "token not refreshed, will try again: {reason}"),
            Self::RefreshFailed { reason, last: true } => write!(f, "token not refreshed, given up: {reason}"),
        }
    }
}
