//! What producers say became of their messages is what the broker did with them: to the last one, also when thousands are
//! on their way and answers of all kinds come mixed.

use nix::sys::signal::Signal;
use producers::{Args, Config, Totals};
use rig::relay::{Direction, Mode, Relay};
use rig::{Dial, Node, Outcome, PATIENCE, Program, Proxy, Vhost, wait_until, within};
use serde_json::json;
use service::cli;
use service::shutdown::Shutdown;

use crate::queue;
use crate::republish::{Copy, contents};

/// Consumers 1 to 100; every twentieth of them has no mailbox.
const CONSUMERS: u64 = 100;
const ABSENT: u64 = 5;
/// Producers 1 and 2 send so many messages to each consumer.
const COUNT: u64 = 50;
const PER_CONSUMER: u64 = 2 * COUNT;

/// Whether consumer `number` has a mailbox.
fn is_present(number: u64) -> bool {
    !number.is_multiple_of(CONSUMERS / ABSENT)
}

fn present() -> impl Iterator<Item = String> {
    (1..=CONSUMERS).filter(|number| is_present(*number)).map(|number| format!("consumer{number}"))
}

/// A mailbox that nobody reads.
async fn mailbox(vhost: &Vhost, consumer: &str) {
    vhost.declare_queue(&queue(consumer), json!({})).await;
    vhost.bind_queue(&queue(consumer), consumer).await;
}

/// A vhost where 95 of 100 consumers have a mailbox.
async fn with_mailboxes(limits: serde_json::Value) -> Vhost {
    let vhost = Vhost::new(&Node::shared().await).await;
    vhost.set_policy(limits).await;
    for consumer in present() {
        mailbox(&vhost, &consumer).await;
    }
    vhost
}

/// Runs producers in this process to their end.
async fn produce(vhost: &Vhost, arguments: &str) -> Totals {
    let url = vhost.amqp_url("producer");
    let words = ["producers", "--amqp-url", &url].into_iter().chain(arguments.split(' '));
    let args: Args = cli::try_parse_from(producers::args::ENV_PREFIX, words).expect("arguments");
    let config = Config::try_from(args).expect("a configuration");
    let run = producers::run(config, Shutdown::new());
    within(PATIENCE, "the end of the producers", run).await.expect("producers do not panic")
}

fn totals(confirmed: u64, nacked: u64, returned: u64) -> String {
    format!(
        "sent {}, confirmed {confirmed}, nacked {nacked}, returned {returned}, unconfirmed 0, republished 0",
        confirmed + nacked + returned
    )
}

/// How many messages wait in the mailbox of each of these consumers.
async fn waiting(vhost: &Vhost, consumers: impl Iterator<Item = String>) -> Vec<u64> {
    let queues = vhost.queues().await;
    let ready = |name: String| queues.iter().find(|queue| queue.name == name).map(|queue| queue.ready);
    consumers.map(|consumer| ready(queue(&consumer)).expect("the mailbox is there")).collect()
}

async fn exactly_those_without_a_mailbox_are_returned(options: &str) {
    let vhost = with_mailboxes(json!({})).await;
    let ended = produce(&vhost, &format!("1 2 1 {CONSUMERS} --interval 0 --count {COUNT} {options}")).await;
    let (returned, confirmed) = (ABSENT * PER_CONSUMER, (CONSUMERS - ABSENT) * PER_CONSUMER);
    assert_eq!(ended.to_string(), totals(confirmed, 0, returned));
    assert!(waiting(&vhost, present()).await.iter().all(|ready| *ready == PER_CONSUMER));
}

/// Report A04 a, as the next one.
#[tokio::test(flavor = "multi_thread")]
async fn of_ten_thousand_transient_messages_exactly_those_without_a_mailbox_are_returned() {
    exactly_those_without_a_mailbox_are_returned("--window 500").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_thousand_persistent_messages_exactly_those_without_a_mailbox_are_returned() {
    exactly_those_without_a_mailbox_are_returned("--window 2000 --persistent").await;
}

/// Mailboxes that take all, a part, or nothing, and consumers without one, all in one run.
async fn each_message_ends_as_the_right_one(options: &str) {
    const LIMIT: u64 = PER_CONSUMER + PER_CONSUMER / 2;
    let vhost = with_mailboxes(json!({"max-length": LIMIT})).await;
    let publisher = vhost.publisher().await;
    let filled = [(1, LIMIT), (50, LIMIT), (99, LIMIT), (2, LIMIT - 1), (70, LIMIT - 60)];
    for (number, messages) in filled {
        publisher.publish_all(&format!("consumer{number}"), vec!["filler"; usize::try_from(messages).unwrap()]).await;
    }
    let before = waiting(&vhost, present()).await;
    let ended = produce(&vhost, &format!("1 2 1 {CONSUMERS} --interval 0 --count {COUNT} {options}")).await;

    let refused = filled.iter().map(|(_, messages)| PER_CONSUMER - (LIMIT - messages)).sum::<u64>();
    let returned = ABSENT * PER_CONSUMER;
    assert_eq!(ended.to_string(), totals(CONSUMERS * PER_CONSUMER - refused - returned, refused, returned));
    let after = waiting(&vhost, present()).await;
    let expected: Vec<_> = before.iter().map(|ready| (ready + PER_CONSUMER).min(LIMIT)).collect();
    assert_eq!(after, expected, "what was confirmed is there, and nothing else");
}

#[tokio::test(flavor = "multi_thread")]
async fn confirms_returns_and_nacks_of_ten_thousand_transient_messages_are_told_apart() {
    each_message_ends_as_the_right_one("--window 500").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn confirms_returns_and_nacks_of_ten_thousand_persistent_messages_are_told_apart() {
    each_message_ends_as_the_right_one("--window 500 --persistent").await;
}

/// Report A04 b.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_mailbox_refuses_exactly_what_it_has_no_room_for() {
    let vhost = Vhost::new(&Node::shared().await).await;
    vhost.set_policy(json!({"max-length": 7})).await;
    mailbox(&vhost, "consumer101").await;
    let ended = produce(&vhost, "201 201 101 101 --interval 0 --count 5000").await;
    assert_eq!(ended.to_string(), totals(7, 4993, 0));
    assert_eq!(waiting(&vhost, ["consumer101".to_owned()].into_iter()).await, [7]);
}

/// Report A04 c: with that overflow the broker confirms what it drops, so the producers cannot know; the newest stay.
#[tokio::test(flavor = "multi_thread")]
async fn a04_a_mailbox_that_drops_its_head_confirms_everything_and_keeps_the_newest() {
    let vhost = Vhost::new(&Node::shared().await).await;
    vhost.set_policy(json!({"max-length": 10, "overflow": "drop-head"})).await;
    mailbox(&vhost, "consumer101").await;
    let ended = produce(&vhost, "201 201 101 101 --interval 0 --count 100").await;
    assert_eq!(ended.to_string(), totals(100, 0, 0));
    let left: Vec<_> = contents(&vhost, "consumer101").await.iter().map(Copy::number).collect();
    assert_eq!(left, (91..=100).collect::<Vec<_>>());
}

/// One full instance is enough for a nack, and the others have the message all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_to_a_full_and_a_free_instance_is_nacked_and_arrives_at_the_free_one() {
    let vhost = Vhost::new(&Node::shared().await).await;
    vhost.set_policy(json!({"max-length": 3})).await;
    let proxy = Proxy::start(&vhost, &[]);
    let dial = Dial::to(proxy.addr()).consumer("consumer101");
    // Its mailbox stays, and fills up before anybody else has one.
    let gone = "the first instance has left";
    dial.instance("1").connect().await.reset();
    wait_until(PATIENCE, gone, async || vhost.consumers().await, Vec::is_empty).await;
    let publisher = vhost.publisher().await;
    publisher.publish_all("consumer101", ["1", "2", "3"]).await;
    assert_eq!(publisher.publish("consumer101", "4").await, Outcome::Nacked);

    let dial = Dial::to(proxy.addr()).consumer("consumer101");
    let mut free = dial.instance("2").connect().await;
    let ended = produce(&vhost, "201 201 101 101 --interval 20ms --count 3").await;
    assert_eq!(ended.to_string(), totals(0, 3, 0));
    for number in 1..=3 {
        let text = free.text().await;
        assert!(text.ends_with(&format!(" says Hello {number}")), "{text}");
    }
    assert_eq!(waiting(&vhost, ["consumer101".to_owned()].into_iter()).await, [3]);
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_says_each_round_what_was_not_confirmed_and_exits_with_1() {
    let vhost = Vhost::new(&Node::shared().await).await;
    vhost.set_policy(json!({"max-length": 2})).await;
    mailbox(&vhost, "consumer101").await;
    mailbox(&vhost, "consumer102").await;
    vhost.publisher().await.publish_all("consumer102", ["1", "2"]).await;
    let mut producers = Program::producers(&vhost, &["201", "201", "101", "103", "--interval", "50ms", "--count", "2"]);
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(1));
    let lines = producers.stdout();
    let round = "was confirmed: confirmed 1, nacked 1, returned 1, unconfirmed 0, republished 0";
    assert_eq!(lines.iter().filter(|line| line.ends_with(round)).count(), 2, "{lines:#?}");
    let last = format!("Totals: {}", totals(2, 2, 2));
    assert!(lines.last().is_some_and(|line| line.ends_with(&last)), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.ends_with("OK")), "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_exits_with_0_when_all_was_confirmed() {
    let vhost = Vhost::new(&Node::shared().await).await;
    mailbox(&vhost, "consumer101").await;
    let mut producers = Program::producers(&vhost, &["201", "202", "101", "101", "--interval", "50ms", "--count", "2"]);
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(0));
    let lines = producers.stdout();
    assert_eq!(lines.iter().filter(|line| line.ends_with(" OK")).count(), 4, "{lines:#?}");
    assert!(lines.last().is_some_and(|line| line.ends_with(&format!("Totals: {}", totals(4, 0, 0)))), "{lines:#?}");
}

/// A broker that takes messages and does not answer: nobody knows, and the totals say so.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_never_answered_is_unconfirmed() {
    let vhost = Vhost::new(&Node::shared().await).await;
    mailbox(&vhost, "consumer101").await;
    let relay = Relay::start(([127, 0, 0, 1], vhost.node().amqp_port()).into()).await;
    let url = vhost.amqp_url_at("producer", &relay.addr().to_string());
    let timeouts = ["--give-up", "1", "--drain-timeout", "1", "--interval", "50ms"];
    let arguments = [&["201", "201", "101", "101", "--amqp-url", &url], &timeouts[..]].concat();
    let mut producers = Program::start("producers", &arguments, &[]);
    producers.wait_for_line(" OK", PATIENCE).await;
    relay.set(Direction::ToClient, Mode::Stall);
    producers.wait_for_line("unconfirmed 1", PATIENCE).await;
    producers.signal(Signal::SIGTERM);
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(1));

    let lines = producers.stdout();
    let sent = waiting(&vhost, ["consumer101".to_owned()].into_iter()).await[0];
    let confirmed = lines.iter().filter(|line| line.ends_with(" OK")).count() as u64;
    assert!(confirmed < sent, "{confirmed} of {sent}");
    let unconfirmed = sent - confirmed;
    let last = format!(
        "Totals: sent {sent}, confirmed {confirmed}, nacked 0, returned 0, unconfirmed {unconfirmed}, republished 0"
    );
    assert!(lines.last().is_some_and(|line| line.ends_with(&last)), "not {last:?}: {lines:#?}");
}
