use std::io::ErrorKind;

use super::*;
use crate::wait::{PATIENCE, wait_until, within};

/// A connection through a relay, both ends of it.
async fn connected() -> (Relay, TcpStream, TcpStream) {
    let (relay, listener) = relayed().await;
    let client = TcpStream::connect(relay.addr()).await.unwrap();
    let (target, _) = listener.accept().await.unwrap();
    (relay, client, target)
}

async fn relayed() -> (Relay, TcpListener) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    (Relay::start(listener.local_addr().unwrap()).await, listener)
}

async fn read(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 64];
    let read = within(PATIENCE, "bytes or an end", stream.read(&mut buffer)).await?;
    buffer.truncate(read);
    Ok(buffer)
}

#[tokio::test]
async fn bytes_and_ends_pass_and_are_counted() {
    let (relay, mut client, mut target) = connected().await;
    client.write_all(b"hello").await.unwrap();
    assert_eq!(read(&mut target).await.unwrap(), b"hello");
    target.write_all(b"you").await.unwrap();
    assert_eq!(read(&mut client).await.unwrap(), b"you");
    assert_eq!((relay.bytes(Direction::ToTarget), relay.bytes(Direction::ToClient)), (5, 3));
    client.shutdown().await.unwrap();
    assert_eq!(read(&mut target).await.unwrap(), b"");
    target.write_all(b"still").await.unwrap();
    assert_eq!(read(&mut client).await.unwrap(), b"still");
    drop(target);
    assert_eq!(read(&mut client).await.unwrap(), b"");
}

#[tokio::test]
async fn what_stalls_comes_later_and_the_other_way_is_open() {
    let (relay, mut client, mut target) = connected().await;
    relay.set(Direction::ToTarget, Mode::Stall);
    client.write_all(b"one").await.unwrap();
    target.write_all(b"two").await.unwrap();
    assert_eq!(read(&mut client).await.unwrap(), b"two");
    assert_eq!(relay.bytes(Direction::ToTarget), 0);
    relay.set(Direction::ToTarget, Mode::Pass);
    assert_eq!(read(&mut target).await.unwrap(), b"one");
}

#[tokio::test]
async fn a_sender_notices_that_it_stalls() {
    let (relay, mut client, _target) = connected().await;
    relay.set_both(Mode::Stall);
    let mut sent = 0;
    while let Ok(written) = tokio::time::timeout(Duration::from_millis(300), client.write(&[0; 65536])).await {
        sent += written.unwrap();
    }
    assert!(sent < 16 * 1024 * 1024, "{sent} bytes are not in the buffers of one connection");
}

#[tokio::test]
async fn what_is_swallowed_never_comes_and_neither_does_the_end() {
    let (relay, mut client, mut target) = connected().await;
    relay.set(Direction::ToTarget, Mode::Swallow);
    client.write_all(b"lost").await.unwrap();
    drop(client);
    let nothing = tokio::time::timeout(Duration::from_millis(300), read(&mut target)).await;
    assert!(nothing.is_err(), "{nothing:?}");
    relay.cut(Cut::Fin);
    assert_eq!(read(&mut target).await.unwrap(), b"");
}

#[tokio::test]
async fn a_cut_reaches_both_sides_and_new_connections_pass() {
    let (relay, listener) = relayed().await;
    let mut client = TcpStream::connect(relay.addr()).await.unwrap();
    let (mut target, _) = listener.accept().await.unwrap();
    relay.cut(Cut::Reset);
    for stream in [&mut client, &mut target] {
        assert_eq!(read(stream).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    TcpStream::connect(relay.addr()).await.unwrap();
    wait_until(PATIENCE, "a second connection", async || relay.connections(), |count| *count == 2).await;
}

#[tokio::test]
async fn refused_connections_are_reset() {
    let (relay, mut client, mut target) = connected().await;
    relay.refuse(true);
    let mut refused = TcpStream::connect(relay.addr()).await.unwrap();
    assert_eq!(read(&mut refused).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    client.write_all(b"still").await.unwrap();
    assert_eq!(read(&mut target).await.unwrap(), b"still");
}

#[tokio::test]
async fn a_pace_is_a_rate() {
    let (relay, mut client, mut target) = connected().await;
    relay.pace(1000, Duration::from_millis(20));
    let began = tokio::time::Instant::now();
    client.write_all(&[7; 10_000]).await.unwrap();
    let mut body = vec![0; 10_000];
    within(PATIENCE, "all of it", target.read_exact(&mut body)).await.unwrap();
    assert_eq!(body, [7; 10_000]);
    // Ten chunks, and nine pauses at the least between the first byte's departure and the last one's arrival.
    assert!(began.elapsed() >= Duration::from_millis(180), "{:?}", began.elapsed());
}
