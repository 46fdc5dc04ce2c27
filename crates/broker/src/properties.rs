//! What a producer said about a message, as far as clients are told.

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldArray, FieldTable},
};
use protocol::{
    names::HEADER_SENT_AT,
    v1::{Headers, headers},
};
use serde_json::Value;

/// How deep tables and arrays in headers are followed. JSON readers have limits of their own (128 is common).
const DEPTH_MAX: usize = 32;

/// The properties of a message; read when it is its turn to be sent.
// Boxed: some 400 bytes that only one of the dialects looks at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties(Option<Box<BasicProperties>>);

impl From<BasicProperties> for Properties {
    fn from(properties: BasicProperties) -> Self {
        Self(Some(Box::new(properties)))
    }
}

impl Properties {
    /// Unique per message, if its producer keeps to that.
    pub fn message_id(&self) -> Option<&str> {
        self.0.as_ref()?.message_id().as_ref().map(lapin::types::ShortString::as_str)
    }

    /// The media type of the body.
    pub fn content_type(&self) -> Option<&str> {
        self.0.as_ref()?.content_type().as_ref().map(lapin::types::ShortString::as_str)
    }

    /// The producer's time, in unix seconds.
    pub fn timestamp(&self) -> Option<u64> {
        *self.0.as_ref()?.timestamp()
    }

    /// The header `x-sent-at`: the producer's time, in unix microseconds.
    pub fn sent_at(&self) -> Option<u64> {
        self.table()?.inner().get(HEADER_SENT_AT).and_then(sent_at)
    }

    /// The other headers as JSON. A value deeper than 32 tables is left out and said so in its place.
    pub fn headers(&self) -> Headers {
        let Some(table) = self.table() else { return Headers::new() };
        let told =
            table.into_iter().filter(|(name, value)| name.as_str() != HEADER_SENT_AT || sent_at(value).is_none());
        told.map(|(name, value)| (name.to_string(), json(value, 1))).collect()
    }

    fn table(&self) -> Option<&FieldTable> {
        self.0.as_ref()?.headers().as_ref()
    }
}

fn sent_at(value: &AMQPValue) -> Option<u64> {
    match value {
        AMQPValue::LongLongInt(micros) => u64::try_from(*micros).ok(),
        _ => None,
    }
}

fn json(value: &AMQPValue, depth: usize) -> Value {
    match value {
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::ShortShortInt(value) => (*value).into(),
        AMQPValue::ShortShortUInt(value) => (*value).into(),
        AMQPValue::ShortInt(value) => (*value).into(),
        AMQPValue::ShortUInt(value) => (*value).into(),
        AMQPValue::LongInt(value) => (*value).into(),
        AMQPValue::LongUInt(value) => (*value).into(),
        AMQPValue::LongLongInt(value) => headers::integer(*value),
        AMQPValue::Float(value) => headers::float((*value).into()),
        AMQPValue::Double(value) => headers::float(*value),
        AMQPValue::DecimalValue(decimal) => {
            headers::float(f64::from(decimal.value) / 10f64.powi(i32::from(decimal.scale)))
        }
        AMQPValue::ShortString(text) => text.as_str().into(),
        AMQPValue::LongString(text) => headers::text(text.as_bytes()),
        AMQPValue::Timestamp(seconds) => headers::unsigned(*seconds),
        AMQPValue::ByteArray(bytes) => headers::bytes(bytes.as_slice()),
        AMQPValue::Void => Value::Null,
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) if depth > DEPTH_MAX => "(nested too deeply)".into(),
        AMQPValue::FieldArray(array) => list(array, depth + 1),
        AMQPValue::FieldTable(table) => {
            table.into_iter().map(|(name, value)| (name.to_string(), json(value, depth + 1))).collect()
        }
    }
}

fn list(array: &FieldArray, depth: usize) -> Value {
    array.as_slice().iter().map(|value| json(value, depth)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn properties(headers: impl IntoIterator<Item = (&'static str, AMQPValue)>) -> Properties {
        let mut table = FieldTable::default();
        headers.into_iter().for_each(|(name, value)| {
            table.insert(name.into(), value);
        });
        BasicProperties::default().with_headers(table).into()
    }

    #[test]
    fn nothing_said_is_nothing_told() {
        for nothing in [Properties::default(), BasicProperties::default().into()] {
            assert_eq!((nothing.message_id(), nothing.content_type()), (None, None));
            assert_eq!((nothing.timestamp(), nothing.sent_at()), (None, None));
            assert!(nothing.headers().is_empty());
        }
    }

    #[test]
    fn each_kind_of_header_has_its_json() {
        let mut table = FieldTable::default();
        table.insert("in".into(), AMQPValue::FieldArray(vec![AMQPValue::Void, AMQPValue::Boolean(true)].into()));
        let properties = properties([
            ("small", AMQPValue::ShortShortInt(-1)),
            ("large", AMQPValue::LongLongInt((1 << 53) + 1)),
            ("nan", AMQPValue::Double(f64::NAN)),
            ("text", AMQPValue::LongString("ä".into())),
            ("latin", AMQPValue::LongString(vec![0xE4].into())),
            ("bytes", AMQPValue::ByteArray(vec![0, 1].into())),
            ("time", AMQPValue::Timestamp(7)),
            ("decimal", AMQPValue::DecimalValue(lapin::types::DecimalValue { scale: 2, value: 150 })),
            ("table", AMQPValue::FieldTable(table)),
        ]);
        let expected = json!({
            "small": -1, "large": "9007199254740993", "nan": "NaN", "text": "ä", "latin": {"base64": "5A=="},
            "bytes": {"base64": "AAE="}, "time": 7, "decimal": 1.5, "table": {"in": [null, true]},
        });
        assert_eq!(Value::Object(properties.headers()), expected);
    }

    #[test]
    fn the_time_of_sending_is_told_once() {
        let good = properties([(HEADER_SENT_AT, AMQPValue::LongLongInt(5)), ("a", AMQPValue::Void)]);
        assert_eq!((good.sent_at(), good.headers().len()), (Some(5), 1));
        let bad = properties([(HEADER_SENT_AT, AMQPValue::LongLongInt(-5))]);
        assert_eq!((bad.sent_at(), bad.headers().len()), (None, 1), "what is no time stays a header");
    }

    #[test]
    fn a_timestamp_is_in_seconds_and_so_no_time_of_sending() {
        let properties = properties([(HEADER_SENT_AT, AMQPValue::Timestamp(1_700_000_000))]);
        assert_eq!(properties.sent_at(), None);
        assert_eq!(Value::Object(properties.headers()), json!({"x-sent-at": 1_700_000_000}));
    }

    #[test]
    fn deep_tables_end_somewhere() {
        let mut value = AMQPValue::Void;
        for _ in 0..1_000 {
            value = AMQPValue::FieldArray(vec![value].into());
        }
        let text = Value::Object(properties([("deep", value)]).headers()).to_string();
        assert!(text.contains("nested too deeply") && text.len() < 200, "{text}");
    }
}
