//! A mailbox at its limit takes back what its client had: the limit is for producers.

use nix::sys::signal::Signal;
use rig::{Client, Dial, Node, Outcome, PATIENCE, ProxyProcess, Vhost, wait_until};
use serde_json::json;

use super::welcomed;
use crate::queue;

const LIMIT: usize = 30;
const WINDOW: usize = 16;

async fn check(leave: impl AsyncFnOnce(&mut ProxyProcess, Client)) {
    let vhost = Vhost::new(&Node::shared().await).await;
    vhost.set_policy(json!({"max-length": LIMIT})).await;
    let mut proxy = ProxyProcess::start(&vhost, &["--drain-timeout", "4"], &[]).await;
    let client = welcomed(&Dial::to(proxy.addr()).consumer("a").v1()).await;
    let publisher = vhost.publisher().await;
    let state = async || vhost.queue(&queue("a")).await.map(|q| (q.ready, q.unacked, q.consumers));
    let (window, limit, all) = (WINDOW as u64, LIMIT as u64, WINDOW + LIMIT);
    publisher.publish_all("a", (0..WINDOW).map(|number| number.to_string())).await;
    wait_until(PATIENCE, "the window is full", state, |state| *state == Some((0, window, 1))).await;
    publisher.publish_all("a", (WINDOW..all).map(|number| number.to_string())).await;
    assert_eq!(publisher.publish("a", "one too many").await, Outcome::Nacked, "the mailbox is full");
    assert_eq!(state().await, Some((limit, window, 1)));
    leave(&mut proxy, client).await;
    wait_until(PATIENCE, "none has vanished", state, |state| *state == Some((all as u64, 0, 0))).await;
    assert_eq!(publisher.publish("a", "still too many").await, Outcome::Nacked);
    let successor = ProxyProcess::start(&vhost, &[], &[]).await;
    let mut client = welcomed(&Dial::to(successor.addr()).consumer("a").v1()).await;
    for number in 0..all {
        let message = client.message().await;
        assert_eq!((message.body(), message.redelivered), (number.to_string().as_bytes(), number < WINDOW));
        client.ack(message.seq).await;
    }
    wait_until(PATIENCE, "nothing is left", state, |state| *state == Some((0, 0, 1))).await;
    assert_eq!(publisher.publish("a", "there is room again").await, Outcome::Confirmed);
    assert_eq!(client.take(1).await, ["there is room again"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whose_client_says_goodbye() {
    check(async |_, client| drop(client.close().await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whose_client_is_reset() {
    check(async |_, client| client.reset()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whose_proxy_is_stopped() {
    check(async |proxy, mut client| {
        proxy.program().signal(Signal::SIGTERM);
        assert_eq!(client.until_close().await.1.map(|(code, _)| code), Some(4002));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whose_proxy_is_killed() {
    check(async |proxy, client| {
        proxy.program().signal(Signal::SIGKILL);
        drop(client);
    })
    .await;
}
