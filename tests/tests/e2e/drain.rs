//! SIGTERM on the proxy: its clients are told when to come back, leave one after the other, and have until then to ack what
//! they have; what they had not acked is back before they are told to go.

mod full;
mod rolling;

use std::time::Duration;

use nix::sys::signal::Signal;
use protocol::close::RetryWindow;
use protocol::v1::ServerFrame;
use rig::relay::{Mode, Relay};
use rig::{Client, Dial, Node, PATIENCE, ProxyProcess, Received, Vhost, wait_until};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::queue;

/// Of each dialect.
const CLIENTS: usize = 100;
const DRAIN: Duration = Duration::from_secs(7);
/// The drain less the time that is kept for the last of them.
const PACE: Duration = Duration::from_secs(4);
const SPREAD_MS: u64 = 20_000;

async fn welcomed(dial: &Dial) -> Client {
    let mut client = dial.connect().await;
    client.welcome().await;
    client
}

/// How one of them went.
struct Gone {
    consumer: String,
    at: Instant,
    window: RetryWindow,
    /// Messages that it had.
    had: u64,
    /// What was in its mailbox at the close: ready, unacked, consumers.
    left: (u64, u64, u64),
}

async fn left(vhost: &Vhost, consumer: &str) -> (u64, u64, u64) {
    let queue = vhost.queue(&queue(consumer)).await.expect("a mailbox outlives its session");
    (queue.ready, queue.unacked, queue.consumers)
}

/// Has two messages; told to go, it acks the first, and reads on.
async fn v1_client(mut client: Client, vhost: Vhost, consumer: String) -> Gone {
    let (mut window, mut had) = (None, 0);
    loop {
        match client.receive().await {
            Received::Text(text) => match ServerFrame::parse(&text).expect("a frame of v1") {
                ServerFrame::Message(message) => had = message.seq,
                ServerFrame::Bye { code, retry_after_ms: [min_ms, max_ms], .. } => {
                    assert_eq!((code, window.replace(RetryWindow { min_ms, max_ms })), (4002, None), "told once");
                    client.ack(1).await;
                }
                other => panic!("{other:?}"),
            },
            Received::Close(close) => {
                let (at, left) = (Instant::now(), left(&vhost, &consumer).await);
                assert_eq!(close.map(|(code, _)| code), Some(4002));
                let window = window.expect("a bye goes before the close");
                return Gone { consumer, at, window, had, left };
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn raw_client(mut client: Client, vhost: Vhost, consumer: String) -> Gone {
    let mut had = 0;
    loop {
        match client.receive().await {
            Received::Text(_) => had += 1,
            Received::Close(Some((4002, reason))) => {
                let (at, left) = (Instant::now(), left(&vhost, &consumer).await);
                let window = RetryWindow::from_reason(&reason).unwrap_or_else(|| panic!("no window in {reason:?}"));
                return Gone { consumer, at, window, had, left };
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_clients_leave_one_after_the_other_each_with_a_time_to_return() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let (drain, spread) = (DRAIN.as_secs().to_string(), format!("{SPREAD_MS}ms"));
    let arguments = ["--drain-timeout", &drain, "--drain-spread", &spread, "--pong-timeout", "1h"];
    let mut proxy = ProxyProcess::start(&vhost, &arguments, &[]).await;
    let publisher = vhost.publisher().await;
    let (mut v1, mut raw) = (JoinSet::new(), JoinSet::new());
    let mut names = Vec::new();
    for number in 0..CLIENTS {
        let [name, raw_name] = [format!("v{number}"), format!("r{number}")];
        let client = welcomed(&Dial::to(proxy.addr()).consumer(&name).v1()).await;
        publisher.publish_all(&name, ["first", "second"]).await;
        v1.spawn(v1_client(client, vhost.clone(), name.clone()));
        raw.spawn(raw_client(
            Dial::to(proxy.addr()).consumer(&raw_name).connect().await,
            vhost.clone(),
            raw_name.clone(),
        ));
        names.extend([name, raw_name]);
    }
    let held = async || vhost.queues().await.iter().filter(|queue| queue.unacked == 2).count();
    wait_until(PATIENCE, "all have two messages", held, |held| *held == CLIENTS).await;

    proxy.program().signal(Signal::SIGTERM);
    let since = Instant::now();
    proxy.program().wait_for_line("SIGTERM: finishing", PATIENCE).await;
    let refused = Dial::to(proxy.addr()).consumer("new").v1().try_connect().await.err().expect("it takes nobody new");
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some() && refused.is_complete(), "{refused:?}");
    // Whoever is still there is served.
    for name in &names {
        publisher.publish_all(name, ["third"]).await;
    }
    let exit = async {
        let status = proxy.program().wait(PATIENCE).await;
        (status.code(), since.elapsed())
    };
    let (v1, raw, (code, took)) = tokio::join!(v1.join_all(), raw.join_all(), exit);
    assert_eq!(code, Some(0), "{:?}", proxy.program().stderr());
    assert!(took < DRAIN, "it took {took:?}");
    let last = proxy.program().stdout().pop().expect("last words");
    assert!(last.contains("Totals: sessions 200,") && last.ends_with("cut off 0, panicked 0"), "{last}");
    check_paces(since, v1.iter().chain(&raw));
    check_windows(v1.iter().chain(&raw));
    assert!(v1.iter().all(|gone| (gone.left.1, gone.left.2) == (0, 0)), "everything is back before the close frame");
    assert!(v1.iter().filter(|gone| gone.had == 3).count() > CLIENTS / 2, "messages go on until a session leaves");
    check_nothing_lost(&vhost, &v1, &raw).await;
}

/// Over the time that there is for it, in no crowds.
fn check_paces<'a>(since: Instant, gone: impl Iterator<Item = &'a Gone>) {
    let mut at: Vec<Duration> = gone.map(|gone| gone.at - since).collect();
    at.sort_unstable();
    let (first, last) = (at[0], at[at.len() - 1]);
    assert!(last - first > PACE / 2, "from {first:?} to {last:?}");
    let crowd = at.windows(at.len() / 4).map(|some| some[some.len() - 1] - some[0]).min().expect("more than four");
    // A quarter of them takes a quarter of the time, on a machine that stutters less.
    assert!(crowd > PACE / 16, "a quarter left within {crowd:?}");
}

/// Each its own, a quarter of the spread wide, anywhere within the spread.
fn check_windows<'a>(gone: impl Iterator<Item = &'a Gone>) {
    let mut windows: Vec<_> = gone.map(|gone| (gone.window.min_ms, gone.window.max_ms)).collect();
    for (min, max) in &windows {
        assert!(*max <= SPREAD_MS + 1 && (max - min).abs_diff(SPREAD_MS / 4) <= 1, "{min}-{max}");
    }
    windows.sort_unstable();
    let (first, last) = (windows[0], windows[windows.len() - 1]);
    assert!(first.0 < SPREAD_MS / 10 && last.1 > SPREAD_MS * 9 / 10, "from {first:?} to {last:?}");
    windows.dedup();
    assert!(windows.len() > CLIENTS, "only {} different ones", windows.len());
}

/// Three messages were confirmed for each v1 client, of which it acked at most the first, and one for each raw one.
async fn check_nothing_lost(vhost: &Vhost, v1: &[Gone], raw: &[Gone]) {
    let mut acked = 0;
    for gone in v1 {
        let ready = left(vhost, &gone.consumer).await.0;
        assert!(ready == 2 || ready == 3, "{ready} of {}", gone.consumer);
        acked += usize::from(ready == 2);
    }
    assert!(acked > CLIENTS * 3 / 4, "acks are taken until a session leaves: {acked}");
    for gone in raw {
        let ready = left(vhost, &gone.consumer).await.0;
        // What a raw client has read and was not yet acked for it comes again.
        assert!(ready <= 1 && gone.had <= 1 && ready + gone.had >= 1, "{ready}, {} of {}", gone.had, gone.consumer);
    }
}

/// Clients of v1 that are half open, and clients that do not read.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_never_answer_do_not_hold_it_up_and_lose_nothing() {
    const LARGE: usize = 1024 * 1024;
    const EACH: usize = 10;
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut proxy = ProxyProcess::start(&vhost, &["--drain-timeout", "5", "--pong-timeout", "1h"], &[]).await;
    let relay = Relay::start(proxy.addr()).await;
    let (publisher, mut clients, mut names) = (vhost.publisher().await, Vec::new(), Vec::new());
    for number in 0..EACH {
        let (deaf, half_open) = (format!("d{number}"), format!("h{number}"));
        clients.push(welcomed(&Dial::to(proxy.addr()).consumer(&deaf).v1().receive_buffer(4096)).await);
        clients.push(welcomed(&Dial::to(relay.addr()).consumer(&half_open).v1()).await);
        names.extend([deaf, half_open]);
    }
    relay.set_both(Mode::Swallow);
    for name in &names {
        publisher.publish_all(name, vec![vec![b'x'; LARGE]; 2]).await;
    }
    let held = async || vhost.queues().await.iter().filter(|queue| queue.unacked == 2).count();
    wait_until(PATIENCE, "all of it is on its way", held, |held| *held == names.len()).await;
    proxy.program().signal(Signal::SIGTERM);
    let since = Instant::now();
    assert_eq!(proxy.program().wait(PATIENCE).await.code(), Some(0));
    assert!(since.elapsed() < Duration::from_secs(5), "it took {:?}", since.elapsed());
    let queues = vhost.queues().await;
    assert_eq!(queues.len(), names.len());
    assert!(queues.iter().all(|q| (q.ready, q.unacked, q.consumers) == (2, 0, 0)), "{queues:?}");
    drop(clients);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_waits_for_nobody() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut proxy = ProxyProcess::start(&vhost, &["--drain-timeout", "1h", "--pong-timeout", "1h"], &[]).await;
    let mut clients = Vec::new();
    for number in 0..20 {
        let name = format!("c{number}");
        clients.push(welcomed(&Dial::to(proxy.addr()).consumer(&name).v1()).await);
        vhost.publisher().await.publish_all(&name, ["unacked"]).await;
    }
    let held = async || vhost.queues().await.iter().filter(|queue| queue.unacked == 1).count();
    wait_until(PATIENCE, "each has its message", held, |held| *held == clients.len()).await;
    proxy.program().signal(Signal::SIGTERM);
    proxy.program().wait_for_line("SIGTERM: finishing", PATIENCE).await;
    proxy.program().signal(Signal::SIGTERM);
    let since = Instant::now();
    assert_eq!(proxy.program().wait(PATIENCE).await.code(), Some(0));
    assert!(since.elapsed() < Duration::from_secs(4), "it took {:?}", since.elapsed());
    let back = async || vhost.queues().await.iter().map(|queue| queue.ready).sum::<u64>();
    wait_until(PATIENCE, "everything is back", back, |back| *back == clients.len() as u64).await;
}
