//! Is the peer there, and does it read? Pure: the caller brings the time.
//!
//! Two deadlines, one at a time. While a flush waits for the socket, what counts is that the socket takes bytes: a phone
//! at 20 KiB/s is slow, not dead, and its pong stands in line behind its data. While nothing waits, what counts is an
//! answer to the ping; whatever the peer says is one, so that a client busy with acks is not taken for a dead one.

use std::time::Duration;

use tokio::time::Instant;

/// The periods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Periods {
    pub(crate) ping_interval: Duration,
    pub(crate) pong_timeout: Duration,
    pub(crate) write_timeout: Duration,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Ping,
    NoPong,
    DoesNotRead,
    /// Known to the session alone: see [`Outbox::silent_since`](crate::outbox::Outbox::silent_since).
    NoAck,
}

#[derive(Debug)]
pub(crate) struct Liveness {
    periods: Periods,
    next_ping: Instant,
    /// A ping is fed and waits for its flush; only then does the pong's time run.
    ping_in_line: bool,
    pong_by: Option<Instant>,
    /// Something waits for the socket: until when it has to take a byte.
    write_by: Option<Instant>,
}

impl Liveness {
    /// `offset`, a random part of the ping interval, keeps ten thousand sessions from pinging together.
    pub(crate) fn new(periods: Periods, now: Instant, offset: Duration) -> Self {
        let next_ping = now + offset;
        Self { periods, next_ping, ping_in_line: false, pong_by: None, write_by: None }
    }

    /// When to ask [`Self::due`] next.
    pub(crate) fn wake_at(&self) -> Instant {
        [self.pong_by, self.write_by].into_iter().flatten().fold(self.next_ping, Instant::min)
    }

    /// Something waits for a flush.
    pub(crate) fn fed(&mut self, now: Instant) {
        self.write_by.get_or_insert(now + self.periods.write_timeout);
    }

    /// A ping was fed.
    pub(crate) fn pinged(&mut self) {
        self.ping_in_line = true;
    }

    /// Nothing waits any more.
    pub(crate) fn flushed(&mut self, now: Instant) {
        self.write_by = None;
        if std::mem::take(&mut self.ping_in_line) {
            self.pong_by = Some(now + self.periods.pong_timeout);
        }
    }

    /// The peer said something.
    pub(crate) fn heard(&mut self) {
        self.pong_by = None;
    }

    /// What is due at `now`, when the socket last took a byte at `took_at`.
    pub(crate) fn due(&mut self, now: Instant, took_at: Instant) -> Option<Due> {
        if let Some(by) = self.write_by.filter(|by| *by <= now) {
            let by = by.max(took_at + self.periods.write_timeout);
            if by <= now {
                return Some(Due::DoesNotRead);
            }
            self.write_by = Some(by);
        }
        if self.pong_by.is_some_and(|by| by <= now) {
            if self.write_by.is_none() {
                return Some(Due::NoPong);
            }
            self.pong_by = Some(now + self.periods.pong_timeout);
        }
        if self.next_ping <= now {
            self.next_ping = now + self.periods.ping_interval;
            // One question at a time.
            return (!self.ping_in_line && self.pong_by.is_none()).then_some(Due::Ping);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const PERIODS: Periods = Periods {
        ping_interval: Duration::from_secs(25),
        pong_timeout: Duration::from_secs(10),
        write_timeout: Duration::from_secs(30),
    };

    fn start() -> (Liveness, Instant) {
        let now = Instant::now();
        (Liveness::new(PERIODS, now, 5 * S), now)
    }

    /// Pings at 5 s and flushes the ping at once.
    fn pinged() -> (Liveness, Instant) {
        let (mut liveness, now) = start();
        assert_eq!(liveness.due(now + 5 * S, now), Some(Due::Ping));
        liveness.pinged();
        liveness.fed(now + 5 * S);
        liveness.flushed(now + 5 * S);
        (liveness, now)
    }

    #[test]
    fn a_peer_that_does_not_answer_is_dead_after_the_pong_time() {
        let (mut liveness, now) = pinged();
        assert_eq!(liveness.wake_at(), now + 15 * S);
        assert_eq!(liveness.due(now + 14 * S, now), None);
        assert_eq!(liveness.due(now + 15 * S, now), Some(Due::NoPong));
    }

    #[test]
    fn any_word_is_an_answer() {
        let (mut liveness, now) = pinged();
        liveness.heard();
        assert_eq!(liveness.due(now + 15 * S, now), None);
        assert_eq!(liveness.due(now + 30 * S, now), Some(Due::Ping));
    }

    #[test]
    fn a_peer_whose_socket_takes_nothing_does_not_read() {
        let (mut liveness, now) = start();
        liveness.fed(now);
        liveness.fed(now + 10 * S);
        assert_eq!(liveness.due(now + 29 * S, now), Some(Due::Ping));
        assert_eq!(liveness.due(now + 30 * S, now), Some(Due::DoesNotRead), "from the first byte that waits");
    }

    #[test]
    fn the_write_time_runs_from_the_last_byte_taken() {
        let (mut liveness, now) = start();
        liveness.fed(now);
        assert_eq!(liveness.due(now + 26 * S, now), Some(Due::Ping));
        assert_eq!(liveness.due(now + 30 * S, now + 20 * S), None);
        assert_eq!(liveness.wake_at(), now + 50 * S);
        assert_eq!(liveness.due(now + 50 * S, now + 20 * S), Some(Due::DoesNotRead));
    }

    #[test]
    fn a_slow_peer_is_not_dead_while_its_socket_takes_bytes() {
        let (mut liveness, now) = pinged();
        liveness.fed(now + 6 * S);
        for second in 7..300 {
            let due = liveness.due(now + second * S, now + second * S);
            assert!(!matches!(due, Some(Due::NoPong | Due::DoesNotRead)), "{second}: {due:?}");
        }
        liveness.flushed(now + 300 * S);
        assert_eq!(
            liveness.due(now + 320 * S, now + 300 * S),
            Some(Due::NoPong),
            "once nothing waits, the pong is due"
        );
    }

    #[test]
    fn a_ping_behind_data_runs_its_time_from_the_flush() {
        let (mut liveness, now) = start();
        liveness.fed(now);
        assert_eq!(liveness.due(now + 5 * S, now), Some(Due::Ping));
        liveness.pinged();
        liveness.flushed(now + 20 * S);
        assert_eq!(liveness.due(now + 29 * S, now), None);
        assert_eq!(liveness.due(now + 30 * S, now), Some(Due::NoPong));
    }
}
