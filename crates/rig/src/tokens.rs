//! Tokens, good and odd. All programs that `rig` starts share one secret.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{EncodingKey, Header};
use protocol::token::Minter;
use secrecy::SecretString;
use serde_json::{Value, json};

/// What the proxies of `rig` accept. Not the development key, so that nothing works by accident.
pub const SECRET: &str = "secret of the tests, 32 bytes and more, known to nobody else";

/// A token for a consumer of the default client, good for an hour.
pub fn token(consumer: &str) -> String {
    minter().mint(consumer, None, Duration::from_secs(3600)).expect("a consumer id")
}

/// As [`token`], for another client.
pub fn token_of(client: &str, consumer: &str) -> String {
    minter().mint(consumer, Some(client), Duration::from_secs(3600)).expect("a client and a consumer id")
}

/// A token that expires so long from now (whole seconds, plus the leeway of 5).
pub fn token_for(consumer: &str, ttl: Duration) -> String {
    minter().mint(consumer, None, ttl).expect("a consumer id")
}

fn minter() -> Minter {
    Minter::hs256(&SecretString::from(SECRET)).expect("the secret is one")
}

/// A token with these claims, whatever they are, signed with [`SECRET`].
pub fn signed(claims: &Value) -> String {
    signed_with(SECRET.as_bytes(), claims)
}

/// A token with these claims, signed with another key.
pub fn signed_with(key: &[u8], claims: &Value) -> String {
    let key = EncodingKey::from_secret(key).expect("a key");
    jsonwebtoken::encode(&Header::default(), claims, &key).expect("claims are JSON")
}

/// A token without a signature: `alg: none`.
pub fn unsigned(claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.", part(&json!({"alg": "none", "typ": "JWT"})), part(claims))
}

/// Unix seconds, `offset` from now: for `exp` and `nbf`.
pub fn unix_time(offset: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_secs();
    i64::try_from(now).expect("the clock is before the end of time") + offset
}
