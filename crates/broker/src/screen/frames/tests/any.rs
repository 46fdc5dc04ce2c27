//! Frames of all kinds: those that an honest client library writes, and those that only look like it.

use amq_protocol::{
    frame::{AMQPContentHeader, AMQPFrame, gen_frame},
    protocol::BasicProperties,
    types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString},
};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{BODY, FRAME_END, HEAD_BYTES, HEARTBEAT, deliver, frame, header, tune};

fn text() -> impl Strategy<Value = ShortString> {
    "\\PC{0,12}".prop_map(|text| ShortString::from(text.as_str()))
}

fn value() -> impl Strategy<Value = AMQPValue> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(AMQPValue::Boolean),
        any::<i8>().prop_map(AMQPValue::ShortShortInt),
        any::<u8>().prop_map(AMQPValue::ShortShortUInt),
        any::<i16>().prop_map(AMQPValue::ShortInt),
        any::<u16>().prop_map(AMQPValue::ShortUInt),
        any::<i32>().prop_map(AMQPValue::LongInt),
        any::<u32>().prop_map(AMQPValue::LongUInt),
        any::<i64>().prop_map(AMQPValue::LongLongInt),
        any::<u32>().prop_map(|bits| AMQPValue::Float(f32::from_bits(bits))),
        any::<u64>().prop_map(|bits| AMQPValue::Double(f64::from_bits(bits))),
        any::<(u8, u32)>().prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
        any::<u64>().prop_map(AMQPValue::Timestamp),
        vec(any::<u8>(), 0..12).prop_map(|bytes| AMQPValue::LongString(bytes.into())),
        vec(any::<u8>(), 0..12).prop_map(|bytes| AMQPValue::ByteArray(bytes.into())),
        Just(AMQPValue::Void),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|values| AMQPValue::FieldArray(FieldArray::from(values))),
            vec((text(), inner), 0..4).prop_map(|entries| AMQPValue::FieldTable(table(entries))),
        ]
    })
}

fn table(entries: Vec<(ShortString, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name, value);
    }
    table
}

fn properties() -> impl Strategy<Value = BasicProperties> {
    let texts = vec(proptest::option::of(text()), 8);
    let rest = (any::<Option<u8>>(), any::<Option<u64>>(), proptest::option::of(vec((text(), value()), 0..5)));
    (texts, rest).prop_map(|(texts, (octet, time, headers))| {
        let mut properties = BasicProperties::default();
        let mut texts = texts.into_iter().flatten();
        if let Some(text) = texts.next() {
            properties = properties.with_content_type(text);
        }
        if let Some(text) = texts.next() {
            properties = properties.with_message_id(text);
        }
        if let Some(text) = texts.next() {
            properties = properties.with_content_encoding(text).with_delivery_mode(2);
        }
        if let Some(text) = texts.next() {
            properties = properties.with_cluster_id(text.clone()).with_app_id(text);
        }
        if let Some(text) = texts.next() {
            properties = properties.with_reply_to(text.clone()).with_type(text);
        }
        if let Some(text) = texts.next() {
            properties = properties.with_correlation_id(text.clone()).with_expiration(text.clone()).with_user_id(text);
        }
        if let Some(octet) = octet {
            properties = properties.with_priority(octet);
        }
        if let Some(time) = time {
            properties = properties.with_timestamp(time);
        }
        if let Some(headers) = headers {
            properties = properties.with_headers(table(headers));
        }
        properties
    })
}

/// A header frame as the library itself writes it.
pub(super) fn honest_header() -> impl Strategy<Value = Vec<u8>> {
    properties().prop_map(|properties| {
        let content = AMQPContentHeader { class_id: 60, body_size: 5, properties };
        let mut bytes = vec![0; 1 << 16];
        let written = gen_frame(&AMQPFrame::Header(7, content))(bytes.as_mut_slice().into()).unwrap();
        let length = usize::try_from(written.into_inner().1).unwrap();
        bytes.truncate(length);
        bytes
    })
}

/// Frames that the library can read.
pub(super) fn honest() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => honest_header(),
        2 => ("\\PC{0,9}", "\\PC{0,9}").prop_map(|(exchange, key)| deliver(exchange.as_bytes(), key.as_bytes())),
        2 => vec(any::<u8>(), 0..200).prop_map(|body| frame(BODY, &body)),
        1 => Just(frame(HEARTBEAT, b"")),
        1 => Just(tune(131_072)),
    ]
}

/// An honest header frame with some bytes of its properties changed, or cut short, or of bytes thrown together.
pub(super) fn twisted_header() -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<Index>(), any::<u8>()), 0..4);
    let changed = (honest_header(), changes, any::<Index>(), any::<bool>()).prop_map(|(bytes, changes, end, cut)| {
        let mut list = bytes[HEAD_BYTES + 12..bytes.len() - 1].to_vec();
        for (place, byte) in changes {
            let place = place.index(list.len());
            list[place] = byte;
        }
        if cut {
            list.truncate(2.max(end.index(list.len())));
        }
        header(u16::from_be_bytes([list[0], list[1]]), &list[2..])
    });
    // Letters of types and small lengths, or next to nothing would be a table
    let byte = prop_oneof![
        3 => Just(0),
        2 => 0_u8..20,
        4 => proptest::sample::select(b"tbBsUuIiLlfdDSATFxVqQ\xff".to_vec()),
        1 => any::<u8>(),
    ];
    prop_oneof![3 => changed, 1 => (any::<u16>(), vec(byte, 0..60)).prop_map(|(flags, list)| header(flags, &list))]
}

/// Whatever a producer may make a broker send.
pub(super) fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let bytes = || vec(any::<u8>(), 0..9);
    prop_oneof![
        3 => twisted_header(),
        1 => (bytes(), bytes()).prop_map(|(exchange, key)| deliver(&exchange, &key)),
        2 => honest(),
    ]
}

pub(super) fn stream(frame: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    vec(frame, 1..12).prop_map(|frames| frames.concat()).prop_filter("ends", |bytes| bytes.ends_with(&[FRAME_END]))
}
