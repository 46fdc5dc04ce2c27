use proptest::prelude::*;
use tokio::io::{AsyncWriteExt, duplex};

use super::{HEAD_BYTES_MAX, HEADERS_MAX, HeadError, RequestHead, elements, read_head};
use crate::refusal::Refusal;

const UPGRADE: &str = "GET /?instance=2 HTTP/1.1\r\n\
    Host: localhost:9000\r\n\
    connection: keep-alive, Upgrade\r\n\
    UPGRADE: websocket\r\n\
    Sec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Protocol: rabbitmq-msg.raw, bearer.a.b.c\r\n\
    Sec-WebSocket-Protocol:other\r\n\
    Authorization: Bearer a.b.c\r\n\
    Origin: https://example.test\r\n\r\n";

fn parse(text: &str) -> RequestHead {
    RequestHead::parse(text.as_bytes()).unwrap().expect("complete").0
}

/// Reads the head from a peer that writes `pieces` and then closes.
async fn read(pieces: &[&[u8]]) -> Result<(RequestHead, Vec<u8>), HeadError> {
    let (mut near, mut far) = duplex(HEAD_BYTES_MAX);
    let write = async {
        for piece in pieces {
            // The reader may have made up its mind and left.
            if far.write_all(piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        far.shutdown().await.expect("a duplex shuts down");
    };
    let read = async {
        let result = read_head(&mut near).await;
        drop(near);
        result
    };
    let ((), result) = tokio::join!(write, read);
    result.map(|(head, leftover)| (head, leftover.to_vec()))
}

#[test]
fn takes_what_the_gateway_needs() {
    let head = parse(UPGRADE);
    assert_eq!((head.method.as_str(), head.path.as_str(), head.query.as_str()), ("GET", "/", "instance=2"));
    assert_eq!(head.host, ["localhost:9000"]);
    assert_eq!(elements(&head.connection).collect::<Vec<_>>(), ["keep-alive", "Upgrade"]);
    assert_eq!(head.upgrade, ["websocket"]);
    assert_eq!(head.websocket_version, ["13"]);
    assert_eq!(head.websocket_key, ["dGhlIHNhbXBsZSBub25jZQ=="]);
    assert_eq!(elements(&head.websocket_protocol).collect::<Vec<_>>(), ["rabbitmq-msg.raw", "bearer.a.b.c", "other"]);
    assert_eq!(head.authorization, ["Bearer a.b.c"]);
    assert_eq!(head.origin, ["https://example.test"]);
    assert!(!head.has_body);
}

#[test]
fn debug_shows_no_token() {
    let shown = format!("{:?}", parse(&UPGRADE.replace("instance=2", "token=a.b.c")));
    assert!(!shown.contains("a.b.c"), "{shown}");
}

#[test]
fn targets_in_all_forms() {
    for (target, path, query) in [
        ("/", "/", ""),
        ("/?", "/", ""),
        ("/?a=1&b=?", "/", "a=1&b=?"),
        ("/x/y?z", "/x/y", "z"),
        ("//", "//", ""),
        ("http://h:9000", "/", ""),
        ("http://h:9000?instance=2", "/", "instance=2"),
        ("http://h:9000/x?instance=2", "/x", "instance=2"),
        ("/http://h/", "/http://h/", ""),
        ("/?next=http://h/", "/", "next=http://h/"),
        ("*", "*", ""),
        ("h:443", "h:443", ""),
    ] {
        let head = parse(&format!("GET {target} HTTP/1.1\r\n\r\n"));
        assert_eq!((head.path.as_str(), head.query.as_str()), (path, query), "{target}");
    }
}

#[test]
fn a_body_is_noticed() {
    for (line, has_body) in [
        ("Content-Length: 0", false),
        ("Content-Length: 5", true),
        ("Content-Length: x", true),
        ("Transfer-Encoding: chunked", true),
        ("X-Content-Length: 5", false),
    ] {
        let head = parse(&format!("GET / HTTP/1.1\r\n{line}\r\n\r\n"));
        assert_eq!(head.has_body, has_body, "{line}");
    }
}

#[test]
fn what_is_no_request_is_told_by_kind() {
    for (bytes, refusal) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], Refusal::MalformedRequest),
        (b"GET  / HTTP/1.1\r\n\r\n", Refusal::MalformedRequest),
        (b"GET /#x HTTP/1.1\r\n\r\n", Refusal::MalformedRequest),
        (b"GET /\xff HTTP/1.1\r\n\r\n", Refusal::MalformedRequest),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", Refusal::MalformedRequest),
        (b"GET / HTTP/1.1\r\nAuthorization: \xff\r\n\r\n", Refusal::MalformedRequest),
        (b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", Refusal::MalformedRequest),
        (b"GET / HTTP/1.1\r\nA: \0\r\n\r\n", Refusal::MalformedRequest),
        (b"GET / HTTP/1.0\r\nHost: a\r\n\r\n", Refusal::HttpVersion),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Refusal::HttpVersion),
    ] {
        let error = RequestHead::parse(bytes).expect_err("refused");
        assert_eq!(error.refusal(), Some(refusal), "{} of {:?}", error, String::from_utf8_lossy(bytes));
    }
}

#[tokio::test]
async fn the_bytes_after_the_head_are_kept() {
    let request = [UPGRADE.as_bytes(), b"\x81\x00\xff"].concat();
    let (head, leftover) = read(&[&request]).await.unwrap();
    assert_eq!(head.query, "instance=2");
    assert_eq!(leftover, b"\x81\x00\xff");
}

#[tokio::test]
async fn any_split_reads_the_same() {
    let request = [UPGRADE.as_bytes(), b"\r\n\r\nrest"].concat();
    for at in 1..request.len() {
        let (first, second) = request.split_at(at);
        let (head, leftover) = read(&[first, second]).await.unwrap();
        assert_eq!(head.websocket_key, ["dGhlIHNhbXBsZSBub25jZQ=="], "split at {at}");
        assert!(b"\r\n\r\nrest".starts_with(&leftover), "split at {at}");
    }
    let bytes: Vec<&[u8]> = UPGRADE.as_bytes().chunks(1).collect();
    assert_eq!(read(&bytes).await.unwrap().0.query, "instance=2");
}

#[tokio::test]
async fn bare_line_feeds_and_leading_blank_lines_are_forgiven() {
    let text = format!("\r\n\r\n{}", UPGRADE.replace("\r\n", "\n"));
    let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
    assert_eq!(read(&bytes).await.unwrap().0.query, "instance=2");
}

#[tokio::test]
async fn nonsense_is_told_before_it_ends() {
    let (mut near, mut far) = duplex(1024);
    far.write_all(b"\x16\x03\x01\x02\x00\x01").await.unwrap();
    let error = read_head(&mut near).await.expect_err("no request, though the peer still writes");
    assert_eq!(error.refusal(), Some(Refusal::MalformedRequest));
}

#[tokio::test]
async fn closing_early_deserves_no_answer() {
    for sent in [0, 1, 20, UPGRADE.len() - 1] {
        let error = read(&[&UPGRADE.as_bytes()[..sent]]).await.expect_err("not complete");
        assert!(matches!(error, HeadError::Closed(seen) if seen == sent), "{error}");
        assert_eq!(error.refusal(), None);
    }
}

#[tokio::test]
async fn size_is_limited_to_the_byte() {
    let start = "GET / HTTP/1.1\r\nX: ";
    let fits = format!("{start}{}\r\n\r\n", "x".repeat(HEAD_BYTES_MAX - start.len() - 4));
    assert_eq!(fits.len(), HEAD_BYTES_MAX);
    assert!(read(&[fits.as_bytes()]).await.is_ok());
    let too_large = fits.replacen("X: ", "XX: ", 1);
    let error = read(&[too_large.as_bytes()]).await.expect_err("one byte too many");
    assert_eq!(error.refusal(), Some(Refusal::HeadTooLarge));
}

#[tokio::test]
async fn headers_are_counted() {
    let with = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(count));
    assert!(read(&[with(HEADERS_MAX).as_bytes()]).await.is_ok());
    let error = read(&[with(HEADERS_MAX + 1).as_bytes()]).await.expect_err("one header too many");
    assert_eq!(error.refusal(), Some(Refusal::HeadTooLarge));
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

proptest! {
    #[test]
    fn garbage_never_panics(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 0..20)) {
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let _answer = block_on(read(&pieces));
    }

    #[test]
    fn a_request_with_a_few_wrong_bytes_never_panics(
        flips in prop::collection::vec((0..UPGRADE.len(), any::<u8>()), 1..8),
        piece in 1_usize..64,
    ) {
        let mut request = UPGRADE.as_bytes().to_vec();
        for (at, byte) in flips {
            request[at] = byte;
        }
        let pieces: Vec<&[u8]> = request.chunks(piece).collect();
        let _answer = block_on(read(&pieces));
    }

    #[test]
    fn what_is_read_does_not_depend_on_the_pieces(extra in prop::collection::vec(any::<u8>(), 0..50), piece in 1_usize..400) {
        let request = [UPGRADE.as_bytes(), &extra].concat();
        let pieces: Vec<&[u8]> = request.chunks(piece).collect();
        let (head, leftover) = block_on(read(&pieces)).unwrap();
        prop_assert_eq!(head.authorization, ["Bearer a.b.c"]);
        prop_assert!(extra.starts_with(&leftover));
    }
}
