//! Who is connected, and how each of them is doing.
//!
//! An entry is entered and removed under a lock, once per session each; in between it is atomics alone. The answers are
//! bounded whatever the number of sessions.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    net::SocketAddr,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::outbox::Dialect;

/// What is known of a session when it begins.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// `client.consumer.instance`, fit for a line of text.
    pub(crate) name: String,
    /// Where the connection comes from.
    pub(crate) peer: SocketAddr,
    pub(crate) dialect: Dialect,
    pub(crate) window: u16,
}

/// All open sessions. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Roster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// What times in the entries are counted from.
    epoch: Instant,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_number: HashMap<u64, Arc<Entry>>,
    next_number: u64,
}

/// No time: the first microsecond of a roster is not told from none.
const NONE: u64 = 0;

#[derive(Debug)]
struct Entry {
    member: Member,
    since: Instant,
    unacked: AtomicU32,
    /// When the oldest unacked message arrived, in µs from the epoch.
    oldest: AtomicU64,
    delivered: AtomicU64,
    acked: AtomicU64,
    /// µs from arrival to ack of the message that was acked last.
    ack_latency: AtomicU64,
}

/// A session's place in the roster; it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Badge {
    roster: Roster,
    number: u64,
    entry: Arc<Entry>,
}

/// A session at one moment. Its numbers are read one by one.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    pub(crate) member: Member,
    pub(crate) age: Duration,
    pub(crate) unacked: u32,
    /// Age of the oldest unacked message.
    pub(crate) oldest: Option<Duration>,
    pub(crate) delivered: u64,
    pub(crate) acked: u64,
    pub(crate) ack_latency: Option<Duration>,
}

impl Default for Roster {
    fn default() -> Self {
        Self(Arc::new(Inner { epoch: Instant::now(), entries: Mutex::default() }))
    }
}

impl Roster {
    /// A session begins.
    pub(crate) fn enter(&self, member: Member) -> Badge {
        let entry = Arc::new(Entry {
            member,
            since: Instant::now(),
            unacked: AtomicU32::new(0),
            oldest: AtomicU64::new(NONE),
            delivered: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            ack_latency: AtomicU64::new(NONE),
        });
        let mut entries = self.entries();
        entries.next_number += 1;
        let number = entries.next_number;
        entries.by_number.insert(number, entry.clone());
        drop(entries);
        Badge { roster: self.clone(), number, entry }
    }

    /// The slowest sessions, at most `count`, the worst first: by the age of the oldest message that is not acked, then by
    /// how many there are. Sessions that owe nothing are not among them.
    pub(crate) fn slowest(&self, count: usize) -> Vec<Sight> {
        let mut worst = BinaryHeap::with_capacity(count + 1);
        for (number, entry) in &self.entries().by_number {
            let (oldest, unacked) = (entry.oldest.load(Ordering::Relaxed), entry.unacked.load(Ordering::Relaxed));
            if oldest == NONE {
                continue;
            }
            // The least bad one on top, to be thrown out. The number comes before the entry, which needs no order then.
            worst.push(Reverse((Reverse(oldest), unacked, *number)));
            if worst.len() > count {
                worst.pop();
            }
        }
        let entries = self.entries();
        let numbers = worst.into_sorted_vec().into_iter().map(|Reverse((.., number))| number);
        let found: Vec<_> = numbers.filter_map(|number| entries.by_number.get(&number).cloned()).collect();
        drop(entries);
        found.iter().map(|entry| self.sight(entry)).collect()
    }

    fn sight(&self, entry: &Entry) -> Sight {
        let now = Instant::now();
        let oldest = some(&entry.oldest).map(|at| now.saturating_duration_since(self.0.epoch + at));
        Sight {
            member: entry.member.clone(),
            age: now.saturating_duration_since(entry.since),
            unacked: entry.unacked.load(Ordering::Relaxed),
            oldest,
            delivered: entry.delivered.load(Ordering::Relaxed),
            acked: entry.acked.load(Ordering::Relaxed),
            ack_latency: some(&entry.ack_latency),
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Badge {
    pub(crate) fn delivered(&self, messages: u64) {
        self.entry.delivered.fetch_add(messages, Ordering::Relaxed);
    }

    pub(crate) fn acked(&self, messages: u64, took: Duration) {
        self.entry.acked.fetch_add(messages, Ordering::Relaxed);
        self.entry.ack_latency.store(micros(took), Ordering::Relaxed);
    }

    pub(crate) fn holds(&self, messages: usize, oldest: Option<Instant>) {
        self.entry.unacked.store(u32::try_from(messages).unwrap_or(u32::MAX), Ordering::Relaxed);
        let oldest = oldest.map_or(NONE, |at| micros(at.saturating_duration_since(self.roster.0.epoch)));
        self.entry.oldest.store(oldest, Ordering::Relaxed);
    }
}

impl Deref for Badge {
    type Target = Member;

    fn deref(&self) -> &Member {
        &self.entry.member
    }
}

impl Drop for Badge {
    fn drop(&mut self) {
        self.roster.entries().by_number.remove(&self.number);
    }
}

/// Never [`NONE`].
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(NONE + 1)
}

fn some(micros: &AtomicU64) -> Option<Duration> {
    let micros = micros.load(Ordering::Relaxed);
    (micros != NONE).then(|| Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str) -> Member {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        Member { name: name.to_owned(), peer, dialect: Dialect::V1, window: 16 }
    }

    fn names(sights: &[Sight]) -> Vec<&str> {
        sights.iter().map(|sight| sight.member.name.as_str()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_are_those_whose_oldest_message_waits_longest() {
        let roster = Roster::default();
        let start = Instant::now();
        tokio::time::advance(Duration::from_secs(10)).await;
        let unacked = [
            ("idle", 0, None),
            ("new", 1, Some(9)),
            ("old and full", 2, Some(3)),
            ("older", 1, Some(1)),
            ("old", 1, Some(3)),
        ];
        let badges = unacked.map(|(name, messages, second)| {
            let badge = roster.enter(member(name));
            badge.holds(messages, second.map(|second| start + Duration::from_secs(second)));
            badge
        });
        let slowest = roster.slowest(10);
        assert_eq!(names(&slowest), ["older", "old and full", "old", "new"]);
        assert_eq!(slowest[0].oldest, Some(Duration::from_secs(9)));
        assert_eq!(names(&roster.slowest(2)), ["older", "old and full"]);
        assert!(roster.slowest(0).is_empty());
        drop(badges);
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_is_not_there_any_more() {
        let roster = Roster::default();
        let badge = roster.enter(member("a"));
        badge.holds(1, Some(Instant::now()));
        badge.delivered(2);
        badge.acked(1, Duration::from_millis(5));
        let [sight] = &roster.slowest(10)[..] else { panic!("one was expected") };
        assert_eq!((sight.delivered, sight.acked, sight.unacked), (2, 1, 1));
        assert_eq!(sight.ack_latency, Some(Duration::from_millis(5)));
        badge.holds(0, None);
        assert!(roster.slowest(10).is_empty(), "it owes nothing");
        badge.holds(1, Some(Instant::now()));
        drop(badge);
        assert!(roster.slowest(10).is_empty());
    }
}
