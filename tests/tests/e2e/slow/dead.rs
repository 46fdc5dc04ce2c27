//! Clients that do not come back from where they are: half open, not reading, not acking.

use nix::sys::signal::Signal;
use rig::relay::{Mode, Relay};
use rig::{Client, Dial, Node, PATIENCE, Program, Proxy, ProxyProcess, Received, Vhost, wait_until};
use serde_json::json;
use tokio::task::JoinSet;

use super::{KIB, MIB, NEVER, all_back, logged, publish, take_all, welcomed};
use crate::control::Control;
use crate::queue;

const WINDOW: usize = 16;

/// Comes back to another proxy, whose periods are the usual ones.
async fn returned(vhost: &Vhost, consumer: &str) -> (Proxy, Client) {
    let proxy = Proxy::start(vhost, &[]);
    let client = welcomed(&Dial::to(proxy.addr()).consumer(consumer).v1()).await;
    (proxy, client)
}

/// A client that never reads a byte after its welcome ends with `code`; its messages are back although its goodbye takes
/// for ever, and it gets them when it returns.
async fn check(arguments: &[&str], (messages, bytes): (usize, usize), code: u16) {
    let vhost = Vhost::new(&Node::shared().await).await;
    vhost.set_policy(json!({"max-length-bytes": 64 * MIB})).await;
    let mut proxy = ProxyProcess::start(&vhost, &[arguments, &["--close-timeout", NEVER]].concat(), &[]).await;
    let control = Control::start(&vhost, proxy.addr()).await;
    let dial = Dial::to(proxy.addr()).consumer("a").v1();
    welcomed(&dial).await.close().await;
    // So that they are on their way from its first moment on.
    publish(&vhost, "a", messages, bytes).await;
    let deaf = welcomed(&dial.receive_buffer(4096)).await;
    logged(&mut proxy, "a", code).await;
    all_back(&vhost, "a", messages).await;
    let (_proxy, mut client) = returned(&vhost, "a").await;
    assert_eq!(take_all(&mut client, messages).await, messages.min(WINDOW), "flagged");
    drop((deaf, client));
    control.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn small_bodies_that_are_not_read_end_with_4004_if_the_pong_is_due_first() {
    check(&["--ping-interval", "0.3", "--pong-timeout", "0.5", "--ack-timeout", "60"], (100, 20), 4004).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn small_bodies_that_are_not_read_end_with_4006_if_the_ack_is_due_first() {
    check(&["--pong-timeout", NEVER, "--ack-timeout", "1"], (100, 20), 4006).await;
}

/// Whatever else is due.
#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_that_are_not_read_end_with_4003() {
    let others = ["--ping-interval", "0.3", "--pong-timeout", "0.5", "--ack-timeout", "0.5"];
    check(&[&others[..], &["--write-timeout", "1"]].concat(), (20, MIB), 4003).await;
}

/// Some fit and are owed an ack; the next one does not, and the ping stands behind it.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_which_some_fit_end_with_4003_or_4006_whichever_is_due_first() {
    let ping = ["--ping-interval", "0.3", "--pong-timeout", "0.5"];
    let unread = [&ping[..], &["--write-timeout", "1", "--ack-timeout", "60"]].concat();
    let unacked = [&ping[..], &["--write-timeout", NEVER, "--ack-timeout", "1"]].concat();
    let some_fit = (40, 32 * KIB);
    tokio::join!(check(&unread, some_fit, 4003), check(&unacked, some_fit, 4006));
}

/// It is there, it reads, it answers pings, and it never acks.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_and_never_acks_ends_with_4006() {
    const MESSAGES: usize = 30;
    let vhost = Vhost::new(&Node::shared().await).await;
    let arguments = ["--ping-interval", "0.3", "--pong-timeout", "5", "--ack-timeout", "1"];
    let mut proxy = ProxyProcess::start(&vhost, &arguments, &[]).await;
    let control = Control::start(&vhost, proxy.addr()).await;
    let dial = Dial::to(proxy.addr()).consumer("a").v1();
    let mut client = welcomed(&dial).await;
    publish(&vhost, "a", MESSAGES, 20).await;
    let (said, close) = client.until_close().await;
    assert_eq!((said.len(), close.map(|(code, _)| code)), (WINDOW, Some(4006)));
    assert!(client.pings > 0, "it was asked meanwhile, and it answered");
    let state = vhost.queue(&queue("a")).await.expect("the mailbox");
    assert_eq!((state.ready, state.unacked), (MESSAGES as u64, 0), "back before the close frame");
    logged(&mut proxy, "a", 4006).await;
    let (_proxy, mut client) = returned(&vhost, "a").await;
    assert_eq!(take_all(&mut client, MESSAGES).await, WINDOW);
    control.finish().await;
}

/// Field report A10: no FIN ever comes. A relay takes everything from both sides and passes nothing on.
#[tokio::test(flavor = "multi_thread")]
async fn a10_half_open_clients_are_ended_with_4004_and_find_everything_on_return() {
    const CLIENTS: usize = 20;
    const MESSAGES: usize = 20;
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut proxy = ProxyProcess::start(&vhost, &["--ping-interval", "1", "--pong-timeout", "2"], &[]).await;
    let control = Control::start(&vhost, proxy.addr()).await;
    let relay = Relay::start(proxy.addr()).await;
    let names: Vec<String> = (0..CLIENTS).map(|number| format!("c{number}")).collect();
    let mut gone = JoinSet::new();
    for name in &names {
        let mut client = welcomed(&Dial::to(relay.addr()).consumer(name).v1()).await;
        // It answers pings while it gets any.
        gone.spawn(async move { while client.try_receive(PATIENCE).await != Some(Received::Gone) {} });
    }
    let consumers = async || vhost.consumers().await.len();
    assert_eq!(consumers().await, CLIENTS + 1, "all are well");
    relay.set_both(Mode::Swallow);
    for name in &names {
        publish(&vhost, name, MESSAGES, 20).await;
    }
    for name in &names {
        logged(&mut proxy, name, 4004).await;
        all_back(&vhost, name, MESSAGES).await;
    }
    let (other, _) = returned(&vhost, "nobody").await;
    for name in &names {
        let mut client = welcomed(&Dial::to(other.addr()).consumer(name).v1()).await;
        take_all(&mut client, MESSAGES).await;
    }
    drop(gone);
    control.finish().await;
}

/// Field report A10, the other kind: the process is stopped, its TCP connections live on.
#[tokio::test(flavor = "multi_thread")]
async fn a10_stopped_clients_are_ended_with_4004_and_find_everything_when_they_wake() {
    const MESSAGES: usize = 40;
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut proxy = ProxyProcess::start(&vhost, &["--ping-interval", "0.5", "--pong-timeout", "1"], &[]).await;
    let control = Control::start(&vhost, proxy.addr()).await;
    let mut consumers = Program::consumers(proxy.addr(), &["101", "101", "--protocol", "v1"]);
    consumers.wait_for_line("Connected 1 of 1", PATIENCE).await;
    consumers.signal(Signal::SIGSTOP);
    publish(&vhost, "consumer101", MESSAGES, 20).await;
    logged(&mut proxy, "consumer101", 4004).await;
    all_back(&vhost, "consumer101", MESSAGES).await;
    consumers.signal(Signal::SIGCONT);
    let left = async || vhost.queue(&queue("consumer101")).await.map(|queue| (queue.ready, queue.unacked));
    wait_until(PATIENCE, "it came back and took all of them", left, |left| *left == Some((0, 0))).await;
    control.finish().await;
}
