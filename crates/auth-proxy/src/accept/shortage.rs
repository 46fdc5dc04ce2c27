//! When accepting fails: usually the process or the system is out of descriptors.

use std::io;
use std::time::Duration;

use tokio::time::Instant;

/// The first pause. A closing session gives its descriptor back within milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause, and with it the longest a client waits once there is room again.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A shortage that comes and goes is said once in this time.
const SAID_FOR: Duration = Duration::from_secs(30);

/// Paces an accept loop whose accept fails.
///
/// The connection stays in the kernel's queue and the listener stays readable, so accepting again at once would only
/// burn a core that the sessions need to end and give descriptors back.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    paused_until: Option<Instant>,
    last_pause: Option<Duration>,
    said_at: Option<Instant>,
}

impl Shortage {
    /// Whether accepting has to wait.
    pub(super) fn pauses(&self) -> bool {
        self.paused_until.is_some()
    }

    /// The end of the pause.
    pub(super) fn until(&self) -> Instant {
        self.paused_until.unwrap_or_else(Instant::now)
    }

    /// The pause is over; accepting is tried again.
    pub(super) fn pause_over(&mut self) {
        self.paused_until = None;
    }

    /// Accepting works.
    pub(super) fn accepted(&mut self) {
        self.last_pause = None;
    }

    /// Accepting failed. Starts a pause unless the failure is the one connection's alone.
    pub(super) fn failed(&mut self, error: &io::Error, now: Instant) {
        if is_of_one_connection(error) {
            tracing::debug!("a connection broke before it was accepted: {error}");
            return;
        }
        // No full jitter as for reconnects: there is nobody to keep out of step with, and a pause of nothing is none.
        let pause = self.last_pause.map_or(FIRST_PAUSE, |last| (last * 2).min(PAUSE_MAX));
        self.last_pause = Some(pause);
        self.paused_until = Some(now + pause);
        if self.said_at.is_none_or(|said| now.duration_since(said) >= SAID_FOR) {
            self.said_at = Some(now);
            tracing::warn!(
                "cannot accept connections for the moment: {error}; raise the limit of open files (ulimit -n)"
            );
        }
    }
}

/// Errors that `accept` passes on from the connection itself (Linux, accept(2)); the next one may be fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, NetworkDown,
        NetworkUnreachable, PermissionDenied, TimedOut,
    };
    matches!(
        error.kind(),
        ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | Interrupted
            | NetworkDown
            | NetworkUnreachable
            | PermissionDenied
            | TimedOut
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EMFILE on every system that has it.
    fn out_of_descriptors() -> io::Error {
        io::Error::from_raw_os_error(24)
    }

    #[test]
    fn pauses_grow_to_a_cap_and_start_over_after_a_success() {
        let mut shortage = Shortage::default();
        let now = Instant::now();
        assert!(!shortage.pauses());
        let mut pauses = Vec::new();
        for _ in 0..10 {
            shortage.failed(&out_of_descriptors(), now);
            assert!(shortage.pauses());
            pauses.push(shortage.until() - now);
            shortage.pause_over();
            assert!(!shortage.pauses());
        }
        assert_eq!(pauses[..4], [10, 20, 40, 80].map(Duration::from_millis));
        assert_eq!(pauses[9], PAUSE_MAX);
        shortage.accepted();
        shortage.failed(&out_of_descriptors(), now);
        assert_eq!(shortage.until() - now, FIRST_PAUSE);
    }

    #[test]
    fn a_shortage_is_said_once_in_a_while() {
        let mut shortage = Shortage::default();
        let start = Instant::now();
        let mut said = Vec::new();
        for second in 0..100 {
            shortage.failed(&out_of_descriptors(), start + Duration::from_secs(second));
            shortage.accepted();
            said.extend(shortage.said_at);
            said.dedup();
        }
        assert_eq!(said.len(), 4, "at 0, 30, 60 and 90 s");
    }

    #[test]
    fn a_connection_that_broke_pauses_nobody() {
        let mut shortage = Shortage::default();
        shortage.failed(&io::Error::from(io::ErrorKind::ConnectionAborted), Instant::now());
        assert!(!shortage.pauses());
    }
}
