use proptest::prelude::*;
use protocol::v1::Seconds;

use super::*;

const S: Duration = Duration::from_secs(1);
const TIMES: Times = Times { answer: Duration::from_secs(10), idle: None, token_ttl: Duration::from_secs(60) };
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

fn welcome(expires_at: u64) -> ServerFrame<'static> {
    ServerFrame::Welcome(Welcome {
        session: "s".into(),
        client: "c".into(),
        consumer: "a".into(),
        instance: "1".into(),
        pending: 3,
        window: 4,
        expires_at,
        ping_interval: Seconds(25.0),
        resumed: None,
    })
}

fn open(now: Instant) -> Dialogue {
    let mut dialogue = Dialogue::new(TIMES, Behaviour::Good, now);
    let heard = dialogue.on_frame(welcome(EPOCH.as_secs() + 60), now, EPOCH).unwrap();
    assert!(matches!(heard, Heard::Welcome(_)));
    dialogue
}

fn message(seq: u64) -> ServerFrame<'static> {
    ServerFrame::Message(Box::new(v1::Message::new(seq, false, b"x")))
}

#[test]
fn a_refresh_goes_before_a_ping_and_that_before_an_ack() {
    let now = Instant::now();
    let mut dialogue = open(now);
    dialogue.on_frame(message(1), now, EPOCH).unwrap();
    let later = now + 55 * S;
    let said: Vec<_> = std::iter::from_fn(|| dialogue.say(later, || Some("t".to_owned()))).collect();
    let refresh = ClientFrame::Refresh { token: Token("t".into()) };
    assert_eq!(said, [(refresh, 0), (ClientFrame::Ping, 0), (ClientFrame::Ack { seq: 1 }, 1)]);
}

#[test]
fn a_token_that_cannot_be_made_is_a_failed_try_and_holds_up_nothing() {
    let now = Instant::now();
    let mut dialogue = open(now);
    dialogue.on_frame(message(1), now, EPOCH).unwrap();
    let later = now + 52 * S;
    dialogue.heard(later);
    assert_eq!(dialogue.say(later, || None), Some((ClientFrame::Ack { seq: 1 }, 1)));
    assert!(dialogue.wake().unwrap() > later, "and is tried again later");
}

#[test]
fn an_unanswered_refresh_is_said_once() {
    let now = Instant::now();
    let mut dialogue = open(now);
    dialogue.say(now + 55 * S, || Some("t".to_owned())).unwrap();
    let late = now + 65 * S;
    let failed = Heard::RefreshFailed { reason: NO_ANSWER.to_owned(), last: false };
    assert_eq!((dialogue.on_time(late), dialogue.on_time(late)), (failed, Heard::Nothing));
}

#[test]
fn before_the_welcome_nothing_is_said() {
    let now = Instant::now();
    let mut dialogue = Dialogue::new(TIMES, Behaviour::Good, now);
    assert_eq!(dialogue.say(now + 5 * S, || Some(String::new())), None);
    assert_eq!(dialogue.last_ack(now), None);
    assert_eq!((dialogue.is_dead(now + 9 * S), dialogue.wake()), (None, Some(now + 10 * S)));
    assert!(dialogue.is_dead(now + 10 * S).is_some());
}

fn any_frame() -> impl Strategy<Value = ServerFrame<'static>> {
    prop_oneof![
        any::<u64>().prop_map(welcome),
        (0_u64..4).prop_map(message),
        any::<u64>().prop_map(message),
        any::<u64>().prop_map(|expires_at| ServerFrame::Refreshed { expires_at }),
        any::<u64>().prop_map(|seconds| ServerFrame::Expiring { r#in: seconds }),
        Just(ServerFrame::Error { reason: "no".into() }),
        Just(ServerFrame::Notice { event: Event::BrokerLost }),
        Just(ServerFrame::Pong),
        any::<(u16, [u64; 2])>().prop_map(|(code, retry_after_ms)| ServerFrame::Bye {
            code,
            reason: "".into(),
            retry_after_ms
        }),
    ]
}

proptest! {
    /// Whatever a server says and when: no panic, acks ascend and cover only what came, and time alone always comes to
    /// an end: a session that has nothing to say is not woken in a circle.
    #[test]
    fn no_server_breaks_it(
        frames in prop::collection::vec((any_frame(), 0_u64..40_000), 0..60),
        slow in prop::option::of(0_u64..5_000),
    ) {
        let mut now = Instant::now();
        let behaviour = slow.map_or(Behaviour::Good, |ms| Behaviour::Slow(Duration::from_millis(ms)));
        let mut dialogue = Dialogue::new(TIMES, behaviour, now);
        let (mut arrived, mut acked) = (0, 0);
        dialogue.on_frame(welcome(EPOCH.as_secs() + 60), now, EPOCH).unwrap();
        for (frame, ms) in frames {
            now += Duration::from_millis(ms);
            dialogue.heard(now);
            match dialogue.on_frame(frame, now, EPOCH) {
                Ok(Heard::Message(_)) => arrived += 1,
                Ok(_) => {}
                Err(_) => break,
            }
            dialogue.on_time(now);
            while let Some((frame, count)) = dialogue.say(now, || Some(String::new())) {
                if let ClientFrame::Ack { seq } = frame {
                    prop_assert!(seq > acked && seq <= arrived && count == seq - acked);
                    acked = seq;
                }
            }
            let wake = dialogue.wake();
            prop_assert!(wake.is_none_or(|wake| wake > now) || dialogue.is_dead(now).is_some());
            if let Some(bye) = dialogue.bye() {
                let (earliest, latest) = bye.window(now);
                prop_assert!(earliest <= latest);
            }
        }
    }
}
