//! How long messages were on their way, over all instances. Bounded: counts in buckets, no samples.
//!
//! A message that arrives before it was sent shows that the clocks of its producer and of this machine differ. It is
//! counted and said, and is in no percentile: taken for 0 it would make the rest look better than it was.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Each power of two is cut into so many buckets, so that a percentile is at most 1/16 too high.
const STEPS: u64 = 16;
const STEP_BITS: u32 = STEPS.ilog2();

/// Up to 2^40 µs, twelve days. What waited longer in its mailbox is in the last bucket, and the maximum is exact.
const BUCKETS: usize = 608;

/// Counts of latencies in µs. Recording takes no lock.
pub(crate) struct Latencies {
    buckets: Box<[AtomicU64]>,
    max: AtomicU64,
    early: AtomicU64,
    earliest: AtomicU64,
}

impl Default for Latencies {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        let buckets = std::iter::repeat_with(zero).take(BUCKETS).collect();
        Self { buckets, max: zero(), early: zero(), earliest: zero() }
    }
}

impl Latencies {
    /// Enters a message that arrives now and was sent at `sent_at` (unix µs).
    pub(crate) fn record_now(&self, sent_at: u64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        self.record(sent_at, u64::try_from(now).unwrap_or(u64::MAX));
    }

    fn record(&self, sent_at: u64, now: u64) {
        let Some(latency) = now.checked_sub(sent_at) else {
            self.early.fetch_add(1, Ordering::Relaxed);
            self.earliest.fetch_max(sent_at - now, Ordering::Relaxed);
            return;
        };
        if let Some(bucket) = self.buckets.get(index(latency)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.max.fetch_max(latency, Ordering::Relaxed);
    }

    /// What is said at the end; nothing when no message carried its time.
    pub(crate) fn lines(&self) -> Vec<String> {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let max = self.max.load(Ordering::Relaxed);
        let mut lines = Vec::new();
        if total > 0 {
            let at = |percent: f64| Millis(quantile(&counts, total, percent).min(max));
            lines.push(format!(
                "Latency of {total} first arrivals: p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
                at(50.0),
                at(90.0),
                at(99.0),
                at(99.9),
                Millis(max)
            ));
        }
        let early = self.early.load(Ordering::Relaxed);
        if early > 0 {
            let by = Millis(self.earliest.load(Ordering::Relaxed));
            lines.push(format!(
                "{early} messages arrived before they were sent, by up to {by}: the clocks of their producers and of \
                 this machine differ. They are not among the latencies, and the others are off by as much"
            ));
        }
        lines
    }
}

/// The bucket of a latency.
fn index(micros: u64) -> usize {
    let index = match micros.checked_ilog2() {
        Some(power) if power >= STEP_BITS => {
            u64::from(power - STEP_BITS + 1) * STEPS + (micros >> (power - STEP_BITS)) % STEPS
        }
        _ => micros,
    };
    usize::try_from(index).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// The largest latency of a bucket.
fn upper(index: usize) -> u64 {
    let index = index as u64;
    match u32::try_from(index / STEPS) {
        Ok(power) if power > 0 => ((STEPS + index % STEPS + 1) << (power - 1)) - 1,
        _ => index,
    }
}

fn quantile(counts: &[u64], total: u64, percent: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a count times at most 1; off by one above 2^53 messages"
    )]
    let rank = (total as f64 * percent / 100.0).ceil() as u64;
    let mut below = 0;
    for (index, count) in counts.iter().enumerate() {
        below += count;
        if below >= rank.max(1) {
            return upper(index);
        }
    }
    u64::MAX
}

/// µs as `12.3 ms`.
struct Millis(u64);

impl std::fmt::Display for Millis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tenths = self.0.saturating_add(50) / 100;
        write!(f, "{}.{} ms", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_are_at_most_a_sixteenth_too_high_and_the_maximum_is_exact() {
        let latencies = Latencies::default();
        for latency in 1..=1_000 {
            latencies.record(1_000_000, 1_000_000 + latency * 1_000);
        }
        assert_eq!(
            latencies.lines(),
            [
                "Latency of 1000 first arrivals: p50 507.9 ms, p90 917.5 ms, p99 1000.0 ms, p99.9 1000.0 ms, max 1000.0 ms"
            ]
        );
    }

    #[test]
    fn a_message_from_the_future_is_said_and_never_taken_for_a_fast_one() {
        let latencies = Latencies::default();
        latencies.record(5_000, 2_000);
        latencies.record(5_000, 4_999);
        let lines = latencies.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("2 messages arrived before they were sent, by up to 3.0 ms: the clocks"));
        latencies.record(5_000, 105_000);
        assert_eq!(
            latencies.lines()[0],
            "Latency of 1 first arrivals: p50 100.0 ms, p90 100.0 ms, p99 100.0 ms, p99.9 100.0 ms, max 100.0 ms"
        );
    }

    #[test]
    fn without_times_nothing_is_said() {
        assert!(Latencies::default().lines().is_empty());
    }

    proptest! {
        #[test]
        fn a_bucket_holds_its_latencies(micros in 0_u64..1 << 40) {
            let upper = upper(index(micros));
            prop_assert!(micros <= upper && upper <= micros + micros / STEPS, "{} in a bucket up to {}", micros, upper);
        }

        #[test]
        fn no_latency_is_beyond_the_buckets(sent_at: u64, now: u64) {
            let latencies = Latencies::default();
            latencies.record(sent_at, now);
            prop_assert_eq!(latencies.lines().len(), 1);
        }
    }
}
