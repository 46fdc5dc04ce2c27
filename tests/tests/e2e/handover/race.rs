//! Many takeovers, and two at once.

use std::{collections::BTreeSet, time::Duration};

use futures::future::{join_all, select_all};
use rand::RngExt;
use rig::Received;
use tokio::time::sleep;

use super::*;

/// At random offsets, from one proxy to the other and back, while messages come.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_takeovers_at_random_offsets_miss_nothing() {
    const ROUNDS: usize = 120;
    const EACH: usize = 5;
    let vhost = Vhost::new(&Node::shared().await).await;
    let (first, second) = two_proxies(&vhost).await;
    let publisher = vhost.publisher().await;
    let mut seen = BTreeSet::new();
    let mut silent = Vec::new();
    let mut old = joined(&first).await;
    for round in 0..ROUNDS {
        let proxy = if round % 2 == 0 { &second } else { &first };
        // Some of what comes is acked before the hop; the rest comes again.
        let hop = async {
            // The offset is what this test varies; nothing waits for it.
            sleep(Duration::from_micros(rand::rng().random_range(0..50_000))).await;
            joined(proxy).await
        };
        let numbers = bodies(round * EACH..(round + 1) * EACH);
        let read = async {
            let wanted = rand::rng().random_range(0..=EACH);
            for _ in 0..wanted {
                // It may be replaced meanwhile.
                let Received::Text(text) = old.receive().await else { return };
                let message: Value = serde_json::from_str(&text).unwrap();
                if message["type"] == "message" {
                    seen.insert(message["body"].as_str().unwrap().parse::<usize>().unwrap());
                    old.ack(message["seq"].as_u64().unwrap()).await;
                }
            }
        };
        let (new, (), ()) = tokio::join!(hop, read, publisher.publish_all("a", numbers));
        match round % 3 {
            0 => old.reset(),
            1 => drop(old),
            _ => silent.push(old.drop_silently()),
        }
        old = new;
    }
    while seen.len() < ROUNDS * EACH {
        let message = old.message().await;
        seen.insert(String::from_utf8_lossy(message.body()).parse().unwrap());
        old.ack(message.seq).await;
    }
    let state = async || vhost.queue(&queue("a")).await.map(|queue| (queue.ready, queue.unacked, queue.consumers));
    wait_until(PATIENCE, "everything acked by one consumer", state, |state| *state == Some((0, 0, 1))).await;
    first.stop().await;
    second.stop().await;
}

/// Each ends as one of: served, refused before its 101, replaced after it. One is served in the end, by one consumer.
async fn race(vhost: &Vhost, proxies: [&Proxy; 2], consumer: &str) -> &'static str {
    let dials = proxies.map(|proxy| Dial::to(proxy.addr()).consumer(consumer).v1());
    let outcomes = join_all(dials.iter().map(Dial::try_connect)).await;
    let mut served = Vec::new();
    let mut refused = 0;
    for outcome in outcomes {
        match outcome {
            Ok(mut client) => {
                client.welcome().await;
                served.push(client);
            }
            Err(answer) => {
                assert_eq!(answer.status, 503, "{answer:?}");
                refused += 1;
            }
        }
    }
    // Nothing has been published, so the first thing that one of two hears is its end.
    let mut live = match served.len() {
        1 => served.remove(0),
        _ => {
            let (end, ended, others) = select_all(served.iter_mut().map(|client| Box::pin(client.receive()))).await;
            drop(others);
            assert!(matches!(end, Received::Close(Some((REPLACED, _)))), "{end:?}");
            served.remove(1 - ended)
        }
    };
    let single = async || vhost.queue(&queue(consumer)).await.map(|queue| queue.consumers);
    wait_until(PATIENCE, "exactly one consumer", single, |consumers| *consumers == Some(1)).await;
    vhost.publisher().await.publish_all(consumer, ["who lives"]).await;
    let (messages, seq) = next(&mut live, 1).await;
    assert_eq!(messages, [("who lives".to_owned(), false)]);
    live.ack(seq).await;
    let state = async || vhost.queue(&queue(consumer)).await.map(|queue| (queue.ready, queue.unacked, queue.consumers));
    wait_until(PATIENCE, "acked by the one consumer", state, |state| *state == Some((0, 0, 1))).await;
    if refused == 1 { "refused" } else { "replaced" }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_newcomers_at_once_exactly_one_is_served() {
    const ROUNDS: usize = 40;
    let vhost = Vhost::new(&Node::shared().await).await;
    let (first, second) = two_proxies(&vhost).await;
    let mut ends = Vec::new();
    for round in 0..ROUNDS {
        // To a mailbox that is new, and to one that a third proxy's session may have.
        let consumer = if round % 2 == 0 { format!("c{round}") } else { "same".to_owned() };
        ends.push(race(&vhost, [&first, &second], &consumer).await);
    }
    assert!(ends.contains(&"refused"), "they never met before their 101: {ends:?}");
    first.stop().await;
    second.stop().await;
}

/// The holder is elsewhere, and two want its mailbox.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_newcomers_at_once_one_takes_over_from_a_third() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let (first, second) = two_proxies(&vhost).await;
    let third = Proxy::start(&vhost, LATE_PONGS);
    for _ in 0..10 {
        let holder = joined(&third).await;
        race(&vhost, [&first, &second], "a").await;
        replaced(holder).await;
    }
    for proxy in [first, second, third] {
        proxy.stop().await;
    }
}
