//! The counts of one session: those of the gateway, and what its entry in the roster shows.

use std::{
    sync::Arc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use broker::subscription::Delivery;
use tokio::time::Instant;

use super::{
    Close, Metrics, Rejection, Requeue,
    labels::{ByCode, Disbelief, WhyNotBelieved, WhyRejected, WhyRequeued},
};
use crate::{
    end::End,
    roster::{Badge, Member},
};

/// A message that seems to have been on its way for longer was sent by a clock that is wrong or told in another unit: a time
/// in milliseconds is 56 years ago. One such would outweigh all others in the sum.
const BELIEVED_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Counts for one session. Dropped before its end was said, it counts the session as cut off, or as panicked.
#[derive(Debug)]
pub(crate) struct Meter {
    metrics: Arc<Metrics>,
    badge: Badge,
    close: Close,
}

impl Meter {
    /// A session begins.
    pub(crate) fn new(metrics: &Arc<Metrics>, member: Member) -> Self {
        metrics.sessions.get(member.dialect).inc();
        let badge = metrics.roster.enter(member);
        Self { metrics: metrics.clone(), badge, close: Close::CutOff }
    }

    /// A message came from the broker.
    pub(crate) fn arrived(&self, delivery: &Delivery) {
        if delivery.redelivered {
            self.metrics.redelivered.inc();
        }
        self.sent_at(delivery.properties.sent_at());
    }

    /// A message came whose producer sent it then, in unix microseconds.
    pub(super) fn sent_at(&self, sent_at: Option<u64>) {
        let Some(sent_at) = sent_at else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let took = now.checked_sub(sent_at).map(Duration::from_micros);
        let cause = match took {
            Some(took) if took <= BELIEVED_MAX => return self.metrics.send_to_delivery.observe(took),
            Some(_) => Disbelief::LongAgo,
            // Two clocks: the difference says how far they are apart and nothing of the message.
            None => Disbelief::Ahead,
        };
        self.metrics.not_believed.get_or_create(&WhyNotBelieved { cause }).inc();
    }

    /// So many messages, with so many bytes of body, are written out in full.
    pub(crate) fn delivered(&self, messages: usize, bytes: usize) {
        if messages > 0 {
            self.metrics.delivered.inc_by(messages as u64);
            self.metrics.delivered_bytes.inc_by(bytes as u64);
            self.badge.delivered(messages as u64);
        }
    }

    /// Messages are acked that arrived then. `settled` is how many of them the broker still wanted to hear of.
    pub(crate) fn acked(&self, arrived: impl IntoIterator<Item = Instant>, settled: usize, now: Instant) {
        let histogram = self.metrics.delivery_to_ack.get(self.badge.dialect);
        let mut last = None;
        for arrived in arrived {
            let took = now.saturating_duration_since(arrived);
            histogram.observe(took);
            last = Some(took);
        }
        if let Some(took) = last {
            self.metrics.acked.inc_by(settled as u64);
            self.badge.acked(settled as u64, took);
        }
    }

    /// So many messages went back to the mailbox.
    pub(crate) fn requeued(&self, cause: Requeue, messages: usize) {
        self.metrics.requeued.get_or_create(&WhyRequeued { cause }).inc_by(messages as u64);
    }

    /// So many messages were dropped or dead-lettered.
    pub(crate) fn rejected(&self, cause: Rejection, messages: usize) {
        self.metrics.rejected.get_or_create(&WhyRejected { cause }).inc_by(messages as u64);
    }

    /// What the session holds now: so many messages, the oldest of which arrived then.
    pub(crate) fn holds(&self, messages: usize, oldest: Option<Instant>) {
        self.badge.holds(messages, oldest);
    }

    /// Why the session ends, known before it has left.
    pub(crate) fn ends(&mut self, end: &End) {
        self.close = end.into();
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let code = if thread::panicking() { Close::Panicked } else { self.close };
        self.metrics.closes.get_or_create(&ByCode { code }).inc();
        self.metrics.sessions.get(self.badge.dialect).dec();
    }
}
