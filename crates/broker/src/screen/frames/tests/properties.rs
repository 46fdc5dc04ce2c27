//! What is left of a message.

use amq_protocol::{
    protocol::{AMQPClass, BasicProperties, basic::AMQPMethod},
    types::{AMQPValue, FieldTable, ShortString},
};

use super::wire::{DEPTH_MAX, VALUES_MAX};
use super::*;

/// The properties that the library gets, and what was said.
fn read(header: &[u8]) -> (BasicProperties, String) {
    let (out, said) = screened(&[&tune(0), header].concat());
    let [_, AMQPFrame::Header(7, content)] = &parsed(&out)[..] else { panic!("{out:02x?}") };
    assert_eq!((content.class_id, content.body_size), (60, 5));
    (content.properties.clone(), said.join(" + "))
}

/// The headers among them.
fn left_of(entries: &[u8]) -> FieldTable {
    let (properties, said) = read(&with_headers(entries));
    assert_eq!(said, "headers");
    properties.headers().clone().unwrap()
}

fn note(headers: &FieldTable) -> String {
    let Some(AMQPValue::LongString(note)) = headers.inner().get("x-properties") else { panic!("{headers:?}") };
    note.to_string()
}

fn names(headers: &FieldTable) -> Vec<&str> {
    headers.inner().keys().map(ShortString::as_str).collect()
}

#[test]
fn a_bad_message_id_costs_the_message_id() {
    let flags = 1 << 15 | HEADERS | 1 << 12 | 1 << 7 | 1 << 6;
    let list = [
        short(b"text/plain"),
        long(&entry(b"n", b'I', &[0, 0, 0, 5])),
        vec![2],
        short(b"caf\xe9"),
        vec![0, 0, 0, 0, 0, 0, 0, 8],
    ];
    let (properties, said) = read(&header(flags, &list.concat()));
    assert_eq!(said, "message-id");
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "text/plain");
    assert_eq!((*properties.delivery_mode(), *properties.timestamp()), (Some(2), Some(8)));
    assert_eq!(*properties.message_id(), None);
    let headers = properties.headers().clone().unwrap();
    assert_eq!(headers.inner().get("n"), Some(&AMQPValue::LongInt(5)));
    assert_eq!(note(&headers), "unreadable: message-id");
}

#[test]
fn every_short_string_is_looked_at() {
    let strings = [15, 14, 10, 9, 8, 7, 5, 4, 3, 2].map(|bit| 1_u16 << bit);
    let names = "content-type, content-encoding, correlation-id, reply-to, expiration, message-id, type, user-id, app-id, \
                 cluster-id";
    let flags = strings.iter().fold(0, |all, flag| all | flag);
    let (properties, said) = read(&header(flags, &short(b"\xc3\x28").repeat(strings.len())));
    assert_eq!(said, names);
    let headers = properties.headers().clone().unwrap();
    assert_eq!(properties, BasicProperties::default().with_headers(headers), "nothing else is left");
}

#[test]
fn a_bad_header_costs_that_header() {
    let deep = entry(b"deep", b'F', &long(&entry(b"\xff", b'V', b"")));
    let bad_array = entry(b"array", b'A', &long(b"V\xff"));
    let short_value = entry(b"short", b'A', &long(b"I\x00"));
    let latin = entry(b"\xe4", b'V', b"");
    let good = [entry(b"first", b'V', b""), entry(b"last", b't', &[1])];
    let entries = [&good[0][..], &deep, &bad_array, &short_value, &latin, &good[1]].concat();
    let headers = left_of(&entries);
    assert_eq!(names(&headers), ["first", "last", "x-properties"]);
    assert_eq!(note(&headers), "unreadable: headers");
}

#[test]
fn an_unknown_type_costs_what_follows_it_in_the_table() {
    let entries = [entry(b"first", b'V', b""), entry(b"new", b'?', b"12"), entry(b"last", b'V', b"")].concat();
    let (properties, said) = read(&header(HEADERS | 1 << 7, &[long(&entries), short(b"id")].concat()));
    assert_eq!(said, "headers");
    assert_eq!(names(properties.headers().as_ref().unwrap()), ["first", "x-properties"]);
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), "id", "where the table ends is known");
}

#[test]
fn what_follows_a_list_cut_short_is_lost() {
    let flags = 1 << 12 | 1 << 7 | 1 << 6;
    let (properties, said) = read(&header(flags, &[2, 9, b'i']));
    assert_eq!((said.as_str(), *properties.delivery_mode()), ("message-id, timestamp", Some(2)));
    let (properties, said) = read(&header(1 << 12, &[2, 9, b'i']));
    assert_eq!((said.as_str(), *properties.delivery_mode()), ("what follows the last", Some(2)));
}

/// A header of so many tables or arrays in each other, the table of headers among them.
fn nested(levels: usize, kind: u8) -> Vec<u8> {
    let name: &[u8] = if kind == b'F' { b"\x00" } else { b"" };
    let inside = (2..levels).fold(Vec::new(), |inside, _| [name, &[kind], &long(&inside)].concat());
    entry(b"deep", kind, &long(&inside))
}

#[test]
fn tables_in_tables_have_an_end() {
    for kind in *b"FA" {
        let just = with_headers(&nested(DEPTH_MAX, kind));
        assert_eq!(screened(&just), (just, vec![]));
        for levels in [DEPTH_MAX + 1, 20_000] {
            let entries = [nested(levels, kind), entry(b"good", b'V', b"")].concat();
            assert_eq!(names(&left_of(&entries)), ["good", "x-properties"]);
        }
    }
}

#[test]
fn values_have_a_limit() {
    // The array is a value, too.
    let voids = |count| entry(b"many", b'A', &long(&vec![b'V'; count]));
    let just = [tune(0), with_headers(&voids(VALUES_MAX - 1))].concat();
    assert_eq!(screened(&just), (just, vec![]));
    let entries = [voids(VALUES_MAX), entry(b"good", b'V', b""), voids(VALUES_MAX - 1)].concat();
    assert_eq!(names(&left_of(&entries)), ["good", "x-properties"]);
    let entries: Vec<u8> = (0..VALUES_MAX + 9).flat_map(|n| entry(&n.to_be_bytes()[6..], b'V', b"")).collect();
    assert!(left_of(&entries).inner().len() <= VALUES_MAX + 1);
}

#[test]
fn a_producer_s_own_note_is_not_ours() {
    let entries = [entry(b"x-properties", b'S', &long(b"all is well")), entry(b"\xff", b'V', b"")].concat();
    assert_eq!(note(&left_of(&entries)), "unreadable: headers");
}

#[test]
fn where_it_was_published_may_be_no_text() {
    for (exchange, key, lost) in [
        (&b"ex"[..], &b"\xff"[..], "routing key"),
        (b"\xed\xa0\x80", b"key", "exchange"),
        (b"\xff", b"\xff", "exchange, routing key"),
    ] {
        let (out, said) = screened(&deliver(exchange, key));
        assert_eq!(said, [lost]);
        let [AMQPFrame::Method(7, AMQPClass::Basic(AMQPMethod::Deliver(deliver)))] = &parsed(&out)[..] else {
            panic!("{out:02x?}")
        };
        assert_eq!((deliver.consumer_tag.as_str(), deliver.delivery_tag, deliver.redelivered), ("tag", 9, true));
        let kept = [exchange, key].map(|bytes| std::str::from_utf8(bytes).unwrap_or_default());
        assert_eq!([deliver.exchange.as_str(), deliver.routing_key.as_str()], kept);
    }
    let returned = [&[0, 60, 0, 50, 1, 56][..], &short(b"NO_ROUTE"), &short(b"ex"), &short(b"\xff")].concat();
    let got = [&[0, 60, 0, 71, 0, 0, 0, 0, 0, 0, 0, 9, 0][..], &short(b"ex"), &short(b"\xff"), &[0, 0, 0, 1]].concat();
    for method in [returned, got] {
        let (out, said) = screened(&frame(METHOD, &method));
        assert_eq!(said, ["routing key"]);
        assert_eq!(parsed(&out).len(), 1);
    }
}
