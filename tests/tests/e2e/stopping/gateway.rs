//! How `auth-proxy` stops, and how all three do without a broker.

use std::net::SocketAddr;

use nix::sys::signal::Signal;
use rig::relay::{Direction, Mode};
use rig::{Client, Dial, Node, PATIENCE, Program, ProxyProcess, Vhost, wait_until};
use tokio::time::Instant;

use super::{IN_TIME, ended, numbers, relay_to, stop, stop_at_once};

fn proxy_totals(sessions: u64, delivered: u64, requeued: u64) -> String {
    format!(
        "Totals: sessions {sessions}, refused 0, delivered {delivered}, acked {delivered}, requeued {requeued}, \
         rejected 0, cut off 0, panicked 0"
    )
}

async fn expect_draining(client: &mut Client) {
    let (code, reason) = client.expect_close().await;
    assert_eq!((code, reason.is_empty()), (4002, false), "raw clients find the time to come back in the reason");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_closes_every_session_with_4002_and_exits_with_0() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let vhost = Vhost::new(&Node::shared().await).await;
        let mut proxy = ProxyProcess::start(&vhost, &[], &[]).await;
        let mut clients = Vec::new();
        for number in 0..20 {
            clients.push(Dial::to(proxy.addr()).consumer(&format!("c{number}")).connect().await);
        }
        vhost.publisher().await.publish_all("c0", ["hello"]).await;
        assert_eq!(clients[0].text().await, "hello");
        proxy.program().signal(signal);
        for client in &mut clients {
            expect_draining(client).await;
        }
        let (code, last) = ended(proxy.program(), IN_TIME).await;
        assert!(code == 0 && last.ends_with(&proxy_totals(20, 1, 0)), "{code}: {last}");
        let connected = vhost.connections().await.into_iter().any(|connection| connection.user == "auth-proxy");
        assert!(!connected, "it has not said goodbye to the broker");
        let messages: Vec<_> = vhost.queues().await.iter().map(|queue| queue.ready + queue.unacked).collect();
        assert_eq!(messages, [0; 20]);
    }
}

/// More than the kernel takes for a client that does not read.
const LARGE: usize = 1024 * 1024;
const MESSAGES: usize = 3;

/// Clients that never read, with more on its way to each than its socket takes.
async fn clients_that_never_read(vhost: &Vhost, proxy: SocketAddr) -> Vec<Client> {
    let publisher = vhost.publisher().await;
    let mut clients = Vec::new();
    for number in 0..10 {
        let consumer = format!("c{number}");
        clients.push(Dial::to(proxy).consumer(&consumer).receive_buffer(4096).connect().await);
        publisher.publish_all(&consumer, vec![vec![b'x'; LARGE]; MESSAGES]).await;
    }
    let held = "the proxy holds all of it and can write none to its end";
    let unacked = async || vhost.queues().await.iter().map(|queue| queue.unacked).collect::<Vec<_>>();
    wait_until(PATIENCE, held, unacked, |unacked| *unacked == [MESSAGES as u64; 10]).await;
    clients
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_ends_in_time_with_clients_that_never_read_and_gives_back_their_messages() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut proxy = ProxyProcess::start(&vhost, &[], &[]).await;
    let clients = clients_that_never_read(&vhost, proxy.addr()).await;
    let (code, last) = stop(proxy.program(), Signal::SIGTERM).await;
    assert!(code == 0 && last.ends_with(&proxy_totals(10, 0, 10 * MESSAGES as u64)), "{code}: {last}");
    let queues = vhost.queues().await;
    let back = |queue: &rig::vhost::Queue| (queue.ready, queue.unacked, queue.consumers) == (MESSAGES as u64, 0, 0);
    assert!(queues.len() == 10 && queues.iter().all(back), "{queues:#?}");
    drop(clients);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_proxy_at_once() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut proxy = ProxyProcess::start(&vhost, &["--drain-timeout", "1h", "--close-timeout", "1h"], &[]).await;
    let clients = clients_that_never_read(&vhost, proxy.addr()).await;
    let (code, last) = stop_at_once(proxy.program()).await;
    assert!(code == 0 && last.contains("Totals: sessions 10,") && last.contains("cut off 10,"), "{code}: {last}");
    let back = "what they had not got is ready again";
    let ready = async || vhost.queues().await.iter().map(|queue| queue.ready).sum::<u64>();
    wait_until(PATIENCE, back, ready, |ready| *ready == 10 * MESSAGES as u64).await;
    drop(clients);
}

/// A broker that was killed: the proxy, producers and consumers are told to stop while it is away.
#[tokio::test(flavor = "multi_thread")]
async fn all_three_end_in_time_when_the_broker_is_gone() {
    let node = Node::private().await;
    let vhost = Vhost::new(&node).await;
    let mut proxy = ProxyProcess::start(&vhost, &[], &[]).await;
    let mut client = Dial::to(proxy.addr()).consumer("alice").connect().await;
    let mut consumers = Program::consumers(proxy.addr(), &["101", "101", "1"]);
    let all = "both are subscribed";
    wait_until(PATIENCE, all, async || vhost.consumers().await.len(), |consumers| *consumers == 2).await;
    let mut producers = Program::producers(&vhost, &["201", "201", "101", "101", "--interval", "50ms"]);
    consumers.wait_for_line("says Hello 2]", PATIENCE).await;
    node.kill().await;
    producers.wait_for_line("trying again", PATIENCE).await;
    proxy.program().wait_for_line("trying again", PATIENCE).await;

    let (code, last) = stop(&mut producers, Signal::SIGTERM).await;
    let [sent, confirmed, ..] = numbers(&last);
    assert_eq!(code, i32::from(confirmed != sent), "{last}");
    assert!(confirmed >= 1, "{last}");

    // Sessions outlive the broker; the client is told the reason of its end.
    proxy.program().signal(Signal::SIGTERM);
    let since = Instant::now();
    expect_draining(&mut client).await;
    let (code, last) = ended(proxy.program(), IN_TIME.saturating_sub(since.elapsed())).await;
    assert!(code == 0 && last.contains("Totals: sessions 2,") && last.contains(" cut off 0,"), "{code}: {last}");

    let (code, last) = stop(&mut consumers, Signal::SIGTERM).await;
    assert!(code == 0 && last.contains(", missing 0, duplicated 0,"), "{code}: {last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_never_had_a_broker_end_in_time() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let relay = relay_to(vhost.node()).await;
    // The first connect waits for its answer.
    relay.set(Direction::ToClient, Mode::Stall);
    let at = |user| vhost.amqp_url_at(user, &relay.addr().to_string());
    let mut proxy = ProxyProcess::start(&vhost, &[], &[("AMQP_URL", &at("auth-proxy"))]).await;
    let mut producers = Program::start("producers", &["201", "201", "101", "101"], &[("AMQP_URL", &at("producer"))]);
    // Three of the proxy, one of the producers.
    let tried = "all four connections are waiting for an answer";
    wait_until(PATIENCE, tried, async || relay.connections(), |connections| *connections >= 4).await;
    let (code, last) = stop(&mut producers, Signal::SIGTERM).await;
    assert_eq!((code, numbers(&last)), (1, [0; 6]), "{last}");
    let (code, last) = stop(proxy.program(), Signal::SIGTERM).await;
    assert!(code == 0 && last.ends_with(&proxy_totals(0, 0, 0)), "{code}: {last}");
}
/// The broker answers nothing any more, and nobody has noticed yet.
#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_says_4002_and_ends_in_time_when_the_broker_does_not_answer() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let relay = relay_to(vhost.node()).await;
    let url = vhost.amqp_url_at("auth-proxy", &relay.addr().to_string());
    let mut proxy = ProxyProcess::start(&vhost, &[], &[("AMQP_URL", &url)]).await;
    let mut clients = Vec::new();
    for number in 0..10 {
        clients.push(Dial::to(proxy.addr()).consumer(&format!("c{number}")).connect().await);
    }
    relay.set_both(Mode::Stall);
    proxy.program().signal(Signal::SIGTERM);
    let since = Instant::now();
    for client in &mut clients {
        expect_draining(client).await;
    }
    let (code, last) = ended(proxy.program(), IN_TIME.saturating_sub(since.elapsed())).await;
    assert!(code == 0 && last.ends_with(&proxy_totals(10, 0, 0)), "{code}: {last}");
}

/// In the middle of its first connects.
#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_says_nothing_but_its_last_words_when_it_is_stopped_while_it_connects() {
    let vhost = Vhost::new(&Node::shared().await).await;
    for _ in 0..100 {
        let mut proxy = ProxyProcess::start(&vhost, &[], &[]).await;
        proxy.program().signal(Signal::SIGTERM);
        let (code, last) = ended(proxy.program(), IN_TIME).await;
        assert!(code == 0 && last.ends_with(&proxy_totals(0, 0, 0)), "{code}: {last}");
    }
}
