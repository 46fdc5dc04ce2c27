//! When a new token is sent on the live connection. Pure: it is told the time and the dice.

use std::time::Duration;

use tokio::time::Instant;

/// Of the token's remaining life, at which a new one is sent: 80 % and, so that ten thousand connections of one moment
/// do not ask in one moment, up to 5 % before or after.
const AT: f64 = 0.75;
const JITTER: f64 = 0.1;

/// Tries for one token. With a third of the remaining time before each next one they reach close to its end.
const TRIES: u32 = 8;

/// The shortest pause before the next try.
const RETRY_MIN: Duration = Duration::from_millis(500);

/// `exp` counts whole seconds, and a refresh needs a later one: a token minted sooner would have the same.
const EXP_STEP: Duration = Duration::from_millis(1_010);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// For the time of the next try.
    Waiting(Instant),
    /// Sent; an answer is due by then.
    Asked(Instant),
    /// No try is left; the session ends with its token, and the next connection brings a new one.
    GivenUp,
}

/// The schedule of one session.
#[derive(Debug)]
pub(crate) struct Refresh {
    /// Life of a new token.
    ttl: Duration,
    answer_timeout: Duration,
    expires_at: Instant,
    state: State,
    failed: u32,
}

impl Refresh {
    /// For a token that is good for `left`. `dice` is uniform in [0, 1), here and below.
    pub(crate) fn new(now: Instant, left: Duration, ttl: Duration, answer_timeout: Duration, dice: f64) -> Self {
        let ttl = Duration::from_secs(ttl.as_secs());
        let mut refresh = Self { ttl, answer_timeout, expires_at: now, state: State::GivenUp, failed: 0 };
        refresh.refreshed(now, left, dice);
        refresh
    }

    /// The session now has a token that is good for `left`.
    pub(crate) fn refreshed(&mut self, now: Instant, left: Duration, dice: f64) {
        self.expires_at = now + left;
        self.failed = 0;
        self.state = State::Waiting(self.not_before(now + left.mul_f64(AT + JITTER * dice)));
    }

    /// The server says that the time is nearly over: now, if nothing is under way.
    pub(crate) fn expiring(&mut self, now: Instant) {
        if let State::Waiting(at) = self.state {
            self.state = State::Waiting(at.min(self.not_before(now)));
        }
    }

    /// When there will be something to do.
    pub(crate) fn wake(&self) -> Option<Instant> {
        match self.state {
            State::Waiting(at) | State::Asked(at) => Some(at),
            State::GivenUp => None,
        }
    }

    /// Whether a token is to be sent now; if so, it counts as sent.
    pub(crate) fn ask(&mut self, now: Instant) -> bool {
        let due = matches!(self.state, State::Waiting(at) if at <= now);
        if due {
            self.state = State::Asked(now + self.answer_timeout);
        }
        due
    }

    /// Whether the answer is late. If so, that try has failed.
    pub(crate) fn is_late(&mut self, now: Instant, dice: f64) -> bool {
        let late = matches!(self.state, State::Asked(by) if by <= now);
        if late {
            self.refused(now, dice);
        }
        late
    }

    /// The try has failed. Says whether there will be another.
    pub(crate) fn refused(&mut self, now: Instant, dice: f64) -> bool {
        if !matches!(self.state, State::Asked(_)) {
            return self.state != State::GivenUp;
        }
        self.failed += 1;
        self.state = if self.failed < TRIES {
            let third = self.expires_at.saturating_duration_since(now).div_f64(3.0);
            State::Waiting(self.not_before(now + third.max(RETRY_MIN).mul_f64(0.75 + 0.5 * dice)))
        } else {
            State::GivenUp
        };
        self.state != State::GivenUp
    }

    fn not_before(&self, at: Instant) -> Instant {
        let step = self.expires_at + EXP_STEP;
        // Only a life beyond the clock's own range has no start.
        step.checked_sub(self.ttl).map_or(at, |earliest| at.max(earliest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const ANSWER: Duration = Duration::from_secs(10);

    fn hour(now: Instant, dice: f64) -> Refresh {
        Refresh::new(now, 3_600 * S, 3_600 * S, ANSWER, dice)
    }

    #[test]
    fn it_asks_at_some_eighty_percent_of_the_life() {
        let now = Instant::now();
        for (dice, at) in [(0.0, 2_700), (0.5, 2_880), (1.0, 3_060)] {
            let wake = hour(now, dice).wake().unwrap();
            assert!(wake.duration_since(now + at * S) < S / 10, "{dice}");
        }
        let mut refresh = hour(now, 0.5);
        assert!(!refresh.ask(now + 2_879 * S));
        assert!(refresh.ask(now + 2_881 * S));
        assert!(!refresh.ask(now + 2_881 * S), "once");
        refresh.refreshed(now + 2_881 * S, 3_600 * S, 0.5);
        assert_eq!(refresh.wake(), Some(now + 2_881 * S + (3_600 * S).mul_f64(0.8)), "and again for the new one");
    }

    #[test]
    fn a_new_token_expires_later_than_the_old_one_in_whole_seconds() {
        let now = Instant::now();
        // Minted at .9 of a second: `exp` is 1.1 s away, and one minted 0.88 s later would share it if it were sooner.
        let refresh = Refresh::new(now, S * 11 / 10, 2 * S, ANSWER, 0.5);
        assert!(refresh.wake().unwrap() >= now + S / 10);
        let refresh = Refresh::new(now, S / 10, S, ANSWER, 0.5);
        assert!(refresh.wake().unwrap() >= now + S / 10 + S / 100, "beyond 80 %, within the proxy's leeway");
        let mut refresh = Refresh::new(now, S * 19 / 10, 2 * S, ANSWER, 0.5);
        refresh.expiring(now);
        assert!(refresh.wake().unwrap() >= now + S * 9 / 10, "not even when the server presses");
    }

    #[test]
    fn expiring_asks_at_once_unless_something_is_under_way() {
        let now = Instant::now();
        let mut refresh = hour(now, 0.5);
        let soon = now + 60 * S;
        refresh.expiring(soon);
        assert!(refresh.ask(soon));
        refresh.expiring(soon);
        assert!(!refresh.ask(soon), "the answer is awaited");
        assert_eq!(refresh.wake(), Some(soon + ANSWER));
    }

    #[test]
    fn a_refusal_is_tried_again_until_close_to_the_end_and_no_more_than_eight_times() {
        let now = Instant::now();
        let mut refresh = hour(now, 0.5);
        let mut tries = 0;
        let mut last = now;
        while let Some(at) = refresh.wake() {
            assert!(refresh.ask(at) && at > last);
            (tries, last) = (tries + 1, at);
            assert_eq!(refresh.refused(at, 0.5), tries < TRIES);
        }
        assert_eq!(tries, TRIES);
        let left = (now + 3_600 * S).duration_since(last);
        assert!(left < 60 * S, "{left:?} before the end");
        refresh.expiring(last);
        assert!(!refresh.ask(last + 10 * S), "given up");
        assert!(!refresh.refused(last, 0.5));
    }

    #[test]
    fn no_answer_is_a_failed_try() {
        let now = Instant::now();
        let mut refresh = hour(now, 0.5);
        let asked_at = refresh.wake().unwrap();
        assert!(refresh.ask(asked_at));
        assert!(!refresh.is_late(asked_at + ANSWER - S, 0.5));
        assert!(refresh.is_late(asked_at + ANSWER, 0.5));
        assert!(!refresh.is_late(asked_at + ANSWER, 0.5), "said once");
        assert!(refresh.wake().unwrap() > asked_at + ANSWER);
    }

    #[test]
    fn a_stray_refusal_changes_nothing() {
        let now = Instant::now();
        let mut refresh = hour(now, 0.5);
        let wake = refresh.wake();
        for _ in 0..20 {
            assert!(refresh.refused(now, 0.5));
        }
        assert_eq!(refresh.wake(), wake);
    }

    #[test]
    fn lives_without_end_and_without_time_are_fine() {
        let now = Instant::now();
        let ten_years = Duration::from_secs(10 * 365 * 86_400);
        assert!(Refresh::new(now, ten_years, ten_years, ANSWER, 0.9).wake().is_some());
        assert!(Refresh::new(now, Duration::ZERO, Duration::ZERO, ANSWER, 0.0).wake().is_some());
    }
}
