//! The whole program but its `main`, against a WebSocket server that the test plays by hand. `v1.rs` has what is
//! particular to v1; what is common to both dialects is tested in raw.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers outside of the test functions")]
#![expect(clippy::result_large_err, reason = "the type is tungstenite's")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use consumers::{Args, Config, Totals};
use futures::{SinkExt as _, StreamExt as _};
use protocol::close::RetryWindow;
use protocol::token::{DEVELOPMENT_KEY, Identity, Verifier};
use service::shutdown::Shutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

mod v1;

type Socket = WebSocketStream<TcpStream>;

/// Generous: it only turns a hang into a failure.
const LIMIT: Duration = Duration::from_secs(60);

/// What a client sent with its upgrade.
struct Upgrade {
    identity: Identity,
    uri: String,
    offered: String,
}

struct Server {
    listener: TcpListener,
    shutdown: Shutdown,
    program: JoinSet<Totals>,
}

impl Server {
    /// Starts the program, one instance in raw unless `typed` says more, with this server to connect to.
    async fn with_program(typed: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let mut words = vec!["consumers", "101", "101", "--url", &url];
        for (option, value) in [("--backoff-cap", "20ms"), ("--close-timeout", "2"), ("--protocol", "raw")] {
            if !typed.contains(option) {
                words.extend([option, value]);
            }
        }
        words.extend(typed.split_whitespace());
        let args: Args = service::cli::try_parse_from("CONSUMERS_LOOPBACK_TEST", words).unwrap();
        let config = Config::new(args).unwrap();
        let shutdown = Shutdown::new();
        let mut program = JoinSet::new();
        let theirs = shutdown.clone();
        program.spawn(async move { consumers::run(config, theirs).await.unwrap() });
        Self { listener, shutdown, program }
    }

    async fn accept(&self) -> TcpStream {
        timeout(LIMIT, self.listener.accept()).await.expect("nobody connects").unwrap().0
    }

    /// Upgrades, and knows from a pong that the program has taken note.
    async fn answer(&self) -> (Socket, Upgrade) {
        let (mut socket, upgrade) = self.upgrade("rabbitmq-msg.raw").await;
        socket.send(Message::Ping(Default::default())).await.unwrap();
        assert!(matches!(socket.next().await, Some(Ok(Message::Pong(_)))));
        (socket, upgrade)
    }

    /// Upgrades, and selects this subprotocol.
    async fn upgrade(&self, selected: &'static str) -> (Socket, Upgrade) {
        let mut upgrade = None;
        let stream = self.accept().await;
        let socket = accept_hdr_async(stream, |request: &Request, mut response: Response| {
            upgrade = Some(upgrade_of(request));
            if !selected.is_empty() {
                response.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(selected));
            }
            Ok::<_, ErrorResponse>(response)
        })
        .await
        .unwrap();
        (socket, upgrade.unwrap())
    }

    async fn refuse(&self, status: u16, retry_after: Option<&'static str>) -> Upgrade {
        let mut upgrade = None;
        let stream = self.accept().await;
        accept_hdr_async(stream, |request: &Request, _| {
            upgrade = Some(upgrade_of(request));
            let mut refusal = ErrorResponse::new(None);
            *refusal.status_mut() = status.try_into().unwrap();
            if let Some(value) = retry_after {
                refusal.headers_mut().insert("retry-after", HeaderValue::from_static(value));
            }
            Err(refusal)
        })
        .await
        .unwrap_err();
        upgrade.unwrap()
    }

    /// The program's end, by itself.
    async fn ended(&mut self) -> Totals {
        timeout(LIMIT, self.program.join_next()).await.expect("the program does not end").unwrap().unwrap()
    }

    /// The program's end after a signal, while `socket` answers its goodbye.
    async fn stop(mut self, socket: Socket) -> Totals {
        self.shutdown.begin();
        self.end(socket).await
    }

    /// The program's end, while `socket` answers its goodbye.
    async fn end(&mut self, mut socket: Socket) -> Totals {
        while let Some(Ok(_)) = socket.next().await {}
        drop(socket);
        self.ended().await
    }

    /// Nobody is at the door.
    async fn assert_left_alone(&self) {
        let waiting = std::pin::pin!(self.listener.accept());
        assert!(futures::poll!(waiting).is_pending(), "the program connected again");
    }
}

fn upgrade_of(request: &Request) -> Upgrade {
    let text = |name: &str| request.headers().get(name).unwrap().to_str().unwrap().to_owned();
    let token = text("authorization").strip_prefix("Bearer ").unwrap().to_owned();
    let verifier = Verifier::hs256(&DEVELOPMENT_KEY.into(), None, None).unwrap();
    let offered = text("sec-websocket-protocol");
    Upgrade { identity: verifier.verify(&token).unwrap(), uri: request.uri().to_string(), offered }
}

async fn close(mut socket: Socket, code: u16, reason: &str) {
    socket.close(Some(CloseFrame { code: code.into(), reason: reason.to_owned().into() })).await.unwrap();
    while let Some(Ok(_)) = socket.next().await {}
}

async fn say(socket: &mut Socket, number: u64) {
    socket.send(Message::Text(format!("producer201.7 says Hello {number}").into())).await.unwrap();
}

#[tokio::test]
async fn receives_and_says_goodbye() {
    let server = Server::with_program("").await;
    let (mut socket, upgrade) = server.answer().await;
    assert_eq!((upgrade.identity.consumer.as_str(), upgrade.identity.client.as_str()), ("consumer101", "consumer"));
    assert_eq!((upgrade.uri.as_str(), upgrade.offered.as_str()), ("/?instance=1", "rabbitmq-msg.raw"));
    for number in [1, 2, 3] {
        say(&mut socket, number).await;
    }
    server.shutdown.begin();
    let Some(Ok(Message::Close(Some(goodbye)))) = socket.next().await else { panic!("no goodbye") };
    assert_eq!(u16::from(goodbye.code), 1000);
    let totals = server.stop(socket).await;
    assert_eq!(totals.to_string(), "Totals: received 3, missing 0, duplicated 0, out of order 0");
    assert!(totals.is_clean());
}

#[tokio::test]
async fn every_instance_connects_with_its_own_number() {
    let server = Server::with_program("3 --connect-concurrency 1").await;
    let mut uris = Vec::new();
    let mut sockets = Vec::new();
    for _ in 0..3 {
        let (socket, upgrade) = server.answer().await;
        uris.push(upgrade.uri);
        sockets.push(socket);
    }
    uris.sort();
    assert_eq!(uris, ["/?instance=1", "/?instance=2", "/?instance=3"]);
    let (last, mut server) = (sockets.pop().unwrap(), server);
    server.shutdown.begin();
    let mut farewells = JoinSet::new();
    for mut socket in sockets {
        farewells.spawn(async move { while let Some(Ok(_)) = socket.next().await {} });
    }
    farewells.spawn(async move { drop(last) });
    assert!(server.ended().await.is_clean());
}

#[tokio::test]
async fn a30_a_refused_token_stops_the_instance() {
    for status in [401, 403, 400] {
        let mut server = Server::with_program("").await;
        server.refuse(status, None).await;
        let totals = server.ended().await;
        assert_eq!((totals.stopped, totals.is_clean()), (1, false), "{status}");
        server.assert_left_alone().await;
    }
}

#[tokio::test]
async fn a30_retry_after_is_honoured_and_the_next_token_is_new() {
    for status in [503, 429] {
        let server = Server::with_program("").await;
        let refused = server.refuse(status, Some("2")).await;
        let refused_at = Instant::now();
        let (socket, accepted) = server.answer().await;
        assert!(refused_at.elapsed() >= Duration::from_millis(1_990), "{status}: {:?}", refused_at.elapsed());
        assert!(accepted.identity.expires_at > refused.identity.expires_at, "the same token again");
        assert!(server.stop(socket).await.is_clean());
    }
}

#[tokio::test]
async fn a_replaced_instance_stays_away() {
    let mut server = Server::with_program("").await;
    let (socket, _) = server.answer().await;
    close(socket, 4506, "replaced").await;
    let totals = server.ended().await;
    assert_eq!((totals.stopped, totals.is_clean()), (1, false));
    server.assert_left_alone().await;
}

#[tokio::test]
async fn an_expired_token_is_replaced_and_the_numbering_goes_on() {
    let server = Server::with_program("").await;
    let (mut socket, first) = server.answer().await;
    say(&mut socket, 1).await;
    // Tokens count in whole seconds: two of the same second look alike.
    tokio::time::sleep(to_next_second()).await;
    close(socket, 4001, "token expired").await;
    let (mut socket, second) = server.answer().await;
    assert!(second.identity.expires_at > first.identity.expires_at);
    say(&mut socket, 2).await;
    let totals = server.stop(socket).await;
    assert_eq!((totals.counts.received, totals.counts.missing, totals.is_clean()), (2, 0, true));
}

fn to_next_second() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Duration::from_secs(since.as_secs() + 1) - since
}

#[tokio::test]
async fn an_abrupt_end_is_answered_by_coming_back() {
    let server = Server::with_program("").await;
    let (mut socket, _) = server.answer().await;
    say(&mut socket, 1).await;
    drop(socket);
    let (socket, _) = server.answer().await;
    socket.get_ref().set_zero_linger().unwrap();
    drop(socket);
    let (mut socket, _) = server.answer().await;
    say(&mut socket, 3).await;
    let totals = server.stop(socket).await;
    assert_eq!(totals.to_string(), "Totals: received 2, missing 1, duplicated 0, out of order 0");
    assert!(!totals.is_clean());
}

#[tokio::test]
async fn a_draining_server_is_left_alone_until_its_window_opens() {
    let server = Server::with_program("").await;
    let (socket, _) = server.answer().await;
    let window = RetryWindow { min_ms: 1_000, max_ms: 1_100 };
    close(socket, 4002, &window.to_string()).await;
    let closed_at = Instant::now();
    let (socket, _) = server.answer().await;
    // The program may see the close some moments before this test does.
    assert!(closed_at.elapsed() >= Duration::from_millis(900), "{:?}", closed_at.elapsed());
    assert!(server.stop(socket).await.is_clean());
}

#[tokio::test]
async fn a30_an_odd_answer_stops_nobody_for_ever() {
    let server = Server::with_program("").await;
    server.refuse(502, None).await;
    drop(server.accept().await);
    let (socket, _) = server.answer().await;
    assert!(server.stop(socket).await.is_clean());
}

#[tokio::test]
async fn a30_everyone_is_back_after_a_server_that_was_unavailable() {
    let mut server = Server::with_program("20 --backoff-cap 200ms --connect-concurrency 20").await;
    for attempt in 0..100 {
        server.refuse([503, 429, 502][attempt % 3], None).await;
    }
    let mut sockets = Vec::new();
    for _ in 0..20 {
        sockets.push(server.answer().await);
    }
    let mut uris: Vec<_> = sockets.iter().map(|(_, upgrade)| upgrade.uri.clone()).collect();
    uris.sort();
    uris.dedup();
    assert_eq!(uris.len(), 20, "somebody is not back");
    server.shutdown.begin();
    let mut farewells = JoinSet::new();
    for (mut socket, _) in sockets {
        farewells.spawn(async move { while let Some(Ok(_)) = socket.next().await {} });
    }
    let totals = server.ended().await;
    assert_eq!((totals.stopped, totals.never_connected, totals.is_clean()), (0, 0, true));
}

#[tokio::test]
async fn a30_a_server_that_closes_at_once_is_not_hammered() {
    let server = Server::with_program("--backoff-cap 400ms").await;
    let start = Instant::now();
    for _ in 0..30 {
        let (socket, _) = server.answer().await;
        close(socket, 4004, "").await;
    }
    // Pauses are uniform in [0, 400 ms], 5.8 s in all on average: below 2 s is six standard deviations away.
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    let (socket, _) = server.answer().await;
    server.stop(socket).await;
}

#[tokio::test]
async fn the_end_comes_in_time_whatever_the_server_does() {
    // Accepts and never answers the upgrade.
    let mut server = Server::with_program("").await;
    let _mute = server.accept().await;
    server.shutdown.begin();
    let begun_at = Instant::now();
    let totals = server.ended().await;
    assert!(begun_at.elapsed() < Duration::from_secs(10));
    assert_eq!((totals.never_connected, totals.is_clean()), (1, false));

    // Upgrades and never reads again.
    let mut server = Server::with_program("").await;
    let (_deaf, _) = server.answer().await;
    server.shutdown.begin();
    let begun_at = Instant::now();
    assert!(server.ended().await.is_clean());
    assert!(begun_at.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let mut server = Server::with_program("--close-timeout 8 --backoff-cap 20ms").await;
    let (_deaf, _) = server.answer().await;
    server.shutdown.begin();
    server.shutdown.force();
    let forced_at = Instant::now();
    assert!(server.ended().await.is_clean());
    assert!(forced_at.elapsed() < Duration::from_secs(8));
}

#[tokio::test]
async fn a_duration_ends_it_without_a_signal() {
    let mut server = Server::with_program("--duration 100ms").await;
    let (mut socket, _) = server.answer().await;
    while let Some(Ok(_)) = socket.next().await {}
    assert!(server.ended().await.is_clean());
}
