//! What is said at the end, and whether all was well.

use std::fmt;

use crate::instance::Outcome;
use crate::tally::Counts;

/// Instances whose gaps are listed one by one; the sums cover all.
const EXAMPLES: usize = 10;

/// The sum of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Over all instances and producer runs.
    pub counts: Counts,
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
    /// Whether the program may exit with 0: every instance was connected and stayed wanted, and nothing is
    /// missing, duplicated, or beyond what could be judged.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let Counts { missing, duplicated, unjudged, .. } = self.counts;
        [missing, duplicated, unjudged, self.stopped, self.never_connected, self.lost] == [0; 6]
    }
}

/// The report's last line.
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { received, missing, duplicated, out_of_order, .. } = self.counts;
        write!(
            f,
            "Totals: received {received}, missing {missing}, duplicated {duplicated}, out of order {out_of_order}"
        )
    }
}

/// Gathers the outcomes of all instances.
#[derive(Default)]
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
    /// Adds one instance; `name` makes its log name.
    pub(crate) fn add(&mut self, outcome: &Outcome, name: impl Fn() -> String) {
        self.instances += 1;
        self.opened += outcome.opened;
        self.dropped += outcome.dropped;
        self.failed += outcome.failed;
        self.local += outcome.local;
        self.totals.counts += outcome.tally.counts();
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

    /// All lines, the totals last.
    pub(crate) fn lines(self) -> Vec<String> {
        let Totals { counts, other, stopped, never_connected, lost } = self.totals;
        let mut lines = vec![format!(
            "Connections: {} instances, {} opened, {} dropped, {} attempts failed, {} prevented by this machine, \
             {stopped} stopped for good, {never_connected} never connected",
            self.instances, self.opened, self.dropped, self.failed, self.local
        )];
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
    use crate::tally::{LIMITS, Tally};

    fn outcome(numbers: &[u64]) -> Outcome {
        let mut tally = Tally::new(LIMITS);
        for number in numbers {
            tally.record("producer201.7", *number);
        }
        let who = Who { consumer: 101, instance: 1 };
        Outcome { who, tally, other: 0, opened: 1, dropped: 0, failed: 0, local: 0, stopped: false }
    }

    fn report(outcomes: &[Outcome]) -> Report {
        let mut report = Report::default();
        for outcome in outcomes {
            report.add(outcome, || "consumer.consumer101.1".to_owned());
        }
        report
    }

    #[test]
    fn the_totals_come_last_and_gaps_are_named() {
        let lines = report(&[outcome(&[1, 2, 3]), outcome(&[1, 4, 4, 3])]).lines();
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
    fn a_thousand_streams_with_gaps_are_ten_lines_and_a_count() {
        let outcomes: Vec<_> = (0..1_000).map(|_| outcome(&[1, 3])).collect();
        let lines = report(&outcomes).lines();
        assert_eq!(lines.len(), 1 + EXAMPLES + 1 + 1);
        assert!(lines.contains(&"990 more streams with numbers missing".to_owned()));
    }
}
