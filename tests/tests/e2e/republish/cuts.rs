//! Connections that are closed, cut, stalled and swallowed, and a broker that dies.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rig::relay::{Cut, Direction, Mode, Relay};
use rig::{Node, PATIENCE, Program, Vhost, wait_until};
use tokio::net::TcpStream;

use super::{Run, contents, mailboxes, more, nothing_is_missing, waiting};
use crate::queue;
use crate::stopping::numbers;

const TWO: [&str; 2] = ["consumer101", "consumer102"];

async fn relay_to(vhost: &Vhost) -> (Relay, String) {
    let relay = Relay::start(SocketAddr::from(([127, 0, 0, 1], vhost.node().amqp_port()))).await;
    let url = vhost.amqp_url_at("producer", &relay.addr().to_string());
    (relay, url)
}

/// Report A01 b.
#[tokio::test(flavor = "multi_thread")]
async fn a01_connections_closed_by_an_operator_again_and_again_lose_nothing() {
    let vhost = mailboxes(&Node::shared().await, 102).await;
    let run = Run::start(&vhost.amqp_url("producer"), "201 202 101 102 --interval 0 --window 300");
    for round in 0..5 {
        more(&vhost, 1_000).await;
        let cut = Instant::now();
        if round % 2 == 0 {
            vhost.close_connections("maintenance").await;
        } else {
            vhost.cut_connections().await;
        }
        more(&vhost, 300).await;
        assert!(cut.elapsed() < Duration::from_secs(30), "publishing resumed after {:?}", cut.elapsed());
    }
    let totals = run.stop().await;
    assert!(totals.ended.republished > 0, "nothing was on its way at any cut: {totals}");
    nothing_is_missing(&vhost, &TWO, 2, totals).await;
}

/// With answers of all kinds on their way: a consumer without a mailbox, and one whose mailbox is full.
#[tokio::test(flavor = "multi_thread")]
async fn totals_are_exact_whatever_was_on_its_way_at_a_cut() {
    let vhost = mailboxes(&Node::shared().await, 101).await;
    let (relay, url) = relay_to(&vhost).await;
    vhost
        .declare_queue(&queue("consumer102"), serde_json::json!({"x-max-length": 7, "x-overflow": "reject-publish"}))
        .await;
    vhost.bind_queue(&queue("consumer102"), "consumer102").await;
    vhost.publisher().await.publish_all("consumer102", ["x"; 7]).await;
    let run = Run::start(&url, "201 202 101 103 --interval 0 --window 300 --persistent");
    for round in 0..5 {
        more(&vhost, 500).await;
        relay.cut(if round % 2 == 0 { Cut::Reset } else { Cut::Fin });
    }
    more(&vhost, 500).await;
    let totals = run.stop().await;
    let ended = totals.ended;
    assert!(ended.republished > 0, "{totals}");
    assert_eq!((totals.sent, ended.unconfirmed), (ended.total(), 0), "{totals}");
    // The window may have ended anywhere in a round of three.
    for part in [ended.confirmed, ended.nacked, ended.returned] {
        assert!(part.abs_diff(totals.sent / 3) <= 2, "{totals}");
    }
    let copies = contents(&vhost, "consumer101").await;
    let distinct: std::collections::BTreeSet<_> = copies.iter().map(|copy| &copy.id).collect();
    assert_eq!(distinct.len() as u64, ended.confirmed, "{totals}");
}

/// The old connection is not gone but still: what it says later counts for nothing.
async fn silence(options: &str, fault: impl Fn(&Relay)) {
    let vhost = mailboxes(&Node::shared().await, 102).await;
    let (relay, url) = relay_to(&vhost).await;
    let run = Run::start(&url, &format!("201 202 101 102 --interval 0 --window 200 --connect-timeout 2 {options}"));
    for _ in 0..3 {
        more(&vhost, 500).await;
        let connections = relay.connections();
        fault(&relay);
        let left = "the connection is left and another one tried";
        wait_until(PATIENCE, left, async || relay.connections(), |now| *now > connections).await;
        relay.set_both(Mode::Pass);
        more(&vhost, 500).await;
    }
    let totals = run.stop().await;
    assert!(totals.ended.republished > 0, "nothing was on its way: {totals}");
    nothing_is_missing(&vhost, &TWO, 2, totals).await;
}

/// Report A01 d: both ways open, nothing arrives, nothing closes.
#[tokio::test(flavor = "multi_thread")]
async fn a01_a_network_that_swallows_everything_is_left_after_two_heartbeats() {
    silence("--heartbeat 1", |relay| relay.set_both(Mode::Swallow)).await;
}

/// The broker's heartbeats arrive, what is published does not.
#[tokio::test(flavor = "multi_thread")]
async fn a01_a_connection_without_confirms_is_left_after_the_confirm_timeout() {
    let swallow = |relay: &Relay| relay.set(Direction::ToTarget, Mode::Swallow);
    silence("--heartbeat 60 --confirm-timeout 1", swallow).await;
}

/// The broker has the messages and has confirmed them, and the confirms come when nobody waits for them any more.
#[tokio::test(flavor = "multi_thread")]
async fn confirms_that_arrive_after_their_connection_was_left_count_for_nothing() {
    let stall = |relay: &Relay| relay.set(Direction::ToClient, Mode::Stall);
    silence("--heartbeat 60 --confirm-timeout 1", stall).await;
}

/// A process that was killed has no arguments any more before its sockets are closed, and a start refuses a port on which
/// somebody listens.
async fn kill(node: &Node) {
    node.kill().await;
    let connects = async || TcpStream::connect(("127.0.0.1", node.amqp_port())).await.is_ok();
    wait_until(PATIENCE, "nobody listens any more", connects, |connected| !connected).await;
}

/// Reports A01 a and A05: killed without a warning, and what was confirmed is there.
#[tokio::test(flavor = "multi_thread")]
async fn a01_a_broker_that_is_killed_twice_has_every_persistent_message_that_it_confirmed() {
    let node = Node::private().await;
    let vhost = mailboxes(&node, 102).await;
    let run = Run::start(&vhost.amqp_url("producer"), "201 202 101 102 --interval 0 --window 300 --persistent");
    for _ in 0..2 {
        more(&vhost, 2_000).await;
        kill(&node).await;
        node.start().await;
        let ready = Instant::now();
        more(&vhost, 0).await;
        assert!(ready.elapsed() < Duration::from_secs(30), "publishing resumed after {:?}", ready.elapsed());
    }
    more(&vhost, 1_000).await;
    let totals = run.stop().await;
    assert!(totals.ended.republished > 0, "nothing was on its way: {totals}");
    nothing_is_missing(&vhost, &TWO, 2, totals).await;
}

/// Report A05.
#[tokio::test(flavor = "multi_thread")]
async fn a05_persistent_messages_outlive_a_restart_in_order() {
    let node = Node::private().await;
    let vhost = mailboxes(&node, 101).await;
    let run = Run::start(&vhost.amqp_url("producer"), "201 201 101 101 --interval 0 --count 1000 --persistent");
    let totals = run.end().await;
    assert_eq!((totals.sent, totals.ended.confirmed, totals.ended.republished), (1_000, 1_000, 0), "{totals}");
    node.stop().await;
    node.start().await;
    let copies = contents(&vhost, "consumer101").await;
    let numbers: Vec<_> = copies.iter().map(super::Copy::number).collect();
    assert_eq!(numbers, (1..=1_000).collect::<Vec<_>>());
    assert!(copies.iter().all(|copy| copy.same.delivery_mode == Some(2)));
}

/// Rounds go on after an outage as if nothing had been: one line for each, and the message of the outage is confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn a_round_that_meets_an_outage_ends_with_ok() {
    let vhost = mailboxes(&Node::shared().await, 102).await;
    let (relay, url) = relay_to(&vhost).await;
    let words = ["201", "201", "101", "102", "--interval", "100ms", "--count", "6", "--amqp-url", &url];
    let mut producers = Program::start("producers", &words, &[]);
    producers.wait_for_lines(" OK", 2, PATIENCE).await;
    relay.set(Direction::ToClient, Mode::Stall);
    let sent = async || waiting(&vhost).await;
    wait_until(PATIENCE, "a message is there and not confirmed", sent, |sent| *sent >= 3).await;
    relay.cut(Cut::Reset);
    relay.set_both(Mode::Pass);
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(0), "{:#?}", producers.stdout());
    let lines = producers.stdout();
    assert_eq!(lines.iter().filter(|line| line.ends_with(" OK")).count(), 6, "{lines:#?}");
    assert_eq!(numbers(lines.last().unwrap())[..5], [12, 12, 0, 0, 0]);
    let numbers: Vec<_> = contents(&vhost, "consumer101").await.iter().map(super::Copy::number).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
}

/// Whoever does not want to wait says so.
#[tokio::test(flavor = "multi_thread")]
async fn what_finds_no_answer_until_it_is_given_up_is_unconfirmed_and_the_run_ends_with_1() {
    let vhost = mailboxes(&Node::shared().await, 101).await;
    let (relay, url) = relay_to(&vhost).await;
    let words =
        ["201", "201", "101", "101", "--interval", "50ms", "--give-up", "2", "--count", "4", "--amqp-url", &url];
    let mut producers = Program::start("producers", &words, &[]);
    producers.wait_for_line(" OK", PATIENCE).await;
    relay.set(Direction::ToClient, Mode::Stall);
    let sent = async || waiting(&vhost).await;
    wait_until(PATIENCE, "a message is there and not confirmed", sent, |sent| *sent >= 2).await;
    // It is published again in vain, until it is given up.
    relay.refuse(true);
    relay.cut(Cut::Reset);
    producers.wait_for_line("unconfirmed 1", PATIENCE).await;
    relay.refuse(false);
    relay.set_both(Mode::Pass);
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(1), "{:#?}", producers.stdout());
    let last = producers.stdout().pop().expect("last words");
    assert_eq!(numbers(&last), [4, 3, 0, 0, 1, 0], "{last}");
}
