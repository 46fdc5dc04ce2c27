//! However a client goes, what it had not acked comes first when it returns: in order, and flagged.

use nix::sys::signal::Signal;
use rig::{Client, Dial, Node, PATIENCE, Program, Proxy, Vhost, wait_until};

use super::{LATE_PONGS, expect, expect_pong, numbers, reaches};
use crate::control::Control;
use crate::queue;

async fn welcomed(dial: &Dial, pending: u32, resumed: Option<bool>) -> Client {
    let mut client = dial.connect().await;
    let welcome = client.welcome().await;
    assert_eq!((welcome.pending, welcome.resumed), (pending, resumed));
    client
}

async fn check(leave: impl AsyncFnOnce(Client)) {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let control = Control::start(&vhost, proxy.addr()).await;
    let dial = Dial::to(proxy.addr()).consumer("a").v1().target("/?resume=true");
    let mut client = welcomed(&dial, 0, Some(false)).await;
    let publisher = vhost.publisher().await;
    publisher.publish_all("a", numbers(1..=10)).await;
    expect(&mut client, &numbers(1..=10), false).await;
    client.ack(3).await;
    // One in its pause goes back with the others, in its place.
    client.nack(6, true).await;
    expect_pong(&mut client).await;
    leave(client).await;
    reaches(&vhost, 7, 0).await;
    publisher.publish_all("a", numbers(11..=15)).await;
    let mut client = welcomed(&dial, 12, Some(true)).await;
    expect(&mut client, &numbers(4..=10), true).await;
    let last = expect(&mut client, &numbers(11..=15), false).await;
    assert_eq!(last, 12, "seqs begin anew");
    client.ack(last).await;
    reaches(&vhost, 0, 0).await;
    expect_pong(&mut client).await;
    control.finish().await;
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_close_frame() {
    check(async |client| assert_eq!(client.close().await.map(|(code, _)| code), Some(1000))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_end_of_the_connection() {
    check(async |client| drop(client)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_reset() {
    check(async |client| client.reset()).await;
}

/// The kernel says goodbye for a process that is killed.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_kill() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let control = Control::start(&vhost, proxy.addr()).await;
    let mut killed = Program::consumers(proxy.addr(), &["101", "101", "--protocol", "v1", "--no-ack"]);
    killed.wait_for_line("Connected 1 of 1", PATIENCE).await;
    let mailbox = queue("consumer101");
    let publisher = vhost.publisher().await;
    publisher.publish_all("consumer101", numbers(1..=10)).await;
    let state = async || vhost.queue(&mailbox).await.map_or((0, 0), |queue| (queue.ready, queue.unacked));
    wait_until(PATIENCE, "it has all of them", state, |state| *state == (0, 10)).await;
    killed.signal(Signal::SIGKILL);
    wait_until(PATIENCE, "all are back", state, |state| *state == (10, 0)).await;
    publisher.publish_all("consumer101", numbers(11..=15)).await;
    let mut client = welcomed(&Dial::to(proxy.addr()).consumer("consumer101").v1(), 15, None).await;
    expect(&mut client, &numbers(1..=10), true).await;
    let last = expect(&mut client, &numbers(11..=15), false).await;
    client.ack(last).await;
    wait_until(PATIENCE, "nothing is left", state, |state| *state == (0, 0)).await;
    control.finish().await;
    proxy.stop().await;
}
