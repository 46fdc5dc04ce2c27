//! A newer token on a live connection. A session lasts as long as the newest good token; a refused one changes nothing.

use std::time::Duration;

use protocol::token::LEEWAY;
use protocol::v1::ServerFrame;
use rig::tokens::{signed, signed_with, token_for, unix_time};
use rig::{Client, Dial, Node, PATIENCE, Proxy, Vhost, wait_until};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use crate::control::Control;
use crate::queue;

const LATE_PONGS: &[&str] = &["--pong-timeout", "1h"];
/// What a test's first token lasts: it ends a leeway later.
const SHORT: i64 = 3;

fn token(exp: i64) -> String {
    signed(&json!({"sub": "a", "exp": exp}))
}

async fn welcomed(proxy: &Proxy, exp: i64) -> Client {
    let mut client = Dial::to(proxy.addr()).token(&token(exp)).v1().connect().await;
    assert_eq!(client.welcome().await.expires_at, u64::try_from(exp).unwrap());
    client
}

fn leeway() -> i64 {
    i64::try_from(LEEWAY.as_secs()).unwrap()
}

/// Publishes `0`, `1`, … at this pace until dropped.
fn stream(vhost: &Vhost, every: Duration) -> JoinSet<()> {
    let (vhost, mut tasks) = (vhost.clone(), JoinSet::new());
    tasks.spawn(async move {
        let (publisher, mut pace) = (vhost.publisher().await, interval(every));
        for number in 0_u64.. {
            pace.tick().await;
            publisher.publish_all("a", [number.to_string()]).await;
        }
    });
    tasks
}

/// The next number is this one, and it was not delivered before.
fn check_next(message: &protocol::v1::Message<'_>, number: u64) {
    assert_eq!((message.body(), message.redelivered), (number.to_string().as_bytes(), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_refreshes_outlives_its_first_token() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let control = Control::start(&vhost, proxy.addr()).await;
    let first = unix_time(SHORT);
    let mut client = welcomed(&proxy, first).await;
    let hour = unix_time(3600);
    client.refresh(&token(hour)).await;
    assert_eq!(client.said().await, ServerFrame::Refreshed { expires_at: u64::try_from(hour).unwrap() });
    let _stream = stream(&vhost, Duration::from_millis(50));
    let mut number = 0;
    while unix_time(0) <= first + leeway() + 1 {
        let message = client.message().await;
        check_next(&message, number);
        client.ack(message.seq).await;
        number += 1;
    }
    assert!(number > 20, "{number}");
    control.finish().await;
    proxy.stop().await;
}

/// Each is answered with `error`, and the session ends with the token that it had.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_leaves_the_session_to_its_old_end() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let control = Control::start(&vhost, proxy.addr()).await;
    let exp = unix_time(SHORT);
    let mut client = welcomed(&proxy, exp).await;
    let hour = unix_time(3600);
    let refused = [
        signed(&json!({"sub": "b", "exp": hour})),
        signed(&json!({"sub": "a", "client_id": "other", "exp": hour})),
        token(exp - 1),
        token(exp),
        signed_with(b"a secret that is not the one of the proxy", &json!({"sub": "a", "exp": hour})),
        signed(&json!({"sub": "a", "exp": hour, "nbf": hour - 60})),
        "no token at all".to_owned(),
    ];
    for token in &refused {
        client.refresh(token).await;
        match client.said().await {
            ServerFrame::Error { reason } => assert!(!reason.is_empty() && !reason.contains(token.as_str())),
            other => panic!("{token} was not refused: {other:?}"),
        }
    }
    vhost.publisher().await.publish_all("a", ["still served"]).await;
    assert_eq!(client.take(1).await, ["still served"]);
    let (said, close) = client.until_close().await;
    assert_eq!(close.map(|(code, _)| code), Some(4001), "{said:?}");
    let late = unix_time(0) - (exp + leeway());
    assert!((0..=5).contains(&late), "ended {late} s after the leeway");
    control.finish().await;
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_refresh_is_warned_and_ends_with_4001_and_its_messages_wait() {
    let vhost = Vhost::new(&Node::shared().await).await;
    // The warning comes when a fifth of the token's time is left, if that is less than this.
    let proxy = Proxy::start(&vhost, &[LATE_PONGS, &["--expiring-notice", "60s"]].concat());
    let control = Control::start(&vhost, proxy.addr()).await;
    let exp = unix_time(5);
    let mut client = welcomed(&proxy, exp).await;
    vhost.publisher().await.publish_all("a", ["one", "two"]).await;
    let first = client.message().await;
    client.ack(first.seq).await;
    assert_eq!(client.message().await.body(), b"two");
    match client.said().await {
        ServerFrame::Expiring { r#in } => {
            let left = exp - unix_time(0);
            assert!((0..=2).contains(&left), "warned {left} s ahead");
            assert!(r#in <= 2, "in {in} s");
        }
        other => panic!("a warning was expected, not {other:?}"),
    }
    let (said, close) = client.until_close().await;
    assert_eq!((said, close.map(|(code, _)| code)), (vec![], Some(4001)), "it is warned once");
    let state = vhost.queue(&queue("a")).await.map(|q| (q.ready, q.unacked, q.consumers));
    assert_eq!(state, Some((1, 0, 0)), "back before the close frame");
    let mut client = welcomed(&proxy, unix_time(3600)).await;
    let again = client.message().await;
    assert_eq!((again.body(), again.redelivered), (&b"two"[..], true));
    control.finish().await;
    proxy.stop().await;
}

/// Twenty tokens of two seconds, a message each 50 ms: no gap, nothing twice, one session.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_refreshes_for_20_token_lifetimes_without_a_gap() {
    const LIFETIMES: u32 = 20;
    const LIFETIME: Duration = Duration::from_secs(2);
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut client = Dial::to(proxy.addr()).token(&token_for("a", LIFETIME)).v1().connect().await;
    client.welcome().await;
    let _stream = stream(&vhost, Duration::from_millis(50));
    let (began, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
    let (mut number, mut refreshed) = (0, 0);
    while began.elapsed() < LIFETIME * LIFETIMES {
        match client.said().await {
            ServerFrame::Message(message) => {
                check_next(&message, number);
                client.ack(message.seq).await;
                longest = longest.max(last.elapsed());
                last = Instant::now();
                number += 1;
            }
            ServerFrame::Expiring { .. } => client.refresh(&token_for("a", LIFETIME)).await,
            ServerFrame::Refreshed { .. } => refreshed += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(refreshed >= LIFETIMES - 1, "{refreshed} refreshes in {LIFETIMES} lifetimes");
    // The stream's own pauses are 50 ms; the rest is the machine's.
    assert!(longest < Duration::from_secs(2), "a gap of {longest:?}");
    assert_eq!(proxy.stop().await.sessions, 1);
}

/// Field report A22: authorised once, and the socket lives for days.
#[tokio::test(flavor = "multi_thread")]
async fn a22_an_open_socket_ends_with_its_token_and_nothing_is_lost_across_the_two_sessions() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let control = Control::start(&vhost, proxy.addr()).await;
    let exp = unix_time(SHORT);
    let mut client = welcomed(&proxy, exp).await;
    let stream = stream(&vhost, Duration::from_millis(20));
    // It acks every third, so that there is something unacked at the end.
    let (mut numbers, mut acked) = (0, 0);
    let close = loop {
        match client.receive().await {
            rig::Received::Text(text) => match ServerFrame::parse(&text).unwrap() {
                ServerFrame::Message(message) => {
                    check_next(&message, numbers);
                    numbers += 1;
                    if message.seq % 3 == 0 {
                        acked = message.seq;
                        client.ack(acked).await;
                    }
                }
                ServerFrame::Expiring { .. } => {}
                other => panic!("{other:?}"),
            },
            rig::Received::Close(close) => break close,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(close.map(|(code, _)| code), Some(4001));
    let late = unix_time(0) - (exp + leeway());
    assert!((0..=5).contains(&late), "ended {late} s after the leeway");
    let refusal = Dial::to(proxy.addr()).token(&token(exp)).v1().try_connect().await.err().expect("the token is over");
    assert_eq!(refusal.status, 401);
    let mut client = welcomed(&proxy, unix_time(3600)).await;
    // All from the first that was not acked, or not heard of by the proxy in time; those that it had seen are flagged.
    let first = client.message().await;
    let mut number: u64 = std::str::from_utf8(first.body()).unwrap().parse().unwrap();
    assert!((acked.saturating_sub(3)..=acked).contains(&number), "{number} after {acked}");
    client.ack(first.seq).await;
    while number < numbers + 50 {
        let message = client.message().await;
        number += 1;
        assert_eq!(message.body(), number.to_string().as_bytes());
        assert!(message.redelivered || number >= numbers, "{number} of {numbers} came before");
        client.ack(message.seq).await;
    }
    drop(stream);
    control.finish().await;
    proxy.stop().await;
}

/// The old end does not come, and the new one does.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_moves_with_each_refresh_and_still_comes() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let mut client = welcomed(&proxy, unix_time(2)).await;
    let mut exp = 0;
    for seconds in [3, 4, 5] {
        exp = unix_time(seconds);
        client.refresh(&token(exp)).await;
        assert_eq!(client.said().await, ServerFrame::Refreshed { expires_at: u64::try_from(exp).unwrap() });
    }
    let (said, close) = client.until_close().await;
    assert_eq!(close.map(|(code, _)| code), Some(4001));
    assert_eq!(said.len(), 1, "one warning: {said:?}");
    let late = unix_time(0) - (exp + leeway());
    assert!((0..=5).contains(&late), "ended {late} s after the leeway");
    let gone = async || vhost.consumers().await.len();
    wait_until(PATIENCE, "nobody is left", gone, |consumers| *consumers == 0).await;
    proxy.stop().await;
}
