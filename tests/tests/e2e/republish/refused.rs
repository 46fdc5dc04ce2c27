//! What the broker refuses for its own sake ends alone; what it refuses for other reasons waits until that is mended.

use std::collections::BTreeSet;
use std::time::Duration;

use broker::connection::ConnectionOptions;
use broker::endpoint::Endpoint;
use broker::link::{Link, link};
use broker::publisher::{Message, Publisher, PublisherOptions, Tally};
use broker::topology::DIRECT;
use nix::sys::signal::Signal;
use protocol::names::RoutingKey;
use rig::{Node, PATIENCE, Program, Vhost, within};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{contents, mailboxes, more, waiting};
use crate::stopping::numbers;

/// A node that takes bodies up to so many bytes.
async fn with_limit(bytes: usize) -> Node {
    let node = Node::private().await;
    node.eval(&format!("application:set_env(rabbit, max_message_size, {bytes}).")).await;
    node
}

/// One link, as publishers of a process share it; its driver ends with the set.
fn shared_link(vhost: &Vhost) -> (Link, JoinSet<()>) {
    let endpoint = Endpoint::parse(&vhost.amqp_url("producer"), "producer").unwrap();
    let timeout = Duration::from_secs(5);
    let options = ConnectionOptions { name: "test".to_owned(), heartbeat: Duration::from_secs(10), timeout };
    let (link, driver) = link(vec![endpoint].into(), options, &[DIRECT]);
    let mut drivers = JoinSet::new();
    drivers.spawn(driver.run(CancellationToken::new()));
    (link, drivers)
}

fn message(number: usize, consumer: &str, bytes: usize) -> Message {
    Message {
        id: format!("test.1.{number}"),
        routing_key: RoutingKey::new(consumer).unwrap(),
        body: vec![b'x'; bytes],
        sent_at_micros: 0,
        persistent: false,
    }
}

/// Publishes all, as the window has room, and waits until all are decided.
async fn publish_all(link: Link, messages: Vec<Message>) -> Tally {
    let timeout = Duration::from_secs(30);
    let options = PublisherOptions { window: 100, confirm_timeout: timeout, open_timeout: timeout, give_up: None };
    let mut publisher = Publisher::new(link, options);
    let mut tally = Tally::default();
    let publishing = async {
        for message in messages {
            while !publisher.has_room() {
                tally += publisher.progress().await;
            }
            publisher.publish(message).unwrap();
        }
        while publisher.undecided() > 0 {
            tally += publisher.progress().await;
        }
    };
    within(PATIENCE, "all is decided", publishing).await;
    tally += publisher.give_up();
    tally
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_large_fails_alone_wherever_it_stands() {
    const COUNT: usize = 500;
    let node = with_limit(1_000).await;
    let vhost = mailboxes(&node, 102).await;
    let (link, _driver) = shared_link(&vhost);
    let too_large = [0, 50, 51, 333, COUNT - 1];
    let size = |number| if too_large.contains(&number) { 1_001 } else { 1_000 };
    let messages = (0..COUNT).map(|number| message(number, "consumer101", size(number))).collect();
    // Another one on the same connection.
    let others = (0..COUNT).map(|number| message(number, "consumer102", 10)).collect();
    let (tally, other) = tokio::join!(publish_all(link.clone(), messages), publish_all(link, others));

    let refused = too_large.len() as u64;
    let confirmed = COUNT as u64 - refused;
    assert_eq!((tally.confirmed, tally.nacked, tally.total()), (confirmed, refused, COUNT as u64), "{tally}");
    // At most a window of others a refusal, and the refused ones themselves.
    assert!((refused..=refused * 101).contains(&tally.republished), "{tally}");
    assert_eq!((other.confirmed, other.total()), (COUNT as u64, COUNT as u64), "{other}");
    let copies = contents(&vhost, "consumer101").await;
    let there: BTreeSet<_> = copies.iter().map(super::Copy::number).collect();
    let expected: BTreeSet<_> = (0..COUNT).filter(|number| !too_large.contains(number)).map(|n| n as u64).collect();
    assert_eq!(there, expected);
    let firsts = copies.iter().filter(|copy| copy.republished == 0).map(|copy| &copy.id);
    assert_eq!(firsts.clone().collect::<BTreeSet<_>>().len(), firsts.count(), "a copy that does not say so");
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_count_what_is_too_large_as_nacked_and_name_the_cause() {
    let node = with_limit(1_000).await;
    let vhost = mailboxes(&node, 101).await;
    let words = ["201", "202", "101", "101", "--interval", "0", "--count", "20", "--size", "1001"];
    let mut producers = Program::producers(&vhost, &words);
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(1));
    let lines = producers.stdout();
    let last = lines.last().expect("last words");
    assert_eq!(numbers(last)[..5], [40, 0, 40, 0, 0], "{last}");
    assert_eq!(waiting(&vhost).await, 0);
    let said: Vec<_> = lines.iter().filter(|line| line.contains("refuses messages")).collect();
    assert_eq!(said.len(), 2, "once by each producer: {lines:#?}");
    assert!(said.iter().all(|line| line.contains("1001 bytes") && line.contains("message size 1001")), "{said:#?}");
}

async fn exchange(vhost: &Vhost, act: &str) {
    let bytes: Vec<String> = vhost.name().bytes().map(|byte| byte.to_string()).collect();
    let name = format!(r#"X = rabbit_misc:r(<<{}>>, exchange, <<"exchange.direct">>)"#, bytes.join(","));
    vhost.node().eval(&format!("{name}, {act}, ok.")).await;
}

async fn delete_exchange(vhost: &Vhost) {
    exchange(vhost, r#"rabbit_exchange:delete(X, false, <<"rig">>)"#).await;
}

/// Report A01 c: it says what is missing, and goes on when it is there again.
#[tokio::test(flavor = "multi_thread")]
async fn a01_an_exchange_deleted_under_producers_is_named_and_they_go_on_when_it_is_back() {
    let vhost = mailboxes(&Node::shared().await, 101).await;
    let mut producers = Program::producers(&vhost, &["201", "202", "101", "101", "--interval", "0"]);
    more(&vhost, 1_000).await;
    delete_exchange(&vhost).await;
    producers
        .wait_for_line(r#"the exchange "exchange.direct" does not exist; load rabbit_definitions.json"#, PATIENCE)
        .await;
    exchange(&vhost, r#"rabbit_exchange:declare(X, direct, true, false, false, [], <<"rig">>)"#).await;
    vhost.bind_queue(&crate::queue("consumer101"), "consumer101").await;
    more(&vhost, 1_000).await;
    producers.signal(Signal::SIGTERM);
    producers.wait(PATIENCE).await;
    let last = producers.stdout().pop().expect("last words");
    let [_, confirmed, nacked, _, unconfirmed, republished] = numbers(&last);
    // What came before the binding was returned, and truly so.
    assert_eq!((nacked, unconfirmed), (0, 0), "{last}");
    assert!(republished > 0, "{last}");
    let copies = contents(&vhost, "consumer101").await;
    let distinct: BTreeSet<_> = copies.iter().map(|copy| &copy.id).collect();
    assert!(distinct.len() as u64 >= confirmed, "{} of {last}", distinct.len());
}

/// Report A01 c, when it does not come back: an end with the cause.
#[tokio::test(flavor = "multi_thread")]
async fn a01_without_its_exchange_a_run_with_a_deadline_ends_with_1_and_exact_totals() {
    let vhost = mailboxes(&Node::shared().await, 101).await;
    let words = ["201", "202", "101", "101", "--interval", "0", "--give-up", "2", "--duration", "8"];
    let mut producers = Program::producers(&vhost, &words);
    more(&vhost, 1_000).await;
    delete_exchange(&vhost).await;
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(1));
    let lines = producers.stdout();
    let [sent, confirmed, nacked, returned, unconfirmed, _] = numbers(lines.last().expect("last words"));
    assert!(unconfirmed > 0 && nacked == 0, "{lines:#?}");
    // An exchange loses its bindings before it is gone: a few may come back.
    assert_eq!(sent, confirmed + returned + unconfirmed, "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("does not exist; load rabbit_definitions.json")), "{lines:#?}");
}
