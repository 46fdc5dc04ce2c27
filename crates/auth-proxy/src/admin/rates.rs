//! What happened lately: the counters of each second, for a minute.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::metrics::Totals;

/// The longest span that is asked for.
pub(crate) const SPAN_MAX: Duration = Duration::from_secs(60);
/// One a second for that span, the ends included, and one in reserve for ticks that come late.
const NOTES_MAX: usize = 62;

/// The counters of the last minute.
#[derive(Debug, Default)]
pub(crate) struct Rates(Mutex<VecDeque<Note>>);

/// The counters at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    pub(crate) at: Instant,
    pub(crate) totals: Totals,
}

impl Rates {
    /// Notes the counters of this moment, and forgets the oldest when there are enough.
    pub(crate) fn note(&self, at: Instant, totals: Totals) {
        let mut notes = self.notes();
        if notes.len() >= NOTES_MAX {
            notes.pop_front();
        }
        notes.push_back(Note { at, totals });
    }

    /// The newest note that is at least `span` old; while there is none, the oldest one.
    pub(crate) fn before(&self, now: Instant, span: Duration) -> Option<Note> {
        let notes = self.notes();
        let is_old_enough = |note: &&Note| now.saturating_duration_since(note.at) >= span;
        notes.iter().rev().find(is_old_enough).or_else(|| notes.front()).copied()
    }

    fn notes(&self) -> MutexGuard<'_, VecDeque<Note>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// So many more within a time, per second; `None` where no time has passed.
#[expect(clippy::cast_precision_loss, reason = "a rate is for people, who read three digits")]
pub(crate) fn per_second(more: u64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| more as f64 / time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn totals(delivered: u64) -> Totals {
        Totals { delivered, ..Totals::default() }
    }

    #[test]
    fn a_span_begins_with_the_newest_note_that_is_old_enough() {
        let (rates, start) = (Rates::default(), Instant::now());
        assert!(rates.before(start, S).is_none());
        for second in 0..=20 {
            rates.note(start + second * S, totals(u64::from(second) * 100));
        }
        let now = start + 20 * S + S / 2;
        let delivered = |span| rates.before(now, span).map(|note| note.totals.delivered);
        assert_eq!((delivered(S), delivered(10 * S)), (Some(1_900), Some(1_000)));
        assert_eq!(delivered(60 * S), Some(0), "what there is, while it is younger");
    }

    #[test]
    fn it_remembers_a_minute_and_no_more() {
        let (rates, start) = (Rates::default(), Instant::now());
        for second in 0..1_000 {
            rates.note(start + second * S, totals(u64::from(second)));
        }
        let now = start + 999 * S;
        let oldest = rates.before(now, SPAN_MAX).map(|note| note.totals.delivered);
        assert_eq!(oldest, Some(939));
        assert_eq!(rates.notes().len(), NOTES_MAX);
    }

    #[test]
    fn no_time_has_no_rate() {
        assert_eq!(per_second(5, Duration::ZERO), None);
        assert_eq!(per_second(5, 2 * S), Some(2.5));
    }
}
