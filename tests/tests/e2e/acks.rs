//! Acks from end to end: RabbitMQ keeps a message until its client has acked it, and gives it back when the client goes.

mod leaving;
mod nacks;
mod window;

use rig::{Client, Dial, Node, PATIENCE, Proxy, Vhost, wait_until};

use crate::control::Control;
use crate::queue;

/// The clients of these tests read, and so answer pings, only when they are asked to.
const LATE_PONGS: &[&str] = &["--pong-timeout", "1h"];

/// A proxy, the healthy client on it, and a client of v1 that has been welcomed.
async fn connected(arguments: &[&str]) -> (Vhost, Proxy, Control, Client) {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[LATE_PONGS, arguments].concat());
    let control = Control::start(&vhost, proxy.addr()).await;
    let mut client = Dial::to(proxy.addr()).consumer("a").v1().connect().await;
    client.welcome().await;
    control.shares_lane_with(&vhost, "a").await;
    (vhost, proxy, control, client)
}

fn numbers(range: std::ops::RangeInclusive<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// Messages that wait and messages that are unacked.
async fn state(vhost: &Vhost) -> (u64, u64) {
    let queue = vhost.queue(&queue("a")).await.expect("the mailbox");
    (queue.ready, queue.unacked)
}

async fn reaches(vhost: &Vhost, ready: u64, unacked: u64) {
    let what = format!("{ready} ready and {unacked} unacked");
    wait_until(PATIENCE, &what, async || state(vhost).await, |state| *state == (ready, unacked)).await;
}

/// The next messages have these bodies and are flagged or not; returns the last seq.
async fn expect(client: &mut Client, bodies: &[String], redelivered: bool) -> u64 {
    let mut last = 0;
    for body in bodies {
        let message = client.message().await;
        assert_eq!((message.body(), message.redelivered), (body.as_bytes(), redelivered), "{body}");
        last = message.seq;
    }
    last
}

/// Nothing else was on its way to the client: the answer to its question comes next.
async fn expect_pong(client: &mut Client) {
    client.say(&protocol::v1::ClientFrame::Ping).await;
    assert_eq!(client.said().await, protocol::v1::ServerFrame::Pong);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_acked_to_the_broker_before_its_client_has_acked_it() {
    let (vhost, proxy, control, mut client) = connected(&["--ack-interval", "0"]).await;
    vhost.publisher().await.publish_all("a", numbers(1..=10)).await;
    expect(&mut client, &numbers(1..=10), false).await;
    // Whatever would settle them without their client has had time to: acks of others went over the lane meanwhile.
    let mut other = Dial::to(proxy.addr()).consumer("b").v1().connect().await;
    other.welcome().await;
    vhost.publisher().await.publish_all("b", numbers(1..=50)).await;
    other.take(50).await;
    let others = async || vhost.queue(&queue("b")).await.expect("a mailbox").unacked;
    wait_until(PATIENCE, "the others' acks are with the broker", others, |unacked| *unacked == 0).await;
    assert_eq!(state(&vhost).await, (0, 10));
    client.ack(4).await;
    reaches(&vhost, 0, 6).await;
    client.ack(10).await;
    reaches(&vhost, 0, 0).await;
    control.finish().await;
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seqs_count_from_1_and_an_ack_takes_all_before_it() {
    let (vhost, proxy, control, mut client) = connected(&[]).await;
    vhost.publisher().await.publish_all("a", numbers(1..=100)).await;
    for number in 1..=100_u64 {
        let message = client.message().await;
        assert_eq!((message.seq, message.redelivered), (number, false));
        assert_eq!(message.body(), number.to_string().as_bytes());
        if number % 10 == 0 {
            client.ack(number).await;
        }
    }
    reaches(&vhost, 0, 0).await;
    let streamed = control.finish().await.messages;
    assert_eq!(proxy.stop().await.acked, 100 + streamed);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_that_is_old_or_came_before_settles_nothing_more() {
    let (vhost, proxy, control, mut client) = connected(&[]).await;
    vhost.publisher().await.publish_all("a", numbers(1..=8)).await;
    expect(&mut client, &numbers(1..=8), false).await;
    for seq in [5, 3, 5, 0, 1, 5] {
        client.ack(seq).await;
    }
    // An old nack is as old.
    client.nack(2, true).await;
    expect_pong(&mut client).await;
    reaches(&vhost, 0, 3).await;
    client.ack(8).await;
    reaches(&vhost, 0, 0).await;
    expect_pong(&mut client).await;
    control.finish().await;
    proxy.stop().await;
}
