//! Sessions of v1 over a pipe, with a paused clock.

use protocol::close::CloseCode;
use protocol::v1::{ClientFrame, Event as Notice, Message as Delivery, Seconds, ServerFrame, Welcome};
use serde_json::json;
use tokio::time::sleep;

use super::*;
use crate::v1::dialogue::BadFrame;
use crate::world::Event;

type Server = WebSocketStream<DuplexStream>;

fn welcome(window: u16) -> ServerFrame<'static> {
    let expires_at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 3_600;
    ServerFrame::Welcome(Welcome {
        session: "s".into(),
        client: "consumer".into(),
        consumer: "consumer101".into(),
        instance: "1".into(),
        pending: 0,
        window,
        expires_at,
        ping_interval: Seconds(25.0),
        resumed: None,
    })
}

fn message(seq: u64, number: u64) -> ServerFrame<'static> {
    let body = format!("p.1 says Hello {number}").into_bytes();
    let text = ServerFrame::Message(Box::new(Delivery::new(seq, false, &body))).encode();
    ServerFrame::parse(&text).unwrap()
}

async fn say(server: &mut Server, frame: ServerFrame<'_>) {
    server.send(Message::Text(frame.encode().into())).await.unwrap();
}

/// The client's next frame.
async fn hear(server: &mut Server) -> ClientFrame<'static> {
    // The clock is paused: a day in which nothing happens passes in no time.
    let said = tokio::time::timeout(Duration::from_secs(86_400), server.next()).await;
    match said.expect("nothing is said") {
        Some(Ok(Message::Text(text))) => ClientFrame::parse(&text).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The code of the client's close frame, everything before it skipped.
async fn goodbye(server: &mut Server) -> u16 {
    let said = tokio::time::timeout(Duration::from_secs(86_400), async {
        loop {
            match server.next().await {
                Some(Ok(Message::Close(Some(frame)))) => return u16::from(frame.code),
                Some(Ok(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    });
    said.await.expect("no goodbye")
}

fn v1(typed: &str) -> Rig {
    rig(&format!("--protocol v1 {typed}"))
}

#[tokio::test(start_paused = true)]
async fn what_is_processed_is_acked_many_with_one_frame() {
    let mut rig = v1("");
    let (end, acks) = play(&mut rig, async |mut server| {
        say(&mut server, welcome(16)).await;
        for seq in 1..=3 {
            say(&mut server, message(seq, seq)).await;
        }
        let first = hear(&mut server).await;
        for seq in 4..=11 {
            say(&mut server, message(seq, seq)).await;
        }
        let acks = [first, hear(&mut server).await];
        server.close(None).await.unwrap();
        acks
    })
    .await;
    assert_eq!(end, End::closed(NO_CODE, ""));
    assert_eq!(acks, [ClientFrame::Ack { seq: 3 }, ClientFrame::Ack { seq: 11 }]);
    let outcome = &rig.instance.outcome;
    assert_eq!((outcome.v1.acked, outcome.v1.acks, outcome.tally.counts().received), (11, 2, 11));
}

#[tokio::test(start_paused = true)]
async fn bad_frames_end_the_session_with_4501_and_are_counted() {
    let text = |frame: ServerFrame<'_>| Message::Text(frame.encode().into());
    let cases = [
        (vec![text(message(1, 1))], BadFrame::BeforeWelcome),
        (vec![text(welcome(16)), text(welcome(16))], BadFrame::SecondWelcome),
        (vec![text(welcome(16)), text(message(2, 1))], BadFrame::Seq { due: 1, got: 2 }),
        (vec![text(welcome(16)), text(message(1, 1)), text(message(1, 1))], BadFrame::Seq { due: 2, got: 1 }),
        (vec![text(welcome(16)), Message::Binary(b"\0".to_vec().into())], BadFrame::Binary),
    ];
    for (frames, bad) in cases {
        let mut rig = v1("");
        let (end, code) = play(&mut rig, async |mut server| {
            for frame in frames {
                server.send(frame).await.unwrap();
            }
            goodbye(&mut server).await
        })
        .await;
        assert_eq!((end, code), (End::Bad(bad), CloseCode::ContractBroken.code()));
        assert_eq!(rig.instance.outcome.v1.bad_frames, 1);
    }
    for garbage in ["", "{", "[]", "null", r#"{"type":"gift"}"#, r#"{"type":"message","seq":-1}"#, "Hello"] {
        let mut rig = v1("");
        let (end, code) = play(&mut rig, async |mut server| {
            say(&mut server, welcome(16)).await;
            server.send(Message::Text(garbage.into())).await.unwrap();
            goodbye(&mut server).await
        })
        .await;
        assert!(matches!(end, End::Bad(BadFrame::Unreadable(_))), "{garbage:?}: {end:?}");
        assert_eq!((code, rig.instance.outcome.v1.bad_frames), (4501, 1), "{garbage:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_without_a_welcome_is_left() {
    let mut rig = v1("--answer-timeout 10");
    let start = Instant::now();
    let (end, ()) = play(&mut rig, async |_server| sleep(Duration::from_secs(60)).await).await;
    assert_eq!(end, End::Dead("no welcome in time"));
    assert!(start.elapsed() >= Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn silence_is_asked_about_and_then_the_link_is_dead() {
    let mut rig = v1("--answer-timeout 10");
    let start = Instant::now();
    let (end, asked_after) = play(&mut rig, async |mut server| {
        say(&mut server, welcome(16)).await;
        assert_eq!(hear(&mut server).await, ClientFrame::Ping);
        say(&mut server, ServerFrame::Pong).await;
        assert_eq!(hear(&mut server).await, ClientFrame::Ping);
        let asked_after = start.elapsed();
        sleep(Duration::from_secs(60)).await;
        asked_after
    })
    .await;
    assert_eq!(end, End::Dead("no pong in time"));
    assert!(asked_after >= Duration::from_secs(75) && asked_after < Duration::from_secs(80), "{asked_after:?}");
}

#[tokio::test(start_paused = true)]
async fn tokens_are_refreshed_and_refusals_tried_again() {
    let mut rig = v1("--token-ttl 1h --idle-timeout 0");
    let start = Instant::now();
    let (_, asked) = play(&mut rig, async |mut server| {
        let ServerFrame::Welcome(mut welcome) = welcome(16) else { unreachable!() };
        welcome.ping_interval = Seconds(0.0);
        say(&mut server, ServerFrame::Welcome(welcome)).await;
        let mut asked = Vec::new();
        for turn in 0..3 {
            assert!(matches!(hear(&mut server).await, ClientFrame::Refresh { .. }));
            asked.push(start.elapsed().as_secs());
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
            let answer = match turn {
                0 => ServerFrame::Error { reason: "not now".into() },
                _ => ServerFrame::Refreshed { expires_at: now + 3_600 },
            };
            say(&mut server, answer).await;
        }
        say(&mut server, ServerFrame::Expiring { r#in: 10 }).await;
        assert!(matches!(hear(&mut server).await, ClientFrame::Refresh { .. }), "pressed");
        asked.push(start.elapsed().as_secs());
        server.close(None).await.unwrap();
        asked
    })
    .await;
    assert!((2_690..=3_060).contains(&asked[0]), "{asked:?}");
    assert!(asked[1] > asked[0] && asked[1] < 3_600, "{asked:?}");
    assert!((2_690..=3_061).contains(&(asked[2] - asked[1])), "{asked:?}");
    assert!(asked[3] - asked[2] <= 2, "as soon as a new token can have a later second than the last: {asked:?}");
    assert_eq!((rig.instance.outcome.v1.refreshed, rig.instance.outcome.v1.refresh_failed), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_slow_client_answers_pings_while_it_works() {
    let mut rig = v1("--slow 10s");
    let start = Instant::now();
    let (_, (ponged, acked)) = play(&mut rig, async |mut server| {
        say(&mut server, welcome(2)).await;
        say(&mut server, message(1, 1)).await;
        say(&mut server, message(2, 2)).await;
        server.send(Message::Ping(Default::default())).await.unwrap();
        assert!(matches!(server.next().await, Some(Ok(Message::Pong(_)))));
        let ponged = start.elapsed();
        let mut acked = Vec::new();
        for seq in [1, 2] {
            assert_eq!(hear(&mut server).await, ClientFrame::Ack { seq });
            acked.push(start.elapsed().as_secs());
        }
        server.close(None).await.unwrap();
        (ponged, acked)
    })
    .await;
    assert!(ponged < Duration::from_secs(1), "{ponged:?}");
    assert_eq!(acked, [10, 20]);
}

#[tokio::test(start_paused = true)]
async fn who_never_acks_says_nothing() {
    let mut rig = v1("--no-ack");
    let (end, ()) = play(&mut rig, async |mut server| {
        say(&mut server, welcome(2)).await;
        say(&mut server, message(1, 1)).await;
        say(&mut server, message(2, 2)).await;
        assert_eq!(hear(&mut server).await, ClientFrame::Ping, "nothing before the silence is asked about");
        let frame = tokio_tungstenite::tungstenite::protocol::CloseFrame { code: 4006.into(), reason: "".into() };
        server.close(Some(frame)).await.unwrap();
    })
    .await;
    assert_eq!((end, rig.instance.outcome.v1.acked), (End::closed(4006, ""), 0));
}

#[tokio::test(start_paused = true)]
async fn who_stalls_reads_no_more_after_the_welcome() {
    let mut rig = v1("--stall");
    // Whoever reads on must not be held up by that nobody prints.
    rig.events.close();
    let shutdown = rig.world.shutdown.clone();
    let (mut ours, mut server) = sockets(1_024).await;
    let (end, ()) = tokio::join!(rig.instance.serve(&rig.world, &mut ours), async {
        say(&mut server, welcome(1)).await;
        let stuffed = tokio::time::timeout(Duration::from_secs(3_600), async {
            for seq in 1..=10_000 {
                say(&mut server, message(seq, seq)).await;
            }
        });
        assert!(stuffed.await.is_err(), "somebody reads");
        shutdown.begin();
    });
    assert_eq!((end, rig.instance.outcome.tally.counts().received), (End::Left, 0));
}

#[tokio::test(start_paused = true)]
async fn our_goodbye_comes_after_the_last_ack_and_nothing_after_it_counts() {
    let mut rig = v1("");
    let shutdown = rig.world.shutdown.clone();
    let (end, ack) = play(&mut rig, async |mut server| {
        say(&mut server, welcome(16)).await;
        say(&mut server, message(1, 1)).await;
        server.send(Message::Ping(Default::default())).await.unwrap();
        assert!(matches!(server.next().await, Some(Ok(Message::Pong(_)))));
        shutdown.begin();
        let ack = hear(&mut server).await;
        say(&mut server, message(2, 2)).await;
        assert_eq!(goodbye(&mut server).await, 1000);
        while server.next().await.is_some() {}
        ack
    })
    .await;
    assert_eq!((end, ack), (End::Left, ClientFrame::Ack { seq: 1 }));
    assert_eq!(rig.instance.outcome.tally.counts().received, 1);
}

#[tokio::test(start_paused = true)]
async fn a_bye_says_when_to_come_back_counted_from_itself() {
    let mut rig = v1("");
    let (end, ()) = play(&mut rig, async |mut server| {
        say(&mut server, welcome(16)).await;
        let bye = ServerFrame::Bye { code: 4002, reason: "draining".into(), retry_after_ms: [3_000, 9_000] };
        say(&mut server, bye).await;
        sleep(Duration::from_secs(2)).await;
    })
    .await;
    let End::Closed { code: 4002, window: Some((earliest, latest)) } = end else { panic!("{end:?}") };
    assert_eq!((earliest.as_secs_f64().round(), latest.as_secs_f64().round()), (1.0, 7.0));
}

#[tokio::test(start_paused = true)]
async fn notices_and_a_lost_mailbox_are_counted_and_told() {
    let mut rig = v1("");
    rig.instance.outcome.opened = 2;
    let (_, ()) = play(&mut rig, async |mut server| {
        let ServerFrame::Welcome(mut welcome) = welcome(16) else { unreachable!() };
        welcome.resumed = Some(false);
        say(&mut server, ServerFrame::Welcome(welcome)).await;
        for event in [Notice::BrokerLost, Notice::BrokerBack, Notice::QueueRecreated] {
            say(&mut server, ServerFrame::Notice { event }).await;
        }
        server.close(None).await.unwrap();
    })
    .await;
    let counts = &rig.instance.outcome.v1;
    assert_eq!((counts.broker_lost, counts.broker_back, counts.queue_recreated), (1, 1, 1));
    assert_eq!((counts.resumed, counts.not_resumed), (0, 1));
    rig.events.close();
    let mut told = 0;
    while let Some(event) = rig.events.recv().await {
        told += u64::from(matches!(event, Event::Noted(_)));
    }
    assert_eq!(told, 4);
}

#[tokio::test(start_paused = true)]
async fn copies_are_told_apart_by_what_their_frames_say() {
    let mut rig = v1("");
    let (_, ()) = play(&mut rig, async |mut server| {
        say(&mut server, welcome(16)).await;
        let frame = |seq: u64, redelivered: bool, headers: serde_json::Value| {
            json!({
                "type": "message", "seq": seq, "redelivered": redelivered, "messageId": "p.1.7", "headers": headers,
                "sentAt": 1, "body": "p.1 says Hello 7",
            })
        };
        let frames = [
            frame(1, false, json!({})),
            frame(2, true, json!({})),
            frame(3, false, json!({"x-republished": 1})),
            frame(4, false, json!({})),
        ];
        for frame in frames {
            server.send(Message::Text(frame.to_string().into())).await.unwrap();
        }
        assert!(matches!(hear(&mut server).await, ClientFrame::Ack { seq: 4 }));
        server.close(None).await.unwrap();
    })
    .await;
    let counts = rig.instance.outcome.tally.counts();
    assert_eq!((counts.received, counts.redelivered, counts.republished, counts.duplicated), (1, 1, 1, 1));
    assert!(rig.world.latencies.lines()[0].starts_with("Latency of 1 first arrivals"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_take_our_frames_is_read_on_and_then_left() {
    let mut rig = v1("--answer-timeout 10");
    let (mut ours, theirs) = sockets(64).await;
    let start = Instant::now();
    let (end, ()) = tokio::join!(rig.instance.serve(&rig.world, &mut ours), async {
        let mut server = theirs;
        say(&mut server, welcome(1)).await;
        // Each is acked at once, into a pipe of 64 bytes that nobody empties.
        for seq in 1..=40 {
            say(&mut server, message(seq, seq)).await;
        }
        sleep(Duration::from_secs(60)).await;
    });
    assert_eq!(end, End::Dead("our frames are not taken"));
    assert!(start.elapsed() >= Duration::from_secs(10));
    assert_eq!(rig.instance.outcome.tally.counts().received, 40, "reading went on");
}
