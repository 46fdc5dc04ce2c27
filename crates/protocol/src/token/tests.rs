//! Shape, header and signature; the claims have a file of their own.

mod claim_rules;

use super::*;
use jsonwebtoken::crypto::sign;
use proptest::prelude::*;
use serde_json::{Value, json};

const SECRET: &str = "the secret of these tests";
const NOW: u64 = 1_700_000_000;
const HS256: &str = r#"{"alg":"HS256","typ":"JWT"}"#;
/// A throwaway key: whoever verifies RS256 publishes it, so an HMAC keyed with it proves nothing.
const RSA_PUBLIC_PEM: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAtNrzIRMH/yc2RdVEmMcw
rz/ZiCH337V37LeRPw5h1dckYlwNJ8X1oPvj6Qd25TvHuEWdkbomBrdYVjzbyrho
V3LtoHNQtXt+Do+WdLcfaI20NWvFQMjYX4f+4z6Y2cxDPkfW6r7cAyxMHaTsVlQ3
RYKkONrfAVXha6Nq3qxzTMYAr/hw2dNGhF3UGkgmc3hC6yJMISvxUYrNLTq7yM9d
mZ23wge2hyKB2slXM4kVID7XUbk+3GXGHjt4vIHx/5o8W9SaTaDn127jem2PF+5t
XrJQJ3pHoqkOMwfIiSi4ZtZi9zH0tFYGrxbOLU1Kv3b+cYR6GSQKf+TrhVKuLkBM
PQIDAQAB
-----END PUBLIC KEY-----
";

fn verifier(issuer: Option<&str>, audience: Option<&str>) -> Verifier {
    Verifier::hs256(&SecretString::from(SECRET), issuer, audience).unwrap()
}

fn check(token: &str) -> Result<Identity, TokenError> {
    verifier(None, None).verify_at(token, NOW)
}

fn check_claims(claims: &str) -> Result<Identity, TokenError> {
    check(&signed(HS256, claims))
}

/// A token with the header and claims as they stand, signed with HMAC whatever the header says.
fn signed_with(key: &[u8], algorithm: Algorithm, header: &str, claims: &str) -> String {
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let signature = sign(message.as_bytes(), &EncodingKey::from_secret(key).unwrap(), algorithm).unwrap();
    format!("{message}.{signature}")
}

fn signed(header: &str, claims: &str) -> String {
    signed_with(SECRET.as_bytes(), Algorithm::HS256, header, claims)
}

fn valid_claims() -> String {
    json!({ "sub": "consumer101", "exp": NOW + 60 }).to_string()
}

/// The valid claims with one more, or another value for one.
fn claims_with(name: &str, value: impl Into<Value>) -> String {
    let mut claims = json!({ "sub": "consumer101", "exp": NOW + 60 });
    claims[name] = value.into();
    claims.to_string()
}

#[test]
fn a_valid_token_is_an_identity() {
    let identity = check_claims(&valid_claims()).unwrap();
    let expected = Identity { client: "consumer".into(), consumer: "consumer101".into(), expires_at: NOW + 60 };
    assert_eq!(identity, expected);
    assert_eq!(identity.session_ends_at(), NOW + 65);
    assert_eq!(check_claims(&claims_with("client_id", "shop")).unwrap().client, "shop");
    assert_eq!(check_claims(&claims_with("sub", "ż #*.%\n🐢")).unwrap().consumer, "ż #*.%\n🐢");
    // Claims that nobody here knows, of any shape.
    assert_eq!(check_claims(&claims_with("jti", json!([{ "a": null }]))), Ok(expected));
}

#[test]
fn what_is_minted_is_valid() {
    let minter = Minter::hs256(&SecretString::from(SECRET)).unwrap();
    let token = minter.mint("consumer101", None, Duration::from_secs(3600)).unwrap();
    let before = unix_now();
    let identity = verifier(None, None).verify(&token).unwrap();
    assert_eq!((identity.consumer.as_str(), identity.client.as_str()), ("consumer101", "consumer"));
    assert!((3590..=3600).contains(&(identity.expires_at - before)), "{identity:?} at {before}");
    let token = minter.mint("ż", Some("shop"), Duration::MAX).unwrap();
    let identity = verifier(None, None).verify(&token).unwrap();
    assert_eq!(identity, Identity { client: "shop".into(), consumer: "ż".into(), expires_at: u64::MAX });
    assert_eq!(identity.session_ends_at(), u64::MAX);
    assert_eq!(minter.mint("", None, Duration::ZERO), Err(TokenError::Invalid { claim: "sub" }));
    assert_eq!(minter.mint("a", Some(""), Duration::ZERO), Err(TokenError::Invalid { claim: "client_id" }));
}

#[test]
fn a_token_that_expired_an_hour_ago_is_refused_by_the_system_clock_too() {
    let token = signed(HS256, &json!({ "sub": "a", "exp": unix_now() - 3600 }).to_string());
    assert!(matches!(verifier(None, None).verify(&token), Err(TokenError::Expired { ago_s: 3600..3700 })));
}

#[test]
fn an_empty_secret_is_no_key() {
    let empty = SecretString::from("");
    assert_eq!(Verifier::hs256(&empty, None, None).unwrap_err(), TokenError::Key);
    assert_eq!(Minter::hs256(&empty).unwrap_err(), TokenError::Key);
}

#[test]
fn the_secret_does_not_show_in_debug_output() {
    let minter = Minter::hs256(&SecretString::from(SECRET)).unwrap();
    let shown = format!("{:?} {minter:?}", verifier(None, None));
    assert!(!shown.contains(SECRET) && !shown.contains(&format!("{:?}", SECRET.as_bytes())), "{shown}");
}

#[test]
fn only_hs256_counts() {
    let message = |alg: &str| {
        let header = json!({ "alg": alg, "typ": "JWT" }).to_string();
        format!("{}.{}.", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(valid_claims()))
    };
    for alg in ["none", "None", "nOnE", "NONE", "", "hs256", "HS256 "] {
        assert_eq!(check(&message(alg)), Err(TokenError::Header), "{alg}, unsigned");
        let header = json!({ "alg": alg }).to_string();
        assert_eq!(check(&signed(&header, &valid_claims())), Err(TokenError::Header), "{alg}, signed");
    }
    assert_eq!(check(&message("HS256")), Err(TokenError::Signature), "no signature");
    for header in [r#"{"typ":"JWT"}"#, r#"{"alg":null}"#, r#"{"alg":["HS256"]}"#, "[]", "null", "{", ""] {
        assert_eq!(check(&signed(header, &valid_claims())), Err(TokenError::Header), "{header}");
    }
    for (alg, algorithm) in [("HS384", Algorithm::HS384), ("HS512", Algorithm::HS512)] {
        let header = json!({ "alg": alg }).to_string();
        let token = signed_with(SECRET.as_bytes(), algorithm, &header, &valid_claims());
        assert_eq!(check(&token), Err(TokenError::Algorithm), "{alg}, genuine");
        let token = signed_with(SECRET.as_bytes(), algorithm, HS256, &valid_claims());
        assert_eq!(check(&token), Err(TokenError::Signature), "{alg} under an HS256 header");
    }
    for alg in ["RS256", "PS512", "ES256", "EdDSA"] {
        let header = json!({ "alg": alg }).to_string();
        assert_eq!(check(&signed(&header, &valid_claims())), Err(TokenError::Algorithm), "{alg}");
    }
}

#[test]
fn a_public_key_is_no_secret() {
    for key in [RSA_PUBLIC_PEM, RSA_PUBLIC_PEM.trim_end()] {
        let token = signed_with(key.as_bytes(), Algorithm::HS256, HS256, &valid_claims());
        assert_eq!(check(&token), Err(TokenError::Signature));
    }
}

#[test]
fn another_key_or_a_changed_token_breaks_the_signature() {
    let other = signed_with(b"another secret", Algorithm::HS256, HS256, &valid_claims());
    assert_eq!(check(&other), Err(TokenError::Signature));
    let token = signed(HS256, &valid_claims());
    let [header, _, signature] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
    let bob = URL_SAFE_NO_PAD.encode(claims_with("sub", "bob"));
    assert_eq!(check(&format!("{header}.{bob}.{signature}")), Err(TokenError::Signature));
    // Each byte of the token, changed into another letter of its alphabet.
    for i in (0..token.len()).filter(|&i| token.as_bytes()[i] != b'.') {
        let letter = if token.as_bytes()[i] == b'A' { "B" } else { "A" };
        let mut changed = token.clone();
        changed.replace_range(i..=i, letter);
        assert!(check(&changed).is_err(), "byte {i}");
    }
}

#[test]
fn the_shape_is_three_parts_and_nothing_else() {
    let token = signed(HS256, &valid_claims());
    let [header, claims, signature] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
    for broken in [
        String::new(),
        ".".into(),
        "..".into(),
        "...".into(),
        "garbage".into(),
        "a.b.c".into(),
        "ż.ż.ż".into(),
        format!("{header}.{claims}"),
        format!("{token}."),
        format!("{token}.{signature}"),
        format!(".{token}"),
        format!("{token}\n"),
        format!("{token} "),
        format!(" {token}"),
        format!("{token}="),
        format!("Bearer {token}"),
        format!("{header}\n.{claims}.{signature}"),
    ] {
        assert!(matches!(check(&broken), Err(TokenError::Malformed | TokenError::Header)), "{broken:?}");
    }
    assert_eq!(check(&format!("{header}.{claims}\n.{signature}")), Err(TokenError::Signature));
    // Signed as it stands, and still no base64url.
    let message = format!("{header}.{claims}=");
    let key = EncodingKey::from_secret(SECRET.as_bytes()).unwrap();
    let signature = sign(message.as_bytes(), &key, Algorithm::HS256).unwrap();
    assert_eq!(check(&format!("{message}.{signature}")), Err(TokenError::Malformed));
}

#[test]
fn a_critical_header_is_never_understood() {
    for header in [
        r#"{"alg":"HS256","crit":["exp"],"exp":1}"#,
        r#"{"alg":"HS256","crit":[]}"#,
        r#"{"alg":"HS256","crit":["b64"],"b64":true}"#,
        r#"{"alg":"HS256","b64":false}"#,
    ] {
        assert_eq!(check(&signed(header, &valid_claims())), Err(TokenError::Malformed), "{header}");
    }
    // What is not critical is ignored, as RFC 7515 asks for.
    assert!(check(&signed(r#"{"alg":"HS256","kid":"7","typ":"at+jwt","x":[1]}"#, &valid_claims())).is_ok());
}

#[test]
fn a_token_above_16_kib_is_refused_unread() {
    let long = |n: usize| signed(HS256, &claims_with("sub", "x".repeat(n)));
    assert!(check(&long(12_000)).is_ok());
    let too_long = long(13_000);
    assert_eq!(check(&too_long), Err(TokenError::TooLong { bytes: too_long.len() }));
    assert_eq!(check(&"x".repeat(TOKEN_BYTES_MAX)), Err(TokenError::Malformed));
    assert_eq!(check(&"x".repeat(TOKEN_BYTES_MAX + 1)), Err(TokenError::TooLong { bytes: TOKEN_BYTES_MAX + 1 }));
}

#[test]
fn an_error_shows_no_byte_of_the_token() {
    let marked = |header: &str, claims: &str| check(&signed(header, claims)).unwrap_err();
    for error in [
        marked(HS256, &claims_with("sub", json!(["MARK"]))),
        marked(HS256, r#"{"sub":"MARK","sub":"MARK"}"#),
        marked(HS256, r#""MARK""#),
        marked(HS256, &claims_with("exp", "MARK")),
        marked(r#"{"alg":"MARK"}"#, &valid_claims()),
        marked(r#"{"alg":"HS256","crit":["MARK"],"MARK":1}"#, &valid_claims()),
        check("MARK").unwrap_err(),
        check("MARK.MARK.MARK").unwrap_err(),
        verifier(Some("a"), None).verify_at(&signed(HS256, &claims_with("iss", "MARK")), NOW).unwrap_err(),
        verifier(None, Some("a")).verify_at(&signed(HS256, &claims_with("aud", "MARK")), NOW).unwrap_err(),
    ] {
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("MARK"), "{shown}");
    }
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(token in prop_oneof![any::<String>(), "[a-zA-Z0-9_-]{0,40}(\\.[a-zA-Z0-9_-]{0,40}){0,4}"]) {
        prop_assert!(check(&token).is_err());
    }

    #[test]
    fn arbitrary_signed_parts_never_panic(header in any::<String>(), claims in any::<String>()) {
        prop_assert!(check(&signed(&header, &claims)).is_err());
        prop_assert!(check(&signed(HS256, &claims)).is_err());
    }
}
