//! What a client gives back: with requeue it comes again after a pause that grows, without it is dead-lettered or dropped.

use std::time::Duration;

use rig::{Dial, Outcome};
use serde_json::json;
use tokio::time::Instant;

use super::{connected, expect, expect_pong, numbers, reaches};

/// The pauses begin with 0.1 s and double: what is nacked again and again comes this often in the time below, and no
/// oftener.
const ROUNDS: usize = 4;
const ALL_PAUSES: Duration = Duration::from_millis(100 + 200 + 400 + 800);

#[tokio::test(flavor = "multi_thread")]
async fn a_nacked_message_comes_again_flagged_and_never_in_a_hot_loop() {
    let (vhost, proxy, control, mut client) = connected(&[]).await;
    vhost.publisher().await.publish_all("a", ["difficult"]).await;
    let first = client.message().await;
    assert_eq!((first.seq, first.redelivered), (1, false));
    client.nack(1, true).await;
    let began = Instant::now();
    for round in 1..=ROUNDS as u64 {
        let again = client.message().await;
        assert_eq!((again.seq, again.redelivered, again.body()), (round + 1, true, &b"difficult"[..]));
        if round < ROUNDS as u64 {
            client.nack(again.seq, true).await;
        }
    }
    assert!(began.elapsed() >= ALL_PAUSES, "{ROUNDS} rounds took {:?}", began.elapsed());
    // While it waited, the rest of the mailbox went on.
    client.nack(ROUNDS as u64 + 1, true).await;
    vhost.publisher().await.publish_all("a", numbers(1..=5)).await;
    let last = expect(&mut client, &numbers(1..=5), false).await;
    client.ack(last).await;
    client.take(1).await;
    reaches(&vhost, 0, 0).await;
    control.finish().await;
    proxy.stop().await;
}

/// The pause of a nacked message is also the time in which an ack could take it along.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_ack_does_not_touch_a_nacked_message() {
    let (vhost, proxy, control, mut client) = connected(&[]).await;
    vhost.publisher().await.publish_all("a", numbers(1..=8)).await;
    expect(&mut client, &numbers(1..=8), false).await;
    client.nack(2, true).await;
    client.nack(5, true).await;
    client.ack(8).await;
    expect_pong(&mut client).await;
    // Neither acked nor, after the pause, forgotten.
    expect(&mut client, &["2".to_owned(), "5".to_owned()], true).await;
    client.ack(10).await;
    reaches(&vhost, 0, 0).await;
    // After the pause as well: it came back under a new seq, and the old one names nothing any more.
    vhost.publisher().await.publish_all("a", ["9"]).await;
    expect(&mut client, &["9".to_owned()], false).await;
    client.nack(2, true).await;
    client.ack(9).await;
    expect_pong(&mut client).await;
    reaches(&vhost, 0, 1).await;
    control.finish().await;
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nacked_messages_stay_within_the_window() {
    let (vhost, proxy, control, mut client) = connected(&["--window", "4"]).await;
    vhost.publisher().await.publish_all("a", numbers(1..=8)).await;
    expect(&mut client, &numbers(1..=4), false).await;
    for seq in 1..=4 {
        client.nack(seq, true).await;
    }
    expect_pong(&mut client).await;
    reaches(&vhost, 4, 4).await;
    // After the pause they are first again.
    let last = expect(&mut client, &numbers(1..=4), true).await;
    client.ack(last).await;
    client.take(4).await;
    reaches(&vhost, 0, 0).await;
    control.finish().await;
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_requeue_it_is_dead_lettered_where_the_policy_says_so() {
    let (vhost, proxy, control, mut client) = connected(&[]).await;
    let mut undertaker = Dial::to(proxy.addr()).consumer("undertaker").v1().connect().await;
    undertaker.welcome().await;
    let (exchange, key) = (protocol::names::EXCHANGE_DIRECT, "undertaker");
    vhost.set_policy(json!({"dead-letter-exchange": exchange, "dead-letter-routing-key": key})).await;
    let publisher = vhost.publisher().await;
    publisher.publish_all("a", numbers(1..=3)).await;
    expect(&mut client, &numbers(1..=3), false).await;
    client.nack(2, false).await;
    client.ack(3).await;
    let dead = undertaker.message().await;
    assert_eq!((dead.body(), dead.redelivered), (&b"2"[..], false));
    let death = &dead.headers["x-death"][0];
    assert_eq!((&death["reason"], &death["count"]), (&json!("rejected"), &json!(1)), "{death}");
    undertaker.ack(dead.seq).await;
    reaches(&vhost, 0, 0).await;
    // Only that one.
    assert_eq!(publisher.publish("undertaker", "to the undertaker himself").await, Outcome::Confirmed);
    assert_eq!(undertaker.take(1).await, ["to the undertaker himself"]);
    control.finish().await;
    assert_eq!(proxy.stop().await.rejected, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_requeue_and_without_such_a_policy_it_is_dropped_and_counted() {
    let (vhost, proxy, control, mut client) = connected(&[]).await;
    vhost.publisher().await.publish_all("a", numbers(1..=4)).await;
    expect(&mut client, &numbers(1..=4), false).await;
    client.nack(1, false).await;
    client.nack(3, false).await;
    client.nack(3, false).await;
    client.nack(3, true).await;
    client.ack(4).await;
    reaches(&vhost, 0, 0).await;
    expect_pong(&mut client).await;
    control.finish().await;
    assert_eq!(proxy.stop().await.rejected, 2);
}
