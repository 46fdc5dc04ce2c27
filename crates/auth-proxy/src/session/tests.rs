use std::{
    sync::Mutex,
    time::{SystemTime, UNIX_EPOCH},
};

use broker::{properties::Properties, subscription::Delivery};
use bytes::Bytes;
use futures::{SinkExt, StreamExt, poll};
use std::task::Poll;
use tokio::{
    io::{AsyncReadExt, DuplexStream},
    sync::mpsc,
    task::JoinSet,
};
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role};

use super::*;
use crate::metrics::tests::{member, metrics};

/// What the session did with its mailbox, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Did {
    Settled(Vec<u64>, Outcome),
    Left,
}

struct TestMailbox {
    incoming: mpsc::Receiver<Incoming>,
    did: Arc<Mutex<Vec<Did>>>,
}

impl Mailbox for TestMailbox {
    async fn next(&mut self) -> Incoming {
        match self.incoming.recv().await {
            Some(incoming) => incoming,
            None => std::future::pending().await,
        }
    }

    fn try_next(&mut self) -> Option<Incoming> {
        self.incoming.try_recv().ok()
    }

    fn settle(&mut self, tags: &[Tag], outcome: Outcome) -> usize {
        if !tags.is_empty() {
            self.did.lock().unwrap().push(Did::Settled(tags.iter().map(|tag| tag.number()).collect(), outcome));
        }
        tags.len()
    }

    async fn leave(self) {
        self.did.lock().unwrap().push(Did::Left);
    }
}

struct Fixture {
    incoming: mpsc::Sender<Incoming>,
    did: Arc<Mutex<Vec<Did>>>,
    replaced: CancellationToken,
    drain: CancellationToken,
    session: JoinSet<End>,
    client: DuplexStream,
}

/// As long as HMAC wants it.
const SECRET: &str = "a secret of thirty-two bytes or so";
const S: Duration = Duration::from_secs(1);
const LIFETIME: Duration = Duration::from_secs(3600);

/// So long from now, in unix seconds.
fn expires_at(lifetime: Duration) -> u64 {
    (SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + lifetime).as_secs()
}

/// A session over a pipe that holds `pipe_bytes`, with the periods of the contract.
async fn session(pipe_bytes: usize, lifetime: Duration) -> Fixture {
    let (session, mut fixture) = prepared(Dialect::Raw, pipe_bytes, lifetime, |terms| terms).await;
    fixture.session.spawn(session.run());
    fixture
}

/// As [`session`], not running.
async fn prepared(
    dialect: Dialect,
    pipe_bytes: usize,
    lifetime: Duration,
    adjust: impl Fn(Terms) -> Terms,
) -> (Session<DuplexStream, TestMailbox>, Fixture) {
    let (client, server) = tokio::io::duplex(pipe_bytes);
    let (incoming, receiver) = mpsc::channel(64);
    let (did, replaced, drain) = (Arc::default(), CancellationToken::new(), CancellationToken::new());
    let terms = Terms {
        proxy_id: "1".to_owned(),
        log_messages: false,
        max_message_bytes: 1024 * 1024,
        periods: Periods { ping_interval: 25 * S, pong_timeout: 10 * S, write_timeout: 30 * S },
        ack_timeout: 30 * S,
        outage_limit: None,
        expiring_notice: 60 * S,
        close_timeout: 2 * S,
        leave_timeout: 30 * S,
        drain: Drain { begun: drain.clone(), pace: 5 * S, timeout: 7 * S, spread: 10 * S },
        verifier: Arc::new(Verifier::hs256(&SECRET.into(), None, None).unwrap()),
    };
    let identity = Identity { client: "consumer".into(), consumer: "a".into(), expires_at: expires_at(lifetime) };
    let particulars = Particulars {
        name: "consumer.a.1".to_owned(),
        expiry: Expiry::new(lifetime, terms.expiring_notice),
        identity,
        replaced: replaced.clone(),
        meter: Meter::new(&metrics(), member("consumer.a.1", dialect)),
    };
    let mailbox = TestMailbox { incoming: receiver, did: Arc::clone(&did) };
    let wire = Wire::new(server, &[]).await;
    let terms = adjust(terms);
    let session = Session::new(wire, mailbox, dialect, &ServerFrame::Pong, Arc::new(terms), particulars);
    (session, Fixture { incoming, did, replaced, drain, session: JoinSet::new(), client })
}

impl Fixture {
    async fn deliver(&self, number: u64, bytes: usize) {
        let body = Bytes::from(vec![b'x'; bytes]);
        let delivery =
            Delivery { tag: Tag::detached(number), redelivered: false, body, properties: Properties::default() };
        self.incoming.send(Incoming::Delivery(delivery)).await.unwrap();
    }

    fn did(&self) -> Vec<Did> {
        self.did.lock().unwrap().clone()
    }
}

async fn ended(session: &mut JoinSet<End>) -> End {
    session.join_next().await.unwrap().unwrap()
}

async fn client(pipe: DuplexStream) -> WebSocketStream<DuplexStream> {
    WebSocketStream::from_raw_socket(pipe, Role::Client, None).await
}

async fn close_code(client: &mut WebSocketStream<DuplexStream>) -> (u16, String) {
    loop {
        match client.next().await.unwrap().unwrap() {
            Message::Close(Some(frame)) => return (frame.code.into(), frame.reason.to_string()),
            Message::Close(None) => panic!("a close without a code"),
            _ => {}
        }
    }
}

fn acked(numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    numbers.into_iter().collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_written_is_acked_in_order_and_nothing_else() {
    let mut fixture = session(64 * 1024, LIFETIME).await;
    for number in 1..=3 {
        fixture.deliver(number, 10).await;
    }
    let mut client = client(std::mem::replace(&mut fixture.client, tokio::io::duplex(1).0)).await;
    for _ in 1..=3 {
        assert_eq!(client.next().await.unwrap().unwrap(), Message::text("x".repeat(10)));
    }
    client.close(None).await.unwrap();
    while client.next().await.is_some() {}
    assert!(matches!(ended(&mut fixture.session).await, End::Closed(None)));
    let did = fixture.did.lock().unwrap().clone();
    let settled: Vec<u64> = did
        .iter()
        .flat_map(|did| match did {
            Did::Settled(tags, Outcome::Ack) => tags.clone(),
            Did::Settled(..) => panic!("{did:?}"),
            Did::Left => vec![],
        })
        .collect();
    assert_eq!(settled, acked(1..=3));
    assert_eq!(did.last(), Some(&Did::Left));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_yet_with_the_kernel_is_not_acked() {
    let mut fixture = session(1024, LIFETIME).await;
    fixture.deliver(1, 100_000).await;
    let mut seen = vec![0; 50_000];
    fixture.client.read_exact(&mut seen).await.unwrap();
    assert_eq!(fixture.did(), []);
    fixture.replaced.cancel();
    drop(fixture.client);
    assert!(matches!(ended(&mut fixture.session).await, End::Replaced | End::Gone(_)));
    assert_eq!(*fixture.did.lock().unwrap(), [Did::Left], "half a message is no message");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_is_closed_with_4003_after_the_write_timeout() {
    let mut fixture = session(1024, LIFETIME).await;
    let start = Instant::now();
    fixture.deliver(1, 100_000).await;
    assert!(matches!(ended(&mut fixture.session).await, End::DoesNotRead));
    let took = start.elapsed();
    assert!((30 * S..=30 * S + 3 * S).contains(&took), "{took:?}");
    assert_eq!(*fixture.did.lock().unwrap(), [Did::Left]);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_answer_pings_is_closed_with_4004() {
    let mut fixture = session(64 * 1024, LIFETIME).await;
    let start = Instant::now();
    assert!(matches!(ended(&mut fixture.session).await, End::NoPong));
    assert!(start.elapsed() <= 25 * S + 10 * S + 3 * S, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_answers_pings_stays() {
    let mut fixture = session(64 * 1024, LIFETIME).await;
    let mut client = client(std::mem::replace(&mut fixture.client, tokio::io::duplex(1).0)).await;
    let start = Instant::now();
    let mut pings = 0;
    while start.elapsed() < 600 * S {
        match client.next().await.unwrap().unwrap() {
            Message::Ping(_) => pings += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!((24..=26).contains(&pings), "{pings} pings in 600 s");
    assert!(fixture.session.try_join_next().is_none());
}

#[tokio::test(start_paused = true)]
async fn expiry_ends_a_session_also_when_the_peer_does_not_read() {
    let mut fixture = session(1024, 5 * S).await;
    let start = Instant::now();
    fixture.deliver(1, 100_000).await;
    assert!(matches!(ended(&mut fixture.session).await, End::Expired));
    assert!((10 * S..=13 * S).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(*fixture.did.lock().unwrap(), [Did::Left]);
}

#[tokio::test(start_paused = true)]
async fn the_mailbox_is_left_before_the_client_is_told() {
    for (cancel, expected) in [(0, 4506), (1, 4002)] {
        let mut fixture = session(64 * 1024, LIFETIME).await;
        let mut client = client(std::mem::replace(&mut fixture.client, tokio::io::duplex(1).0)).await;
        [&fixture.replaced, &fixture.drain][cancel].cancel();
        let (code, reason) = close_code(&mut client).await;
        assert_eq!(code, expected);
        assert_eq!(fixture.did(), [Did::Left], "before the close frame arrives");
        if code == 4002 {
            assert!(protocol::close::RetryWindow::from_reason(&reason).is_some(), "{reason}");
        }
        while client.next().await.is_some() {}
        ended(&mut fixture.session).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_above_the_limit_is_rejected_and_the_next_one_arrives() {
    let mut fixture = session(4 * 1024 * 1024, LIFETIME).await;
    fixture.deliver(1, 1024 * 1024 + 1).await;
    fixture.deliver(2, 1024 * 1024).await;
    let mut client = client(std::mem::replace(&mut fixture.client, tokio::io::duplex(1).0)).await;
    assert_eq!(client.next().await.unwrap().unwrap().len(), 1024 * 1024);
    client.close(None).await.unwrap();
    while client.next().await.is_some() {}
    ended(&mut fixture.session).await;
    let expected = [Did::Settled(vec![1], Outcome::Reject), Did::Settled(vec![2], Outcome::Ack), Did::Left];
    assert_eq!(*fixture.did.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_lost_mailbox_ends_the_session_with_1011() {
    let mut fixture = session(64 * 1024, LIFETIME).await;
    let mut client = client(std::mem::replace(&mut fixture.client, tokio::io::duplex(1).0)).await;
    fixture.incoming.send(Incoming::Lost("gone".to_owned())).await.unwrap();
    assert_eq!(close_code(&mut client).await.0, 1011);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_in_the_middle_of_a_message_gets_its_answer() {
    let mut fixture = session(1024, LIFETIME).await;
    fixture.deliver(1, 100_000).await;
    let mut seen = vec![0; 500];
    fixture.client.read_exact(&mut seen).await.unwrap();
    let pipe = std::mem::replace(&mut fixture.client, tokio::io::duplex(1).0);
    let mut client = WebSocketStream::from_partially_read(pipe, seen, Role::Client, None).await;
    client.close(None).await.unwrap();
    let mut answered = false;
    while let Some(message) = client.next().await {
        answered |= message.is_ok_and(|message| message.is_close());
    }
    assert!(answered);
    assert!(matches!(ended(&mut fixture.session).await, End::Closed(None)));
    assert_eq!(fixture.did(), [Did::Left]);
}

/// As after a suspended process: the deadline is over, and the answer has been in the socket for long.
#[tokio::test(start_paused = true)]
async fn a_pong_that_lies_in_the_socket_counts_also_when_its_time_is_over() {
    let (mut session, fixture) = prepared(Dialect::Raw, 64 * 1024, LIFETIME, |terms| terms).await;
    let mut client = client(fixture.client).await;
    tokio::time::advance(25 * S).await;
    session.on_timer().await.unwrap();
    while !matches!(poll!(poll_fn(|cx| session.wire.poll_event(cx, true))), Poll::Ready(WireEvent::Flushed)) {}
    session.on_wire(WireEvent::Flushed).unwrap();
    assert!(client.next().await.unwrap().unwrap().is_ping());
    client.flush().await.unwrap();
    tokio::time::advance(11 * S).await;
    assert!(session.on_timer().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_has_room_counts_also_when_the_write_time_is_over() {
    let (mut session, mut fixture) = prepared(Dialect::Raw, 1024, LIFETIME, |terms| terms).await;
    session.on_delivery(Delivery {
        tag: Tag::detached(1),
        redelivered: false,
        body: vec![b'x'; 100_000].into(),
        properties: Properties::default(),
    });
    session.feed().unwrap();
    assert!(poll!(poll_fn(|cx| session.wire.poll_event(cx, true))).is_pending());
    tokio::time::advance(31 * S).await;
    let mut seen = vec![0; 1024];
    fixture.client.read_exact(&mut seen).await.unwrap();
    assert!(session.on_timer().await.is_ok());
    tokio::time::advance(31 * S).await;
    assert!(matches!(session.on_timer().await, Err(End::DoesNotRead)));
}

/// 16 KiB every 20 s: never silent for the write timeout, and slower than the broker waits for an ack.
#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_too_slowly_for_the_broker_is_closed_before_it_costs_the_lane() {
    let mut fixture = session(1024, LIFETIME).await;
    let start = Instant::now();
    fixture.deliver(1, 1024 * 1024).await;
    let mut some = vec![0; 4 * 1024];
    while fixture.session.try_join_next().is_none() {
        let read = timeout(S, fixture.client.read(&mut some)).await;
        if matches!(read, Ok(Ok(0))) {
            break;
        }
        tokio::time::sleep(10 * S).await;
    }
    let took = start.elapsed();
    assert!((25 * 60 * S..26 * 60 * S).contains(&took), "{took:?}");
    assert_eq!(fixture.did(), [Did::Left]);
}

mod with_acks;
