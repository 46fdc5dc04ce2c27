use futures::channel::oneshot;
use futures::future::FutureExt as _;
use rand::seq::SliceRandom as _;

use super::*;

/// What [`drain`] promises: with a completion it returns all that completed before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_leaves_no_earlier_completion_behind() {
    const COUNT: usize = 2_000;
    const ROUNDS: usize = 20;
    for _ in 0..ROUNDS {
        let mut in_flight = FuturesUnordered::<BoxFuture<'static, usize>>::new();
        let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..COUNT).map(|_| oneshot::channel::<usize>()).unzip();
        senders.shuffle(&mut rand::rng());
        // Completed by another thread, as lapin's, while futures are still being polled for the first time.
        let resolver = std::thread::spawn(move || {
            for (order, sender) in senders.into_iter().enumerate() {
                sender.send(order).unwrap();
            }
        });
        in_flight.extend(receivers.into_iter().map(|receiver| receiver.map(Result::unwrap).boxed()));
        let mut seen = vec![false; COUNT];
        while !in_flight.is_empty() {
            for order in drain(&mut in_flight).await {
                seen[order] = true;
            }
            let first_unseen = seen.iter().position(|seen| !seen).unwrap_or(COUNT);
            assert!(seen[first_unseen..].iter().all(|seen| !seen), "{first_unseen} was left behind");
        }
        resolver.join().unwrap();
    }
}

#[tokio::test]
async fn a_drain_that_is_dropped_loses_nothing() {
    let mut in_flight = FuturesUnordered::<BoxFuture<'static, usize>>::new();
    let (sender, receiver) = oneshot::channel();
    in_flight.push(receiver.map(Result::unwrap).boxed());
    assert!(drain(&mut in_flight).now_or_never().is_none());
    sender.send(7).unwrap();
    assert_eq!(drain(&mut in_flight).await, [7]);
}

#[test]
fn a_message_says_when_it_was_sent() {
    let message = Message {
        id: "producer201.20902.8".to_owned(),
        routing_key: RoutingKey::new("consumer101").unwrap(),
        body: Vec::new(),
        sent_at_micros: 1_700_000_000_123_456,
        persistent: true,
    };
    let made = properties(&message).unwrap();
    assert_eq!(made.message_id().as_ref().unwrap().as_str(), "producer201.20902.8");
    assert_eq!(*made.timestamp(), Some(1_700_000_000));
    assert_eq!(*made.delivery_mode(), Some(PERSISTENT));
    assert_eq!(
        made.headers().as_ref().unwrap().inner().get(HEADER_SENT_AT),
        Some(&AMQPValue::LongLongInt(1_700_000_000_123_456))
    );
    let too_long = Message { id: "x".repeat(256), persistent: false, ..message };
    assert_eq!(properties(&too_long).unwrap_err(), IdTooLong(256));
}
