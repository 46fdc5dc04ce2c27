use std::time::Duration;

use broker::properties::Properties;
use bytes::Bytes;
use proptest::prelude::*;
use protocol::frame::FRAGMENT_BYTES;

use super::*;

const NOTHING: [u64; 0] = [];

fn delivery(number: u64, bytes: usize) -> Delivery {
    Delivery {
        tag: Tag::detached(number),
        redelivered: false,
        body: Bytes::from(vec![b'x'; bytes]),
        properties: Properties::default(),
    }
}

fn tags(sent: impl IntoIterator<Item = Sent>) -> Vec<u64> {
    sent.into_iter().map(|sent| sent.tag.number()).collect()
}

/// An outbox of which all of so many deliveries are fed and flushed.
fn sent(dialect: Dialect, deliveries: u64) -> Outbox {
    let mut outbox = Outbox::new(dialect);
    (1..=deliveries).for_each(|number| outbox.push(delivery(number, 1), Instant::now()));
    while outbox.next_frame().is_some() {}
    outbox.flushed(Instant::now());
    outbox
}

fn text(outbox: &mut Outbox) -> String {
    let mut text = Vec::new();
    loop {
        let frame = outbox.next_frame().unwrap();
        text.extend_from_slice(&frame.payload);
        if frame.fin {
            return String::from_utf8(text).unwrap();
        }
    }
}

#[test]
fn a_raw_delivery_settles_with_the_flush_after_its_last_frame() {
    let mut outbox = Outbox::new(Dialect::Raw);
    outbox.push(delivery(1, FRAGMENT_BYTES + 1), Instant::now());
    assert!(outbox.next_frame().is_some_and(|frame| !frame.fin));
    assert_eq!(tags(outbox.flushed(Instant::now())), NOTHING, "half a message settles nothing");
    assert!(outbox.next_frame().is_some_and(|frame| frame.fin));
    assert!(outbox.next_frame().is_none());
    assert_eq!(tags(outbox.flushed(Instant::now())), [1]);
    assert_eq!(tags(outbox.flushed(Instant::now())), NOTHING, "once");
}

#[test]
fn an_empty_body_is_one_frame() {
    let mut outbox = Outbox::new(Dialect::Raw);
    outbox.push(delivery(1, 0), Instant::now());
    assert!(outbox.next_frame().is_some_and(|frame| frame.fin && frame.payload.is_empty()));
    assert_eq!(tags(outbox.flushed(Instant::now())), [1]);
}

#[test]
fn the_oldest_is_the_first_that_is_not_settled() {
    let (mut outbox, now) = (Outbox::new(Dialect::Raw), Instant::now());
    let later = now + Duration::from_secs(1);
    assert_eq!(outbox.oldest(), None);
    outbox.push(delivery(1, FRAGMENT_BYTES + 1), now);
    outbox.push(delivery(2, 1), later);
    for what in ["waiting", "half fed", "fed"] {
        assert_eq!((outbox.oldest(), outbox.unsettled()), (Some(now), 2), "{what}");
        outbox.next_frame();
    }
    assert_eq!(outbox.flushed(now).len(), 2);
    assert_eq!((outbox.oldest(), outbox.unsettled()), (None, 0));
}

#[test]
fn an_interruption_finishes_the_message_that_is_half_sent_and_forgets_the_rest() {
    for dialect in [Dialect::Raw, Dialect::V1] {
        let (mut outbox, now) = (sent(dialect, 3), Instant::now());
        outbox.push(delivery(4, 2 * FRAGMENT_BYTES), now);
        outbox.push(delivery(5, 1), now);
        outbox.next_frame();
        outbox.forget();
        assert_eq!((outbox.oldest(), outbox.unsettled()), (None, 0));
        while outbox.next_frame().is_some_and(|frame| !frame.fin) {}
        assert!(outbox.next_frame().is_none());
        assert_eq!(tags(outbox.flushed(now)), NOTHING);
        assert_eq!(tags(outbox.ack(4, now).unwrap()), NOTHING, "the client had it, under a tag that is no more");
    }
}

#[test]
fn a_v1_delivery_settles_with_its_ack_and_not_before() {
    let (mut outbox, now) = (sent(Dialect::V1, 4), Instant::now());
    assert_eq!(tags(outbox.flushed(now)), NOTHING);
    assert_eq!(tags(outbox.ack(2, now).unwrap()), [1, 2]);
    assert_eq!(tags(outbox.ack(2, now).unwrap()), NOTHING, "repeated");
    assert_eq!(tags(outbox.ack(1, now).unwrap()), NOTHING, "old");
    assert_eq!(tags(outbox.ack(4, now).unwrap()), [3, 4]);
    assert_eq!(outbox.ack(5, now).err(), Some(NotSent));
    assert_eq!(outbox.ack(u64::MAX, now).err(), Some(NotSent));
}

#[test]
fn an_ack_may_come_before_the_flush_but_not_before_the_last_frame() {
    let (mut outbox, now) = (Outbox::new(Dialect::V1), Instant::now());
    outbox.push(delivery(1, FRAGMENT_BYTES), now);
    assert!(outbox.next_frame().is_some_and(|frame| !frame.fin));
    assert_eq!(outbox.ack(1, now).err(), Some(NotSent));
    assert!(outbox.next_frame().is_some_and(|frame| frame.fin));
    assert_eq!(tags(outbox.ack(1, now).unwrap()), [1]);
}

#[test]
fn a_nack_takes_one_out_and_no_later_ack_touches_it() {
    let (mut outbox, now) = (sent(Dialect::V1, 3), Instant::now());
    assert_eq!(tags(outbox.nack(2, now).unwrap()), [2]);
    assert_eq!(outbox.nack(2, now), Ok(None));
    assert_eq!(outbox.nack(4, now), Err(NotSent));
    assert_eq!(tags(outbox.ack(3, now).unwrap()), [1, 3]);
}

#[test]
fn a_client_is_silent_from_the_flush_or_its_last_answer_on() {
    let (mut outbox, now) = (Outbox::new(Dialect::V1), Instant::now());
    let [a, b, c, d] = [1, 2, 3, 4].map(|seconds| now + Duration::from_secs(seconds));
    outbox.push(delivery(1, 1), now);
    outbox.push(delivery(2, 1), now);
    outbox.next_frame();
    assert_eq!(outbox.silent_since(), None, "it may not have it yet");
    outbox.flushed(a);
    outbox.next_frame();
    outbox.flushed(b);
    assert_eq!(outbox.silent_since(), Some(a), "since the first that it has");
    let _ = outbox.ack(1, c);
    assert_eq!(outbox.silent_since(), Some(c));
    let _ = outbox.ack(1, d);
    assert_eq!(outbox.silent_since(), Some(c), "what says nothing new is no answer");
    let _ = outbox.ack(2, d);
    assert_eq!(outbox.silent_since(), None);
}

#[test]
fn what_is_said_goes_between_messages() {
    let (mut outbox, now) = (Outbox::new(Dialect::V1), Instant::now());
    outbox.push(delivery(1, FRAGMENT_BYTES), now);
    outbox.push(delivery(2, 1), now);
    let first = outbox.next_frame().unwrap();
    outbox.say(&v1::ServerFrame::Pong);
    assert!(!first.fin && outbox.unsaid() == 1);
    assert!(outbox.next_frame().is_some_and(|frame| frame.fin));
    assert_eq!(text(&mut outbox), r#"{"type":"pong"}"#);
    assert!(text(&mut outbox).contains(r#""seq":2"#));
}

#[test]
fn a_v1_message_has_its_number_and_its_body() {
    let mut outbox = Outbox::new(Dialect::V1);
    outbox.push(Delivery { redelivered: true, body: Bytes::from_static(b"\xFFx"), ..delivery(7, 0) }, Instant::now());
    assert_eq!(text(&mut outbox), r#"{"type":"message","seq":1,"redelivered":true,"bodyBase64":"/3g="}"#);
}

proptest! {
    /// Whatever the sizes and wherever the flushes: every delivery settles once, in order, not before its last frame.
    #[test]
    fn raw_deliveries_settle_once_and_in_order(
        sizes in prop::collection::vec(0..3 * FRAGMENT_BYTES, 1..12),
        flushes in prop::collection::vec(any::<bool>(), 64),
    ) {
        let mut outbox = Outbox::new(Dialect::Raw);
        for (number, size) in (1..).zip(&sizes) {
            outbox.push(delivery(number, *size), Instant::now());
        }
        let (mut settled, mut complete) = (Vec::new(), 0);
        for flush in flushes.into_iter().chain([true]) {
            match outbox.next_frame() {
                Some(frame) if frame.fin => complete += 1,
                _ => {}
            }
            if flush {
                settled.extend(tags(outbox.flushed(Instant::now())));
                prop_assert_eq!(settled.len(), complete);
            }
        }
        prop_assert_eq!(settled, (1..=complete as u64).collect::<Vec<_>>());
        prop_assert_eq!(complete, sizes.len());
    }

    /// Whatever a v1 client answers and when: each delivery is handed out once, by an answer that covers it, after its
    /// last frame.
    #[test]
    fn v1_deliveries_are_handed_out_once_and_only_to_an_answer(
        steps in prop::collection::vec((0..4u8, 0..30u64), 0..200),
    ) {
        let (mut outbox, now) = (Outbox::new(Dialect::V1), Instant::now());
        (1..=20).for_each(|number| outbox.push(delivery(number, 1), now));
        let (mut fed, mut settled) = (0, std::collections::BTreeSet::new());
        for (step, seq) in steps {
            let handed_out = match step {
                0 => {
                    fed += u64::from(outbox.next_frame().is_some());
                    Ok(Vec::new())
                }
                1 => Ok(tags(outbox.flushed(now))),
                2 => outbox.ack(seq, now).map(tags),
                _ => outbox.nack(seq, now).map(tags),
            };
            match handed_out {
                Err(NotSent) => prop_assert!(seq > fed),
                Ok(numbers) => for number in numbers {
                    prop_assert!(step >= 2 && number <= fed);
                    prop_assert!((step == 2 && number <= seq) || number == seq);
                    prop_assert!(settled.insert(number), "{} twice", number);
                }
            }
            prop_assert_eq!(outbox.unsettled(), 20 - settled.len());
        }
    }
}
