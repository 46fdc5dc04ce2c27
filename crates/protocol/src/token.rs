//! Who may have which mailbox: JSON Web Tokens (RFC 7519), signed with HMAC-SHA256.
//!
//! `jsonwebtoken` reads the header and checks the signature; the claims are read and checked here.
//! Its `decode` reads the system clock, takes `iss` as an array, lets a configured `iss` or `aud`
//! pass when the token has none, and refuses an `aud` that nobody configured. With all of that
//! switched off it still reads the claims a second time and stumbles over wrong types in them.

mod claims;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;

use claims::Claims;

/// What the programs use when no secret is configured. Public, so good for a loopback address and
/// nothing else.
pub const DEVELOPMENT_KEY: &str = "public-development-key-of-auth-proxy-not-for-production";

/// How far the clocks of the issuer and the proxy may differ, for `exp` and `nbf`.
pub const LEEWAY: Duration = Duration::from_secs(5);

/// A longer token is refused before anything of it is decoded. Some ten times what identity
/// providers issue; request heads are bounded in the same order.
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// What a valid token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `client_id`, or [`DEFAULT_CLIENT`](crate::names::DEFAULT_CLIENT) when the token has none.
    pub client: String,
    /// `sub`: the consumer id. Not empty; otherwise any text of any length.
    pub consumer: String,
    /// `exp` in unix seconds, a fraction cut off. As far away as the token says, `u64::MAX`
    /// included.
    pub expires_at: u64,
}

impl Identity {
    /// When a session of this identity ends, in unix seconds: `exp` plus [`LEEWAY`], the first
    /// second at which the token is no longer accepted.
    #[must_use]
    pub fn session_ends_at(&self) -> u64 {
        self.expires_at.saturating_add(LEEWAY.as_secs())
    }
}

/// Why a token was refused, or not made. For logs: it says which rule failed and never shows any
/// byte of the token. To the bearer all of them are the same 401.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Above [`TOKEN_BYTES_MAX`].
    #[error("the token has {bytes} bytes of at most {TOKEN_BYTES_MAX}")]
    TooLong {
        /// Of the token.
        bytes: usize,
    },
    /// Not three base64url parts around two dots, or a critical header that nobody here knows.
    #[error("the token is not three base64url parts with a plain header")]
    Malformed,
    /// The header is not one of RFC 7515, or names no algorithm that there is; `none` is none.
    #[error("the token's header is not a JWT header with a known algorithm")]
    Header,
    /// The header names another algorithm than HS256.
    #[error("the token's algorithm is not HS256")]
    Algorithm,
    /// Signed with another key, or changed after it was signed.
    #[error("the token's signature does not fit the key")]
    Signature,
    /// Signed, but the claims are no JSON object, or one that is checked here is there twice.
    #[error("the token's claims are not a JSON object without duplicates")]
    Claims,
    /// A claim that must be there is not.
    #[error("the token has no `{claim}`")]
    Missing {
        /// Its name.
        claim: &'static str,
    },
    /// A claim has the wrong type, or is an empty string.
    #[error("the token's `{claim}` is not what that claim should be")]
    Invalid {
        /// Its name.
        claim: &'static str,
    },
    /// `exp` and the leeway are over.
    #[error("the token expired {ago_s} s ago")]
    Expired {
        /// Seconds since `exp`.
        ago_s: u64,
    },
    /// `nbf` is further away than the leeway.
    #[error("the token is valid only in {in_s} s")]
    NotYetValid {
        /// Seconds until `nbf`.
        in_s: u64,
    },
    /// `iss` is not the configured one.
    #[error("the token's `iss` is not the configured one")]
    Issuer,
    /// The configured audience is not in `aud`.
    #[error("the token's `aud` does not hold the configured one")]
    Audience,
    /// The configured secret is empty, or the library refused it.
    #[error("the secret is empty or unusable as an HMAC key")]
    Key,
    /// The library did not sign; never seen.
    #[error("the token could not be signed")]
    Signing,
}

/// Checks tokens. Built once and shared: checking needs no lock.
#[derive(Clone, Debug)]
pub struct Verifier {
    key: DecodingKey,
    issuer: Option<String>,
    audience: Option<String>,
}

impl Verifier {
    /// For tokens signed with HS256 and this secret, taken as its UTF-8 bytes. With an issuer or
    /// an audience given, tokens must name it.
    ///
    /// # Errors
    /// [`TokenError::Key`] for an empty secret, which everybody knows.
    pub fn hs256(secret: &SecretString, issuer: Option<&str>, audience: Option<&str>) -> Result<Self, TokenError> {
        let key = DecodingKey::from_secret(secret.expose_secret().as_bytes());
        Ok(Verifier {
            key: key.map_err(|_| TokenError::Key)?,
            issuer: issuer.map(str::to_owned),
            audience: audience.map(str::to_owned),
        })
    }

    /// Checks a token against the system clock.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn verify(&self, token: &str) -> Result<Identity, TokenError> {
        self.verify_at(token, unix_now())
    }

    /// Checks a token as if it were `now_unix_s` seconds after 1970.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn verify_at(&self, token: &str, now_unix_s: u64) -> Result<Identity, TokenError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::TooLong { bytes: token.len() });
        }
        let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (_, claims) = message.split_once('.').ok_or(TokenError::Malformed)?;
        check_header(token)?;
        // HS256 whatever the header says, so that no header can choose how it is checked.
        match jsonwebtoken::crypto::verify(signature, message.as_bytes(), &self.key, Algorithm::HS256) {
            Ok(true) => {}
            Ok(false) => return Err(TokenError::Signature),
            Err(_) => return Err(TokenError::Malformed),
        }
        let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|_| TokenError::Malformed)?;
        let claims: Claims = serde_json::from_slice(&claims).map_err(|_| TokenError::Claims)?;
        claims.check(self.issuer.as_deref(), self.audience.as_deref(), now_unix_s)
    }
}

/// The library's errors quote what they did not like, so only their kind goes on.
fn check_header(token: &str) -> Result<(), TokenError> {
    let header = jsonwebtoken::decode_header(token).map_err(|error| match error.kind() {
        ErrorKind::Json(_) => TokenError::Header,
        _ => TokenError::Malformed,
    })?;
    if header.alg != Algorithm::HS256 {
        return Err(TokenError::Algorithm);
    }
    // RFC 7515, section 4.1.11: who does not understand a critical header refuses the token. None
    // is understood here, nor RFC 7797's `b64`, which changes what is signed.
    if header.crit.is_some() || header.extras.inner().contains_key("b64") {
        return Err(TokenError::Malformed);
    }
    Ok(())
}

/// Makes tokens, for load tests and demos: whoever holds the secret is the issuer.
#[derive(Clone, Debug)]
pub struct Minter {
    key: EncodingKey,
}

#[derive(Serialize)]
struct Minted<'a> {
    sub: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<&'a str>,
    exp: u64,
}

impl Minter {
    /// Signs with HS256 and this secret, taken as its UTF-8 bytes.
    ///
    /// # Errors
    /// [`TokenError::Key`] for an empty secret.
    pub fn hs256(secret: &SecretString) -> Result<Self, TokenError> {
        let key = EncodingKey::from_secret(secret.expose_secret().as_bytes());
        Ok(Minter { key: key.map_err(|_| TokenError::Key)? })
    }

    /// A token for this consumer that expires `ttl` from now (whole seconds). `client` goes into
    /// `client_id`; `None` leaves the claim out.
    ///
    /// # Errors
    /// [`TokenError::Invalid`] for an empty consumer or client, which no verifier would take.
    pub fn mint(&self, consumer: &str, client: Option<&str>, ttl: Duration) -> Result<String, TokenError> {
        if consumer.is_empty() {
            return Err(TokenError::Invalid { claim: "sub" });
        }
        if client.is_some_and(str::is_empty) {
            return Err(TokenError::Invalid { claim: "client_id" });
        }
        let exp = unix_now().saturating_add(ttl.as_secs());
        let claims = Minted { sub: consumer, client_id: client, exp };
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.key).map_err(|_| TokenError::Signing)
    }
}

/// A clock before 1970 reads as 1970.
fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
