//! Properties that RabbitMQ takes from any producer and that the proxy's AMQP library cannot read: the message arrives with
//! what can be read, and nobody else notices.

use std::time::Duration;

use broker::{
    endpoint::parse_list,
    mailboxes::{Mailboxes, Options, Wish},
    subscription::Incoming,
};
use protocol::names::{Address, EXCHANGE_DIRECT, RoutingKey};
use protocol::v1::{Message, ServerFrame};
use rig::vhost::frames::{RawProperties, entry, long, short};
use rig::{Client, Dial, Node, Outcome, PATIENCE, ProxyProcess, Vhost, wait_until, within};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::control::Control;

/// A proxy in a process of its own, which may well abort, with a control client on the lane of the consumer `a`.
struct Scene {
    vhost: Vhost,
    proxy: ProxyProcess,
    control: Control,
    client: Client,
    /// The proxy's connections to the broker.
    connections: Vec<String>,
}

async fn connections(vhost: &Vhost) -> Vec<String> {
    let all = vhost.connections().await;
    let mut pids: Vec<_> = all.into_iter().filter(|c| c.user == "auth-proxy").map(|c| c.pid).collect();
    pids.sort();
    pids
}

impl Scene {
    async fn set() -> Scene {
        let vhost = Vhost::new(&Node::shared().await).await;
        let proxy = ProxyProcess::start(&vhost, &["--pong-timeout", "1h"], &[]).await;
        let control = Control::start(&vhost, proxy.addr()).await;
        let mut client = Dial::to(proxy.addr()).consumer("a").v1().connect().await;
        client.welcome().await;
        control.shares_lane_with(&vhost, "a").await;
        let seen = async || connections(&vhost).await;
        let connections = wait_until(PATIENCE, "all connections are there", seen, |seen| seen.len() == 3).await;
        Scene { vhost, proxy, control, client, connections }
    }

    /// The next frame is this message: nothing came before it, no notice of a broker that was lost.
    async fn arrives(&mut self, body: &str) -> Message<'static> {
        let message = match self.client.said().await {
            ServerFrame::Message(message) => *message,
            other => panic!("a message was expected, not {other:?}"),
        };
        assert_eq!((message.body(), message.redelivered), (body.as_bytes(), false));
        self.client.ack(message.seq).await;
        message
    }

    /// Nobody was disturbed, and the log says what was left out.
    async fn finish(mut self, left_out: &str) {
        let said = format!("a message is handed on without what of it cannot be read ({left_out})");
        self.proxy.program().wait_for_line(&said, PATIENCE).await;
        assert_eq!(self.vhost.publisher().await.publish("a", "well").await, Outcome::Confirmed);
        self.arrives("well").await;
        assert_eq!(connections(&self.vhost).await, self.connections, "no connection was lost");
        self.control.finish().await;
    }
}

/// One such message, and what the client gets of its headers; its message-id is `m`.
async fn meets(entries: &[u8], headers: Value) {
    let mut scene = Scene::set().await;
    let mut producer = scene.vhost.raw_publisher().await;
    let properties = RawProperties::default().headers(entries).message_id(b"m");
    assert_eq!(producer.publish("a", &properties, b"poison").await, Outcome::Confirmed);
    let message = scene.arrives("poison").await;
    assert_eq!(message.message_id.as_deref(), Some("m"));
    assert_eq!(Value::Object(message.headers.clone()), headers);
    scene.finish("headers").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_id_that_is_not_utf_8() {
    let mut scene = Scene::set().await;
    let mut producer = scene.vhost.raw_publisher().await;
    let properties = RawProperties::default().headers(&entry(b"n", b'b', &[5])).message_id(b"caf\xe9");
    assert_eq!(producer.publish("a", &properties, b"poison").await, Outcome::Confirmed);
    let message = scene.arrives("poison").await;
    assert_eq!(message.message_id, None);
    let expected = json!({"n": 5, "x-properties": "unreadable: message-id"});
    assert_eq!(Value::Object(message.headers.clone()), expected);
    scene.finish("message-id").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_name_of_a_header_that_is_not_utf_8() {
    let entries = [entry(b"\xff\xfe", b'V', b""), entry(b"good", b't', &[1])].concat();
    meets(&entries, json!({"good": true, "x-properties": "unreadable: headers"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_in_tables() {
    let inside = (0..20_000).fold(Vec::new(), |inside, _| entry(b"", b'F', &long(&inside)));
    let entries = [inside, entry(b"good", b't', &[1])].concat();
    meets(&entries, json!({"good": true, "x-properties": "unreadable: headers"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_values() {
    let entries = [entry(b"voids", b'A', &long(&[b'V'; 100_000])), entry(b"good", b't', &[1])].concat();
    meets(&entries, json!({"good": true, "x-properties": "unreadable: headers"})).await;
}

/// By hand and without listening: what no publisher of `rig` would put into a publish.
async fn publish_to_no_text(vhost: &Vhost, carbon_copy: &str) -> TcpStream {
    let method = |channel: u8, class: u8, method: u8, arguments: &[u8]| {
        [&[1, 0, channel][..], &long(&[&[0, class, 0, method], arguments].concat()), &[0xCE]].concat()
    };
    let login = [&long(b"")[..], &short(b"PLAIN"), &long(b"\0producer\0producer"), &short(b"en_US")].concat();
    let copies = long(&entry(b"CC", b'A', &long(&[b"S", &long(carbon_copy.as_bytes())[..]].concat())));
    let header = [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0x20, 0][..], &copies].concat();
    let said = [
        b"AMQP\x00\x00\x09\x01".to_vec(),
        method(0, 10, 11, &login),
        method(0, 10, 31, &[0, 8, 0, 2, 0, 0, 0, 0]),
        method(0, 10, 40, &[&short(vhost.name().as_bytes())[..], &[0, 0]].concat()),
        method(1, 20, 10, &[0]),
        method(1, 60, 40, &[&[0, 0][..], &short(EXCHANGE_DIRECT.as_bytes()), &short(b"\xff\xfe"), &[0]].concat()),
        [&[2, 0, 1][..], &long(&header), &[0xCE]].concat(),
        [&[3, 0, 1][..], &long(b"poison"), &[0xCE]].concat(),
    ];
    let mut stream = TcpStream::connect(("127.0.0.1", vhost.node().amqp_port())).await.unwrap();
    stream.write_all(&said.concat()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_routing_key_that_is_not_utf_8() {
    let mut scene = Scene::set().await;
    let _open = publish_to_no_text(&scene.vhost, "a").await;
    let message = scene.arrives("poison").await;
    assert_eq!(Value::Object(message.headers.clone()), json!({"CC": ["a"]}), "what clients get is all there");
    scene.finish("routing key").await;
}

/// 5,000 headers are many and long, but nothing that could not be read.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_kilobytes_of_headers_arrive() {
    let mut scene = Scene::set().await;
    let mut producer = scene.vhost.raw_publisher().await;
    let entries: Vec<u8> =
        (0..5_000_u32).flat_map(|n| entry(format!("header {n:07}").as_bytes(), b'I', &n.to_be_bytes())).collect();
    assert!(entries.len() >= 100_000);
    let properties = RawProperties::default().headers(&entries);
    assert_eq!(producer.publish("a", &properties, b"long").await, Outcome::Confirmed);
    let headers = scene.arrives("long").await.headers;
    assert_eq!((headers.len(), headers.get("header 0004999")), (5_000, Some(&json!(4_999))));
    let bad = RawProperties::default().message_id(b"\xff");
    assert_eq!(producer.publish("a", &bad, b"poison").await, Outcome::Confirmed);
    scene.arrives("poison").await;
    // The first that the log has to say something about.
    scene.finish("message-id").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_read_is_counted() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let options = Options {
        name: "poison".to_owned(),
        heartbeat: Duration::from_secs(10),
        request_timeout: PATIENCE,
        ack_interval: Duration::from_millis(5),
        lanes_max: 1,
        declare_channels: 1,
    };
    let mailboxes = Mailboxes::start(parse_list(&[vhost.amqp_url("auth-proxy")], "").unwrap(), &options);
    within(PATIENCE, "the connections", mailboxes.up()).await;
    let address = Address { client: "consumer".into(), consumer: "a".into(), instance: "1".into() };
    let claim = mailboxes.claim(&address.queue().unwrap()).await.expect("nobody else wants it");
    let wish = Wish { window: 16, resume: false };
    let mut subscription = mailboxes.subscribe(claim, RoutingKey::new("a").unwrap(), wish).await.unwrap();
    let mut producer = vhost.raw_publisher().await;
    for (id, count) in [(&b"good"[..], 0), (b"\xff", 1), (b"good", 1), (b"\xc3", 2)] {
        let properties = RawProperties::default().message_id(id);
        assert_eq!(producer.publish("a", &properties, b"body").await, Outcome::Confirmed);
        match within(PATIENCE, "the delivery", subscription.next()).await {
            Incoming::Delivery(delivery) => assert_eq!(delivery.properties.message_id().is_some(), id == b"good"),
            other => panic!("a delivery was expected, not {other:?}"),
        }
        let vitals = mailboxes.vitals();
        assert_eq!((vitals.unreadable, vitals.reconnects(), vitals.lane_rebuilds), (count, 0, 0));
    }
    subscription.leave().await;
    mailboxes.close(PATIENCE).await;
}
