//! Any body arrives as it was sent, and one that is too large troubles nobody else.

use nix::sys::signal::Signal;
use protocol::frame::FRAGMENT_BYTES;
use rig::{Client, Dial, Node, Outcome, PATIENCE, Proxy, ProxyProcess, Received, Vhost, wait_until};
use serde_json::json;

const MIB: usize = 1024 * 1024;

fn random(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| rand::random()).collect()
}

/// A body of each kind, as it must arrive.
fn bodies() -> Vec<Received> {
    let text = |text: &str| Received::Text(text.to_owned());
    vec![
        text(""),
        text("\0"),
        Received::Binary(b"\xff\xfe not UTF-8".to_vec()),
        // The first two bytes of a character of three.
        Received::Binary(b"cut off \xe2\x82".to_vec()),
        text("\u{1F980} an emoji"),
        text(r#"{"json": [1, null, "é"]}"#),
        text(&"x".repeat(FRAGMENT_BYTES)),
        // Characters of three bytes do not end where fragments do.
        text(&"€".repeat(FRAGMENT_BYTES)),
        Received::Binary(random(MIB)),
        text(&"€".repeat(MIB / 3)),
    ]
}

fn bytes(message: &Received) -> Vec<u8> {
    match message {
        Received::Text(text) => text.clone().into_bytes(),
        Received::Binary(body) => body.clone(),
        other => panic!("{other:?} is no message"),
    }
}

/// Messages that differ are shown by their sizes: a MiB is no help in a report.
async fn check_next(client: &mut Client, expected: &Received) {
    let received = client.receive().await;
    let kind = |message: &Received| (matches!(message, Received::Text(_)), bytes(message).len());
    assert_eq!(kind(&received), kind(expected));
    assert!(&received == expected, "the bytes of {:?} differ", kind(expected));
    let length = bytes(expected).len();
    let pieces: Vec<usize> = match length {
        0 => vec![0],
        _ => (0..length).step_by(FRAGMENT_BYTES).map(|start| FRAGMENT_BYTES.min(length - start)).collect(),
    };
    assert_eq!(client.fragments(), pieces);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_arrive_byte_for_byte_in_order_and_as_the_right_kind_of_frame() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut client = Dial::to(proxy.addr()).consumer("alice").connect().await;
    let (publisher, bodies) = (vhost.publisher().await, bodies());
    // All together fit the shipped policy: they wait in the queue and in the window at once.
    publisher.publish_all("alice", bodies.iter().map(bytes)).await;
    for body in &bodies {
        check_next(&mut client, body).await;
    }
    // One at a time, the socket idle in between.
    for body in &bodies {
        assert_eq!(publisher.publish("alice", bytes(body)).await, Outcome::Confirmed);
        check_next(&mut client, body).await;
    }
    assert_eq!(proxy.stop().await.delivered, bodies.len() as u64 * 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_above_the_limit_is_counted_logged_and_not_looped() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut proxy = ProxyProcess::start(&vhost, &["--max-message-bytes", "1000"], &[]).await;
    let mut client = Dial::to(proxy.addr()).consumer("alice").connect().await;
    let publisher = vhost.publisher().await;
    let (largest, too_large) = ("x".repeat(1000), "y".repeat(1001));
    publisher.publish_all("alice", [largest.as_str(), too_large.as_str(), "next"]).await;
    assert_eq!(client.text().await, largest);
    assert_eq!(client.text().await, "next");
    let empty = "nothing is left in the queue";
    wait_until(PATIENCE, empty, async || vhost.queues().await, |all| all.iter().all(|q| q.ready + q.unacked == 0))
        .await;
    let line = proxy.program().wait_for_line("above the limit", PATIENCE).await;
    assert!(line.contains("1001 bytes") && line.contains("consumer.alice.1"), "{line}");
    proxy.program().signal(Signal::SIGTERM);
    assert_eq!(proxy.program().wait(PATIENCE).await.code(), Some(0));
    let printed = proxy.program().stdout();
    assert_eq!(printed.iter().filter(|line| line.contains("above the limit")).count(), 1);
    let totals = printed.last().unwrap();
    assert!(totals.contains(" delivered 2,") && totals.contains(" rejected 1,"), "{totals}");
}

/// Resident memory of a process in MiB.
fn resident_mib(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says VmRSS");
    line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number of kB") / 1024
}

/// Sessions that have carried a large body; each would hold a MiB if it kept its room.
const SESSIONS: usize = 60;

#[tokio::test(flavor = "multi_thread")]
async fn memory_returns_after_large_bodies() {
    let vhost = Vhost::new(&Node::shared().await).await;
    vhost.set_policy(json!({"max-length-bytes": 64 * MIB})).await;
    let mut proxy = ProxyProcess::start(&vhost, &["--window", "2"], &[]).await;
    let pid = proxy.program().pid();
    let (publisher, body) = (vhost.publisher().await, Received::Binary(random(MIB)));
    let mut clients = Vec::new();
    for number in 0..SESSIONS {
        clients.push(Dial::to(proxy.addr()).consumer(&format!("c{number}")).connect().await);
    }
    // What the first body costs for good (buffers of the AMQP connection, the allocator's arenas) is not the sessions'.
    assert_eq!(publisher.publish("c0", bytes(&body)).await, Outcome::Confirmed);
    check_next(&mut clients[0], &body).await;
    let before = resident_mib(pid);
    for (number, client) in clients.iter_mut().enumerate() {
        for _ in 0..2 {
            assert_eq!(publisher.publish(&format!("c{number}"), bytes(&body)).await, Outcome::Confirmed);
            check_next(client, &body).await;
        }
    }
    let back = "the memory of large bodies is given back";
    wait_until(PATIENCE, back, async || resident_mib(pid), |now| *now < before + SESSIONS / 3).await;
}
