//! A consumer goes away without a word and comes back: its mailbox waits for it as long as the policy says, and no longer.

use std::time::Duration;

use rig::{Client, Dial, Node, Outcome, PATIENCE, Proxy, Vhost, wait_until};
use serde_json::json;
use tokio::time::{Instant, sleep};

const QUEUE: &str = "proxy-subscription-consumer-alice-1";

/// Far more than a declare and a consume need on a busy machine, and short enough to be waited for.
const EXPIRY: Duration = Duration::from_secs(4);

/// A vhost whose mailboxes expire soon.
async fn with_short_expiry() -> Vhost {
    let vhost = Vhost::new(&Node::shared().await).await;
    vhost.set_policy(json!({"expires": EXPIRY.as_millis()})).await;
    vhost
}

async fn connected(proxy: &Proxy) -> Client {
    Dial::to(proxy.addr()).consumer("alice").connect().await
}

/// The broker has no consumer left: the proxy has noticed that the client is gone, and has left.
async fn noticed(vhost: &Vhost) {
    wait_until(PATIENCE, "the proxy has noticed", async || vhost.consumers().await, Vec::is_empty).await;
}

/// Everything that was sent is acked.
async fn settled(vhost: &Vhost) {
    let queue = async || vhost.queue(QUEUE).await.unwrap();
    wait_until(PATIENCE, "nothing waits and nothing is unacked", queue, |q| (q.ready, q.unacked) == (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_drops_and_returns_gets_what_was_published_meanwhile_in_order() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let publisher = vhost.publisher().await;
    let mut client = connected(&proxy).await;
    for absence in 0..5 {
        let bodies = |when: &str| (0..100).map(|n| format!("{when} {absence}.{n}")).collect::<Vec<_>>();
        let (live, missed) = (bodies("live"), bodies("missed"));
        publisher.publish_all("alice", live.clone()).await;
        for body in live {
            assert_eq!(client.text().await, body);
        }
        settled(&vhost).await;
        client.reset();
        noticed(&vhost).await;
        publisher.publish_all("alice", missed.clone()).await;
        client = connected(&proxy).await;
        for body in missed {
            assert_eq!(client.text().await, body);
        }
        settled(&vhost).await;
    }
    assert_eq!(publisher.publish("alice", "last").await, Outcome::Confirmed);
    assert_eq!(client.text().await, "last", "and nothing came twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stays_away_beyond_the_expiry_finds_the_queue_gone_and_gets_a_fresh_one() {
    let vhost = with_short_expiry().await;
    let proxy = Proxy::start(&vhost, &[]);
    let publisher = vhost.publisher().await;
    let client = connected(&proxy).await;
    let left = Instant::now();
    client.reset();
    noticed(&vhost).await;
    assert_eq!(publisher.publish("alice", "gone with the queue").await, Outcome::Confirmed);
    wait_until(PATIENCE, "the queue has expired", async || vhost.queue(QUEUE).await, Option::is_none).await;
    assert!(left.elapsed() >= EXPIRY, "the queue was gone after {:?}", left.elapsed());
    assert_eq!(publisher.publish("alice", "to nobody").await, Outcome::Returned);

    let mut client = connected(&proxy).await;
    let fresh = vhost.queue(QUEUE).await.expect("101 means that the queue exists");
    assert_eq!((fresh.ready, fresh.unacked, fresh.consumers), (0, 0, 1));
    assert_eq!(publisher.publish("alice", "fresh").await, Outcome::Confirmed, "101 means that it is bound");
    assert_eq!(client.text().await, "fresh");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_socket_keeps_its_queue_however_long_nothing_comes() {
    let vhost = with_short_expiry().await;
    let proxy = Proxy::start(&vhost, &[]);
    let publisher = vhost.publisher().await;
    let mut client = connected(&proxy).await;
    // A second instance that leaves shows that the expiry is at work meanwhile.
    Dial::to(proxy.addr()).consumer("alice").instance("2").connect().await.reset();
    wait_until(PATIENCE, "the other's queue has expired", async || vhost.queues().await, |q| q.len() == 1).await;
    sleep(EXPIRY).await;
    assert_eq!(publisher.publish("alice", "still there").await, Outcome::Confirmed);
    assert_eq!(client.text().await, "still there");
}
