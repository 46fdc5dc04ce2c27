//! What the other tests stand on: a vhost is a world of its own, counts are exact, faults hit one vhost alone, a node
//! comes back with its data, and a private one leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

use std::path::Path;

use futures::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use rig::{Message, Node, Outcome, PATIENCE, Vhost, wait_until, within};
use serde_json::json;

const QUEUE: &str = "proxy-subscription-consumer-alice-1";

/// A vhost with a queue for alice.
async fn with_queue(node: &Node) -> Vhost {
    let vhost = Vhost::new(node).await;
    vhost.declare_queue(QUEUE, json!({})).await;
    vhost.bind_queue(QUEUE, "alice").await;
    vhost
}

async fn connected(vhost: &Vhost, name: &str) -> Connection {
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    within(PATIENCE, "a login", Box::pin(Connection::connect(&vhost.amqp_url("auth-proxy"), properties))).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vhost_is_a_world_of_its_own() {
    let node = Node::shared().await;
    let (one, other) = (with_queue(&node).await, with_queue(&node).await);
    let publisher = one.publisher().await;
    assert_eq!(publisher.publish("alice", "hello").await, Outcome::Confirmed);
    assert_eq!(publisher.publish("bob", "hello").await, Outcome::Returned);
    assert_eq!(publisher.publish("alice", "again").await, Outcome::Confirmed);
    assert_eq!(one.queue(QUEUE).await.unwrap().ready, 2);
    assert_eq!(other.queue(QUEUE).await.unwrap().ready, 0);
    assert!(other.connections().await.is_empty());
    one.purge_queue(QUEUE).await;
    assert_eq!(one.queue(QUEUE).await.unwrap().ready, 0);
    assert!(one.delete_queue(QUEUE).await && !one.delete_queue(QUEUE).await);
    assert_eq!((one.queue(QUEUE).await, other.queues().await.len()), (None, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_policy_holds_and_can_be_changed() {
    let vhost = Vhost::new(&Node::shared().await).await;
    vhost.set_policy(json!({"max-length": 2})).await;
    vhost.declare_queue(QUEUE, json!({})).await;
    vhost.bind_queue(QUEUE, "alice").await;
    let publisher = vhost.publisher().await;
    publisher.publish_all("alice", ["1", "2"]).await;
    assert_eq!(publisher.publish("alice", "3").await, Outcome::Nacked);
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_are_exact_and_faults_hit_one_vhost() {
    let node = Node::shared().await;
    let (vhost, other) = (with_queue(&node).await, with_queue(&node).await);
    let bystander = connected(&other, "bystander").await;
    let connection = connected(&vhost, "a name with \"quotes\", ümläuts").await;
    let (busy, idle) = (connection.create_channel().await.unwrap(), connection.create_channel().await.unwrap());
    busy.basic_qos(2, BasicQosOptions::default()).await.unwrap();
    let options = BasicConsumeOptions::default();
    let mut deliveries = busy.basic_consume(QUEUE.into(), "".into(), options, FieldTable::default()).await.unwrap();
    let publisher = vhost.publisher().await;
    publisher.publish_all("alice", ["1", "2", "3"]).await;
    let held = "two unacked";
    let queue = wait_until(PATIENCE, held, async || vhost.queue(QUEUE).await.unwrap(), |q| q.unacked == 2).await;
    assert_eq!((queue.ready, queue.consumers), (1, 1));

    let all = vhost.snapshot().await;
    let ours = all.connections.iter().find(|c| c.user == "auth-proxy").unwrap();
    assert_eq!((ours.name.as_str(), ours.channels), ("a name with \"quotes\", ümläuts", 2));
    let channel = all.channels.iter().find(|channel| channel.consumers == 1).unwrap();
    assert_eq!((&channel.connection, channel.number, channel.unacked), (&ours.pid, u64::from(busy.id()), 2));
    assert_eq!((all.consumers[0].prefetch, all.consumers[0].active), (2, true));
    assert_eq!(all.consumers[0].channel, channel.pid);

    vhost.close_channel(channel).await;
    let ended = async { while deliveries.next().await.is_some_and(|next| next.is_ok()) {} };
    within(PATIENCE, "the end of the channel", ended).await;
    assert!(busy.basic_qos(7, BasicQosOptions::default()).await.is_err(), "the channel is closed");
    let back = async || vhost.queue(QUEUE).await.unwrap();
    wait_until(PATIENCE, "all is back in the queue", back, |q| (q.ready, q.unacked) == (3, 0)).await;
    idle.basic_qos(7, BasicQosOptions::default()).await.unwrap();

    vhost.close_connections("a test said so").await;
    wait_until(PATIENCE, "no connection", async || vhost.connections().await, Vec::is_empty).await;
    let again = connected(&vhost, "again").await;
    vhost.cut_connections().await;
    wait_until(PATIENCE, "no connection", async || vhost.connections().await, Vec::is_empty).await;
    drop(again);
    bystander.create_channel().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_node_is_killed_comes_back_and_leaves_nothing() {
    let node = Node::private().await;
    let dir = node.dir().to_owned();
    let vhost = with_queue(&node).await;
    let publisher = vhost.publisher().await;
    assert_eq!(publisher.send(&Message::new("alice", "kept").persistent()).await, Outcome::Confirmed);
    assert_eq!(publisher.publish("alice", "lost").await, Outcome::Confirmed);
    node.kill().await;
    assert!(node.try_eval("ok.").await.is_err());
    node.start().await;
    assert_eq!(vhost.queue(QUEUE).await.unwrap().ready, 1);
    assert!(node.ctl(&["status"]).await.contains("RabbitMQ"));
    node.stop().await;
    node.start().await;
    assert_eq!(vhost.queue(QUEUE).await.unwrap().ready, 1);
    let pid = pid_of(&dir);
    drop((publisher, vhost, node));
    assert!(!dir.exists(), "{} is left", dir.display());
    // Whoever adopted it may not have reaped it yet: a zombie has no command line.
    let command_line = Path::new("/proc").join(pid).join("cmdline");
    assert_eq!(std::fs::read_to_string(command_line).unwrap_or_default(), "", "the node runs on");
}

fn pid_of(dir: &Path) -> String {
    let text = std::fs::read_to_string(dir.join("env")).unwrap();
    text.lines().find_map(|line| line.strip_prefix("pid=")).unwrap().to_owned()
}
