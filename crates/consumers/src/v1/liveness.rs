//! Whether the link is alive: when nothing was heard for too long, a ping asks. Pure: it is told the time.

use std::time::Duration;

use tokio::time::Instant;

/// A server that pings more often than this is not asked more often.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Anything that is heard is an answer: a link that brings messages is alive.
#[derive(Debug)]
pub(crate) struct Liveness {
    ask_after: Option<Duration>,
    answer_timeout: Duration,
    heard_at: Instant,
    answer_by: Option<Instant>,
}

impl Liveness {
    /// Asks after one and a half of the server's ping intervals (s), and after `idle_timeout` at the latest. Without
    /// either it never asks.
    pub(crate) fn new(
        now: Instant,
        ping_interval: f64,
        idle_timeout: Option<Duration>,
        answer_timeout: Duration,
    ) -> Self {
        // A server that says 0, less or nonsense sends no pings.
        let interval = Duration::try_from_secs_f64(ping_interval * 1.5).ok().filter(|interval| !interval.is_zero());
        let interval = interval.map(|interval| interval.max(INTERVAL_MIN));
        let ask_after = interval.into_iter().chain(idle_timeout).min();
        Self { ask_after, answer_timeout, heard_at: now, answer_by: None }
    }

    /// Something came.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard_at = now;
        self.answer_by = None;
    }

    /// When there will be something to do.
    pub(crate) fn wake(&self) -> Option<Instant> {
        self.answer_by.or_else(|| self.ask_at())
    }

    /// Whether a ping is to be sent now; if so, it counts as sent.
    pub(crate) fn ask(&mut self, now: Instant) -> bool {
        let due = self.answer_by.is_none() && self.ask_at().is_some_and(|at| at <= now);
        if due {
            self.answer_by = Some(now + self.answer_timeout);
        }
        due
    }

    /// Whether the answer is late, and the link dead.
    pub(crate) fn is_dead(&self, now: Instant) -> bool {
        self.answer_by.is_some_and(|by| by <= now)
    }

    /// `None` also for a time beyond the clock's range.
    fn ask_at(&self) -> Option<Instant> {
        self.heard_at.checked_add(self.ask_after?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn silence_beyond_the_servers_pings_is_asked_about_and_then_dead() {
        let now = Instant::now();
        let mut link = Liveness::new(now, 20.0, Some(60 * S), 10 * S);
        link.heard(now + 5 * S);
        assert!(!link.ask(now + 34 * S));
        assert!(link.ask(now + 35 * S));
        assert!(!link.ask(now + 36 * S), "one ping at a time");
        assert!(!link.is_dead(now + 44 * S));
        assert!(link.is_dead(now + 45 * S));
        link.heard(now + 45 * S);
        assert!(!link.is_dead(now + 46 * S), "whatever came, it is an answer");
        assert_eq!(link.wake(), Some(now + 75 * S));
    }

    #[test]
    fn odd_intervals_of_a_server_do_no_harm() {
        let now = Instant::now();
        for (interval, idle, ask_after) in [
            (25.0, Some(5 * S), Some(5 * S)),
            (0.0, Some(60 * S), Some(60 * S)),
            (0.0, None, None),
            (-1.0, None, None),
            (f64::NAN, None, None),
            (1e300, None, None),
            (1e-9, None, Some(INTERVAL_MIN)),
        ] {
            assert_eq!(Liveness::new(now, interval, idle, S).ask_after, ask_after, "{interval}");
        }
        assert_eq!(Liveness::new(now, 1e19, None, S).wake(), None, "longer than the clock goes");
    }
}
