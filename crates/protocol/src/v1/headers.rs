//! AMQP values as JSON: strings, booleans and numbers as themselves, what JSON has no type for as said at each function.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

/// The largest integer up to which a JavaScript number is exact: 2^53.
const EXACT_MAX: u64 = 1 << 53;

/// An integer; beyond ±2^53 as a string, since a browser would round it.
pub fn integer(value: i64) -> Value {
    if value.unsigned_abs() <= EXACT_MAX { value.into() } else { value.to_string().into() }
}

/// As [`integer`].
pub fn unsigned(value: u64) -> Value {
    if value <= EXACT_MAX { value.into() } else { value.to_string().into() }
}

/// A float; `NaN` and the infinities, which JSON does not have, as strings.
pub fn float(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number)
}

/// A string if the bytes are UTF-8, else as [`bytes()`].
pub fn text(value: &[u8]) -> Value {
    std::str::from_utf8(value).map_or_else(|_| bytes(value), Value::from)
}

/// Bytes: `{"base64": "…"}`.
pub fn bytes(value: &[u8]) -> Value {
    json!({ "base64": to_base64(value) })
}

pub(super) fn to_base64(value: &[u8]) -> String {
    BASE64_STANDARD.encode(value)
}
