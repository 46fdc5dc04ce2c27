//! Whatever happens to the broker, or on the way to it: sockets stay open, clients are told, and once it is over each
//! session has exactly one consumer and receives, without a restart of anything.

pub(crate) mod broker;
mod limit;
mod network;
mod queues;
mod rules;
mod urls;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use futures::{StreamExt, stream};
use protocol::v1::Event;
use rig::crowd::{Arrival, Notes, Then};
use rig::vhost::Queue;
use rig::{Crowd, Dial, Outcome, PATIENCE, Proxy, Relay, Vhost, wait_until, within};
use tokio::time::Instant;

use crate::queue;
use crate::republish::Run;

/// Four lanes at the default window.
pub(crate) const SESSIONS: usize = 500;
/// For all of them to be served again, in a debug build on a machine that is busy.
const CROWD_PATIENCE: Duration = Duration::from_secs(120);
/// An upgrade waits some seconds for a connection that only blinked, then it is refused.
const REFUSED_WITHIN: Duration = Duration::from_secs(20);
/// A dead connection is noticed after 4 s. Less would find dead ones on a machine that is busy.
const SHORT_HEARTBEAT: [&str; 2] = ["--heartbeat", "2"];
/// Channels for declarations are opened as they are needed, at most so many.
const DECLARING_MAX: u64 = 16;

/// The consumer ids that producers of these numbers send to.
pub(crate) fn names(numbers: impl IntoIterator<Item = usize>) -> impl Iterator<Item = String> {
    numbers.into_iter().map(|number| format!("consumer{number}"))
}

/// A proxy with a crowd of v1 clients that do not come back when they are closed.
pub(crate) struct Stage {
    pub(crate) vhost: Vhost,
    pub(crate) proxy: Proxy,
    pub(crate) crowd: Crowd,
    before: Vec<(String, u64)>,
}

impl Stage {
    /// So many sessions of consumer1, consumer2, … at a proxy that works with the broker behind `url`.
    pub(crate) async fn at(vhost: &Vhost, url: &str, sessions: usize, arguments: &[&str]) -> Stage {
        let proxy = Proxy::at(url, &[&["--broker-timeout", "10"], arguments].concat());
        let crowd = Crowd::of(&[proxy.addr()], names(1..=sessions), Then::Stays).await;
        let vhost = vhost.clone();
        // The one for control may be the last to be ready, and is not needed before.
        let all = |now: &Vec<(String, u64)>| now.len() == 3 && now.iter().all(|(_, channels)| *channels > 0);
        let before = wait_until(PATIENCE, "all connections are in use", async || channels(&vhost).await, all).await;
        Stage { vhost, proxy, crowd, before }
    }

    /// All sockets are open, each mailbox has one consumer, each client receives what is sent to it now, what came twice
    /// says so, and the proxy has as many connections and channels as before.
    pub(crate) async fn is_well(&self, what: &str) {
        self.one_consumer_each().await;
        self.each_receives(what).await;
        let channels = async || channels(&self.vhost).await;
        wait_until(CROWD_PATIENCE, "connections and channels as before", channels, |now| self.as_before(now)).await;
        for member in self.crowd.members() {
            let notes = member.notes();
            assert!((notes.sessions, notes.ends.len()) == (1, 0), "{}: {notes:?}", member.name);
            assert_eq!(notes.unflagged(), Vec::<&Arrival>::new(), "{}", member.name);
        }
    }

    async fn one_consumer_each(&self) {
        self.mailboxes_are("one consumer on each mailbox", |mailbox| mailbox.consumers == 1).await;
    }

    /// Waits until it holds for the mailbox of each.
    async fn mailboxes_are(&self, what: &str, holds: impl Fn(&Queue) -> bool) {
        let others = async || {
            let queues = self.vhost.queues().await;
            let good: BTreeSet<_> = queues.iter().filter(|queue| holds(queue)).map(|queue| &queue.name).collect();
            let others = self.crowd.members().iter().filter(|member| !good.contains(&queue(&member.name)));
            others.map(|member| member.name.as_str()).collect::<Vec<_>>()
        };
        wait_until(CROWD_PATIENCE, what, others, Vec::is_empty).await;
    }

    /// Ends a run, and waits until the crowd has everything that was confirmed to it.
    pub(crate) async fn has_all_of(&self, run: Run, producer: &str) {
        let totals = run.stop().await;
        assert_eq!(totals.sent, totals.ended.confirmed, "{totals}");
        let received = async || received_of(&self.crowd, producer) as u64;
        let what = format!("all of {producer}: {totals}");
        wait_until(CROWD_PATIENCE, &what, received, |received| *received == totals.ended.confirmed).await;
    }

    /// Nothing waits in the mailboxes of the crowd, and nothing is unacked.
    pub(crate) async fn all_is_acked(&self) {
        self.mailboxes_are("empty mailboxes", |mailbox| (mailbox.ready, mailbox.unacked) == (0, 0)).await;
    }

    pub(crate) async fn each_receives(&self, what: &str) {
        let publisher = self.vhost.publisher().await;
        let members = stream::iter(self.crowd.members());
        let outcomes = members.map(|member| publisher.publish(&member.name, format!("{what} {}", member.name)));
        let outcomes = within(CROWD_PATIENCE, "all is published", outcomes.buffer_unordered(64).collect::<Vec<_>>());
        assert!(outcomes.await.iter().all(|outcome| *outcome == Outcome::Confirmed));
        self.crowd.each_until(what, |name, notes| notes.has(&format!("{what} {name}"))).await;
    }

    fn as_before(&self, now: &[(String, u64)]) -> bool {
        let same = |(before, now): (&(String, u64), &(String, u64))| {
            let declares = now.0.ends_with(" declarations") && now.1 <= DECLARING_MAX;
            before.0 == now.0 && (declares || before.1 == now.1)
        };
        now.len() == self.before.len() && self.before.iter().zip(now).all(same)
    }

    /// An upgrade is refused now: with 503 and a time to come back, soon.
    pub(crate) async fn refuses_newcomers(&self) {
        let began = Instant::now();
        let dial = Dial::to(self.proxy.addr()).consumer("newcomer").v1();
        let answer = dial.try_connect().await.err().expect("nobody can be served now");
        assert_eq!(answer.status, 503, "{answer:?}");
        let retry_after = answer.header("retry-after").and_then(|seconds| seconds.parse::<u64>().ok());
        assert!(retry_after.is_some_and(|seconds| seconds > 0), "{answer:?}");
        assert!(began.elapsed() < REFUSED_WITHIN, "refused after {:?}", began.elapsed());
    }

    /// Waits until each client has had so many notices of this kind.
    pub(crate) async fn noticed(&self, event: Event, times: usize) {
        let what = format!("{event:?} for the {times}. time");
        self.crowd.until(&what, |notes| count(notes, event) >= times).await;
    }
}

pub(crate) fn count(notes: &Notes, event: Event) -> usize {
    notes.notices.iter().filter(|notice| **notice == event).count()
}

/// The connections of the first proxy, and the channels of each.
async fn channels(vhost: &Vhost) -> Vec<(String, u64)> {
    let ours = vhost.connections().await.into_iter().filter(|connection| connection.name.starts_with("auth-proxy 1 "));
    let mut ours: Vec<_> = ours.map(|connection| (connection.name, connection.channels)).collect();
    ours.sort();
    ours
}

/// `producer201.20902.8` is the producer's eighth.
pub(crate) fn number_of(arrival: &Arrival) -> u64 {
    let number = arrival.key().rsplit('.').next().and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("{arrival:?}"))
}

/// How many different messages of this producer the crowd has.
pub(crate) fn received_of(crowd: &Crowd, producer: &str) -> usize {
    let start = format!("{producer}.");
    crowd.sum(|notes| {
        let mut keys: Vec<_> = notes.arrivals.iter().map(Arrival::key).collect();
        keys.retain(|key| key.starts_with(&start));
        keys.sort_unstable();
        keys.dedup();
        keys.len()
    })
}

/// A relay in front of the broker, and the URL of a user through it.
async fn relay_to(vhost: &Vhost, user: &str) -> (Relay, String) {
    let relay = Relay::start(SocketAddr::from(([127, 0, 0, 1], vhost.node().amqp_port()))).await;
    let url = vhost.amqp_url_at(user, &relay.addr().to_string());
    (relay, url)
}
