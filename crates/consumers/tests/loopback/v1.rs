//! What is particular to v1: good servers and bad ones.

use protocol::v1::{ClientFrame, Message as Delivery, Seconds, ServerFrame, Welcome};

use super::*;

const V1: &str = "rabbitmq-msg.v1";

impl Server {
    /// Upgrades to v1 and says welcome.
    async fn welcome(&self, resumed: Option<bool>) -> (Socket, Upgrade) {
        let (mut socket, upgrade) = self.upgrade(V1).await;
        let welcome = Welcome {
            session: "s".into(),
            client: "consumer".into(),
            consumer: "consumer101".into(),
            instance: "1".into(),
            pending: 0,
            window: 16,
            expires_at: upgrade.identity.expires_at,
            ping_interval: Seconds(25.0),
            resumed,
        };
        frame(&mut socket, &ServerFrame::Welcome(welcome)).await;
        (socket, upgrade)
    }
}

async fn frame(socket: &mut Socket, frame: &ServerFrame<'_>) {
    socket.send(Message::Text(frame.encode().into())).await.unwrap();
}

async fn deliver(socket: &mut Socket, seq: u64, number: u64, redelivered: bool) {
    let body = format!("producer201.7 says Hello {number}");
    frame(socket, &ServerFrame::Message(Box::new(Delivery::new(seq, redelivered, body.as_bytes())))).await;
}

/// The program has read all that was sent.
async fn read(socket: &mut Socket) {
    socket.send(Message::Ping(Default::default())).await.unwrap();
    assert!(matches!(socket.next().await, Some(Ok(Message::Pong(_)))));
}

async fn hear(socket: &mut Socket) -> ClientFrame<'static> {
    match timeout(LIMIT, socket.next()).await.expect("nothing is said") {
        Some(Ok(Message::Text(text))) => ClientFrame::parse(&text).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_session_is_acked_resumed_and_summed_up() {
    let mut server = Server::with_program("--protocol v1 --window 4").await;
    let (mut socket, upgrade) = server.welcome(None).await;
    assert_eq!((upgrade.offered.as_str(), upgrade.uri.as_str()), (V1, "/?instance=1&window=4"));
    for number in [1, 2, 3] {
        deliver(&mut socket, number, number, false).await;
    }
    let mut acked = 0;
    while acked < 3 {
        let ClientFrame::Ack { seq } = hear(&mut socket).await else { panic!("no ack") };
        assert!(seq > acked && seq <= 3);
        acked = seq;
    }
    drop(socket);
    let (mut socket, upgrade) = server.welcome(Some(true)).await;
    assert_eq!(upgrade.uri, "/?instance=1&window=4&resume=true");
    deliver(&mut socket, 1, 3, true).await;
    assert_eq!(hear(&mut socket).await, ClientFrame::Ack { seq: 1 });
    drop(socket);
    let (mut socket, upgrade) = server.welcome(Some(false)).await;
    assert_eq!(upgrade.uri, "/?instance=1&window=4&resume=true");
    read(&mut socket).await;
    server.shutdown.begin();
    let totals = server.end(socket).await;
    let v1 = totals.v1.unwrap();
    assert_eq!((v1.acked, v1.resumed, v1.not_resumed, v1.bad_frames), (4, 1, 1, 0));
    assert_eq!(
        totals.to_string(),
        "Totals: received 3, missing 0, duplicated 0, out of order 0, redelivered 1, republished 0"
    );
    assert!(totals.is_clean());
}

#[tokio::test]
async fn a_server_that_selects_something_else_stops_the_instance() {
    for (wanted, selected) in [("v1", "rabbitmq-msg.raw"), ("v1", ""), ("raw", V1)] {
        let mut server = Server::with_program(&format!("--protocol {wanted}")).await;
        let _held = server.upgrade(selected).await;
        let totals = server.ended().await;
        assert_eq!((totals.stopped, totals.is_clean()), (1, false), "{wanted} and {selected:?}");
        server.assert_left_alone().await;
    }
}

#[tokio::test]
async fn a_bad_frame_is_answered_with_4501_and_counted_and_the_instance_comes_back() {
    let server = Server::with_program("--protocol v1").await;
    for bad in [Message::Text("no JSON".into()), Message::Binary(b"\xff".to_vec().into())] {
        let (mut socket, _) = server.welcome(None).await;
        socket.send(bad).await.unwrap();
        let goodbye = timeout(LIMIT, socket.next()).await.unwrap();
        let Some(Ok(Message::Close(Some(goodbye)))) = goodbye else { panic!("{goodbye:?}") };
        assert_eq!(u16::from(goodbye.code), 4501);
        while let Some(Ok(_)) = socket.next().await {}
    }
    let (mut socket, _) = server.upgrade(V1).await;
    deliver(&mut socket, 1, 1, false).await;
    let goodbye = timeout(LIMIT, socket.next()).await.unwrap();
    assert!(matches!(goodbye, Some(Ok(Message::Close(Some(_))))), "a message before the welcome: {goodbye:?}");
    while let Some(Ok(_)) = socket.next().await {}
    let (socket, _) = server.welcome(Some(true)).await;
    let totals = server.stop(socket).await;
    assert_eq!((totals.v1.unwrap().bad_frames, totals.counts.received, totals.is_clean()), (3, 0, false));
}

#[tokio::test]
async fn a_bye_is_obeyed() {
    let server = Server::with_program("--protocol v1").await;
    let (mut socket, _) = server.welcome(None).await;
    let bye = ServerFrame::Bye { code: 4002, reason: "draining".into(), retry_after_ms: [1_000, 1_100] };
    frame(&mut socket, &bye).await;
    let said_at = Instant::now();
    close(socket, 4002, "no window in here").await;
    let (socket, _) = server.welcome(Some(true)).await;
    assert!(said_at.elapsed() >= Duration::from_millis(950), "{:?}", said_at.elapsed());
    assert!(server.stop(socket).await.is_clean());
}

#[tokio::test]
async fn a_token_of_two_seconds_is_refreshed_before_it_expires() {
    let server = Server::with_program("--protocol v1 --token-ttl 2").await;
    let verifier = Verifier::hs256(&DEVELOPMENT_KEY.into(), None, None).unwrap();
    let (mut socket, upgrade) = server.welcome(None).await;
    let mut expires_at = upgrade.identity.expires_at;
    for _ in 0..3 {
        let ClientFrame::Refresh { token } = hear(&mut socket).await else { panic!("no refresh") };
        let identity = verifier.verify(&token.0).unwrap();
        assert_eq!(identity.consumer, "consumer101");
        assert!(identity.expires_at > expires_at, "not a later one");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        // Within the leeway of 5 s at the very latest, and before `exp` unless the machine is stuck.
        assert!(now <= expires_at + 1, "{} s late", now - expires_at);
        expires_at = identity.expires_at;
        frame(&mut socket, &ServerFrame::Refreshed { expires_at }).await;
    }
    read(&mut socket).await;
    let totals = server.stop(socket).await;
    assert_eq!((totals.v1.unwrap().refreshed, totals.is_clean()), (3, true));
}

#[tokio::test]
async fn a_share_never_acks_and_the_rest_does() {
    let mut server = Server::with_program("2 --protocol v1 --no-ack --no-ack-share 50%").await;
    let mut farewells = JoinSet::new();
    for _ in 0..2 {
        let (mut socket, upgrade) = server.welcome(None).await;
        deliver(&mut socket, 1, 1, false).await;
        if upgrade.uri == "/?instance=2" {
            assert_eq!(hear(&mut socket).await, ClientFrame::Ack { seq: 1 });
        } else {
            read(&mut socket).await;
        }
        farewells.spawn(async move {
            let goodbye = socket.next().await;
            while let Some(Ok(_)) = socket.next().await {}
            goodbye
        });
    }
    server.shutdown.begin();
    while let Some(goodbye) = farewells.join_next().await {
        assert!(matches!(goodbye, Ok(Some(Ok(Message::Close(_))))), "something else was said: {goodbye:?}");
    }
    let totals = server.ended().await;
    assert_eq!((totals.counts.received, totals.v1.unwrap().acked), (2, 1));
}
