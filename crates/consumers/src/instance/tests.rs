//! One connection without a network and, where time matters, with a paused clock. Connecting and coming
//! back is tested over loopback in `tests/loopback.rs`.

use std::future::Future;
use std::sync::atomic::Ordering;

use futures::{SinkExt as _, StreamExt as _};
use protocol::load::Hello;
use service::shutdown::Shutdown;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::*;
use crate::dial::socket_config;
use crate::policy::NO_CODE;
use crate::{Args, Config};

mod a30;
mod v1;

type End2End = (WebSocketStream<DuplexStream>, WebSocketStream<DuplexStream>);

/// (ours, the server's)
async fn sockets(bytes: usize) -> End2End {
    let (ours, theirs) = tokio::io::duplex(bytes);
    let ours = WebSocketStream::from_raw_socket(ours, Role::Client, Some(socket_config())).await;
    (ours, WebSocketStream::from_raw_socket(theirs, Role::Server, None).await)
}

struct Rig {
    world: Arc<World>,
    events: mpsc::Receiver<Event>,
    instance: Instance,
}

/// One instance; raw unless `typed` says otherwise.
fn rig(typed: &str) -> Rig {
    let raw = ["--protocol", "raw"].into_iter().filter(|_| !typed.contains("--protocol"));
    let words = ["consumers", "101", "101"].into_iter().chain(raw).chain(typed.split_whitespace());
    let args: Args = service::cli::try_parse_from("CONSUMERS_INSTANCE_TEST", words).unwrap();
    let config = Config::new(args).unwrap();
    let (sender, events) = mpsc::channel(64);
    let world = Arc::new(World::new(&config, sender, Shutdown::new()));
    let instance = Instance::new(Arc::clone(&world), Who { consumer: 101, instance: 1 }, 0, config.behaviours.of(0, 1));
    Rig { world, events, instance }
}

/// Serves one connection while `server` plays the other end; returns why it ended and what `server` made.
async fn play<T, F: Future<Output = T>>(
    rig: &mut Rig,
    server: impl FnOnce(WebSocketStream<DuplexStream>) -> F,
) -> (End, T) {
    let (mut ours, theirs) = sockets(64 * 1024).await;
    tokio::join!(rig.instance.serve(&rig.world, &mut ours), server(theirs))
}

#[tokio::test]
async fn hellos_are_tallied_and_told_and_anything_else_is_counted() {
    let mut rig = rig("");
    let (end, ()) = play(&mut rig, async |mut server| {
        let bodies: [&[u8]; 6] =
            [b"p.1 says Hello 1", b"", b"\xff\xfe", b"p.1 says Hello 3", b"p.1 says Hello 3", b"x"];
        for body in bodies {
            server.send(Message::Binary(body.to_vec().into())).await.unwrap();
        }
        server.send(Message::Text("p.1 says Hello 4 @1700000000000000   ".into())).await.unwrap();
        server.close(None).await.unwrap();
    })
    .await;
    assert_eq!(end, End::closed(NO_CODE, ""));
    let outcome = &rig.instance.outcome;
    let counts = outcome.tally.counts();
    assert_eq!((counts.received, counts.missing, counts.duplicated, outcome.other), (3, 1, 1, 3));
    assert_eq!(rig.world.arrivals.load.load(Ordering::Relaxed), 1);
    rig.events.close();
    let mut told = Vec::new();
    while let Some(event) = rig.events.recv().await {
        match event {
            Event::Hello(hello) => told.push(hello.number),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told, [1, 3], "neither repeats nor load messages make rounds");
}

#[tokio::test(start_paused = true)]
async fn silence_ends_a_connection_and_pings_keep_it() {
    let mut rig = rig("--idle-timeout 60");
    let start = Instant::now();
    let (end, pongs) = play(&mut rig, async |mut server| {
        let mut pongs = 0;
        for _ in 0..4 {
            sleep(Duration::from_secs(25)).await;
            server.send(Message::Ping(Default::default())).await.unwrap();
            assert!(matches!(server.next().await, Some(Ok(Message::Pong(_)))));
            pongs += 1;
        }
        // Silent from here, and still there when our end has given up.
        sleep(Duration::from_secs(3_600)).await;
        pongs
    })
    .await;
    assert_eq!((end, pongs), (End::Silent, 4));
    assert!(start.elapsed() >= Duration::from_secs(160));
}

#[tokio::test(start_paused = true)]
async fn a_goodbye_waits_no_longer_than_its_deadline() {
    let mut rig = rig("--close-timeout 5");
    rig.world.shutdown.begin();
    let start = Instant::now();
    let mut gone_after = Duration::ZERO;
    let (mut ours, theirs) = sockets(1).await;
    let end = rig.instance.serve(&rig.world, &mut ours).await;
    gone_after += start.elapsed();
    drop(theirs);
    assert_eq!((end, gone_after), (End::Left, Duration::from_secs(5)), "a server that reads nothing at all");
}

#[tokio::test(start_paused = true)]
async fn a_forced_shutdown_does_not_wait_for_an_answer() {
    let mut rig = rig("--close-timeout 5");
    rig.world.shutdown.force();
    let start = Instant::now();
    let (mut ours, _theirs) = sockets(1).await;
    assert_eq!(rig.instance.serve(&rig.world, &mut ours).await, End::Left);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn what_the_server_wrote_before_our_goodbye_still_counts() {
    let mut rig = rig("");
    rig.world.shutdown.begin();
    let (end, goodbye) = play(&mut rig, async |mut server| {
        for number in 1..=100 {
            let body = Hello { producer: "p.1".into(), number, sent_at_micros: Some(1) }.encode(None);
            server.send(Message::Binary(body.into())).await.unwrap();
        }
        let goodbye = server.next().await;
        while let Some(Ok(_)) = server.next().await {}
        goodbye
    })
    .await;
    assert_eq!(end, End::Left);
    let Some(Ok(Message::Close(Some(frame)))) = goodbye else { panic!("{goodbye:?}") };
    assert_eq!(u16::from(frame.code), 1000);
    assert_eq!(rig.instance.outcome.tally.counts().received, 100);
}

#[test]
fn pauses_are_what_the_server_asked_for() {
    let mut rig = rig("");
    let none = Duration::ZERO;
    assert_eq!(rig.instance.pause_before(Next::Stop, none, false), None);
    for _ in 0..50 {
        let (earliest, latest) = (Duration::from_millis(500), Duration::from_millis(600));
        let pause = rig.instance.pause_before(Next::Within(earliest, latest), none, false).unwrap();
        assert!(earliest <= pause && pause <= latest);
        let wait = Duration::from_secs(7);
        let pause = rig.instance.pause_before(Next::After(wait), none, true).unwrap();
        assert!(wait <= pause && pause <= wait + rig.world.backoff_cap);
    }
}

#[tokio::test]
async fn only_connections_that_last_make_the_next_pause_short_again() {
    for (lived, grows) in [(Duration::from_millis(900), true), (Duration::from_secs(1), false)] {
        let mut rig = rig("--backoff-cap 1h");
        let mut longest = Duration::ZERO;
        for _ in 0..30 {
            let end = End::Broken("connection reset".into());
            longest = longest.max(rig.instance.on_end(&rig.world, end, lived).await.unwrap());
        }
        assert_eq!(longest > BACKOFF_FIRST + rig.world.crowd, grows, "{lived:?}: {longest:?}");
    }
}

#[tokio::test]
async fn an_instance_is_small() {
    let Rig { world, mut instance, .. } = rig("--protocol v1");
    let (mut socket, _) = sockets(1).await;
    let manner = Manner { behaviour: Behaviour::Good, resume: false };
    let session = size_of_val(&session::serve(&world, &mut instance.outcome, manner, &mut socket));
    let instance = Box::new(instance);
    let bytes = size_of_val(&*instance) + size_of_val(&instance.run());
    // 1,520 and 1,048 when this was written; the open socket (320 and its read buffer) comes on top.
    assert!(bytes <= 1_536, "the task of each of 40,000 instances has {bytes} bytes");
    assert!(session <= 1_088, "and in v1 each of their sessions {session} more");
}
