//! `consumers` as it is by default: v1, against the real proxy and broker. Whoever misses something, or gets it twice
//! without a good reason, shows in its totals.

use std::net::SocketAddr;
use std::time::Duration;

use consumers::Totals;
use nix::sys::signal::Signal;
use protocol::names::Address;
use rig::relay::{Cut, Direction, Mode, Relay};
use rig::{Node, PATIENCE, Program, Proxy, Vhost, tokens, wait_until, within};
use service::shutdown::Shutdown;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::republish::Run;

/// `consumers::run` in a task.
struct Crowd {
    shutdown: Shutdown,
    run: JoinSet<Totals>,
}

impl Crowd {
    fn start(urls: &str, arguments: &str) -> Crowd {
        let mut words = vec!["consumers", "--url", urls, "--jwt-secret", tokens::SECRET, "--backoff-cap", "500ms"];
        words.extend(arguments.split_whitespace());
        let args: consumers::Args = service::cli::try_parse_from(consumers::args::ENV_PREFIX, words).unwrap();
        let config = consumers::Config::new(args).unwrap();
        let shutdown = Shutdown::new();
        let mut run = JoinSet::new();
        let theirs = shutdown.clone();
        run.spawn(async move { consumers::run(config, theirs).await.unwrap() });
        Crowd { shutdown, run }
    }

    /// As after SIGTERM.
    async fn stop(mut self) -> Totals {
        self.shutdown.begin();
        within(PATIENCE, "the end of the consumers", self.run.join_next()).await.unwrap().unwrap()
    }
}

/// `producers::run` to its end; all of it is confirmed.
async fn produce(vhost: &Vhost, arguments: &str) -> producers::Totals {
    let url = vhost.amqp_url("producer");
    let words = ["producers", "--amqp-url", &url].into_iter().chain(arguments.split_whitespace());
    let args: producers::Args = service::cli::try_parse_from(producers::args::ENV_PREFIX, words).unwrap();
    let config = producers::Config::try_from(args).unwrap();
    let run = producers::run(config, Shutdown::new());
    let totals = within(Duration::from_secs(180), "the end of the producers", run).await.unwrap();
    assert!(totals.is_all_confirmed(), "{totals}");
    totals
}

async fn subscribed(vhost: &Vhost, count: usize) {
    let on_mailboxes = async || {
        let consumers = vhost.consumers().await;
        consumers.iter().filter(|consumer| consumer.queue.starts_with("proxy-subscription-")).count()
    };
    wait_until(PATIENCE, "all are subscribed", on_mailboxes, |all| *all == count).await;
}

/// Every message is acked, from end to end.
async fn settled(vhost: &Vhost) {
    let left = async || vhost.queues().await.iter().map(|queue| queue.ready + queue.unacked).sum::<u64>();
    wait_until(PATIENCE, "all is acked", left, |left| *left == 0).await;
}

fn mailbox(consumer: u64, instance: u64) -> String {
    let (client, consumer) = ("consumer".to_owned(), format!("consumer{consumer}"));
    Address { client, consumer, instance: instance.to_string() }.queue().unwrap().to_string()
}

/// Received, and nothing wrong with it.
#[track_caller]
fn assert_complete(totals: &Totals, received: u64) {
    let counts = totals.counts;
    assert_eq!((counts.received, counts.missing, counts.duplicated), (received, 0, 0), "{totals}");
    assert!(totals.is_clean(), "{totals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_arrives_once_and_is_acked() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let crowd = Crowd::start(&proxy.url(), "101 103 2");
    subscribed(&vhost, 6).await;
    let sent = produce(&vhost, "201 202 101 103 --interval 0 --count 200").await.sent;
    settled(&vhost).await;
    let totals = crowd.stop().await;
    assert_complete(&totals, sent * 2);
    let v1 = totals.v1.unwrap();
    assert_eq!((v1.acked, totals.counts.redelivered, totals.counts.republished), (sent * 2, 0, 0));
    assert!(v1.acks < v1.acked, "many with one frame: {} for {}", v1.acks, v1.acked);
    assert_eq!(proxy.stop().await.delivered, sent * 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_is_spoken_when_asked_for() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let crowd = Crowd::start(&proxy.url(), "101 103 2 --protocol raw");
    subscribed(&vhost, 6).await;
    let sent = produce(&vhost, "201 202 101 103 --interval 0 --count 50").await.sent;
    settled(&vhost).await;
    let totals = crowd.stop().await;
    assert_complete(&totals, sent * 2);
    assert_eq!(totals.v1, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_outlive_their_tokens_twenty_times_without_a_gap() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let crowd = Crowd::start(&proxy.url(), "101 103 2 --token-ttl 2");
    subscribed(&vhost, 6).await;
    let sent = produce(&vhost, "201 201 101 103 --interval 100ms --duration 40").await.sent;
    settled(&vhost).await;
    let totals = crowd.stop().await;
    assert_complete(&totals, sent * 2);
    let v1 = totals.v1.unwrap();
    assert!(v1.refreshed >= 6 * 20, "{v1}");
    assert_eq!(totals.counts.redelivered, 0);
    assert_eq!(proxy.stop().await.sessions, 6, "nobody came again");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_never_acks_is_sent_away_with_4006_and_everything_comes_again() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &["--ack-timeout", "1"]);
    let mut hoarder = Program::consumers(proxy.addr(), &["101", "101", "1", "--no-ack", "--backoff-cap", "200ms"]);
    hoarder.wait_for_line("On purpose, no acks: 1 of 1 instances", PATIENCE).await;
    hoarder.wait_for_line("Connected 1 of 1", PATIENCE).await;
    produce(&vhost, "201 201 101 101 --interval 10ms --count 3").await;
    hoarder.wait_for_lines("close 4006", 2, PATIENCE).await;
    hoarder.signal(Signal::SIGTERM);
    assert_eq!(hoarder.wait(PATIENCE).await.code(), Some(0), "{:#?}", hoarder.stdout());
    let last = hoarder.stdout().pop().unwrap();
    assert!(last.contains("Totals: received 3, missing 0, duplicated 0,") && !last.contains("redelivered 0"), "{last}");

    let queue = async || vhost.queue(&mailbox(101, 1)).await.unwrap();
    wait_until(PATIENCE, "all is back", queue, |queue| (queue.ready, queue.unacked) == (3, 0)).await;
    let crowd = Crowd::start(&proxy.url(), "101 101 1");
    settled(&vhost).await;
    assert_complete(&crowd.stop().await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_slow_holds_its_window_and_gets_everything_once() {
    const SLOW: Duration = Duration::from_millis(100);
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &["--window", "8", "--ack-timeout", "5"]);
    let crowd = Crowd::start(&proxy.url(), "101 101 1 --window 4 --slow 100ms");
    subscribed(&vhost, 1).await;
    let start = Instant::now();
    let sent = produce(&vhost, "201 201 101 101 --interval 0 --count 60").await.sent;
    let mut most = 0;
    let look = async || vhost.queue(&mailbox(101, 1)).await.unwrap();
    wait_until(PATIENCE, "all is acked", look, |queue| {
        most = most.max(queue.unacked);
        queue.ready + queue.unacked == 0
    })
    .await;
    assert!((1..=4).contains(&most), "{most} unacked at a time");
    assert!(start.elapsed() >= SLOW * u32::try_from(sent).unwrap(), "{:?}", start.elapsed());
    let totals = crowd.stop().await;
    assert_complete(&totals, sent);
    assert_eq!((totals.counts.redelivered, proxy.stop().await.sessions), (0, 1), "it was cut");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_stalls_and_the_rest_gets_everything() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &["--window", "4"]);
    let crowd = Crowd::start(&proxy.url(), "101 101 2 --stall --stall-share 50%");
    subscribed(&vhost, 2).await;
    let sent = produce(&vhost, "201 201 101 101 --interval 0 --count 30").await.sent;
    for (instance, expected) in [(1, (sent - 4, 4)), (2, (0, 0))] {
        let queue = async || vhost.queue(&mailbox(101, instance)).await.unwrap();
        wait_until(PATIENCE, "each has what it takes", queue, |queue| (queue.ready, queue.unacked) == expected).await;
    }
    let totals = crowd.stop().await;
    assert_complete(&totals, sent);
    assert_eq!(totals.v1.unwrap().acked, sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_amqp_connections_are_noticed_and_lose_and_double_nothing() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let crowd = Crowd::start(&proxy.url(), "101 103 2");
    subscribed(&vhost, 6).await;
    let url = vhost.amqp_url("producer");
    let words = ["201", "202", "101", "103", "--interval", "20ms", "--count", "200", "--persistent"];
    let mut producers = Program::start("producers", &words, &[("AMQP_URL", &url)]);
    for round in 1..=3 {
        producers.wait_for_lines("OK", round * 40, PATIENCE).await;
        vhost.close_connections("an operator's test").await;
        subscribed(&vhost, 6).await;
    }
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(0), "{:#?}", producers.stdout());
    settled(&vhost).await;
    let totals = crowd.stop().await;
    assert_complete(&totals, 2 * 200 * 3 * 2);
    let v1 = totals.v1.unwrap();
    assert!(v1.broker_lost >= 18 && v1.broker_back >= 18, "each of six is told of each of three: {v1}");
    assert_eq!(proxy.stop().await.sessions, 6, "no client felt it");
}

/// The broker has the messages and its consumers too, and the confirms never reach the producer.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_producer_publishes_again_is_told_from_what_nobody_should_see_twice() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let crowd = Crowd::start(&proxy.url(), "101 101 2");
    subscribed(&vhost, 2).await;
    let relay = Relay::start(SocketAddr::from(([127, 0, 0, 1], vhost.node().amqp_port()))).await;
    let url = vhost.amqp_url_at("producer", &relay.addr().to_string());
    let run = Run::start(&url, "201 201 101 101 --interval 0 --window 50 --duration 60 --confirm-timeout 60");
    for _ in 0..3 {
        let before = relay.bytes(Direction::ToTarget);
        let sent = async || relay.bytes(Direction::ToTarget);
        wait_until(PATIENCE, "messages are sent", sent, |now| *now > before + 50_000).await;
        relay.set(Direction::ToClient, Mode::Stall);
        let mut last = 0;
        let full = |now: &u64| std::mem::replace(&mut last, *now) == *now;
        wait_until(PATIENCE, "the window is full", sent, full).await;
        settled(&vhost).await;
        relay.cut(Cut::Reset);
        relay.set(Direction::ToClient, Mode::Pass);
    }
    let published = run.stop().await;
    assert!(published.is_all_confirmed(), "{published}");
    settled(&vhost).await;
    let totals = crowd.stop().await;
    assert_complete(&totals, published.sent * 2);
    let again = totals.counts.republished;
    assert!(again > 0 && again <= published.ended.republished * 2, "{totals} of {published}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconnect_says_whether_the_mailbox_was_still_there() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let relay = Relay::start(proxy.addr()).await;
    let crowd = Crowd::start(&format!("ws://{}", relay.addr()), "101 102 1");
    subscribed(&vhost, 2).await;
    let first = produce(&vhost, "201 201 101 102 --interval 0 --count 10").await.sent;
    settled(&vhost).await;
    relay.refuse(true);
    relay.cut(Cut::Reset);
    subscribed(&vhost, 0).await;
    assert!(vhost.delete_queue(&mailbox(102, 1)).await);
    relay.refuse(false);
    subscribed(&vhost, 2).await;
    let second = produce(&vhost, "201 201 101 102 --interval 0 --count 10").await.sent;
    settled(&vhost).await;
    let totals = crowd.stop().await;
    assert_complete(&totals, first + second);
    let v1 = totals.v1.unwrap();
    assert_eq!((v1.resumed, v1.not_resumed), (1, 1), "{v1}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_proxy_is_left_for_another_and_nothing_is_missing() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let (old, new) = (Proxy::start(&vhost, &["--drain-spread", "2"]), Proxy::start(&vhost, &[]));
    let crowd = Crowd::start(&format!("{},{}", old.url(), new.url()), "101 103 2");
    subscribed(&vhost, 6).await;
    let url = vhost.amqp_url("producer");
    let words = ["201", "202", "101", "103", "--interval", "20ms", "--count", "200"];
    let mut producers = Program::start("producers", &words, &[("AMQP_URL", &url)]);
    producers.wait_for_lines("OK", 40, PATIENCE).await;
    let drained = old.stop().await;
    assert_eq!(drained.sessions, 3, "every other one");
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(0), "{:#?}", producers.stdout());
    subscribed(&vhost, 6).await;
    settled(&vhost).await;
    assert_complete(&crowd.stop().await, 2 * 200 * 3 * 2);
}
