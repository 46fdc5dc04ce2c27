use std::time::Duration;

use protocol::token::{DEVELOPMENT_KEY, Minter};
use secrecy::SecretString;
use service::shutdown::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;

use super::{Door, Ended};
use crate::accept::{HeadSlot, HeadSlots};
use crate::args::tests::without_environment;
use crate::config::Config;
use crate::refusal::Refusal;

fn door(shutdown: &Shutdown) -> Door {
    let args = without_environment(&["--max-upgrades=1"]).expect("usage");
    Door::new(&Config::from_args(args).expect("a configuration"), shutdown.clone())
}

fn slot() -> HeadSlot {
    HeadSlots::new(1).try_take().expect("a slot")
}

fn request(method: &str) -> String {
    let minter = Minter::hs256(&SecretString::from(DEVELOPMENT_KEY)).expect("a minter");
    let token = minter.mint("alice", None, Duration::from_secs(60)).expect("a token");
    format!(
        "{method} /?instance=2 HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
}

/// Sends `request` and reads to the end, as a client does that waits for the server to close.
async fn answer_to(mut client: DuplexStream, request: &str) -> String {
    client.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("an answer in UTF-8");
    answer
}

#[tokio::test]
async fn whoever_is_admitted_takes_a_place_until_it_is_dropped() {
    let door = door(&Shutdown::new());
    let (mut near, mut far) = duplex(4096);
    far.write_all(format!("{}first frame", request("GET")).as_bytes()).await.unwrap();
    let admitted = door.admit(&mut near, slot()).await.expect("admitted");
    assert_eq!(admitted.admission.queue.as_str(), "proxy-subscription-consumer-alice-2");
    assert_eq!(&admitted.leftover[..], b"first frame");

    let (mut second, far) = duplex(4096);
    let request = request("GET");
    let (outcome, answer) = tokio::join!(door.admit(&mut second, slot()), answer_to(far, &request));
    assert_eq!(outcome.expect_err("the one place is taken"), Ended::Refused(Refusal::TooManyUpgrades));
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: 1\r\n"), "{answer}");

    drop(admitted);
    let (mut third, mut far) = duplex(4096);
    far.write_all(request.as_bytes()).await.unwrap();
    door.admit(&mut third, slot()).await.expect("the place is free again");
}

#[tokio::test]
async fn a_refusal_is_answered_in_full() {
    let door = door(&Shutdown::new());
    for (request, refusal) in [
        (request("GET").replace("Bearer ", "Bearer x"), Refusal::Token),
        (request("POST"), Refusal::Method),
        (request("GET").replace("/?", "/x?"), Refusal::Path),
        ("GET / HTTP/1.1\r\n\0".to_owned(), Refusal::MalformedRequest),
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), Refusal::HttpVersion),
        (format!("GET / HTTP/1.1\r\n{}", "X: y\r\n".repeat(3_000)), Refusal::HeadTooLarge),
    ] {
        let (mut near, far) = duplex(64 * 1024);
        let (outcome, answer) = tokio::join!(door.admit(&mut near, slot()), answer_to(far, &request));
        assert_eq!(outcome.expect_err("refused"), Ended::Refused(refusal));
        assert_eq!(answer.as_bytes(), refusal.answer_to(None), "{refusal:?}");
    }
}

#[tokio::test]
async fn the_answer_to_head_has_no_body() {
    let (mut near, far) = duplex(4096);
    let request = request("HEAD");
    let door = door(&Shutdown::new());
    let (_, answer) = tokio::join!(door.admit(&mut near, slot()), answer_to(far, &request));
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn what_the_broker_refuses_is_answered_in_full() {
    let (mut near, far) = duplex(4096);
    let door = door(&Shutdown::new());
    let ((), answer) = tokio::join!(door.turn_away(&mut near, Refusal::QueueConflict), answer_to(far, ""));
    assert_eq!(answer.as_bytes(), Refusal::QueueConflict.answer_to(Some("GET")));
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_ends_at_its_deadline() {
    let door = door(&Shutdown::new());
    let started = Instant::now();
    let (mut near, far) = duplex(4096);
    let (outcome, answer) = tokio::join!(door.admit(&mut near, slot()), answer_to(far, "GET / HTTP/1.1\r\n"));
    assert_eq!(outcome.expect_err("too slow"), Ended::Refused(Refusal::HeadTimeout));
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(started.elapsed() >= Duration::from_secs(10) && started.elapsed() < Duration::from_secs(11));
}

#[tokio::test]
async fn a_probe_gets_no_answer() {
    let door = door(&Shutdown::new());
    let (mut near, mut far) = duplex(4096);
    far.shutdown().await.unwrap();
    assert_eq!(door.admit(&mut near, slot()).await.expect_err("gone"), Ended::Gone);
    drop(near);
    assert_eq!(far.read_to_end(&mut Vec::new()).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_reads_its_refusal_is_cut() {
    let door = door(&Shutdown::new());
    let (mut near, mut far) = duplex(16);
    let started = Instant::now();
    let write = async { far.write_all(b"POST / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sent") };
    let (outcome, ()) = tokio::join!(door.admit(&mut near, slot()), write);
    assert_eq!(outcome.expect_err("refused"), Ended::Refused(Refusal::Method));
    assert_eq!(started.elapsed().as_secs(), 2, "--close-timeout");
}

#[tokio::test]
async fn the_place_of_a_head_is_free_while_a_refusal_waits_for_its_reader() {
    let door = door(&Shutdown::new());
    let heads = HeadSlots::new(1);
    let head_slot = heads.try_take().expect("a slot");
    let (mut near, mut far) = duplex(4096);
    let client = async {
        far.write_all(b"POST / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sent");
        let mut byte = [0];
        far.read_exact(&mut byte).await.expect("the answer begins");
        let free = heads.try_take().is_some();
        drop(far);
        free
    };
    let (outcome, free) = tokio::join!(door.admit(&mut near, head_slot), client);
    assert_eq!(outcome.expect_err("refused"), Ended::Refused(Refusal::Method));
    assert!(free);
}

#[tokio::test]
async fn a_shutdown_refuses_heads_that_are_complete_half_read_or_silent() {
    for sent in [request("GET"), request("GET")[..40].to_owned(), String::new()] {
        let shutdown = Shutdown::new();
        let door = door(&shutdown);
        let (mut near, far) = duplex(4096);
        shutdown.begin();
        let (outcome, answer) = tokio::join!(door.admit(&mut near, slot()), answer_to(far, &sent));
        assert_eq!(outcome.expect_err("draining"), Ended::Refused(Refusal::Draining));
        assert_eq!(answer.as_bytes(), Refusal::Draining.answer_to(None));
    }
}

#[tokio::test]
async fn a_shutdown_reaches_a_head_that_is_being_read() {
    let shutdown = Shutdown::new();
    let door = door(&shutdown);
    let (mut near, mut far) = duplex(16);
    let client = async {
        // The pipe holds 16 bytes: once more than that is written, the door is reading.
        far.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n").await.expect("sent");
        shutdown.begin();
        let mut answer = String::new();
        far.read_to_string(&mut answer).await.expect("an answer");
        drop(far);
        answer
    };
    let (outcome, answer) = tokio::join!(door.admit(&mut near, slot()), client);
    assert_eq!(outcome.expect_err("draining"), Ended::Refused(Refusal::Draining));
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
}
