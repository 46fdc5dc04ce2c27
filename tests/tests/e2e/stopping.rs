//! SIGTERM and SIGINT: each program ends within ten seconds with the exit code that its `--help` promises and its totals
//! as the last words, whoever does not answer any more. A second signal waits for nobody.

mod gateway;

use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::signal::Signal;
use rig::relay::{Direction, Mode, Relay};
use rig::{Node, PATIENCE, Program, ProxyProcess, Vhost, wait_until};
use serde_json::json;

use crate::queue;

/// What every program promises.
const IN_TIME: Duration = Duration::from_secs(10);
/// Far below any deadline that the first signal starts in these tests, and long for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(4);

/// Sends a signal and waits for the end; the exit code and the last line of stdout.
async fn stop(program: &mut Program, signal: Signal) -> (i32, String) {
    program.signal(signal);
    ended(program, IN_TIME).await
}

/// Sends two signals, the second once the first was noticed, and says how the program ended after that.
async fn stop_at_once(program: &mut Program) -> (i32, String) {
    program.signal(Signal::SIGTERM);
    program.wait_for_line("SIGTERM: finishing", PATIENCE).await;
    program.signal(Signal::SIGTERM);
    ended(program, AT_ONCE).await
}

async fn ended(program: &mut Program, deadline: Duration) -> (i32, String) {
    let status = program.wait(deadline).await;
    let lines = program.stdout();
    let last = lines.last().unwrap_or_else(|| panic!("no last words; stderr: {:#?}", program.stderr()));
    let code = status.code().unwrap_or_else(|| panic!("ended by a signal ({status}): {lines:#?}"));
    assert!(program.stderr().is_empty(), "{:#?}", program.stderr());
    (code, last.clone())
}

/// The numbers of the last line of `producers`: sent, confirmed, nacked, returned, unconfirmed, republished.
pub(crate) fn numbers(last: &str) -> [u64; 6] {
    let totals = last.split("Totals: ").nth(1).unwrap_or_else(|| panic!("no totals in {last:?}"));
    let mut words =
        totals.split(", ").map(|item| item.split_once(' ').unwrap_or_else(|| panic!("{item:?} in {last:?}")));
    let numbers = ["sent", "confirmed", "nacked", "returned", "unconfirmed", "republished"].map(|name| {
        let (word, number) = words.next().unwrap_or_else(|| panic!("no {name} in {last:?}"));
        assert_eq!(word, name, "{last:?}");
        number.parse().unwrap_or_else(|_| panic!("{name} is no number in {last:?}"))
    });
    assert_eq!(numbers[0], numbers[1..5].iter().sum::<u64>(), "{last:?}");
    numbers
}

async fn relay_to(node: &Node) -> Relay {
    Relay::start(SocketAddr::from(([127, 0, 0, 1], node.amqp_port()))).await
}

/// A mailbox without limits for consumer 101, that nobody reads.
async fn with_mailbox() -> Vhost {
    let vhost = Vhost::new(&Node::shared().await).await;
    vhost.set_policy(json!({"max-length": null, "max-length-bytes": null})).await;
    vhost.declare_queue(&queue("consumer101"), json!({})).await;
    vhost.bind_queue(&queue("consumer101"), "consumer101").await;
    vhost
}

async fn waiting(vhost: &Vhost) -> u64 {
    vhost.queue(&queue("consumer101")).await.map_or(0, |queue| queue.ready)
}

const WINDOW: u64 = 100;

/// Producers with a window full of messages that the broker has and does not confirm.
async fn unanswered(vhost: &Vhost, drain_timeout: &str) -> (Relay, Program) {
    let relay = relay_to(vhost.node()).await;
    let url = vhost.amqp_url_at("producer", &relay.addr().to_string());
    let (window, mut sent) = (WINDOW.to_string(), 0);
    let words = ["201", "201", "101", "101", "--interval", "0", "--window", &window, "--drain-timeout", drain_timeout];
    let producers = Program::start("producers", &[&words[..], &["--amqp-url", &url]].concat(), &[]);
    wait_until(PATIENCE, "some are sent", async || waiting(vhost).await, |sent| *sent > 500).await;
    relay.set(Direction::ToClient, Mode::Stall);
    let standstill = "nothing is sent any more, since the window is full";
    wait_until(PATIENCE, standstill, async || waiting(vhost).await, |now| std::mem::replace(&mut sent, *now) == *now)
        .await;
    (relay, producers)
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_wait_for_the_confirms_of_what_they_have_sent_and_exit_with_0() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let vhost = with_mailbox().await;
        let mut producers = Program::producers(&vhost, &["201", "202", "101", "101", "--interval", "0"]);
        wait_until(PATIENCE, "thousands sent", async || waiting(&vhost).await, |sent| *sent > 3_000).await;
        let (code, last) = stop(&mut producers, signal).await;
        let [sent, confirmed, ..] = numbers(&last);
        assert_eq!((code, sent, confirmed), (0, waiting(&vhost).await, sent), "{last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_exit_with_1_when_something_was_returned() {
    let vhost = with_mailbox().await;
    let mut producers = Program::producers(&vhost, &["201", "201", "101", "102", "--interval", "50ms"]);
    producers.wait_for_line("returned 1", PATIENCE).await;
    let (code, last) = stop(&mut producers, Signal::SIGTERM).await;
    let [sent, confirmed, _, returned, ..] = numbers(&last);
    assert_eq!((code, confirmed, returned), (1, sent / 2, sent / 2), "{last}");
}

/// A load run whose broker takes everything and answers nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn producers_count_what_a_silent_broker_never_confirmed_and_exit_with_1() {
    let vhost = with_mailbox().await;
    let (_relay, mut producers) = unanswered(&vhost, "5").await;
    let (code, last) = stop(&mut producers, Signal::SIGTERM).await;
    let [sent, _, _, _, unconfirmed, _] = numbers(&last);
    assert_eq!((code, sent), (1, waiting(&vhost).await), "{last}");
    assert!((1..=WINDOW).contains(&unconfirmed), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_producers_at_once() {
    let vhost = with_mailbox().await;
    let (_relay, mut producers) = unanswered(&vhost, "1h").await;
    let (code, last) = stop_at_once(&mut producers).await;
    assert!(code == 1 && (1..=WINDOW).contains(&numbers(&last)[4]), "{code}: {last}");
}

/// What consumers say that received nothing and missed nothing.
const NOTHING: &str = "Totals: received 0, missing 0, duplicated 0, out of order 0, redelivered 0, republished 0";

/// A proxy for consumers, its vhost, and consumers that are connected.
async fn connected_consumers(arguments: &[&str]) -> (Vhost, ProxyProcess, Relay, Program) {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = ProxyProcess::start(&vhost, &[], &[]).await;
    let relay = Relay::start(proxy.addr()).await;
    let mut consumers = Program::consumers(relay.addr(), &[&["101", "102", "2"], arguments].concat());
    // Not what the broker says: it has its consumers before the clients have their 101.
    consumers.wait_for_line("Connected 4 of 4", PATIENCE).await;
    (vhost, proxy, relay, consumers)
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_say_goodbye_and_what_has_arrived_and_exit_with_0() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (vhost, _proxy, _relay, mut consumers) = connected_consumers(&[]).await;
        let mut producers =
            Program::producers(&vhost, &["201", "202", "101", "102", "--interval", "0", "--count", "50"]);
        assert_eq!(producers.wait(PATIENCE).await.code(), Some(0), "{:#?}", producers.stdout());
        let empty = "all is delivered and acked";
        let left = async || vhost.queues().await.iter().map(|queue| queue.ready + queue.unacked).sum::<u64>();
        wait_until(PATIENCE, empty, left, |left| *left == 0).await;
        let (code, last) = stop(&mut consumers, signal).await;
        // Two producers, fifty messages, four instances.
        let totals = "Totals: received 400, missing 0, duplicated 0, out of order 0, redelivered 0, republished 0";
        assert!(code == 0 && last.ends_with(totals), "{code}: {last}");
        let gone = "no subscription is left";
        wait_until(PATIENCE, gone, async || vhost.consumers().await, Vec::is_empty).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_end_in_time_when_the_proxy_does_not_answer_their_goodbye() {
    let (_vhost, _proxy, relay, mut consumers) = connected_consumers(&[]).await;
    relay.set_both(Mode::Stall);
    let (code, last) = stop(&mut consumers, Signal::SIGTERM).await;
    assert!(code == 0 && last.ends_with(NOTHING), "{code}: {last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_consumers_at_once() {
    let (_vhost, _proxy, relay, mut consumers) = connected_consumers(&["--close-timeout", "8"]).await;
    relay.set_both(Mode::Stall);
    let (code, last) = stop_at_once(&mut consumers).await;
    assert!(code == 0 && last.contains("Totals: received 0"), "{code}: {last}");
}

/// Whoever was never connected cannot say that nothing is missing.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_that_were_never_connected_exit_with_1() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut proxy = ProxyProcess::start(&vhost, &[], &[]).await;
    let address = proxy.addr();
    proxy.program().wait_for_lines("connected to the broker", 2, PATIENCE).await;
    let (code, _) = stop(proxy.program(), Signal::SIGTERM).await;
    assert_eq!(code, 0);
    let mut consumers = Program::consumers(address, &["101", "102", "2"]);
    consumers.wait_for_line("refused", PATIENCE).await;
    let (code, last) = stop(&mut consumers, Signal::SIGTERM).await;
    assert!(code == 1 && last.ends_with(NOTHING), "{code}: {last}");
}
