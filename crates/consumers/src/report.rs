//! What is said at the end, and whether all was well.

use std::fmt;

use crate::args::Protocol;
use crate::tally::Counts;
use crate::v1::Counts as SessionCounts;
use crate::world::Outcome;

/// Instances whose gaps are listed one by one; the sums cover all.
const EXAMPLES: usize = 10;

/// The sum of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Over all instances and producer runs.
    pub counts: Counts,
    /// Of the sessions of v1, `None` in raw.
    pub v1: Option<SessionCounts>,
    /// Bodies that were no hello of a producer.
    pub other: u64,
    /// Instances that were refused or told to stay away.
    pub stopped: u64,
    /// Instances, not among the stopped, that never got a connection.
    pub never_connected: u64,
    /// Instances whose counts are lost: their task panicked or did not end in time.
    pub lost: u64,
}

impl Totals {
    /// Whether the program may exit with 0: every instance was connected and stayed wanted, no server broke the
    /// contract, and nothing is missing, duplicated, or beyond what could be judged. What came again for a good reason
    /// is no flaw.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let Counts { missing, duplicated, unjudged, .. } = self.counts;
        let bad_frames = self.v1.map_or(0, |v1| v1.bad_frames);
        [missing, duplicated, unjudged, bad_frames, self.stopped, self.never_connected, self.lost] == [0; 7]
    }
}

/// The report's last line.
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { received, missing, duplicated, out_of_order, redelivered, republished, .. } = self.counts;
        write!(
            f,
            "Totals: received {received}, missing {missing}, duplicated {duplicated}, out of order {out_of_order}"
        )?;
        if self.v1.is_some() {
            write!(f, ", redelivered {redelivered}, republished {republished}")?;
        }
        Ok(())
    }
}

/// Gathers the outcomes of all instances.
pub(crate) struct Report {
    totals: Totals,
    instances: u64,
    opened: u64,
    dropped: u64,
    failed: u64,
    local: u64,
    gaps: Vec<String>,
    more_gaps: u64,
}

impl Report {
    /// Of a run in this dialect; it has seen no outcome yet.
    pub(crate) fn new(protocol: Protocol) -> Self {
        let v1 = (protocol == Protocol::V1).then(SessionCounts::default);
        let totals = Totals { v1, ..Totals::default() };
        Self { totals, instances: 0, opened: 0, dropped: 0, failed: 0, local: 0, gaps: Vec::new(), more_gaps: 0 }
    }

    /// Adds one instance; `name` makes its log name.
    pub(crate) fn add(&mut self, outcome: &Outcome, name: impl Fn() -> String) {
        self.instances += 1;
        self.opened += outcome.opened;
        self.dropped += outcome.dropped;
        self.failed += outcome.failed;
        self.local += outcome.local;
        self.totals.counts += outcome.tally.counts();
        if let Some(v1) = &mut self.totals.v1 {
            *v1 += *outcome.v1;
        }
        self.totals.other += outcome.other;
        self.totals.stopped += u64::from(outcome.stopped);
        self.totals.never_connected += u64::from(outcome.opened == 0 && !outcome.stopped);
        for (producer, missing, first) in outcome.tally.gaps() {
            if self.gaps.len() == EXAMPLES {
                self.more_gaps += 1;
                continue;
            }
            let producer = protocol::text::Escaped(producer);
            let first = first.map_or(String::new(), |gap| format!(", first {} to {}", gap.start(), gap.end()));
            self.gaps.push(format!("Missing at {} from {producer}: {missing}{first}", name()));
        }
    }

    /// An instance whose counts are lost.
    pub(crate) fn add_lost(&mut self, count: u64) {
        self.instances += count;
        self.totals.lost += count;
    }

    /// The sums.
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// All lines, `latencies` among them, the totals last.
    pub(crate) fn lines(self, latencies: Vec<String>) -> Vec<String> {
        let Totals { counts, v1, other, stopped, never_connected, lost } = self.totals;
        let mut lines = vec![format!(
            "Connections: {} instances, {} opened, {} dropped, {} attempts failed, {} prevented by this machine, \
             {stopped} stopped for good, {never_connected} never connected",
            self.instances, self.opened, self.dropped, self.failed, self.local
        )];
        lines.extend(v1.map(|v1| v1.to_string()));
        lines.extend(latencies);
        lines.extend(self.gaps);
        let rest = [
            (self.more_gaps, "more streams with numbers missing"),
            (counts.unjudged, "messages beyond what is remembered: late or repeated, nobody can say"),
            (other, "other bodies, no hello of a producer"),
            (lost, "instances did not end in time, or failed in the program; what they received is not counted"),
        ];
        lines.extend(rest.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
        lines.push(self.totals.to_string());
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::Who;
    use crate::tally::{LIMITS, Marks, Tally};

    fn outcome(numbers: &[u64]) -> Outcome {
        let mut tally = Tally::new(LIMITS);
        for number in numbers {
            tally.record("producer201.7", *number, Marks::default());
        }
        let who = Who { consumer: 101, instance: 1 };
        Outcome { opened: 1, ..Outcome::new(who, tally) }
    }

    fn report(outcomes: &[Outcome]) -> Report {
        let mut report = Report::new(Protocol::Raw);
        for outcome in outcomes {
            report.add(outcome, || "consumer.consumer101.1".to_owned());
        }
        report
    }

    #[test]
    fn the_totals_come_last_and_gaps_are_named() {
        let lines = report(&[outcome(&[1, 2, 3]), outcome(&[1, 4, 4, 3])]).lines(Vec::new());
        assert_eq!(lines.last().unwrap(), "Totals: received 6, missing 1, duplicated 1, out of order 1");
        assert!(
            lines
                .iter()
                .any(|line| { line == "Missing at consumer.consumer101.1 from producer201.7: 1, first 2 to 2" })
        );
    }

    #[test]
    fn only_a_run_without_a_flaw_is_clean() {
        assert!(report(&[outcome(&[1, 2, 3]), outcome(&[])]).totals().is_clean());
        let flawed = [
            outcome(&[1, 3]),
            outcome(&[1, 1]),
            Outcome { stopped: true, ..outcome(&[1]) },
            Outcome { opened: 0, ..outcome(&[]) },
        ];
        for flawed in flawed {
            assert!(!report(&[flawed]).totals().is_clean());
        }
        let mut lost = report(&[outcome(&[1])]);
        lost.add_lost(1);
        assert!(!lost.totals().is_clean());
        assert!(report(&[outcome(&[2, 1])]).totals().is_clean(), "out of order alone loses nothing");
    }

    #[test]
    fn in_v1_what_came_again_for_a_good_reason_is_counted_and_clean() {
        let mut outcome = outcome(&[1, 2, 3]);
        outcome.tally.record("producer201.7", 2, Marks { redelivered: true, republished: false });
        outcome.tally.record("producer201.7", 3, Marks { redelivered: false, republished: true });
        *outcome.v1 = SessionCounts { acked: 5, acks: 2, broker_lost: 1, ..SessionCounts::default() };
        let mut report = Report::new(Protocol::V1);
        report.add(&outcome, String::new);
        assert!(report.totals().is_clean());
        let lines = report.lines(vec!["Latency …".to_owned()]);
        assert_eq!(
            lines[1..],
            [
                "Sessions: 5 acked in 2 frames, 0 resumed, 0 not resumed, 0 tokens refreshed, 0 refreshes failed, \
                 0 bad frames; notices: 1 broker-lost, 0 broker-back, 0 queue-recreated",
                "Latency …",
                "Totals: received 3, missing 0, duplicated 0, out of order 0, redelivered 1, republished 1",
            ]
        );
    }

    #[test]
    fn a_server_that_broke_the_contract_is_a_flaw() {
        let mut report = Report::new(Protocol::V1);
        let outcome = outcome(&[1]);
        let v1 = Box::new(SessionCounts { bad_frames: 1, ..SessionCounts::default() });
        report.add(&Outcome { v1, ..outcome }, String::new);
        assert!(!report.totals().is_clean());
    }

    #[test]
    fn a_thousand_streams_with_gaps_are_ten_lines_and_a_count() {
        let outcomes: Vec<_> = (0..1_000).map(|_| outcome(&[1, 3])).collect();
        let lines = report(&outcomes).lines(Vec::new());
        assert_eq!(lines.len(), 1 + EXAMPLES + 1 + 1);
        assert!(lines.contains(&"990 more streams with numbers missing".to_owned()));
    }
}
