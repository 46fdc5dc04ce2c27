//! The claims of a token whose signature is good, and the rules they are held to.

use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Number, Value};

use super::{Identity, LEEWAY, TokenError};
use crate::names::DEFAULT_CLIENT;

/// The claims that mean something here. Taken as any JSON first, so that a wrong type is reported
/// by the name of its claim.
#[derive(Default)]
pub(super) struct Claims {
    sub: Claim,
    client_id: Claim,
    exp: Claim,
    nbf: Claim,
    iss: Claim,
    aud: Claim,
}

/// `Some(Value::Null)` is a claim that is there and `null`.
#[derive(Default)]
struct Claim(Option<Value>);

/// By hand, since a derived one takes an array for the object, its elements in order.
impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ClaimsVisitor)
    }
}

struct ClaimsVisitor;

impl<'de> Visitor<'de> for ClaimsVisitor {
    type Value = Claims;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of claims")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Claims, A::Error> {
        let mut claims = Claims::default();
        while let Some(name) = map.next_key::<String>()? {
            let slot = match name.as_str() {
                "sub" => &mut claims.sub,
                "client_id" => &mut claims.client_id,
                "exp" => &mut claims.exp,
                "nbf" => &mut claims.nbf,
                "iss" => &mut claims.iss,
                "aud" => &mut claims.aud,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            // Two parsers could take two different ones for the truth.
            if slot.0.replace(map.next_value()?).is_some() {
                return Err(A::Error::custom("a claim is there twice"));
            }
        }
        Ok(claims)
    }
}

impl Claims {
    pub(super) fn check(
        self,
        issuer: Option<&str>,
        audience: Option<&str>,
        now_unix_s: u64,
    ) -> Result<Identity, TokenError> {
        let now = i128::from(now_unix_s);
        let exp = self.exp.number("exp")?.ok_or(TokenError::Missing { claim: "exp" })?;
        let exp = whole_seconds(&exp, f64::floor).ok_or(TokenError::Invalid { claim: "exp" })?;
        if exp.saturating_add(leeway()) <= now {
            return Err(TokenError::Expired { ago_s: distance(exp, now) });
        }
        if let Some(nbf) = self.nbf.number("nbf")? {
            let nbf = whole_seconds(&nbf, f64::ceil).ok_or(TokenError::Invalid { claim: "nbf" })?;
            if nbf.saturating_sub(leeway()) > now {
                return Err(TokenError::NotYetValid { in_s: distance(now, nbf) });
            }
        }
        if let Some(wanted) = issuer {
            self.iss.must_name(wanted)?;
        }
        if let Some(wanted) = audience {
            self.aud.must_hold(wanted)?;
        }
        Ok(Identity {
            client: self.client_id.text("client_id")?.unwrap_or_else(|| DEFAULT_CLIENT.to_owned()),
            consumer: self.sub.text("sub")?.ok_or(TokenError::Missing { claim: "sub" })?,
            expires_at: unsigned(exp),
        })
    }
}

impl Claim {
    /// A string with something in it.
    fn text(self, claim: &'static str) -> Result<Option<String>, TokenError> {
        match self.0 {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
            Some(_) => Err(TokenError::Invalid { claim }),
        }
    }

    fn number(self, claim: &'static str) -> Result<Option<Number>, TokenError> {
        match self.0 {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(Some(number)),
            Some(_) => Err(TokenError::Invalid { claim }),
        }
    }

    /// RFC 7519, section 4.1.1: one string.
    fn must_name(self, wanted: &str) -> Result<(), TokenError> {
        match self.0 {
            None => Err(TokenError::Missing { claim: "iss" }),
            Some(Value::String(issuer)) if issuer == wanted => Ok(()),
            Some(Value::String(_)) => Err(TokenError::Issuer),
            Some(_) => Err(TokenError::Invalid { claim: "iss" }),
        }
    }

    /// RFC 7519, section 4.1.3: one string, or an array of them that holds ours.
    fn must_hold(self, wanted: &str) -> Result<(), TokenError> {
        let audiences = match self.0 {
            None => return Err(TokenError::Missing { claim: "aud" }),
            Some(Value::Array(audiences)) => audiences,
            Some(one) => vec![one],
        };
        if !audiences.iter().all(Value::is_string) {
            return Err(TokenError::Invalid { claim: "aud" });
        }
        if !audiences.iter().any(|audience| audience == wanted) {
            return Err(TokenError::Audience);
        }
        Ok(())
    }
}

fn leeway() -> i128 {
    i128::from(LEEWAY.as_secs())
}

/// A NumericDate (RFC 7519, section 2) may be negative, have a fraction, or lie beyond any clock.
/// 128 bits hold what a u64 and an i64 can say, and saturate for what a float can.
fn whole_seconds(number: &Number, round: fn(f64) -> f64) -> Option<i128> {
    if let Some(whole) = number.as_u64() {
        return Some(whole.into());
    }
    if let Some(whole) = number.as_i64() {
        return Some(whole.into());
    }
    #[expect(clippy::cast_possible_truncation, reason = "saturation is what is wanted")]
    number.as_f64().map(|float| round(float) as i128)
}

/// From the earlier to the later, as far as a u64 counts.
fn distance(earlier: i128, later: i128) -> u64 {
    unsigned(later.saturating_sub(earlier))
}

fn unsigned(seconds: i128) -> u64 {
    u64::try_from(seconds.max(0)).unwrap_or(u64::MAX)
}
