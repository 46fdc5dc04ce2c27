use protocol::{
    token::Minter,
    v1::{self, ClientFrame},
};

use super::*;

struct Client(WebSocketStream<DuplexStream>);

impl Client {
    async fn next(&mut self) -> ServerFrame<'static> {
        loop {
            match self.0.next().await.unwrap().unwrap() {
                Message::Text(text) => return ServerFrame::parse(&text).unwrap(),
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The seqs of so many messages.
    async fn messages(&mut self, count: usize) -> Vec<u64> {
        let mut seqs = Vec::new();
        while seqs.len() < count {
            match self.next().await {
                ServerFrame::Message(message) => seqs.push(message.seq),
                other => panic!("{other:?}"),
            }
        }
        seqs
    }

    async fn say(&mut self, frame: ClientFrame<'_>) {
        self.0.send(Message::text(frame.encode())).await.unwrap();
    }

    /// Answers pings for so long, and hears nothing else.
    async fn idle(&mut self, time: Duration) {
        let heard = timeout(time, self.next()).await;
        assert!(heard.is_err(), "{heard:?}");
    }

    async fn ack(&mut self, seq: u64) {
        self.say(ClientFrame::Ack { seq }).await;
    }

    async fn nack(&mut self, seq: u64, requeue: bool) {
        self.say(ClientFrame::Nack { seq, requeue }).await;
    }

    async fn refresh(&mut self, token: &str) {
        self.say(ClientFrame::Refresh { token: v1::Token(token.into()) }).await;
    }

    /// Comes back when the session has worked off what was said before.
    async fn round_trip(&mut self) {
        self.say(ClientFrame::Ping).await;
        assert_eq!(self.next().await, ServerFrame::Pong);
    }
}

async fn v1_with(lifetime: Duration, adjust: impl Fn(Terms) -> Terms) -> (Fixture, Client) {
    let (session, mut fixture) = prepared(Dialect::V1, 64 * 1024, lifetime, adjust).await;
    fixture.session.spawn(session.run());
    let mut client = Client(client(std::mem::replace(&mut fixture.client, tokio::io::duplex(1).0)).await);
    // In the place of a welcome, which the gateway makes.
    assert_eq!(client.next().await, ServerFrame::Pong);
    (fixture, client)
}

async fn v1() -> (Fixture, Client) {
    v1_with(LIFETIME, |terms| terms).await
}

fn token(consumer: &str, lifetime: Duration) -> String {
    Minter::hs256(&SECRET.into()).unwrap().mint(consumer, None, lifetime).unwrap()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_settled_before_the_client_says_so() {
    let (fixture, mut client) = v1().await;
    for number in 1..=4 {
        fixture.deliver(number, 10).await;
    }
    assert_eq!(client.messages(4).await, [1, 2, 3, 4]);
    client.round_trip().await;
    assert_eq!(fixture.did(), []);
    client.ack(2).await;
    client.nack(4, false).await;
    client.ack(4).await;
    client.round_trip().await;
    let expected = [
        Did::Settled(vec![1, 2], Outcome::Ack),
        Did::Settled(vec![4], Outcome::Reject),
        Did::Settled(vec![3], Outcome::Ack),
    ];
    assert_eq!(fixture.did(), expected);
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_goes_after_a_pause_that_grows() {
    let (fixture, mut client) = v1().await;
    let mut waited = Vec::new();
    for number in 1..=4 {
        fixture.deliver(number, 10).await;
        assert_eq!(client.messages(1).await, [number]);
        let (start, before) = (Instant::now(), fixture.did().len());
        client.nack(number, true).await;
        while fixture.did().len() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        waited.push(start.elapsed().as_millis() / 100);
    }
    assert_eq!(waited, [1, 2, 4, 8], "in tenths of a second");
    let requeued: Vec<_> = (1..=4).map(|number| Did::Settled(vec![number], Outcome::Requeue)).collect();
    assert_eq!(fixture.did(), requeued);
}

#[tokio::test(start_paused = true)]
async fn what_breaks_the_contract_ends_with_4501() {
    let (ahead, unknown) = (ClientFrame::Ack { seq: 2 }.encode(), r#"{"type":"subscribe"}"#);
    let texts = [&ahead, unknown, "{", "", "[]", r#"{"type":"ack"}"#, r#"{"type":"ack","seq":-1}"#];
    for said in texts.map(Message::text).into_iter().chain([Message::binary(&b"{\"type\":\"ping\"}"[..])]) {
        let (mut fixture, mut client) = v1().await;
        fixture.deliver(1, 10).await;
        assert_eq!(client.messages(1).await, [1]);
        client.0.send(said.clone()).await.unwrap();
        assert_eq!(close_code(&mut client.0).await.0, 4501, "{said:?}");
        assert!(matches!(ended(&mut fixture.session).await, End::ContractBroken(_)));
        assert_eq!(fixture.did(), [Did::Left], "nothing is settled");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_nothing_is_closed_with_4006() {
    let (mut fixture, mut client) = v1().await;
    let start = Instant::now();
    client.idle(300 * S).await;
    fixture.deliver(1, 10).await;
    fixture.deliver(2, 10).await;
    client.messages(2).await;
    client.idle(20 * S).await;
    client.ack(1).await;
    client.ack(1).await;
    let (code, _) = close_code(&mut client.0).await;
    assert_eq!(
        (code, start.elapsed().as_secs()),
        (4006, 350),
        "30 s after its last answer, 300 s of nothing to answer"
    );
    while client.0.next().await.is_some() {}
    assert!(matches!(ended(&mut fixture.session).await, End::NoAck));
}

/// One message a second, and always a full window: never silent for long.
#[tokio::test(start_paused = true)]
async fn a_slow_client_that_answers_stays() {
    let (mut fixture, mut client) = v1().await;
    for number in 1..=16 {
        fixture.deliver(number, 10).await;
    }
    for number in 1..=200 {
        assert_eq!(client.messages(1).await, [number]);
        tokio::time::sleep(S).await;
        client.ack(number).await;
        fixture.deliver(number + 16, 10).await;
    }
    client.say(ClientFrame::Ping).await;
    while client.next().await != ServerFrame::Pong {}
    assert!(fixture.session.try_join_next().is_none());
}

/// It has acked all but one, for as long as the broker has patience.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_left_out_for_25_minutes_ends_the_session() {
    let (mut fixture, mut client) = v1().await;
    let start = Instant::now();
    fixture.deliver(1, 10).await;
    client.messages(1).await;
    for number in 2.. {
        fixture.deliver(number, 10).await;
        client.messages(1).await;
        client.idle(10 * S).await;
        client.nack(number, false).await;
        if start.elapsed() > 1485 * S {
            break;
        }
    }
    assert_eq!(close_code(&mut client.0).await.0, 4006);
    assert!((1500..1520).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert!(matches!(ended(&mut fixture.session).await, End::NoAck));
}

#[tokio::test(start_paused = true)]
async fn after_an_interruption_acks_of_before_go_nowhere() {
    let (fixture, mut client) = v1().await;
    fixture.deliver(1, 10).await;
    fixture.deliver(2, 10).await;
    client.messages(2).await;
    fixture.incoming.send(Incoming::Interrupted { redelivers: true }).await.unwrap();
    assert_eq!(client.next().await, ServerFrame::Notice { event: v1::Event::BrokerLost });
    client.ack(2).await;
    fixture.incoming.send(Incoming::Restored { recreated: false }).await.unwrap();
    assert_eq!(client.next().await, ServerFrame::Notice { event: v1::Event::BrokerBack });
    fixture.deliver(1, 10).await;
    assert_eq!(client.messages(1).await, [3], "seqs go on");
    client.round_trip().await;
    assert_eq!(fixture.did(), []);
    client.ack(3).await;
    client.round_trip().await;
    assert_eq!(fixture.did(), [Did::Settled(vec![1], Outcome::Ack)]);
}

#[tokio::test(start_paused = true)]
async fn a_mailbox_made_anew_is_told_and_no_outage_is() {
    let (fixture, mut client) = v1().await;
    fixture.incoming.send(Incoming::Interrupted { redelivers: false }).await.unwrap();
    fixture.incoming.send(Incoming::Restored { recreated: true }).await.unwrap();
    assert_eq!(client.next().await, ServerFrame::Notice { event: v1::Event::QueueRecreated });
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_a_session_only_where_the_operator_says_so() {
    for (limit, expected) in [(None, 4001), (Some(600 * S), 4005)] {
        let (fixture, mut client) = v1_with(LIFETIME, |terms| Terms { outage_limit: limit, ..terms }).await;
        let start = Instant::now();
        fixture.incoming.send(Incoming::Interrupted { redelivers: true }).await.unwrap();
        assert_eq!(close_code(&mut client.0).await.0, expected);
        let after = if limit.is_some() { 600 } else { 3605 };
        assert_eq!(start.elapsed().as_secs(), after);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_moves_the_end_and_its_warning() {
    let (_fixture, mut client) = v1_with(100 * S, |terms| terms).await;
    let start = Instant::now();
    assert_eq!(client.next().await, ServerFrame::Expiring { r#in: 20 }, "a fifth of what there was");
    assert_eq!(start.elapsed().as_secs(), 80);
    client.refresh(&token("a", 1000 * S)).await;
    let ServerFrame::Refreshed { expires_at: told } = client.next().await else { panic!("not refreshed") };
    assert!((expires_at(999 * S)..=expires_at(1000 * S)).contains(&told));
    assert_eq!(client.next().await, ServerFrame::Expiring { r#in: 60 });
    assert!((80 + 938..=80 + 941).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!(close_code(&mut client.0).await.0, 4001);
    assert!((80 + 1003..=80 + 1006).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_refused_refresh_leaves_the_old_end() {
    let (_fixture, mut client) = v1_with(100 * S, |terms| terms).await;
    let start = Instant::now();
    let stranger = Minter::hs256(&"another secret of thirty-two bytes".into()).unwrap();
    let [bad_signature, other_client] = [(&stranger, None), (&Minter::hs256(&SECRET.into()).unwrap(), Some("other"))]
        .map(|(minter, client)| minter.mint("a", client, 1000 * S).unwrap());
    let refused =
        [token("b", 1000 * S), other_client, token("a", 50 * S), bad_signature, String::new(), "x.y.z".to_owned()];
    for token in refused {
        client.refresh(&token).await;
        let answer = client.next().await;
        assert!(matches!(answer, ServerFrame::Error { .. }), "{answer:?}");
    }
    assert!(matches!(client.next().await, ServerFrame::Expiring { .. }));
    assert_eq!(close_code(&mut client.0).await.0, 4001);
    assert_eq!(start.elapsed().as_secs(), 105);
}

#[tokio::test(start_paused = true)]
async fn a_draining_session_says_goodbye_first_and_takes_acks_until_it_leaves() {
    let pace = |terms: Terms| Terms { drain: Drain { pace: 20 * S, timeout: 22 * S, ..terms.drain }, ..terms };
    let (mut fixture, mut client) = v1_with(LIFETIME, pace).await;
    fixture.deliver(1, 10).await;
    fixture.deliver(2, 10).await;
    client.messages(2).await;
    fixture.drain.cancel();
    let start = Instant::now();
    let ServerFrame::Bye { code: 4002, retry_after_ms: [min, max], .. } = client.next().await else { panic!("no bye") };
    assert!(max - min == 2500 && max <= 10_000, "{min}-{max}");
    client.ack(1).await;
    let (code, reason) = close_code(&mut client.0).await;
    assert_eq!((code, reason), (4002, format!("draining; reconnect after {min}-{max} ms")));
    assert!(start.elapsed() <= 20 * S);
    assert_eq!(fixture.did(), [Did::Settled(vec![1], Outcome::Ack), Did::Left]);
    while client.0.next().await.is_some() {}
    assert!(matches!(ended(&mut fixture.session).await, End::Draining(_)));
}

/// It asks without end and reads nothing: what it says waits in the socket, and its end comes in time.
#[tokio::test(start_paused = true)]
async fn a_client_that_asks_and_does_not_read_costs_a_bounded_amount() {
    let (session, mut fixture) = prepared(Dialect::V1, 1024, LIFETIME, |terms| terms).await;
    fixture.session.spawn(session.run());
    let mut client = client(std::mem::replace(&mut fixture.client, tokio::io::duplex(1).0)).await;
    let mut said = 0;
    while let Ok(Ok(())) = timeout(S, client.send(Message::text(ClientFrame::Ping.encode()))).await {
        said += 1;
    }
    assert!(said < 2_000, "{said} pings were taken");
    assert!(matches!(ended(&mut fixture.session).await, End::DoesNotRead));
}

/// The library answers the protocol's pings by itself, into its buffer.
#[tokio::test(start_paused = true)]
async fn a_client_that_pings_and_does_not_read_costs_a_bounded_amount() {
    for dialect in [Dialect::Raw, Dialect::V1] {
        let (session, mut fixture) = prepared(dialect, 1024, LIFETIME, |terms| terms).await;
        fixture.session.spawn(session.run());
        let mut client = client(std::mem::replace(&mut fixture.client, tokio::io::duplex(1).0)).await;
        let mut said = 0;
        while let Ok(Ok(())) = timeout(S, client.send(Message::Ping(vec![b'x'; 125].into()))).await {
            said += 1;
        }
        assert!(said < 50, "{said} pings were taken");
        assert!(matches!(ended(&mut fixture.session).await, End::DoesNotRead));
    }
}
