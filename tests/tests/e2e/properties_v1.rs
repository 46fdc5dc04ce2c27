//! What a producer says about a message reaches the client, and any body arrives as it was sent.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable};
use rig::vhost::Message;
use rig::vhost::frames::{RawProperties, entry, long};
use rig::{Client, Dial, Node, Outcome, PATIENCE, Proxy, Vhost, wait_until};
use serde_json::{Value, json};

use crate::control::Control;
use crate::queue;

async fn connected() -> (Vhost, Proxy, Control, Client) {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &["--pong-timeout", "1h"]);
    let control = Control::start(&vhost, proxy.addr()).await;
    let mut client = Dial::to(proxy.addr()).consumer("a").v1().connect().await;
    client.welcome().await;
    (vhost, proxy, control, client)
}

/// The next frame as the JSON that it is, without its seq.
async fn next(client: &mut Client) -> BTreeMap<String, Value> {
    let text = client.text().await;
    let mut fields: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let seq = fields.remove("seq").and_then(|seq| seq.as_u64()).unwrap_or_else(|| panic!("no seq: {text}"));
    client.ack(seq).await;
    fields
}

/// A message as the client should see it, beside what all have.
fn seen(fields: Value) -> BTreeMap<String, Value> {
    let mut all: BTreeMap<String, Value> = serde_json::from_value(fields).unwrap();
    all.insert("type".to_owned(), json!("message"));
    all.insert("redelivered".to_owned(), json!(false));
    all
}

async fn finish((vhost, proxy, control, mut client): (Vhost, Proxy, Control, Client)) {
    control.shares_lane_with(&vhost, "a").await;
    client.say(&protocol::v1::ClientFrame::Ping).await;
    assert_eq!(client.text().await, r#"{"type":"pong"}"#, "nothing else came");
    let state = async || vhost.queue(&queue("a")).await.map(|queue| (queue.ready, queue.unacked));
    wait_until(PATIENCE, "nothing is left", state, |state| *state == Some((0, 0))).await;
    control.finish().await;
    assert_eq!(proxy.stop().await.rejected, 0);
}

/// A table and an array that hold each other, and a value of every type of AMQP. Not among them: NaN, for which RabbitMQ
/// closes the producer's connection.
fn headers() -> Vec<(String, AMQPValue)> {
    let mut inner = FieldTable::default();
    inner.insert(
        "deep".into(),
        AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void, AMQPValue::Boolean(true)])),
    );
    let mut table = FieldTable::default();
    table.insert("inner".into(), AMQPValue::FieldTable(inner));
    table.insert("".into(), AMQPValue::LongString("a name without letters".into()));
    let all = [
        ("yes", AMQPValue::Boolean(true)),
        ("i8", AMQPValue::ShortShortInt(i8::MIN)),
        ("u8", AMQPValue::ShortShortUInt(u8::MAX)),
        ("i16", AMQPValue::ShortInt(i16::MIN)),
        ("u16", AMQPValue::ShortUInt(u16::MAX)),
        ("i32", AMQPValue::LongInt(i32::MIN)),
        ("u32", AMQPValue::LongUInt(u32::MAX)),
        ("exact", AMQPValue::LongLongInt(1 << 53)),
        ("beyond", AMQPValue::LongLongInt((1 << 53) + 1)),
        ("far below", AMQPValue::LongLongInt(i64::MIN)),
        ("f32", AMQPValue::Float(0.5)),
        ("f64", AMQPValue::Double(0.1)),
        ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 150 })),
        ("text", AMQPValue::LongString("ä \u{1F980} \u{0} \" \\".into())),
        ("latin-1", AMQPValue::LongString(vec![0xE4].into())),
        ("bytes", AMQPValue::ByteArray(vec![0, 0xFF].into())),
        ("time", AMQPValue::Timestamp(1_700_000_000)),
        ("void", AMQPValue::Void),
        ("array", AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::LongInt(1), AMQPValue::FieldTable(table)]))),
        ("empty table", AMQPValue::FieldTable(FieldTable::default())),
        ("empty array", AMQPValue::FieldArray(FieldArray::default())),
        ("x-sent-at", AMQPValue::LongLongInt(1_700_000_000_123_456)),
        ("type", AMQPValue::LongString("welcome".into())),
        ("\u{1F980}", AMQPValue::LongString("a name of any kind".into())),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_properties_reach_the_client() {
    let mut world = connected().await;
    let message = Message {
        id: Some("an id of 255 bytes: ".to_owned() + &"\u{1F980}".repeat(58) + "..."),
        content_type: Some("application/json; charset=utf-8".to_owned()),
        timestamp: Some(1_700_000_001),
        headers: headers(),
        ..Message::new("a", r#"{"json": true}"#)
    };
    assert_eq!(message.id.as_ref().map(String::len), Some(255));
    assert_eq!(world.0.publisher().await.send(&message.clone().persistent()).await, Outcome::Confirmed);
    let expected = seen(json!({
        "messageId": message.id,
        "contentType": "application/json; charset=utf-8",
        "timestamp": 1_700_000_001,
        "sentAt": 1_700_000_000_123_456_u64,
        "headers": {
            "yes": true, "i8": -128, "u8": 255, "i16": -32768, "u16": 65535,
            "i32": -2_147_483_648, "u32": 4_294_967_295_u32,
            "exact": 9_007_199_254_740_992_u64, "beyond": "9007199254740993", "far below": "-9223372036854775808",
            "f32": 0.5, "f64": 0.1, "decimal": 1.5,
            "text": "ä \u{1F980} \u{0} \" \\", "latin-1": {"base64": "5A=="}, "bytes": {"base64": "AP8="},
            "time": 1_700_000_000, "void": null,
            "array": [1, {"inner": {"deep": [null, true]}, "": "a name without letters"}],
            "empty table": {}, "empty array": [],
            "type": "welcome", "\u{1F980}": "a name of any kind",
        },
        "body": r#"{"json": true}"#,
    }));
    assert_eq!(next(&mut world.3).await, expected);
    finish(world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_producer_does_not_say_is_not_there() {
    let mut world = connected().await;
    world.0.publisher().await.publish_all("a", ["bare"]).await;
    assert_eq!(next(&mut world.3).await, seen(json!({"body": "bare"})));
    // Empty is not absent.
    let empty = Message { id: Some(String::new()), content_type: Some(String::new()), ..Message::new("a", "") };
    assert_eq!(world.0.publisher().await.send(&empty).await, Outcome::Confirmed);
    assert_eq!(next(&mut world.3).await, seen(json!({"messageId": "", "contentType": "", "body": ""})));
    finish(world).await;
}

/// As other libraries write them: types that ours never sends, and a name that is there twice.
#[tokio::test(flavor = "multi_thread")]
async fn headers_that_another_library_wrote() {
    let mut world = connected().await;
    let entries = [
        entry(b"old style", b'L', &i64::to_be_bytes(-7)),
        entry(b"twice", b'I', &i32::to_be_bytes(1)),
        entry(b"twice", b'I', &i32::to_be_bytes(2)),
        entry(b"list", b'A', &long(&[&[b't', 1][..], &[b'b', 0xFF]].concat())),
    ];
    let properties = RawProperties::default().headers(&entries.concat()).message_id(b"raw");
    let mut producer = world.0.raw_publisher().await;
    assert_eq!(producer.publish("a", &properties, b"x").await, Outcome::Confirmed);
    let expected = json!({
        "messageId": "raw", "body": "x", "headers": {"old style": -7, "twice": 2, "list": [true, -1]},
    });
    assert_eq!(next(&mut world.3).await, seen(expected));
    finish(world).await;
}

fn hash(bytes: &[u8]) -> Vec<u8> {
    digest(&SHA256, bytes).as_ref().to_vec()
}

/// Field report A06: byte for byte, in order, and nothing is made of what is no text.
#[tokio::test(flavor = "multi_thread")]
async fn a06_bodies_arrive_byte_for_byte_through_v1() {
    let mut world = connected().await;
    let mib: Vec<u8> = (0..1024 * 1024).map(|_| rand::random()).collect();
    let bodies: [(&[u8], bool); 12] = [
        (b"\xff\xfe\x00\x80", false),
        (b"\xed\xa0\x80", false),
        ("\u{1F980}".as_bytes(), true),
        (br#"{"json": [1, null, "\u00e9", "\ud83e\udd80"]}"#, true),
        (b"", true),
        (b"\0", true),
        (&mib, false),
        (b"\xf0\x9f\xa6", false),
        ("\u{FEFF}\u{FFFD}\u{2028}".as_bytes(), true),
        (b"\r\n\t\x07\x7f\"\\/", true),
        (&[b'"'; 100_000], true),
        (b"end", true),
    ];
    world.0.publisher().await.publish_all("a", bodies.map(|(body, _)| body)).await;
    for (body, is_text) in bodies {
        let message = world.3.message().await;
        let beginning = &body[..body.len().min(20)];
        assert_eq!(message.body().len(), body.len(), "{beginning:?}");
        assert_eq!(hash(message.body()), hash(body), "{beginning:?}");
        // In the field that is for it.
        let frame = protocol::v1::ServerFrame::Message(Box::new(message.clone())).encode();
        assert_eq!(frame.contains(r#""body":"#), is_text, "{beginning:?}");
        assert_eq!(frame.contains(r#""bodyBase64":"#), !is_text, "{beginning:?}");
        world.3.ack(message.seq).await;
    }
    finish(world).await;
}
