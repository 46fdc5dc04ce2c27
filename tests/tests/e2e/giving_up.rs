//! Upgrades that are given up half-way leave nothing behind.

use std::time::Duration;

use rand::RngExt;
use rig::{Dial, Node, PATIENCE, Proxy, Vhost, wait_until};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// No consumer and no unacked message, and each mailbox can still be had.
async fn nothing_is_left(vhost: &Vhost) {
    let left = async || vhost.snapshot().await;
    wait_until(PATIENCE, "no consumer, nothing unacked", left, |seen| {
        seen.consumers.is_empty() && seen.queues.iter().all(|queue| queue.unacked == 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_go_away_at_random_moments_leave_no_consumer() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut tasks = JoinSet::new();
    for number in 0..400 {
        let dial = Dial::to(proxy.addr()).consumer(&format!("c{}", number % 100));
        let patience = Duration::from_micros(rand::rng().random_range(0..60_000));
        tasks.spawn(async move {
            // Dropping the attempt closes its TCP connection, wherever the upgrade is.
            timeout(patience, dial.try_connect()).await.is_ok()
        });
    }
    let finished = tasks.join_all().await.into_iter().filter(|finished| *finished).count();
    assert!(finished < 400, "none gave up");
    nothing_is_left(&vhost).await;
    let mut client = Dial::to(proxy.addr()).consumer("c1").connect().await;
    vhost.publisher().await.publish_all("c1", ["hello"]).await;
    assert_eq!(client.text().await, "hello");
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_that_meet_their_deadline_leave_no_consumer() {
    let vhost = Vhost::new(&Node::shared().await).await;
    // Far too short for a broker that has a hundred declarations to make; many are refused, whoever is served stays.
    let proxy = Proxy::start(&vhost, &["--broker-timeout", "40ms"]);
    let warm = async || Dial::to(proxy.addr()).consumer("warm").try_connect().await.is_ok();
    wait_until(PATIENCE, "the proxy has its broker", warm, |served| *served).await;
    let mut tasks = JoinSet::new();
    for number in 0..300 {
        let dial = Dial::to(proxy.addr()).consumer(&format!("c{number}"));
        tasks.spawn(async move { dial.try_connect().await });
    }
    let mut refused = 0;
    for outcome in tasks.join_all().await {
        match outcome {
            Ok(client) => drop(client),
            Err(answer) => {
                refused += 1;
                assert_eq!(answer.status, 503);
            }
        }
    }
    assert!(refused > 0, "the deadline was never met");
    nothing_is_left(&vhost).await;
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_in_the_middle_of_upgrades_leaves_no_consumer() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut tasks = JoinSet::new();
    for number in 0..200 {
        let dial = Dial::to(proxy.addr()).consumer(&format!("c{number}"));
        tasks.spawn(async move { dial.try_connect().await });
    }
    let some = async || vhost.consumers().await.len();
    wait_until(PATIENCE, "some are served", some, |count| *count > 0).await;
    proxy.drain();
    for outcome in tasks.join_all().await {
        match outcome {
            Ok(mut client) => assert_eq!(client.expect_close().await.0, 4002),
            Err(answer) => assert_eq!(answer.status, 503),
        }
    }
    let summary = proxy.stop().await;
    assert_eq!(summary.cut_off, 0);
    nothing_is_left(&vhost).await;
}
