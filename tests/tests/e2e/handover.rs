//! One instance, two proxies: the newest connection wins, wherever it is.

mod outage;
mod race;
mod stale;

use std::time::Duration;

use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Consumer,
    options::{BasicConsumeOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};
use protocol::names::EXCHANGE_CONTROL;
use rig::{Client, Dial, Node, PATIENCE, Proxy, ProxyProcess, Relay, Vhost, relay::Mode, wait_until, within};
use serde_json::Value;

use crate::queue;

/// The clients of these tests read, and so answer pings, only when they are asked to.
const LATE_PONGS: &[&str] = &["--pong-timeout", "1h"];

const REPLACED: u16 = 4506;

async fn two_proxies(vhost: &Vhost) -> (Proxy, Proxy) {
    (Proxy::start(vhost, LATE_PONGS), Proxy::start(vhost, LATE_PONGS))
}

/// Connects as the one instance of these tests, with acks.
async fn joined(proxy: &Proxy) -> Client {
    let mut client = Dial::to(proxy.addr()).consumer("a").v1().connect().await;
    client.welcome().await;
    client
}

fn bodies(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// The next messages, unacked: their bodies, and whether they are flagged as redelivered; and the last one's seq.
async fn next(client: &mut Client, count: usize) -> (Vec<(String, bool)>, u64) {
    let (mut messages, mut seq) = (Vec::new(), 0);
    while messages.len() < count {
        let message = client.message().await;
        seq = message.seq;
        messages.push((String::from_utf8_lossy(message.body()).into_owned(), message.redelivered));
    }
    (messages, seq)
}

fn flagged(range: std::ops::Range<usize>, redelivered: bool) -> Vec<(String, bool)> {
    bodies(range).into_iter().map(|body| (body, redelivered)).collect()
}

/// It lives: what is published arrives, for the first time.
async fn lives(vhost: &Vhost, client: &mut Client, word: &str) {
    vhost.publisher().await.publish_all("a", [word]).await;
    let (messages, seq) = next(client, 1).await;
    assert_eq!(messages, [(word.to_owned(), false)]);
    client.ack(seq).await;
    let unacked = async || vhost.queue(&queue("a")).await.map(|queue| queue.unacked);
    wait_until(PATIENCE, "the broker has the ack", unacked, |unacked| *unacked == Some(0)).await;
}

/// It was replaced: nothing more is said to it but that.
async fn replaced(mut client: Client) {
    let (said, close) = client.until_close().await;
    let messages: Vec<_> = said.iter().filter(|text| text.contains(r#""type":"message""#)).collect();
    assert!(messages.is_empty(), "{messages:?}");
    assert_eq!(close.map(|(code, _)| code), Some(REPLACED));
}

async fn consumers(vhost: &Vhost) -> usize {
    vhost.consumers().await.len()
}

/// Listens to what proxies say to each other, and says what they might.
struct Spy {
    _connection: Connection,
    channel: Channel,
    consumer: Consumer,
}

impl Spy {
    async fn start(vhost: &Vhost) -> Spy {
        let properties = ConnectionProperties::default().with_connection_name("spy".into());
        let connection = Connection::connect(&vhost.amqp_url("auth-proxy"), properties).await.expect("a login");
        let channel = connection.create_channel().await.expect("a channel");
        let name = format!("proxy-control-spy-{}", rand::random::<u32>());
        let (exclusive, none) = (QueueDeclareOptions { exclusive: true, ..Default::default() }, FieldTable::default());
        channel.queue_declare(name.as_str().into(), exclusive, none).await.expect("a queue");
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        channel
            .queue_bind(name.as_str().into(), EXCHANGE_CONTROL.into(), "".into(), options, none)
            .await
            .expect("a binding");
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let consumed = channel.basic_consume(name.as_str().into(), "spy".into(), options, FieldTable::default()).await;
        Spy { _connection: connection, channel, consumer: consumed.expect("a consumer") }
    }

    /// The next thing that is said of this type.
    async fn hears(&mut self, what: &str) -> Value {
        let heard = async {
            loop {
                let delivery = self.consumer.next().await.expect("the consumer lives").expect("a delivery");
                let message: Value = serde_json::from_slice(&delivery.data).expect("proxies say JSON");
                if message["type"] == what {
                    return message;
                }
            }
        };
        within(PATIENCE, what, heard).await
    }

    async fn says(&self, body: &[u8]) {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let published = self.channel.basic_publish(EXCHANGE_CONTROL.into(), "".into(), options, body, properties).await;
        published.expect("the channel is open");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_older_one_had_not_acked_comes_to_the_newer_one_first_and_in_order() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let (first, second) = two_proxies(&vhost).await;
    let mut old = joined(&first).await;
    vhost.publisher().await.publish_all("a", bodies(0..40)).await;
    // A full window, of which five are acked.
    let (messages, _) = next(&mut old, 16).await;
    assert_eq!(messages, flagged(0..16, false));
    old.ack(5).await;
    let (messages, _) = next(&mut old, 5).await;
    assert_eq!(messages, flagged(16..21, false));

    let mut new = joined(&second).await;
    replaced(old).await;
    let (messages, seq) = next(&mut new, 16).await;
    assert_eq!(messages, flagged(5..21, true));
    new.ack(seq).await;
    let (messages, seq) = next(&mut new, 16).await;
    assert_eq!(messages, flagged(21..37, false));
    new.ack(seq).await;
    let (messages, seq) = next(&mut new, 3).await;
    assert_eq!(messages, flagged(37..40, false));
    new.ack(seq).await;
    let state = async || vhost.queue(&queue("a")).await.map(|queue| (queue.ready, queue.unacked, queue.consumers));
    wait_until(PATIENCE, "everything acked by one consumer", state, |state| *state == Some((0, 0, 1))).await;
    lives(&vhost, &mut new, "more").await;
    first.stop().await;
    second.stop().await;
}

/// And back again, and with the raw subprotocol: the bytes that a dead socket took are gone, the rest comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_socket_gets_nothing_more_and_the_newer_one_everything() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let (first, second) = two_proxies(&vhost).await;
    let network = Relay::start(first.addr()).await;
    let mut old = Dial::to(network.addr()).consumer("a").v1().connect().await;
    old.welcome().await;
    lives(&vhost, &mut old, "hello").await;
    // Its network is gone, and nobody is told.
    network.set_both(Mode::Swallow);
    vhost.publisher().await.publish_all("a", bodies(0..5)).await;
    let unacked = async || vhost.queue(&queue("a")).await.map(|queue| queue.unacked);
    wait_until(PATIENCE, "they were sent to the dead socket", unacked, |unacked| *unacked == Some(5)).await;

    let mut new = joined(&second).await;
    let (messages, seq) = next(&mut new, 5).await;
    assert_eq!(messages, flagged(0..5, true));
    new.ack(seq).await;
    for round in 0..20 {
        lives(&vhost, &mut new, &format!("round {round}")).await;
    }
    assert_eq!(consumers(&vhost).await, 1);
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_of_the_holder_is_killed_while_the_newer_one_waits() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut first = ProxyProcess::start(&vhost, LATE_PONGS, &[]).await;
    let second = Proxy::start(&vhost, LATE_PONGS);
    let mut old = Dial::to(first.addr()).consumer("a").v1().connect().await;
    old.welcome().await;
    vhost.publisher().await.publish_all("a", bodies(0..5)).await;
    assert_eq!(next(&mut old, 5).await.0, flagged(0..5, false));
    let mut spy = Spy::start(&vhost).await;
    // It hears nothing any more, and its connections stand.
    first.program().signal(nix::sys::signal::Signal::SIGSTOP);
    let dial = Dial::to(second.addr()).consumer("a").v1();
    let killed = async {
        spy.hears("notice").await;
        spy.hears("notice").await;
        first.program().signal(nix::sys::signal::Signal::SIGKILL);
    };
    let (mut new, ()) = tokio::join!(dial.connect(), killed);
    new.welcome().await;
    assert_eq!(next(&mut new, 5).await.0, flagged(0..5, true));
    drop(old);
    second.stop().await;
}

/// Who holds a mailbox and is not of our kind gives no way: a 503 in time, not a 101 and silence.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_answers_nothing_is_503_and_served_when_it_has_gone() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[LATE_PONGS, &["--broker-timeout", "2s"]].concat());
    drop(joined(&proxy).await);
    wait_until(PATIENCE, "the queue is free", async || consumers(&vhost).await, |count| *count == 0).await;
    let connection = Connection::connect(&vhost.amqp_url("admin"), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let (tag, options) = ("holder".into(), BasicConsumeOptions::default());
    // Dropped, it would be cancelled.
    let holding = channel.basic_consume(queue("a").as_str().into(), tag, options, FieldTable::default()).await.unwrap();
    let refusal = Dial::to(proxy.addr()).consumer("a").try_connect().await.err().expect("refused");
    assert_eq!(refusal.status, 503);
    assert!(refusal.header("retry-after").is_some(), "{refusal:?}");
    assert_eq!(consumers(&vhost).await, 1, "the refused upgrade left nothing behind");
    connection.close(200, "gone".into()).await.unwrap();
    drop(holding);
    lives(&vhost, &mut joined(&proxy).await, "hello").await;
    proxy.stop().await;
}

/// Longer than a look that finds what it looks for, and shorter than a link takes to come back.
const SHORT: Duration = Duration::from_millis(1_500);
