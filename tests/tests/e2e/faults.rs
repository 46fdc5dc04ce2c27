//! What breaks at the broker costs the session it happens to, or nobody.

use rig::{Dial, Node, PATIENCE, Proxy, Vhost, tokens, wait_until};
use serde_json::json;

use crate::queue;

/// The clients of these tests read, and so answer pings, only when they are asked to.
const LATE_PONGS: &[&str] = &["--pong-timeout", "1h"];

/// Each receives one message and the broker has the acks: whatever breaks next gives no reason to repeat one.
async fn all_served(vhost: &Vhost, clients: &mut [(String, rig::Client)], word: &str) {
    let publisher = vhost.publisher().await;
    for (consumer, _) in clients.iter() {
        publisher.publish_all(consumer, [word]).await;
    }
    for (consumer, client) in clients {
        assert_eq!(client.text().await, word, "{consumer}");
    }
    let unacked = async || vhost.queues().await.iter().map(|queue| queue.unacked).sum::<u64>();
    wait_until(PATIENCE, "everything acked", unacked, |unacked| *unacked == 0).await;
}

async fn crowd(proxy: &Proxy, count: usize) -> Vec<(String, rig::Client)> {
    let mut clients = Vec::new();
    for number in 0..count {
        let consumer = format!("c{number}");
        let client = Dial::to(proxy.addr()).consumer(&consumer).connect().await;
        clients.push((consumer, client));
    }
    clients
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_with_other_arguments_is_409_and_touches_nobody_else() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let mut clients = crowd(&proxy, 5).await;
    let before = vhost.snapshot().await;
    vhost.declare_queue(&queue("conflict"), json!({})).await;
    for _ in 0..20 {
        let refused = Dial::to(proxy.addr()).consumer("conflict").try_connect().await;
        assert_eq!(refused.err().map(|answer| answer.status), Some(409));
    }
    all_served(&vhost, &mut clients, "still here").await;
    let lanes = |channels: &[rig::vhost::Channel]| -> Vec<String> {
        channels.iter().filter(|channel| channel.consumers > 0).map(|channel| channel.pid.clone()).collect()
    };
    assert_eq!(lanes(&vhost.channels().await), lanes(&before.channels), "the lane is the same one");
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_deleted_between_declare_and_consume_hurts_nobody_else() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let mut clients = crowd(&proxy, 5).await;
    let victim = queue("victim");
    let (mut served, mut refused) = (0, 0);
    for _ in 0..15 {
        let dial = Dial::to(proxy.addr()).consumer("victim");
        let connecting = dial.try_connect();
        // Deletes as often as it can while the upgrade is under way.
        let deleting = async {
            loop {
                vhost.delete_queue(&victim).await;
            }
        };
        let outcome = tokio::select! {
            outcome = connecting => outcome,
            () = deleting => unreachable!(),
        };
        match outcome {
            Ok(mut client) => {
                served += 1;
                let publisher = vhost.publisher().await;
                let state = async || vhost.queue(&victim).await.map_or(0, |queue| queue.consumers);
                wait_until(PATIENCE, "the victim is subscribed", state, |consumers| *consumers == 1).await;
                publisher.publish_all("victim", ["hello"]).await;
                assert_eq!(client.text().await, "hello");
                client.close().await;
            }
            Err(answer) => {
                refused += 1;
                assert_eq!(answer.status, 503);
            }
        }
    }
    assert_eq!(served + refused, 15);
    all_served(&vhost, &mut clients, "still here").await;
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_closed_from_outside_is_rebuilt_and_all_are_served() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let mut clients = crowd(&proxy, 60).await;
    for round in 0..3 {
        let channels = vhost.channels().await;
        let lane = channels.iter().find(|channel| channel.consumers > 0).expect("a lane");
        vhost.close_channel(lane).await;
        let rebuilt = async || vhost.channels().await;
        wait_until(PATIENCE, "another channel with all consumers", rebuilt, |channels| {
            channels.iter().any(|channel| channel.consumers == 60 && channel.pid != lane.pid)
        })
        .await;
        all_served(&vhost, &mut clients, &format!("round {round}")).await;
    }
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_closed_by_an_operator_are_made_anew_and_all_are_served() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let mut clients = crowd(&proxy, 60).await;
    for round in 0..2 {
        if round == 0 {
            vhost.close_connections("maintenance").await;
        } else {
            vhost.cut_connections().await;
        }
        let consumers = async || vhost.consumers().await.iter().filter(|consumer| consumer.active).count();
        wait_until(PATIENCE, "60 active consumers", consumers, |count| *count == 60).await;
        all_served(&vhost, &mut clients, &format!("round {round}")).await;
    }
    let connections = vhost.connections().await;
    let of_proxy = connections.iter().filter(|connection| connection.user == "auth-proxy").count();
    assert_eq!(of_proxy, 2, "as many as before: {connections:?}");
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a08_queue_deleted_under_a_live_socket() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let mut clients = crowd(&proxy, 200).await;
    let (mut control, bystander) = (clients.pop().unwrap(), clients.pop().unwrap());
    for (consumer, _) in &clients {
        assert!(vhost.delete_queue(&queue(consumer)).await);
    }
    let consumers = async || vhost.consumers().await.len();
    wait_until(PATIENCE, "every queue has its consumer again", consumers, |count| *count == 200).await;
    all_served(&vhost, &mut clients, "after the deletion").await;
    let publisher = vhost.publisher().await;
    publisher.publish_all(&control.0, ["undisturbed"]).await;
    assert_eq!(control.1.text().await, "undisturbed");
    bystander.1.close().await;
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_broker_the_proxy_answers_503_and_sockets_stay_open() {
    let node = Node::private().await;
    let vhost = Vhost::new(&node).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let mut clients = crowd(&proxy, 20).await;
    node.kill().await;
    let refused = async || Dial::to(proxy.addr()).consumer("new").try_connect().await.err();
    let answer = wait_until(PATIENCE, "a refusal", refused, Option::is_some).await.unwrap();
    assert_eq!(answer.status, 503);
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    node.start().await;
    let consumers = async || vhost.consumers().await.iter().filter(|consumer| consumer.active).count();
    wait_until(PATIENCE, "20 active consumers", consumers, |count| *count == 20).await;
    all_served(&vhost, &mut clients, "back").await;
    let mut late = Dial::to(proxy.addr()).token(&tokens::token("new")).connect().await;
    vhost.publisher().await.publish_all("new", ["hello"]).await;
    assert_eq!(late.text().await, "hello");
    proxy.stop().await;
}
