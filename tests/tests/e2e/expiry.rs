//! A session lasts as long as its token: until `exp` and the leeway are over, whatever its client does.

use std::time::Duration;

use futures::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use protocol::close::CloseCode;
use protocol::token::LEEWAY;
use rig::tokens::{signed, unix_time};
use rig::{Client, Dial, Node, Outcome, PATIENCE, Proxy, Vhost, wait_until, within};
use serde_json::json;
use tokio::time::sleep;

const QUEUE: &str = "proxy-subscription-consumer-alice-1";

/// A token of alice's and the second (unix time) at which its session ends.
fn expiring_in(seconds: i64) -> (String, i64) {
    let expires_at = unix_time(seconds);
    let leeway = i64::try_from(LEEWAY.as_secs()).unwrap();
    (signed(&json!({"sub": "alice", "exp": expires_at})), expires_at + leeway)
}

/// The close frame says 4001 and comes no earlier than it should.
async fn expect_expiry(client: &mut Client, ends_at: i64) {
    let (code, reason) = client.expect_close().await;
    assert_eq!((code, reason.as_str()), (4001, CloseCode::TokenExpired.reason()));
    assert!(unix_time(0) >= ends_at, "{} s too early", ends_at - unix_time(0));
}

/// The token is of no use any more.
async fn expect_refusal(proxy: &Proxy, token: &str) {
    let refusal = Dial::to(proxy.addr()).token(token).try_connect().await.err().expect("an old token is refused");
    assert_eq!((refusal.status, refusal.header("www-authenticate")), (401, Some("Bearer")));
    assert!(refusal.is_complete(), "{refusal:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_socket_is_served_until_exp_and_leeway_are_over_and_closed_with_4001() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let publisher = vhost.publisher().await;
    let (token, ends_at) = expiring_in(3);
    let mut client = Dial::to(proxy.addr()).token(&token).connect().await;
    assert_eq!(publisher.publish("alice", "before exp").await, Outcome::Confirmed);
    assert_eq!(client.text().await, "before exp");
    let until_exp = ends_at - unix_time(0) - i64::try_from(LEEWAY.as_secs()).unwrap();
    sleep(Duration::from_secs(until_exp.try_into().unwrap_or(0))).await;
    assert_eq!(publisher.publish("alice", "in the leeway").await, Outcome::Confirmed);
    assert_eq!(client.text().await, "in the leeway");
    expect_expiry(&mut client, ends_at).await;
    expect_refusal(&proxy, &token).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_its_leeway_still_connects_and_ends_with_it() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let neighbour = Dial::to(proxy.addr()).consumer("bob").connect().await;
    let (token, ends_at) = expiring_in(0);
    let mut client = Dial::to(proxy.addr()).token(&token).connect().await;
    expect_expiry(&mut client, ends_at).await;
    wait_until(PATIENCE, "the other session goes on alone", async || vhost.consumers().await, |c| c.len() == 1).await;
    expect_refusal(&proxy, &token).await;
    assert_eq!(neighbour.close().await.map(|(code, _)| code), Some(1000));
}

/// More than the kernel takes of a message for a client that does not read (64 KiB, and what is below).
const BODY_BYTES: usize = 1024 * 1024;
const WINDOW: usize = 4;
const MESSAGES: usize = 10;

fn body(number: usize) -> Vec<u8> {
    let mut body = format!("message {number} ").into_bytes();
    body.resize(BODY_BYTES, b'.');
    body
}

fn number_of(body: &[u8]) -> usize {
    let text = std::str::from_utf8(body).unwrap();
    assert_eq!(text.len(), BODY_BYTES);
    text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_does_not_read_is_closed_too_and_its_messages_are_ready_again_at_once() {
    let vhost = Vhost::new(&Node::shared().await).await;
    // Neither the write deadline nor the goodbye can be what frees the messages: both take longer than the test looks.
    let patient = (2 * PATIENCE).as_secs().to_string();
    let window = WINDOW.to_string();
    let arguments = ["--window", &window, "--write-timeout", &patient, "--close-timeout", &patient];
    let proxy = Proxy::start(&vhost, &[&arguments[..], &["--ping-interval", &patient]].concat());
    let (token, ends_at) = expiring_in(5);
    let mut client = Dial::to(proxy.addr()).token(&token).receive_buffer(4096).connect().await;
    vhost.publisher().await.publish_all("alice", (0..MESSAGES).map(body)).await;
    let queue = async || vhost.queue(QUEUE).await.unwrap();
    let (window, all) = (WINDOW as u64, MESSAGES as u64);
    let held = "the session holds its window";
    wait_until(PATIENCE, held, queue, |q| (q.ready, q.unacked) == (all - window, window)).await;
    let back = "all is ready again";
    wait_until(PATIENCE, back, queue, |q| (q.ready, q.unacked, q.consumers) == (all, 0, 0)).await;
    assert!(unix_time(0) >= ends_at, "{} s too early", ends_at - unix_time(0));
    expect_refusal(&proxy, &token).await;

    // A part of the first message is on its way; the close frame comes behind it.
    expect_expiry(&mut client, ends_at).await;
    look_at_the_flags(&vhost).await;
    let mut next = Dial::to(proxy.addr()).consumer("alice").connect().await;
    vhost.publisher().await.publish_all("alice", [body(MESSAGES)]).await;
    for number in 0..=MESSAGES {
        assert_eq!(number_of(&next.body().await), number);
    }
    wait_until(PATIENCE, "all is acked", queue, |q| (q.ready, q.unacked) == (0, 0)).await;
}

/// As the AMQP consumer that comes next sees it: what the session held comes first and is flagged as redelivered, the
/// rest is not. What is looked at goes back to where it was.
async fn look_at_the_flags(vhost: &Vhost) {
    let url = vhost.amqp_url("auth-proxy");
    let connect = Box::pin(Connection::connect(&url, ConnectionProperties::default()));
    let connection = within(PATIENCE, "a login", connect).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.basic_qos(u16::try_from(MESSAGES).unwrap(), BasicQosOptions::default()).await.unwrap();
    let options = BasicConsumeOptions::default();
    let mut deliveries = channel.basic_consume(QUEUE.into(), "".into(), options, FieldTable::default()).await.unwrap();
    for number in 0..MESSAGES {
        let delivery = within(PATIENCE, "a delivery", deliveries.next()).await.unwrap().unwrap();
        assert_eq!((number_of(&delivery.data), delivery.redelivered), (number, number < WINDOW));
    }
    within(PATIENCE, "a goodbye", connection.close(200, "seen".into())).await.unwrap();
    let queue = async || vhost.queue(QUEUE).await.unwrap();
    let (back, all) = ("all is ready again", MESSAGES as u64);
    wait_until(PATIENCE, back, queue, |q| (q.ready, q.unacked, q.consumers) == (all, 0, 0)).await;
}
