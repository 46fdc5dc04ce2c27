//! Waiting for a state that has no event.

use std::fmt::Debug;
use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long anything may take that should happen at once. Long, since machines are noisy, and paid only by a test that
/// fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two looks, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// Looks until `holds` likes what `probe` sees and returns that; after `deadline` it fails, saying `what` was awaited and
/// what was seen last. It looks at least twice, the last time after the deadline, so that a slow probe decides nothing.
#[track_caller]
pub fn wait_until<T: Debug>(
    deadline: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> T,
    mut holds: impl FnMut(&T) -> bool,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let ends = Instant::now() + deadline;
        let mut pause = PAUSES.0;
        loop {
            let late = Instant::now() >= ends;
            let seen = probe().await;
            if holds(&seen) {
                return seen;
            }
            assert!(!late, "{caller}: not within {deadline:?}: {what}; seen last: {seen:?}");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// The output of a future that should be ready soon; after `deadline` it fails, saying `what` did not happen.
#[track_caller]
pub fn within<T>(deadline: Duration, what: &str, future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        match tokio::time::timeout(deadline, future).await {
            Ok(output) => output,
            Err(_) => panic!("{caller}: not within {deadline:?}: {what}"),
        }
    }
}
