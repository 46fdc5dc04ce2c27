//! How long to wait before the next try.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use rand::RngExt as _;

/// Exponential backoff with full jitter: the n-th wait is uniform in `[0, min(cap, first · 2ⁿ)]`.
///
/// Full jitter spreads ten thousand clients that lost the same server over the whole interval, where
/// a jitter on top of the delay (backon's own) leaves them a common minimum.
#[derive(Debug)]
pub struct Backoff {
    series: ExponentialBuilder,
    ceilings: ExponentialBackoff,
    cap: Duration,
}

impl Backoff {
    /// Starts with `first` as the longest wait, and never waits longer than `cap`.
    pub fn new(first: Duration, cap: Duration) -> Self {
        let series = ExponentialBuilder::new().with_min_delay(first.min(cap)).with_max_delay(cap).without_max_times();
        Self { series, ceilings: series.build(), cap }
    }

    /// The next wait.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so it is no iterator")]
    pub fn next(&mut self) -> Duration {
        let ceiling = self.ceilings.next().unwrap_or(self.cap);
        ceiling.mul_f64(rand::rng().random_range(0.0..=1.0))
    }

    /// After a success: the next wait is a first one again.
    pub fn reset(&mut self) {
        self.ceilings = self.series.build();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(500);
    const CAP: Duration = Duration::from_secs(5);

    #[test]
    fn waits_stay_below_the_doubling_ceiling_and_the_cap() {
        for _ in 0..100 {
            let mut backoff = Backoff::new(FIRST, CAP);
            for n in 0..40 {
                let ceiling = FIRST.saturating_mul(1 << n.min(16)).min(CAP);
                assert!(backoff.next() <= ceiling);
            }
        }
    }

    #[test]
    fn jitter_uses_the_whole_interval() {
        let mut backoff = Backoff::new(CAP, CAP);
        let waits: Vec<_> = (0..1_000).map(|_| backoff.next()).collect();
        assert!(waits.iter().any(|wait| *wait < CAP / 10));
        assert!(waits.iter().any(|wait| *wait > CAP * 9 / 10));
    }

    #[test]
    fn reset_starts_over() {
        let mut backoff = Backoff::new(FIRST, CAP);
        for _ in 0..20 {
            backoff.next();
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }

    #[test]
    fn a_first_wait_above_the_cap_is_capped() {
        let mut backoff = Backoff::new(CAP, FIRST);
        for _ in 0..100 {
            assert!(backoff.next() <= FIRST);
        }
    }
}
