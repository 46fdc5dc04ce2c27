//! How the connections are, in few lines however many drop at once. Pure: it is told the time.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::policy::{End, Failure};
use crate::v1::Note;

/// What happens together is gathered so long before it is said.
const GATHER: Duration = Duration::from_millis(250);

/// The same kind of line comes at most so often.
const SAY_EVERY: Duration = Duration::from_secs(3);

/// Everyone being connected is worth a line sooner.
const SAY_FULL_EVERY: Duration = Duration::from_secs(1);

/// Causes told apart in one line; a foreign server could invent more.
const CAUSES: usize = 8;

/// A line to print.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// All is well.
    Info(String),
    /// Something to look at; it may mend itself.
    Warn(String),
    /// Will not mend itself.
    Error(String),
}

/// The state of all connections.
pub(crate) struct Status {
    total: u64,
    connected: u64,
    stopped: u64,
    said_connected: u64,
    said_full: bool,
    connected_said_at: Option<Instant>,
    dropped: Summary,
    failed: Summary,
    local: Summary,
    refused: Summary,
    noted: Summary,
    example: Option<String>,
}

impl Status {
    /// `total` instances, none connected.
    pub(crate) fn new(total: u64, now: Instant) -> Self {
        Self {
            total,
            connected: 0,
            stopped: 0,
            said_connected: 0,
            said_full: false,
            connected_said_at: Some(now),
            dropped: Summary::default(),
            failed: Summary::default(),
            local: Summary::default(),
            refused: Summary::default(),
            noted: Summary::default(),
            example: None,
        }
    }

    /// `6 of 6`, as lines say it.
    pub(crate) fn connected(&self) -> String {
        format!("{} of {}", self.connected, self.total)
    }

    /// An instance has its connection.
    pub(crate) fn on_connected(&mut self, now: Instant) -> Option<Line> {
        self.connected += 1;
        // The first time at once; one that flaps waits for its turn in `due`.
        self.full(now)
    }

    /// A connection ended; `stopped` when that is said by [`on_stopped`](Self::on_stopped).
    pub(crate) fn on_ended(&mut self, end: &End, stopped: bool, now: Instant) {
        self.connected = self.connected.saturating_sub(1);
        self.said_connected = self.said_connected.min(self.connected);
        if *end != End::Left && !stopped {
            self.dropped.add(end.to_string(), now);
        }
    }

    /// A connect failed and will be tried again.
    pub(crate) fn on_failed(&mut self, failure: &Failure, now: Instant) {
        match failure {
            Failure::Local(cause) => self.local.add(cause.to_string(), now),
            other => self.failed.add(other.to_string(), now),
        }
    }

    /// An instance that never comes back, `name` for its log name.
    pub(crate) fn on_stopped(&mut self, cause: &impl ToString, name: impl FnOnce() -> String, now: Instant) {
        self.stopped += 1;
        self.refused.add(cause.to_string(), now);
        self.example.get_or_insert_with(name);
    }

    /// The server said something that people should hear.
    pub(crate) fn on_noted(&mut self, note: &Note, now: Instant) {
        self.noted.add(note.to_string(), now);
    }

    /// The lines whose time has come.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Line> {
        self.lines(now, |summary| summary.due(now))
    }

    /// All that was gathered and not said.
    pub(crate) fn flush(&mut self, now: Instant) -> Vec<Line> {
        self.lines(now, |summary| !summary.causes.is_empty())
    }

    fn lines(&mut self, now: Instant, wanted: impl Fn(&Summary) -> bool) -> Vec<Line> {
        let mut lines = Vec::new();
        let connected = self.connected();
        if wanted(&self.local) {
            let (count, causes) = self.local.take(now);
            let text =
                format!("This machine, not the server, stopped {count} connects, {connected} connected now: {causes}");
            lines.push(Line::Warn(text));
        }
        if wanted(&self.failed) {
            let (count, causes) = self.failed.take(now);
            lines.push(Line::Warn(format!("Could not connect {count} times, {connected} connected now: {causes}")));
        }
        if wanted(&self.dropped) {
            let (count, causes) = self.dropped.take(now);
            lines.push(Line::Warn(format!("Disconnected {count}, {connected} connected now: {causes}")));
        }
        if wanted(&self.noted) {
            let (count, causes) = self.noted.take(now);
            lines.push(Line::Warn(format!("Told {count} times by the server, {connected} connected now: {causes}")));
        }
        if wanted(&self.refused) {
            let (count, causes) = self.refused.take(now);
            let (stopped, total, example) = (self.stopped, self.total, self.example.take().unwrap_or_default());
            let text = format!("Stopped {count} for good ({stopped} of {total}), {example} first: {causes}");
            lines.push(Line::Error(text));
        }
        lines.extend(self.full(now).or_else(|| self.progress(now)));
        lines
    }

    fn full(&mut self, now: Instant) -> Option<Line> {
        let news = self.connected == self.total && self.said_connected < self.total;
        if !news || (self.said_full && !self.quiet_for(SAY_FULL_EVERY, now)) {
            return None;
        }
        self.said_full = true;
        Some(self.say_connected(now))
    }

    fn progress(&mut self, now: Instant) -> Option<Line> {
        let news = self.connected > self.said_connected && self.connected < self.total;
        (news && self.quiet_for(SAY_EVERY, now)).then(|| self.say_connected(now))
    }

    fn say_connected(&mut self, now: Instant) -> Line {
        self.said_connected = self.connected;
        self.connected_said_at = Some(now);
        Line::Info(format!("Connected {}", self.connected()))
    }

    fn quiet_for(&self, time: Duration, now: Instant) -> bool {
        self.connected_said_at.is_none_or(|at| now.saturating_duration_since(at) >= time)
    }
}

/// The same thing happening to many.
#[derive(Default)]
struct Summary {
    causes: BTreeMap<String, u64>,
    since: Option<Instant>,
    said_at: Option<Instant>,
}

impl Summary {
    fn add(&mut self, cause: String, now: Instant) {
        let known = self.causes.contains_key(&cause) || self.causes.len() < CAUSES;
        let cause = if known { cause } else { "other causes".to_owned() };
        *self.causes.entry(cause).or_default() += 1;
        self.since.get_or_insert(now);
    }

    fn due(&self, now: Instant) -> bool {
        let past = |since: Instant, time| now.saturating_duration_since(since) >= time;
        self.since.is_some_and(|since| past(since, GATHER)) && self.said_at.is_none_or(|at| past(at, SAY_EVERY))
    }

    /// How many there were, and what of, the most frequent first.
    fn take(&mut self, now: Instant) -> (u64, String) {
        self.since = None;
        self.said_at = Some(now);
        let mut causes: Vec<_> = std::mem::take(&mut self.causes).into_iter().collect();
        causes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let texts: Vec<_> = causes.iter().map(|(cause, count)| format!("{count} × {cause}")).collect();
        (causes.iter().map(|(_, count)| count).sum(), texts.join(", "))
    }
}

#[cfg(test)]
mod tests;
