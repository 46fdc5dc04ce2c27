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

/// The channels that have consumers.
fn lanes(channels: &[rig::vhost::Channel]) -> Vec<String> {
    channels.iter().filter(|channel| channel.consumers > 0).map(|channel| channel.pid.clone()).collect()
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
    assert_eq!(lanes(&vhost.channels().await), lanes(&before.channels), "the lane is the same one");
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_deleted_between_declare_and_consume_hurts_nobody_else() {
    let vhost = Vhost::new(&Node::shared().await).await;
    // An upgrade whose queue vanishes again and again goes on trying until its time is over.
    let proxy = Proxy::start(&vhost, &[LATE_PONGS, &["--broker-timeout", "2s"]].concat());
    let mut clients = crowd(&proxy, 5).await;
    let before = lanes(&vhost.channels().await);
    let victim = queue("victim");
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
                let publisher = vhost.publisher().await;
                let state = async || vhost.queue(&victim).await.map_or(0, |queue| queue.consumers);
                wait_until(PATIENCE, "the victim is subscribed", state, |consumers| *consumers == 1).await;
                publisher.publish_all("victim", ["hello"]).await;
                assert_eq!(client.text().await, "hello");
                client.close().await;
            }
            Err(answer) => assert_eq!(answer.status, 503),
        }
    }
    let after = lanes(&vhost.channels().await);
    assert!(!after.contains(&before[0]), "no deletion fell between declare and consume, so nothing was tried");
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
    assert_eq!(of_proxy, 3, "as many as before: {connections:?}");
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

/// After a rebuild the channel's tags begin anew; a settlement of the old life that comes late must not meet one of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_from_before_a_rebuild_settles_nothing() {
    const MESSAGES: usize = 40;
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let publisher = vhost.publisher().await;
    let dial = Dial::to(proxy.addr()).consumer("a").receive_buffer(4096);
    let mut client = dial.connect().await;
    // So that the tags of what follows differ by one from those that it will have on the next channel, where the second
    // message has the tag that the first one has here.
    publisher.publish_all("a", ["small"]).await;
    assert_eq!(client.text().await, "small");
    let state = async || vhost.queue(&queue("a")).await.expect("the queue");
    wait_until(PATIENCE, "it is acked", state, |queue| queue.ready + queue.unacked == 0).await;
    // More than the kernel takes: the first one is half sent when the channel dies.
    publisher.publish_all("a", (0..MESSAGES).map(|number| format!("{number}{}", " ".repeat(256 * 1024)))).await;
    wait_until(PATIENCE, "a full window", state, |queue| queue.unacked == 16).await;
    let channels = vhost.channels().await;
    let lane = channels.iter().find(|channel| channel.consumers > 0).expect("a lane");
    vhost.close_channel(lane).await;
    let rebuilt = async || vhost.channels().await;
    wait_until(PATIENCE, "another channel with a full window", rebuilt, |channels| {
        channels.iter().any(|channel| channel.unacked == 16 && channel.pid != lane.pid)
    })
    .await;
    // The half-sent copy is finished and settles under its old tag; then the new copy comes.
    for _ in 0..2 {
        assert_eq!(client.text().await.trim(), "0");
    }
    client.reset();
    let mut client = dial.connect().await;
    let first: usize = client.text().await.trim().parse().unwrap();
    assert!(first <= 1, "{first}: only the first one was read");
    for number in first + 1..MESSAGES {
        assert_eq!(client.text().await.trim(), number.to_string());
    }
    wait_until(PATIENCE, "an empty queue", state, |queue| (queue.ready, queue.unacked) == (0, 0)).await;
    proxy.stop().await;
}

/// Subscriptions are moved, refused and put back; in the end each has one consumer, and every place is still good.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_deletions_and_dying_lanes_loses_no_session_and_no_place() {
    // Room for all to be moved to a lane of their own.
    const LANES: usize = 64;
    const PER_LANE: usize = 4;
    const SESSIONS: usize = 40;
    let vhost = Vhost::new(&Node::shared().await).await;
    let max_lanes = LANES.to_string();
    let arguments = [LATE_PONGS, &["--window", "512", "--max-lanes", &max_lanes]].concat();
    let proxy = Proxy::start(&vhost, &arguments);
    let mut clients = crowd(&proxy, SESSIONS).await;
    for round in 0..6 {
        for lane in vhost.channels().await.iter().filter(|channel| channel.consumers > 0) {
            vhost.close_channel(lane).await;
            // While it is rebuilt, some of its queues vanish: before they are looked at, or after.
            for number in (round..SESSIONS).step_by(7) {
                vhost.delete_queue(&queue(&format!("c{number}"))).await;
            }
        }
    }
    let consumers = async || vhost.consumers().await.iter().filter(|consumer| consumer.active).count();
    wait_until(PATIENCE, "a consumer for each", consumers, |count| *count == SESSIONS).await;
    all_served(&vhost, &mut clients, "after the storm").await;
    let mut more = Vec::new();
    for number in SESSIONS..LANES * PER_LANE {
        more.push(Dial::to(proxy.addr()).consumer(&format!("c{number}")).connect().await);
    }
    let answer = Dial::to(proxy.addr()).consumer("beyond").try_connect().await.err().expect("all places are taken");
    assert_eq!(answer.status, 503);
    proxy.stop().await;
}
