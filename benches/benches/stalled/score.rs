//! What arrived, and when.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bench::histogram::Histogram;
use tokio::sync::Notify;

/// Shared by all clients that read, and by who publishes.
#[derive(Clone, Default)]
pub(crate) struct Score(Arc<Inner>);

#[derive(Default)]
struct Inner {
    received: AtomicU64,
    arrival: Notify,
    counted: Mutex<Counted>,
}

/// Latencies of messages that were sent in this time, in unix µs.
#[derive(Default)]
struct Counted {
    sent_within: Range<u64>,
    latencies: Histogram,
}

impl Score {
    /// A message arrived.
    pub(crate) fn arrived(&self, sent_at: u64) {
        let latency = unix_micros().saturating_sub(sent_at);
        let mut counted = self.counted();
        if counted.sent_within.contains(&sent_at) {
            counted.latencies.note(latency);
        }
        drop(counted);
        self.0.received.fetch_add(1, Ordering::Relaxed);
        self.0.arrival.notify_one();
    }

    /// How many have arrived.
    pub(crate) fn received(&self) -> u64 {
        self.0.received.load(Ordering::Relaxed)
    }

    /// Waits for the next to arrive, or returns at once when one has since the last call.
    pub(crate) async fn arrival(&self) {
        self.0.arrival.notified().await;
    }

    /// Counts from now on, and forgets what was counted before.
    pub(crate) fn count(&self) {
        *self.counted() = Counted { sent_within: unix_micros()..u64::MAX, latencies: Histogram::default() };
    }

    /// Messages that are sent from now on do not count; those that are under way do.
    pub(crate) fn count_no_more(&self) {
        self.counted().sent_within.end = unix_micros();
    }

    /// What was counted.
    pub(crate) fn latencies(&self) -> Histogram {
        self.counted().latencies.clone()
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.0.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Now, in µs since 1970: publisher and clients are one process, so it is one clock.
pub(crate) fn unix_micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    u64::try_from(now.as_micros()).expect("the clock is before the end of time")
}
