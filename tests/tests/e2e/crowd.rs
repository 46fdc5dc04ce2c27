//! Thousands of sockets on one proxy: what they take at the broker follows a formula, everybody is served, and when they
//! have left nothing stays.
//!
//! The formula: 2 connections, one for deliveries and one for declarations. On the first a channel (lane) for each 2,048
//! open tags, that is for each 128 sessions at the default window of 16; on the second at most 16.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use auth_proxy::refusal::Refusal;
use futures::{StreamExt, TryStreamExt, stream};
use rig::http::Answer;
use rig::program::ProxyProcess;
use rig::vhost::{Connection, Snapshot};
use rig::{Client, Dial, Node, Outcome, Proxy, Publisher, Vhost, wait_until, within};
use serde_json::json;
use service::descriptors;

/// For a whole crowd to do something, in a debug build on a machine that is busy.
const CROWD_PATIENCE: Duration = Duration::from_secs(240);

/// Upgrades in progress at once.
const DIALS: usize = 256;

/// Sessions of a lane at the default window.
const PER_LANE: usize = 128;

/// Nobody reads between two messages, so pings wait for their pongs until the next. (A longer ping interval would not do:
/// the first pings are spread over it, so that of thousands of sockets some get theirs at once.)
const LATE_PONGS: [&str; 2] = ["--pong-timeout", "1h"];

/// Sockets that are open.
struct Crowd {
    members: Vec<(String, Client)>,
}

fn name(number: usize) -> String {
    format!("member{number}")
}

impl Crowd {
    fn none() -> Crowd {
        // Both ends of each socket are in this process when the proxy is.
        let limit = descriptors::raise(u64::MAX).expect("the system says how many descriptors there are");
        assert!(limit.soft >= 8_192, "the crowd needs 8,192 descriptors; `ulimit -Hn` allows {}", limit.soft);
        Crowd { members: Vec::new() }
    }

    async fn of(proxy: SocketAddr, numbers: Range<usize>) -> Crowd {
        let mut crowd = Crowd::none();
        crowd.joined_by(proxy, numbers).await;
        crowd
    }

    /// More come; none is refused.
    async fn joined_by(&mut self, proxy: SocketAddr, numbers: Range<usize>) {
        let joined = dial(proxy, numbers).map(|(name, outcome)| match outcome {
            Ok(client) => Ok((name, client)),
            Err(refusal) => Err((name, refusal.status, refusal.text().to_owned())),
        });
        let joined = within(CROWD_PATIENCE, "all are connected", joined.try_collect::<Vec<_>>()).await;
        self.members.extend(joined.unwrap_or_else(|refusal| panic!("refused: {refusal:?}")));
    }

    /// Each is sent a message of its own, and it is the next that it receives.
    async fn each_receives(&mut self, publisher: &Publisher, what: &str) {
        let publishes = stream::iter(&self.members).map(|(name, _)| publisher.publish(name, format!("{what} {name}")));
        let outcomes = publishes.buffer_unordered(DIALS).collect::<Vec<_>>();
        let outcomes = within(CROWD_PATIENCE, "all is published", outcomes).await;
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Confirmed), "{outcomes:?}");
        let receives = stream::iter(&mut self.members).for_each_concurrent(None, |(name, client)| async move {
            assert_eq!(client.text().await, format!("{what} {name}"));
        });
        within(CROWD_PATIENCE, "each receives its message", receives).await;
    }

    /// All leave: one half says goodbye, the other half is reset.
    async fn leaves(self) {
        let leave =
            stream::iter(self.members.into_iter().enumerate()).for_each_concurrent(DIALS, |(n, (_, client))| {
                Box::pin(async move {
                    if n % 2 == 0 {
                        assert_eq!(client.close().await.map(|(code, _)| code), Some(1000));
                    } else {
                        client.reset();
                    }
                })
            });
        within(CROWD_PATIENCE, "all have left", leave).await;
    }
}

/// Upgrades, many at a time, and how each ended.
fn dial(proxy: SocketAddr, numbers: Range<usize>) -> impl futures::Stream<Item = (String, Result<Client, Answer>)> {
    let dials = stream::iter(numbers.map(name)).map(move |name| {
        Box::pin(async move {
            let outcome = Dial::to(proxy).consumer(&name).try_connect().await;
            (name, outcome)
        })
    });
    dials.buffer_unordered(DIALS)
}

/// What the proxy takes at the broker.
#[derive(Debug, Default, PartialEq, Eq)]
struct Use {
    connections: Vec<String>,
    lanes: u64,
    declaring: u64,
    consumers: usize,
    unacked: u64,
    ready: u64,
}

impl Use {
    fn of(snapshot: &Snapshot) -> Use {
        let mut ours: Vec<_> = snapshot.connections.iter().filter(|c| c.user == "auth-proxy").collect();
        ours.sort_by(|a, b| a.name.cmp(&b.name));
        let channels = |purpose: &str| ours.iter().filter(|c| c.name.ends_with(purpose)).map(|c| c.channels).sum();
        Use {
            connections: ours.iter().map(|c| c.name.clone()).collect(),
            lanes: channels(" deliveries"),
            declaring: channels(" declarations"),
            consumers: snapshot.consumers.len(),
            unacked: snapshot.channels.iter().map(|c| c.unacked).sum(),
            ready: snapshot.queues.iter().map(|q| q.ready + q.unacked).sum(),
        }
    }

    /// By the formula, with nothing on its way. What was opened for a moment is closed a moment later: see [`expect_use`].
    fn is(&self, sessions: usize, lanes: u64) -> bool {
        self.connections == ["auth-proxy 1 control", "auth-proxy 1 declarations", "auth-proxy 1 deliveries"]
            && self.lanes == lanes
            && self.declaring <= 16
            && self.consumers == sessions
            && (self.unacked, self.ready) == (0, 0)
    }
}

async fn expect_use(vhost: &Vhost, sessions: usize, lanes: u64) {
    let what = format!("{sessions} sessions on {lanes} lanes and nothing else");
    let seen = async || Use::of(&vhost.snapshot().await);
    wait_until(CROWD_PATIENCE, &what, seen, |used| used.is(sessions, lanes)).await;
}

fn lanes_for(sessions: usize) -> u64 {
    sessions.div_ceil(PER_LANE) as u64
}

/// How many descriptors a process has open. Only Linux says.
fn descriptors_of(process: u32) -> Option<usize> {
    cfg!(target_os = "linux").then(|| std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count())
}

/// Lets the mailboxes of those who left expire now, so that the broker does not carry the ones of all rounds.
async fn forget_mailboxes(vhost: &Vhost) {
    vhost.set_policy(json!({"expires": 1})).await;
    wait_until(CROWD_PATIENCE, "no queue is left", async || vhost.queues().await.len(), |queues| *queues == 0).await;
    vhost.set_policy(json!({})).await;
}

/// The first round shows the size, the others the leak, for which a third of it does: ten rounds of 3,000 pass too, in
/// 142 s instead of 60 (debug, 2 busy cores).
const ROUNDS: [usize; 10] = [3_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000];

#[tokio::test(flavor = "multi_thread")]
async fn three_thousand_sockets_take_what_the_formula_says_and_ten_rounds_leak_nothing() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let publisher = vhost.publisher().await;
    // A process of its own, so that its descriptors can be counted.
    let mut proxy = ProxyProcess::start(&vhost, &LATE_PONGS, &[("RUST_LOG", "warn")]).await;
    expect_use(&vhost, 0, 0).await;
    let (process, connections) = (proxy.program().pid(), vhost.connections().await);
    let idle = descriptors_of(process);
    let mut first = 0;
    for sockets in ROUNDS {
        let mut crowd = Crowd::of(proxy.addr(), first..first + sockets).await;
        first += sockets;
        expect_use(&vhost, sockets, lanes_for(sockets)).await;
        crowd.each_receives(&publisher, "hello").await;
        expect_use(&vhost, sockets, lanes_for(sockets)).await;
        crowd.leaves().await;
        // One lane stays for whoever comes next.
        expect_use(&vhost, 0, 1).await;
        let open = async || descriptors_of(process);
        wait_until(CROWD_PATIENCE, "as many descriptors as before", open, |open| *open == idle).await;
        forget_mailboxes(&vhost).await;
    }
    let pids = |connections: Vec<Connection>| connections.into_iter().map(|c| c.pid).collect::<BTreeSet<_>>();
    assert_eq!(pids(vhost.connections().await), pids(connections), "no connection was made anew");
    // Warnings would be there.
    assert_eq!(proxy.program().stdout().len(), 1, "{:?}", proxy.program().stdout());
}

/// RabbitMQ grants 2,047 channels to a connection unless told otherwise, and a client that opens one more loses the
/// connection, with everybody on it. Sessions share channels, so nothing happens there.
#[tokio::test(flavor = "multi_thread")]
async fn a07_more_sockets_than_a_connection_has_channels_are_all_served() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let publisher = vhost.publisher().await;
    let proxy = Proxy::start(&vhost, &LATE_PONGS);
    let mut crowd = Crowd::none();
    for sockets in [2_047, 2_048, 2_100] {
        crowd.joined_by(proxy.addr(), crowd.members.len()..sockets).await;
        crowd.each_receives(&publisher, &format!("to {sockets}")).await;
        expect_use(&vhost, sockets, lanes_for(sockets)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_window_fills_a_lane_has_one_of_its_own() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[&LATE_PONGS[..], &["--window", "2048"]].concat());
    let mut crowd = Crowd::of(proxy.addr(), 0..50).await;
    expect_use(&vhost, 50, 50).await;
    assert!(vhost.consumers().await.iter().all(|consumer| consumer.prefetch == 2048 && consumer.active));
    crowd.each_receives(&vhost.publisher().await, "hello").await;
    crowd.leaves().await;
    expect_use(&vhost, 0, 1).await;
}

/// Splits those who dialled into those who are in and the number of those who were refused for want of a lane.
async fn dial_beyond(proxy: &Proxy, numbers: Range<usize>) -> (Crowd, usize) {
    let (mut crowd, mut refused) = (Crowd::none(), 0);
    let expected = Refusal::LanesFull.answer_to(Some("GET"));
    for (name, outcome) in
        within(CROWD_PATIENCE, "an answer to each", dial(proxy.addr(), numbers).collect::<Vec<_>>()).await
    {
        match outcome {
            Ok(client) => crowd.members.push((name, client)),
            Err(answer) => {
                assert_eq!(String::from_utf8_lossy(&answer.raw), String::from_utf8_lossy(&expected));
                refused += 1;
            }
        }
    }
    (crowd, refused)
}

/// The broker's processes behind open sockets: others after anything was made anew.
async fn processes(vhost: &Vhost) -> BTreeSet<String> {
    let Snapshot { connections, channels, .. } = vhost.snapshot().await;
    let lanes = channels.into_iter().filter(|channel| channel.consumers > 0).map(|channel| channel.pid);
    let ours = connections.into_iter().filter(|connection| connection.user == "auth-proxy");
    lanes.chain(ours.map(|connection| connection.pid)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_max_lanes_upgrades_get_503_and_open_sockets_are_untouched() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let publisher = vhost.publisher().await;
    let proxy = Proxy::start(&vhost, &[&LATE_PONGS[..], &["--max-lanes", "2"]].concat());
    let places = 2 * PER_LANE;
    // All at once: as many as there are places, and nobody gets one that another has.
    let (mut crowd, refused) = dial_beyond(&proxy, 0..places + 20).await;
    assert_eq!((crowd.members.len(), refused), (places, 20));
    expect_use(&vhost, places, 2).await;
    let before = processes(&vhost).await;
    let (late, refused) = dial_beyond(&proxy, places + 20..places + 40).await;
    assert_eq!((late.members.len(), refused), (0, 20));
    crowd.each_receives(&publisher, "still here").await;
    assert_eq!(processes(&vhost).await, before, "nothing was made anew");
    // A place is free as soon as the one who had it sees the end.
    let (_, leaver) = crowd.members.swap_remove(0);
    leaver.close().await;
    crowd.joined_by(proxy.addr(), places + 40..places + 41).await;
    crowd.each_receives(&publisher, "and who came last").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a07_beyond_the_channels_that_the_broker_grants_upgrades_get_503_and_nobody_is_reset() {
    const CHANNELS: usize = 20;
    let node = Node::private().await;
    node.eval(&format!("application:set_env(rabbit, channel_max, {CHANNELS}).")).await;
    let vhost = Vhost::new(&node).await;
    let publisher = vhost.publisher().await;
    // A channel each, as if nobody shared one.
    let proxy = Proxy::start(&vhost, &[&LATE_PONGS[..], &["--window", "2048"]].concat());
    for round in 0..2 {
        let first = round * 100;
        let (mut crowd, refused) = dial_beyond(&proxy, first..first + CHANNELS + 10).await;
        assert_eq!((crowd.members.len(), refused), (CHANNELS, 10));
        expect_use(&vhost, CHANNELS, CHANNELS as u64).await;
        let before = processes(&vhost).await;
        let (late, refused) = dial_beyond(&proxy, first + 50..first + 60).await;
        assert_eq!((late.members.len(), refused), (0, 10));
        crowd.each_receives(&publisher, "still here").await;
        assert_eq!(processes(&vhost).await, before, "nothing was made anew");
        crowd.leaves().await;
        expect_use(&vhost, 0, 1).await;
    }
}
