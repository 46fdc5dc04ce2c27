//! What is counted of the broker's side: connections, other proxies, what could not be read.

use lapin::{BasicProperties, Connection, ConnectionProperties, options::BasicPublishOptions};
use protocol::names::EXCHANGE_CONTROL;
use rig::vhost::frames::RawProperties;
use rig::{Dial, Node, Outcome, PATIENCE, Proxy, Vhost, wait_until};

use super::{LATE_PONGS, check, sessions};

const LISTENING: &str = "auth_proxy_control_listening";
const IGNORED: &str = "auth_proxy_control_messages_ignored_total";
const UNREADABLE: &str = "auth_proxy_amqp_frames_unreadable_total";

fn connection(what: &str, purpose: &str) -> String {
    format!("auth_proxy_amqp_{what}{{purpose=\"{purpose}\"}}")
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_broker_a_proxy_is_not_ready_and_counts_the_outage() {
    let node = Node::private().await;
    let vhost = Vhost::new(&node).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let admin = proxy.admin();
    let client = Dial::to(proxy.addr()).consumer("a").connect().await;
    assert_eq!(admin.ready().await, (200, vec!["ready".to_owned()]));
    let outage = connection("outage_seconds_total", "deliveries");
    let before = admin.counts().await;
    check(
        &before,
        &[(&connection("connection_up", "deliveries"), 1.0), (&connection("reconnects_total", "deliveries"), 0.0)],
    );

    node.kill().await;
    let no_connection = ["broker: no connection for deliveries", "broker: no connection for declarations"];
    let not_ready = async || admin.ready().await;
    wait_until(PATIENCE, "503 for both connections", not_ready, |(status, lines)| {
        *status == 503 && no_connection.iter().all(|line| lines.iter().any(|said| said == line))
    })
    .await;
    assert_eq!(admin.get("/healthz").await.status, 200);
    let during = admin.counts().await;
    check(&during, &[(&connection("connection_up", "deliveries"), 0.0), (&sessions("raw"), 1.0)]);
    // It grows while the outage lasts.
    let grows = async || admin.counts().await.value(&outage);
    wait_until(PATIENCE, "a longer outage", grows, |now| *now > during.value(&outage)).await;

    node.start().await;
    wait_until(PATIENCE, "200 again", async || admin.ready().await, |(status, _)| *status == 200).await;
    let after = admin.counts().await;
    let expected = [
        (&connection("connection_up", "deliveries")[..], 1.0),
        (&connection("reconnects_total", "deliveries"), 1.0),
        (&connection("reconnects_total", "declarations"), 1.0),
        (&sessions("raw"), 1.0),
    ];
    check(&after, &expected);
    assert!(after.value(&outage) > before.value(&outage), "{} s", after.value(&outage));
    admin.wait_for("auth_proxy_lane_rebuilds_total", 1.0).await;
    drop(client);
    proxy.stop().await;
}

/// What the proxy's user may declare from now on.
async fn permit(vhost: &Vhost, configure: &str) {
    let read = r"^(proxy-(subscription|control)-.*|exchange\.(direct|control))$";
    let write = r"^(proxy-(subscription|control)-.*|exchange\.control)$";
    vhost.node().ctl(&["set_permissions", "-p", vhost.name(), "auth-proxy", configure, write, read]).await;
}

/// The connection tells nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_may_not_listen_to_others_says_so() {
    let vhost = Vhost::new(&Node::shared().await).await;
    permit(&vhost, "^proxy-subscription-.*$").await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let admin = proxy.admin();
    let client = Dial::to(proxy.addr()).consumer("a").connect().await;
    admin.wait_for(&connection("connection_up", "control"), 1.0).await;
    check(&admin.counts().await, &[(LISTENING, 0.0)]);
    let page = admin.get("/stats").await;
    assert!(page.text().contains("\nother proxies NOT LISTENING"), "{}", page.text());
    permit(&vhost, "^proxy-(subscription|control)-.*$").await;
    admin.wait_for(LISTENING, 1.0).await;
    let page = admin.get("/stats").await;
    assert!(page.text().contains("\nother proxies listening   ignored 0\n"), "{}", page.text());
    check(&admin.counts().await, &[(&connection("reconnects_total", "control"), 0.0)]);
    drop(client);
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_counted() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let admin = proxy.admin();
    let mut client = Dial::to(proxy.addr()).consumer("a").connect().await;
    admin.wait_for(LISTENING, 1.0).await;
    check(&admin.counts().await, &[(IGNORED, 0.0), (UNREADABLE, 0.0)]);

    let said = async {
        let connection = Connection::connect(&vhost.amqp_url("auth-proxy"), ConnectionProperties::default()).await?;
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let channel = connection.create_channel().await?;
        channel.basic_publish(EXCHANGE_CONTROL.into(), "".into(), options, b"none of ours", properties).await?;
        Ok::<_, lapin::Error>((connection, channel))
    };
    let speaker = Box::pin(said).await.expect("the proxy's user may write there");
    admin.wait_for(IGNORED, 1.0).await;

    let mut producer = vhost.raw_publisher().await;
    let properties = RawProperties::default().message_id(b"caf\xe9");
    assert_eq!(producer.publish("a", &properties, b"hello").await, Outcome::Confirmed);
    assert_eq!(client.text().await, "hello");
    check(&admin.counts().await, &[(IGNORED, 1.0), (UNREADABLE, 1.0)]);
    let page = admin.get("/stats").await;
    assert!(page.text().contains("\nframes        unreadable 1\n"), "{}", page.text());
    drop((client, speaker));
    proxy.stop().await;
}
