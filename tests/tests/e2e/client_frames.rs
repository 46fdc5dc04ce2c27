//! What a client may say, row by row, and what becomes of it and of nobody else.

use protocol::v1::{ClientFrame, ServerFrame, Token};
use rig::tokens::{self, signed, signed_with, unix_time};
use rig::{Client, Dial, Node, PATIENCE, Proxy, Vhost, wait_until};
use serde_json::json;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control as ControlFrame, Data, OpCode};

use crate::control::Control;
use crate::queue;

const TEXT: OpCode = OpCode::Data(Data::Text);
const CONTINUE: OpCode = OpCode::Data(Data::Continue);

/// What follows.
#[derive(Clone, Copy, Debug)]
enum Meets {
    /// Nothing is said, the session goes on, and so many of the two messages are unacked.
    Silence(u64),
    /// The answer begins with this, and the session goes on with two unacked messages.
    Answer(&'static str),
    /// It ends with this code, and the messages are back in the mailbox.
    End(u16),
}
use Meets::{Answer, End, Silence};

/// What a row is called, the frames (kind, whether it is the last of its message, payload), and what they meet.
type Row = (String, Vec<(OpCode, bool, Vec<u8>)>, Meets);

/// A client that has two messages says a row's frames, beside a client that streams on the same lane.
async fn check(rows: Vec<Row>) {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &["--pong-timeout", "1h"]);
    let control = Control::start(&vhost, proxy.addr()).await;
    let publisher = vhost.publisher().await;
    for (number, (name, frames, result)) in rows.into_iter().enumerate() {
        let consumer = format!("c{number}");
        let mut client = Dial::to(proxy.addr()).token(&tokens::token_for(&consumer, MINUTE)).v1().connect().await;
        client.welcome().await;
        control.shares_lane_with(&vhost, &consumer).await;
        publisher.publish_all(&consumer, ["one", "two"]).await;
        assert_eq!([client.message().await.seq, client.message().await.seq], [1, 2]);
        for (opcode, fin, payload) in &frames {
            client.send(*opcode, *fin, payload).await;
        }
        let state = async || vhost.queue(&queue(&consumer)).await.map(|q| (q.ready, q.unacked, q.consumers));
        match result {
            Silence(unacked) => {
                expect_pong(&mut client, &name).await;
                wait_until(PATIENCE, &name, state, |state| *state == Some((0, unacked, 1))).await;
            }
            Answer(begin) => {
                let answer = client.text().await;
                assert!(answer.starts_with(begin), "{name}: {answer}");
                expect_pong(&mut client, &name).await;
                assert_eq!(state().await, Some((0, 2, 1)), "{name}");
            }
            End(code) => {
                let (said, close) = client.until_close().await;
                assert_eq!((said, close.map(|(code, _)| code)), (vec![], Some(code)), "{name}");
                // Not waited for: a close frame comes after everything is back.
                assert_eq!(state().await, Some((2, 0, 0)), "{name}");
            }
        }
    }
    control.finish().await;
    assert_eq!(proxy.stop().await.panicked, 0);
}

const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);

async fn expect_pong(client: &mut Client, name: &str) {
    client.say(&ClientFrame::Ping).await;
    assert_eq!(client.said().await, ServerFrame::Pong, "{name}");
}

fn texts(rows: &[(&str, Meets)]) -> Vec<Row> {
    rows.iter()
        .map(|(text, result)| ((*text).to_owned(), vec![(TEXT, true, text.as_bytes().to_vec())], *result))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn acks() {
    check(texts(&[
        (r#"{"type":"ack","seq":1}"#, Silence(1)),
        (r#"{"type":"ack","seq":2}"#, Silence(0)),
        (r#"{"type":"ack","seq":0}"#, Silence(2)),
        (r#" { "seq" : 2 , "later" : [{}], "type" : "ack" } "#, Silence(0)),
        (r#"{"type":"ack","seq":3}"#, End(4501)),
        (r#"{"type":"ack","seq":18446744073709551615}"#, End(4501)),
        (r#"{"type":"ack","seq":18446744073709551616}"#, End(4501)),
        (r#"{"type":"ack","seq":-1}"#, End(4501)),
        (r#"{"type":"ack","seq":1.5}"#, End(4501)),
        (r#"{"type":"ack","seq":"1"}"#, End(4501)),
        (r#"{"type":"ack","seq":null}"#, End(4501)),
        (r#"{"type":"ack"}"#, End(4501)),
        (r#"{"type":"ack","seq":1,"seq":2}"#, End(4501)),
    ]))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nacks() {
    check(texts(&[
        (r#"{"type":"nack","seq":1,"requeue":false}"#, Silence(1)),
        (r#"{"type":"nack","seq":2,"requeue":false}"#, Silence(1)),
        (r#"{"type":"nack","seq":0,"requeue":false}"#, Silence(2)),
        (r#"{"type":"nack","seq":1,"requeue":true}"#, Answer(r#"{"type":"message","seq":3,"redelivered":true"#)),
        (r#"{"type":"nack","seq":1}"#, Answer(r#"{"type":"message","seq":3,"redelivered":true"#)),
        (r#"{"type":"nack","seq":3,"requeue":true}"#, End(4501)),
        (r#"{"type":"nack","seq":3,"requeue":false}"#, End(4501)),
        (r#"{"type":"nack","seq":1,"requeue":"no"}"#, End(4501)),
        (r#"{"type":"nack","requeue":true}"#, End(4501)),
    ]))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refreshes() {
    // The consumers are c0, c1, … in the order of the rows.
    let later = |consumer: &str| signed(&json!({"sub": consumer, "exp": unix_time(3600)}));
    let other_client = signed(&json!({"sub": "c3", "client_id": "other", "exp": unix_time(3600)}));
    let forged =
        signed_with(b"another secret, as long as the real one is", &json!({"sub": "c5", "exp": unix_time(3600)}));
    let error = Answer(r#"{"type":"error","reason":""#);
    let rows = [
        ("good", later("c0"), Answer(r#"{"type":"refreshed","expiresAt":"#)),
        (
            "with the client by name",
            signed(&json!({"sub": "c1", "client_id": "consumer", "exp": unix_time(3600)})),
            Answer(r#"{"type":"refreshed","expiresAt":"#),
        ),
        ("of another consumer", later("c0"), error),
        ("of another client", other_client, error),
        ("earlier", signed(&json!({"sub": "c4", "exp": unix_time(20)})), error),
        ("forged", forged, error),
        ("unsigned", tokens::unsigned(&json!({"sub": "c6", "exp": unix_time(3600)})), error),
        ("over", signed(&json!({"sub": "c7", "exp": unix_time(-60)})), error),
        ("without an end", signed(&json!({"sub": "c8"})), error),
        ("no token", "x".to_owned(), error),
        ("empty", String::new(), error),
        ("of 60 KB", "x".repeat(60_000), error),
    ];
    let frame = |token: String| ClientFrame::Refresh { token: Token(token.into()) }.encode().into_bytes();
    let rows = rows.map(|(name, token, result)| (name.to_owned(), vec![(TEXT, true, frame(token))], result));
    let wrong = texts(&[
        (r#"{"type":"refresh"}"#, End(4501)),
        (r#"{"type":"refresh","token":7}"#, End(4501)),
        (r#"{"type":"refresh","token":null}"#, End(4501)),
    ]);
    check(rows.into_iter().chain(wrong).collect()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_and_what_is_no_frame_of_the_dialect() {
    let deep = r#"{"x":"#.to_owned() + &"[".repeat(20_000) + &"]".repeat(20_000) + r#","type":"ping"}"#;
    check(texts(&[
        (r#"{"type":"ping"}"#, Answer(r#"{"type":"pong"}"#)),
        (r#"{"type":"ping","seq":"x"}"#, Answer(r#"{"type":"pong"}"#)),
        (&deep, Answer(r#"{"type":"pong"}"#)),
        (r#"{"type":"Ping"}"#, End(4501)),
        (r#"{"type":"subscribe"}"#, End(4501)),
        (r#"{"type":"welcome"}"#, End(4501)),
        (r#"{"type":7}"#, End(4501)),
        (r#"{"seq":1}"#, End(4501)),
        (r#"["ack",1]"#, End(4501)),
        (r#""ack""#, End(4501)),
        ("null", End(4501)),
        ("", End(4501)),
        ("ack 1", End(4501)),
        (r#"{"type":"ack","seq":1"#, End(4501)),
        (r#"{"type":"ack","seq":1}{"type":"ack","seq":2}"#, End(4501)),
        ("{\"type\":\"ping\",\"x\":\"\u{0}\"}", End(4501)),
    ]))
    .await;
}

/// The layer below: RFC 6455.
#[tokio::test(flavor = "multi_thread")]
async fn frames_of_the_websocket() {
    let ack = br#"{"type":"ack","seq":2}"#;
    let ping = OpCode::Control(ControlFrame::Ping);
    let rows = [
        ("a ping", vec![(ping, true, b"are you there?".to_vec())], Silence(2)),
        ("a pong that nobody asked for", vec![(OpCode::Control(ControlFrame::Pong), true, b"x".to_vec())], Silence(2)),
        (
            "an ack in three pieces with a ping between",
            vec![
                (TEXT, false, ack[..5].to_vec()),
                (ping, true, vec![]),
                (CONTINUE, false, ack[5..5].to_vec()),
                (CONTINUE, true, ack[5..].to_vec()),
            ],
            Silence(0),
        ),
        ("a binary frame", vec![(OpCode::Data(Data::Binary), true, ack.to_vec())], End(4501)),
        ("text that is not UTF-8", vec![(TEXT, true, b"{\"type\":\"ping\",\"x\":\"\xff\"}".to_vec())], End(1007)),
        ("a frame above 64 KiB", vec![(TEXT, true, vec![b' '; 64 * 1024 + 1])], End(1009)),
        ("a continuation of nothing", vec![(CONTINUE, true, ack.to_vec())], End(1002)),
        ("a message within a message", vec![(TEXT, false, ack.to_vec()), (TEXT, true, ack.to_vec())], End(1002)),
        ("a ping of 126 bytes", vec![(ping, true, vec![0; 126])], End(1002)),
        ("a ping in pieces", vec![(ping, false, vec![])], End(1002)),
        ("an opcode that does not exist", vec![(OpCode::Data(Data::Reserved(3)), true, vec![])], End(1002)),
    ];
    check(rows.map(|(name, frames, result)| (name.to_owned(), frames, result)).to_vec()).await;
}

/// Whoever asks without end and never reads the answers costs the proxy nothing but its own session.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_questions_from_a_client_that_reads_no_answer() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &["--write-timeout", "1s"]);
    let control = Control::start(&vhost, proxy.addr()).await;
    let mut client = Dial::to(proxy.addr()).consumer("flood").v1().receive_buffer(4096).connect().await;
    client.welcome().await;
    let question = ClientFrame::Ping.encode();
    let flood = async {
        loop {
            client.send_text(&question).await;
        }
    };
    let gone = async || vhost.queue(&queue("flood")).await.map(|queue| queue.consumers);
    tokio::select! {
        () = flood => unreachable!("it floods on"),
        _ = wait_until(PATIENCE, "it is ended", gone, |consumers| *consumers == Some(0)) => {}
    }
    control.finish().await;
    proxy.stop().await;
}
