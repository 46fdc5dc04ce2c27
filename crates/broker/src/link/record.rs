//! What a link has been through, in numbers and in the log.

use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

/// How often the same trouble is said again, and a block that lasts.
pub(super) const SAY_AGAIN: Duration = Duration::from_secs(30);

/// What a link has been through.
#[derive(Debug)]
pub(super) struct Record {
    connects: u64,
    /// Since when there is no connection.
    down_since: Option<Instant>,
    /// Without the one that lasts.
    outages: Duration,
}

impl Record {
    /// Of a link that has no connection yet.
    pub(super) fn new() -> Self {
        Self { connects: 0, down_since: Some(Instant::now()), outages: Duration::ZERO }
    }

    pub(super) fn up(&mut self) {
        self.connects += 1;
        self.outages += self.down_since.take().map_or(Duration::ZERO, |since| since.elapsed());
    }

    pub(super) fn down(&mut self) {
        self.down_since = Some(Instant::now());
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.connects.saturating_sub(1)
    }

    pub(super) fn outages(&self) -> Duration {
        self.outages + self.down_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Says the same thing once, and again every so often while it lasts.
#[derive(Default)]
pub(super) struct Trouble {
    said: Option<(String, Instant)>,
}

impl Trouble {
    pub(super) fn say(&mut self, what: &str) {
        if self.said.as_ref().is_some_and(|(said, at)| said == what && at.elapsed() < SAY_AGAIN) {
            return;
        }
        warn!("{what}");
        self.said = Some((what.to_owned(), Instant::now()));
    }

    pub(super) fn over(&mut self) {
        self.said = None;
    }
}
