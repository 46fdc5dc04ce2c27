//! A16, cold start: programs that are there before their broker, and brokers that say no. Nobody has to start anything
//! twice, and each reason is one line that a person can act on.

use std::net::SocketAddr;
use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use protocol::names::{EXCHANGE_CONTROL, EXCHANGE_DIRECT};
use rig::tokens::SECRET;
use rig::{Dial, Node, PATIENCE, Program, Relay, Vhost, wait_until, within};
use tokio::time::Instant;

/// In the line that says why a program waits for its broker.
const WAITS: &str = "trying again";
/// In the line that says that it does not any more.
const CONNECTED: &str = "onnected to the broker as ";

/// `producers` and `auth-proxy` at one broker, each by the URL given; consumers at that proxy.
struct Pipeline {
    producers: Program,
    proxy: Program,
    address: SocketAddr,
    started: Instant,
}

impl Pipeline {
    async fn start(producers_url: &str, proxy_url: &str) -> Pipeline {
        let rounds = ["201", "201", "101", "101", "--interval", "200ms"];
        let producers = Program::start("producers", &rounds, &[("AMQP_URL", producers_url)]);
        let environment = [("AMQP_URL", proxy_url), ("AUTH_PROXY_LISTEN", "127.0.0.1:0"), ("JWT_SECRET", SECRET)];
        let mut proxy = Program::start("auth-proxy", &[], &environment);
        let line = proxy.wait_for_line("listening on ", PATIENCE).await;
        let address = line.strip_prefix("listening on ").and_then(|text| text.parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
        Pipeline { producers, proxy, address, started: Instant::now() }
    }

    /// Both say why they wait; the reasons.
    async fn waits(&mut self) -> [String; 2] {
        let producers = self.producers.wait_for_line(WAITS, PATIENCE).await;
        // One line of each of its two connections.
        let proxy = self.proxy.wait_for_lines(WAITS, 2, PATIENCE).await.swap_remove(0);
        [producers, proxy]
    }

    /// Messages of these producers reach a consumer of this proxy.
    async fn works(&mut self) {
        self.producers.wait_for_line(CONNECTED, PATIENCE).await;
        self.proxy.wait_for_lines(CONNECTED, 2, PATIENCE).await;
        let mut client = Dial::to(self.address).consumer("consumer101").connect().await;
        let text = client.text().await;
        assert!(text.starts_with("producer201.") && text.contains(" says Hello "), "{text:?}");
        client.close().await;
    }

    /// A client is told to come back.
    async fn refuses(&self) {
        let refusal = Dial::to(self.address).consumer("consumer101").try_connect().await;
        let refusal = refusal.err().unwrap_or_else(|| panic!("connected without a broker"));
        assert_eq!((refusal.status, refusal.header("retry-after")), (503, Some("5")));
        assert!(refusal.is_complete(), "{refusal:?}");
    }

    /// Every line of both, each of which must be one: text that spills over would begin without a time.
    fn lines(&self) -> [Vec<String>; 2] {
        [&self.producers, &self.proxy].map(|program| {
            assert!(program.stderr().is_empty(), "{:#?}", program.stderr());
            let lines = program.stdout();
            let is_one = |line: &String| line.starts_with("20") || line.starts_with("listening on ");
            assert!(lines.iter().all(is_one), "{lines:#?}");
            lines
        })
    }

    /// What they said about their broker being away: a few lines for each connection, and one now and then as it lasts.
    fn is_no_flood(&self) {
        let [producers, proxy] = self.lines();
        let count = |lines: &[String]| lines.iter().filter(|line| line.contains(WAITS)).count();
        let (of_producers, of_proxy) = (count(&producers), count(&proxy));
        let each = 5 + usize::try_from(self.started.elapsed().as_secs() / 30).unwrap();
        assert!((1..=each).contains(&of_producers), "{producers:#?}");
        assert!((2..=2 * each).contains(&of_proxy), "{proxy:#?}");
    }
}

fn at(user: &str, password: &str, address: SocketAddr, vhost: &str) -> String {
    format!("amqp://{user}:{password}@{address}/{vhost}")
}

fn address(node: &Node) -> SocketAddr {
    ([127, 0, 0, 1], node.amqp_port()).into()
}

/// Programs, then some seconds of nothing, then their broker.
#[tokio::test(flavor = "multi_thread")]
async fn a16_programs_started_before_their_broker_come_up_by_themselves() {
    let node = Node::private().await;
    node.kill().await;
    let at = |user| at(user, user, address(&node), "%2f");
    let mut pipeline = Pipeline::start(&at("producer"), &at("auth-proxy")).await;
    let mut consumers = Program::consumers(pipeline.address, &["101", "101", "1", "--backoff-cap", "2"]);
    for reason in pipeline.waits().await {
        let place = format!("127.0.0.1:{}/%2f: ", node.amqp_port());
        assert!(reason.contains("cannot reach amqp://") && reason.contains(&place), "{reason:?}");
    }
    pipeline.refuses().await;
    consumers.wait_for_line("503", PATIENCE).await;
    // It takes some seconds.
    node.start().await;
    consumers.wait_for_lines("Received for (consumer101 to consumer101)*1: 1*[producer201.", 3, PATIENCE).await;
    pipeline.works().await;
    pipeline.is_no_flood();
}

/// The spellings of the default vhost, with the shipped definitions as they are.
#[tokio::test(flavor = "multi_thread")]
async fn a16_an_empty_path_a_slash_and_its_encoding_all_mean_the_vhost_slash() {
    let node = Node::private().await;
    let broker = address(&node);
    for path in ["", "/", "/%2f", "/%2F"] {
        // Without user and password each program takes those of its own user.
        let url = format!("amqp://{broker}{path}");
        let mut pipeline = Pipeline::start(&url, &url).await;
        pipeline.works().await;
        let [producers, proxy] = pipeline.lines();
        assert!(producers.iter().any(|line| line.ends_with(" as producer on vhost /")), "{producers:#?}");
        let waited = producers.iter().chain(&proxy).any(|line| line.contains(WAITS));
        assert!(!waited, "{producers:#?} {proxy:#?}");
    }
}

/// A password with every character that a URL gives a meaning to, wrong at first and then mended at the broker.
#[tokio::test(flavor = "multi_thread")]
async fn a16_a_password_full_of_url_characters_works_as_soon_as_the_broker_agrees() {
    const PASSWORD: &str = "p@s/s%w#o:r?d[&]+ é";
    const ENCODED: &str = "p%40s%2Fs%25w%23o%3Ar%3Fd%5B%26%5D%2B%20%C3%A9";
    let node = Node::private().await;
    let at = |user| at(user, ENCODED, address(&node), "%2f");
    let mut pipeline = Pipeline::start(&at("producer"), &at("auth-proxy")).await;
    for (reason, user) in pipeline.waits().await.iter().zip(["producer", "auth-proxy"]) {
        let who = format!("amqp://{user}@127.0.0.1:{}/%2f refuses the login", node.amqp_port());
        assert!(reason.contains(&who), "{who:?} is not in {reason:?}");
    }
    pipeline.refuses().await;
    for user in ["producer", "auth-proxy"] {
        node.ctl(&["change_password", user, PASSWORD]).await;
    }
    pipeline.works().await;
    pipeline.is_no_flood();
    for line in pipeline.lines().iter().flatten() {
        assert!(!line.contains(PASSWORD) && !line.contains(ENCODED), "{line:?}");
    }
}

async fn is_tried_once_a_second(started: Instant, to_producers: &Relay, to_proxy: &Relay) {
    // The proxy has three connections, hence three first tries.
    for (relay, at_once) in [(to_producers, 1), (to_proxy, 3)] {
        let wanted = at_once + 5;
        let tries = "five more tries";
        let seen = wait_until(PATIENCE, tries, async || relay.connections(), |tries| *tries >= wanted).await;
        let elapsed = started.elapsed();
        assert!(elapsed >= Duration::from_secs(seen - at_once), "{seen} tries in {elapsed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a16_a_wrong_password_is_said_with_user_and_vhost_and_tried_at_most_once_a_second() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let broker = address(vhost.node());
    let (to_producers, to_proxy) = (Relay::start(broker).await, Relay::start(broker).await);
    let started = Instant::now();
    let at = |user, relay: &Relay| at(user, "wrong-secret", relay.addr(), vhost.name());
    let mut pipeline = Pipeline::start(&at("producer", &to_producers), &at("auth-proxy", &to_proxy)).await;
    let [producers, proxy] = pipeline.waits().await;
    for (reason, user, relay) in [(producers, "producer", &to_producers), (proxy, "auth-proxy", &to_proxy)] {
        let who = format!("amqp://{user}@{}/{} refuses the login: ", relay.addr(), vhost.name());
        assert!(reason.contains(&who), "{who:?} is not in {reason:?}");
        assert!(reason.contains("check user, password and the permissions on the vhost"), "{reason:?}");
    }
    pipeline.refuses().await;
    is_tried_once_a_second(started, &to_producers, &to_proxy).await;
    pipeline.is_no_flood();
    for line in pipeline.lines().iter().flatten() {
        assert!(!line.contains("secret"), "{line:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a16_a_vhost_that_is_not_there_is_named_and_tried_at_most_once_a_second() {
    let broker = address(&Node::shared().await);
    let (to_producers, to_proxy) = (Relay::start(broker).await, Relay::start(broker).await);
    let started = Instant::now();
    let at = |user, relay: &Relay| at(user, user, relay.addr(), "no%20such%20vhost");
    let mut pipeline = Pipeline::start(&at("producer", &to_producers), &at("auth-proxy", &to_proxy)).await;
    let [producers, proxy] = pipeline.waits().await;
    for (reason, user, relay) in [(producers, "producer", &to_producers), (proxy, "auth-proxy", &to_proxy)] {
        let who = format!("amqp://{user}@{}/no such vhost refuses the login: ", relay.addr());
        assert!(reason.contains(&who), "{who:?} is not in {reason:?}");
    }
    is_tried_once_a_second(started, &to_producers, &to_proxy).await;
    pipeline.is_no_flood();
}

/// The connection closes with its last handle.
async fn as_admin(vhost: &Vhost) -> (Connection, Channel) {
    let url = vhost.amqp_url("admin");
    let login = Connection::connect(&url, ConnectionProperties::default());
    let connection = within(PATIENCE, "the login as admin", Box::pin(login)).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

/// Definitions that were not loaded: each program names the exchange that it misses and the remedy, and goes on by itself
/// once that was done.
#[tokio::test(flavor = "multi_thread")]
async fn a16_a_missing_exchange_is_named_with_its_remedy_and_waited_for() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let (_connection, admin) = as_admin(&vhost).await;
    for (exchange, kind, producers_wait) in
        [(EXCHANGE_DIRECT, ExchangeKind::Direct, true), (EXCHANGE_CONTROL, ExchangeKind::Fanout, false)]
    {
        admin.exchange_delete(exchange.into(), ExchangeDeleteOptions::default()).await.unwrap();
        let mut pipeline = Pipeline::start(&vhost.amqp_url("producer"), &vhost.amqp_url("auth-proxy")).await;
        let mut lines = pipeline.proxy.wait_for_lines(WAITS, 2, PATIENCE).await;
        if producers_wait {
            lines.push(pipeline.producers.wait_for_line(WAITS, PATIENCE).await);
        }
        for line in lines {
            assert!(line.contains(exchange) && line.contains("load rabbit_definitions.json"), "{line:?}");
        }
        pipeline.refuses().await;
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        admin.exchange_declare(exchange.into(), kind, durable, FieldTable::default()).await.unwrap();
        pipeline.works().await;
    }
}
