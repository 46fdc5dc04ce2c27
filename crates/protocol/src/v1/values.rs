use std::{borrow::Cow, fmt, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::headers;

/// A time span in seconds, whole where it can be: `25`, `0.5`. Finite; JSON has no other numbers.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

impl From<Duration> for Seconds {
    fn from(duration: Duration) -> Self {
        Self(duration.as_secs_f64())
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 && (0.0..9e15).contains(&self.0) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked in the line above")]
            return serializer.serialize_u64(self.0 as u64);
        }
        serializer.serialize_f64(self.0)
    }
}

/// A token on its way; its `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Token<'a>(pub Cow<'a, str>);

impl fmt::Debug for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Bytes that JSON cannot carry as text: standard base64 with padding (RFC 4648, section 4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base64<'a>(pub(super) Cow<'a, [u8]>);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&headers::to_base64(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        BASE64_STANDARD.decode(text.as_bytes()).map(|bytes| Self(Cow::Owned(bytes))).map_err(serde::de::Error::custom)
    }
}
