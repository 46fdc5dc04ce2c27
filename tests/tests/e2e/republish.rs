//! What a lost connection left unanswered is published again: nothing that was confirmed is missing, no message is counted
//! twice, and every further copy says that it is one.

pub(crate) mod alarms;
mod cuts;
mod refused;

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use lapin::options::BasicConsumeOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Connection, ConnectionProperties};
use producers::{Args, Config, Totals};
use rig::{Node, PATIENCE, Vhost, wait_until, within};
use serde_json::json;
use service::cli;
use service::shutdown::Shutdown;
use tokio::task::JoinSet;

use crate::queue;

/// A copy of a message in a mailbox.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Copy {
    id: String,
    /// As its header says; 0 without one.
    republished: i64,
    same: Same,
}

/// What is the same in all copies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Same {
    body: Vec<u8>,
    sent_at: Option<AMQPValue>,
    timestamp: Option<u64>,
    delivery_mode: Option<u8>,
    content_type: Option<String>,
}

impl Copy {
    /// `producer201.20902.8` is the producer's eighth.
    pub(crate) fn number(&self) -> u64 {
        self.id.rsplit('.').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{}", self.id))
    }
}

/// Mailboxes without limits, which nobody reads, for consumers 101 to `last`.
async fn mailboxes(node: &Node, last: u64) -> Vhost {
    let vhost = Vhost::new(node).await;
    vhost.set_policy(json!({"max-length": null, "max-length-bytes": null, "expires": null})).await;
    for consumer in 101..=last {
        let consumer = format!("consumer{consumer}");
        vhost.declare_queue(&queue(&consumer), json!({})).await;
        vhost.bind_queue(&queue(&consumer), &consumer).await;
    }
    vhost
}

/// How many messages wait in the mailbox of consumer 101.
async fn waiting(vhost: &Vhost) -> u64 {
    vhost.queue(&queue("consumer101")).await.map_or(0, |queue| queue.ready)
}

/// Waits until that are so many more than now.
async fn more(vhost: &Vhost, messages: u64) {
    let now = waiting(vhost).await;
    wait_until(PATIENCE, "messages arrive", async || waiting(vhost).await, |then| *then > now + messages).await;
}

/// Producers in this process.
pub(crate) struct Run {
    shutdown: Shutdown,
    task: JoinSet<Totals>,
}

impl Run {
    /// At the broker behind `url`.
    pub(crate) fn start(url: &str, arguments: &str) -> Run {
        let words = ["producers", "--amqp-url", url].into_iter().chain(arguments.split(' '));
        let args: Args = cli::try_parse_from(producers::args::ENV_PREFIX, words).expect("arguments");
        let config = Config::try_from(args).expect("a configuration");
        let shutdown = Shutdown::new();
        let run = producers::run(config, shutdown.clone());
        let mut task = JoinSet::new();
        task.spawn(async move { run.await.expect("producers do not panic") });
        Run { shutdown, task }
    }

    /// As a signal.
    pub(crate) async fn stop(self) -> Totals {
        self.shutdown.begin();
        self.end().await
    }

    /// When its count is reached.
    pub(crate) async fn end(self) -> Totals {
        within(PATIENCE, "the end of the producers", self.task.join_all()).await.swap_remove(0)
    }
}

/// Takes everything out of a mailbox, in order.
pub(crate) async fn contents(vhost: &Vhost, consumer: &str) -> Vec<Copy> {
    let name = queue(consumer);
    let ready = vhost.queue(&name).await.expect("the mailbox is there").ready;
    let read = async {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&vhost.amqp_url("auth-proxy"), properties).await?;
        let channel = connection.create_channel().await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let name = ShortString::try_new(name.as_str()).expect("a short name");
        let stream = channel.basic_consume(name, "".into(), options, FieldTable::default()).await?;
        let mut copies = Vec::new();
        let mut stream = stream.take(usize::try_from(ready).unwrap());
        while let Some(delivery) = stream.next().await {
            copies.push(copy(delivery?));
        }
        Ok::<_, lapin::Error>(copies)
    };
    within(PATIENCE, "all of the mailbox", Box::pin(read)).await.expect("the mailbox can be read")
}

fn copy(delivery: lapin::message::Delivery) -> Copy {
    let properties = delivery.properties;
    let text = |value: &Option<ShortString>| value.as_ref().map(ToString::to_string);
    let header = |name: &str| properties.headers().as_ref().and_then(|headers| headers.inner().get(name).cloned());
    let republished = match header("x-republished") {
        None => 0,
        Some(AMQPValue::LongLongInt(number)) if number >= 1 => number,
        Some(other) => panic!("x-republished is {other:?}"),
    };
    Copy {
        id: text(properties.message_id()).expect("every message has an id"),
        republished,
        same: Same {
            body: delivery.data,
            sent_at: header("x-sent-at"),
            timestamp: *properties.timestamp(),
            delivery_mode: *properties.delivery_mode(),
            content_type: text(properties.content_type()),
        },
    }
}

/// Looks at what lies in the mailboxes of `consumers` after so many `producers` ended with `totals`: all of what they sent,
/// none of it twice but what was published again and says so.
async fn nothing_is_missing(vhost: &Vhost, consumers: &[&str], producers: usize, totals: Totals) {
    assert_eq!(totals.sent, totals.ended.confirmed, "{totals}");
    let (mut distinct, mut again) = (0, 0);
    for consumer in consumers {
        let copies = contents(vhost, consumer).await;
        let mut messages: BTreeMap<&str, Vec<&Copy>> = BTreeMap::new();
        for copy in &copies {
            messages.entry(&copy.id).or_default().push(copy);
        }
        for (id, copies) in &messages {
            let numbers: BTreeSet<_> = copies.iter().map(|copy| copy.republished).collect();
            assert_eq!(numbers.len(), copies.len(), "{id}: two copies with the same number: {copies:?}");
            assert!(copies.iter().all(|copy| copy.same == copies[0].same), "{id}: {copies:?}");
        }
        no_gap(&messages, producers);
        distinct += messages.len() as u64;
        again += copies.iter().filter(|copy| copy.republished > 0).count() as u64;
    }
    assert_eq!(distinct, totals.ended.confirmed, "{totals}");
    assert!(again <= totals.ended.republished, "{again} further copies: {totals}");
}

/// Each of so many producers sent its messages 1, 2, 3, …
fn no_gap(messages: &BTreeMap<&str, Vec<&Copy>>, producers: usize) {
    let mut numbers: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for (id, copies) in messages {
        let producer = id.rsplit_once('.').expect("an id has a producer").0;
        numbers.entry(producer).or_default().insert(copies[0].number());
    }
    assert_eq!(numbers.len(), producers, "{:?}", numbers.keys());
    for (producer, numbers) in numbers {
        let expected: BTreeSet<_> = (1..=numbers.len() as u64).collect();
        assert_eq!(numbers, expected, "{producer} has a gap");
    }
}
