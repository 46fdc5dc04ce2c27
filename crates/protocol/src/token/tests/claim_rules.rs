//! Well signed tokens, and what their claims are held to.

use super::*;

#[test]
fn exp_is_required_and_has_5_s_of_leeway() {
    let at = |exp: Value| check_claims(&claims_with("exp", exp)).map(|identity| identity.expires_at);
    assert_eq!(check_claims(r#"{"sub":"a"}"#), Err(TokenError::Missing { claim: "exp" }));
    assert_eq!(at(json!(NOW)), Ok(NOW));
    assert_eq!(at(json!(NOW - 4)), Ok(NOW - 4));
    // The session's end is the first refused second: nobody is let in whose session is over.
    assert_eq!(at(json!(NOW - 5)), Err(TokenError::Expired { ago_s: 5 }));
    assert_eq!(at(json!(NOW - 6)), Err(TokenError::Expired { ago_s: 6 }));
    assert_eq!(at(json!(0)), Err(TokenError::Expired { ago_s: NOW }));
    for wrong in [json!(null), json!("1700000060"), json!(true), json!([NOW + 60]), json!({}), json!([])] {
        assert_eq!(at(wrong), Err(TokenError::Invalid { claim: "exp" }));
    }
}

/// Whatever number JSON can hold. As text, since a float literal would round some of them.
#[test]
fn any_exp_is_defined() {
    let at = |exp: &str| check_claims(&format!(r#"{{"sub":"a","exp":{exp}}}"#)).map(|identity| identity.expires_at);
    assert_eq!(at("1700000060.999"), Ok(NOW + 60), "fractions are cut off");
    assert_eq!(at("1699999995.999"), Err(TokenError::Expired { ago_s: 5 }));
    assert_eq!(at("1.70000006e9"), Ok(NOW + 60));
    assert_eq!(at("18446744073709551615"), Ok(u64::MAX));
    assert_eq!(at("18446744073709551616"), Ok(u64::MAX));
    assert_eq!(at("1e300"), Ok(u64::MAX));
    assert_eq!(at("-1"), Err(TokenError::Expired { ago_s: NOW + 1 }));
    assert_eq!(at("-0.0"), Err(TokenError::Expired { ago_s: NOW }));
    assert_eq!(at("-9223372036854775808"), Err(TokenError::Expired { ago_s: NOW + (1 << 63) }));
    assert_eq!(at("-1e300"), Err(TokenError::Expired { ago_s: u64::MAX }));
    assert_eq!(at("1e-300"), Err(TokenError::Expired { ago_s: NOW }));
    for no_number in ["1e999", "NaN", "Infinity", "0x7fffffff", "+1700000060", "01700000060"] {
        assert_eq!(at(no_number), Err(TokenError::Claims), "{no_number}");
    }
}

#[test]
fn nbf_is_honoured_with_5_s_of_leeway() {
    let at = |nbf: Value| check_claims(&claims_with("nbf", nbf)).map(|_| ());
    assert_eq!(at(json!(NOW)), Ok(()));
    assert_eq!(at(json!(NOW + 5)), Ok(()));
    assert_eq!(at(json!(NOW + 6)), Err(TokenError::NotYetValid { in_s: 6 }));
    assert_eq!(at(json!(NOW as f64 + 5.5)), Err(TokenError::NotYetValid { in_s: 6 }));
    assert_eq!(at(json!(u64::MAX)), Err(TokenError::NotYetValid { in_s: u64::MAX - NOW }));
    assert_eq!(at(json!(1e300)), Err(TokenError::NotYetValid { in_s: u64::MAX }));
    assert_eq!(at(json!(-1e300)), Ok(()));
    assert_eq!(at(json!(0)), Ok(()));
    for wrong in [json!(null), json!("0"), json!([]), json!(false)] {
        assert_eq!(at(wrong), Err(TokenError::Invalid { claim: "nbf" }));
    }
}

#[test]
fn a_configured_issuer_must_be_named() {
    let at = |claims: &str| verifier(Some("us"), None).verify_at(&signed(HS256, claims), NOW).map(|_| ());
    assert_eq!(at(&claims_with("iss", "us")), Ok(()));
    assert_eq!(at(&valid_claims()), Err(TokenError::Missing { claim: "iss" }));
    for other in ["them", "US", "us ", ""] {
        assert_eq!(at(&claims_with("iss", other)), Err(TokenError::Issuer));
    }
    for wrong in [json!(["us"]), json!(null), json!(1)] {
        assert_eq!(at(&claims_with("iss", wrong)), Err(TokenError::Invalid { claim: "iss" }));
    }
}

#[test]
fn a_configured_audience_must_be_among_those_named() {
    let at = |claims: &str| verifier(None, Some("us")).verify_at(&signed(HS256, claims), NOW).map(|_| ());
    assert_eq!(at(&claims_with("aud", "us")), Ok(()));
    assert_eq!(at(&claims_with("aud", json!(["them", "us"]))), Ok(()));
    assert_eq!(at(&valid_claims()), Err(TokenError::Missing { claim: "aud" }));
    for other in [json!("them"), json!(["them"]), json!([]), json!("us,them")] {
        assert_eq!(at(&claims_with("aud", other)), Err(TokenError::Audience));
    }
    for wrong in [json!(null), json!(1), json!({ "us": 1 }), json!(["us", 1])] {
        assert_eq!(at(&claims_with("aud", wrong)), Err(TokenError::Invalid { claim: "aud" }));
    }
}

#[test]
fn an_issuer_or_audience_that_nobody_configured_is_no_fault() {
    for claim in ["iss", "aud"] {
        for value in [json!("them"), json!(["them", "others"]), json!(null), json!({ "a": [1] })] {
            assert!(check_claims(&claims_with(claim, value.clone())).is_ok(), "{claim}: {value}");
        }
    }
}

#[test]
fn sub_and_client_id_are_strings_with_something_in_them() {
    assert_eq!(check_claims(&format!(r#"{{"exp":{}}}"#, NOW + 60)), Err(TokenError::Missing { claim: "sub" }));
    for claim in ["sub", "client_id"] {
        for wrong in [json!(""), json!(null), json!(101), json!(["consumer101"]), json!({}), json!(true)] {
            assert_eq!(check_claims(&claims_with(claim, wrong.clone())), Err(TokenError::Invalid { claim }), "{wrong}");
        }
    }
}

#[test]
fn claims_are_one_object_that_names_nothing_twice() {
    for claims in [
        "",
        "null",
        "[]",
        "1",
        "{",
        r#"{"sub":"alice","sub":"bob","exp":1700000060}"#,
        r#"{"sub":"alice","\u0073ub":"bob","exp":1700000060}"#,
        r#"{"sub":"a","exp":1,"exp":1700000060}"#,
        r#"{"sub":"a","exp":1700000060} {}"#,
        r#"["a","b",1700000060]"#,
    ] {
        assert_eq!(check_claims(claims), Err(TokenError::Claims), "{claims}");
    }
}

#[test]
fn deeply_nested_claims_neither_overflow_the_stack_nor_get_in() {
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    for claim in ["sub", "aud", "exp"] {
        let claims = format!(r#"{{"{claim}":{deep}}}"#);
        assert_eq!(check_claims(&claims), Err(TokenError::Claims), "{claim}");
    }
    let unknown = format!(r#"{{"sub":"a","exp":{},"x":{deep}}}"#, NOW + 60);
    assert!(check_claims(&unknown).is_ok(), "skipped without recursion");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| prop::collection::vec(inner, 0..3).prop_map(Value::from))
}

proptest! {
    /// Properly signed claims of any shape: no panic, and what is let in obeys the rules.
    #[test]
    fn arbitrary_claims_are_defined(
        sub in any_json(), client in any_json(), exp in any_json(), nbf in any_json(), aud in any_json(), now in any::<u64>(),
    ) {
        let claims = json!({ "sub": sub, "client_id": client, "exp": exp, "nbf": nbf, "aud": aud }).to_string();
        for audience in [None, Some("us")] {
            if let Ok(identity) = verifier(None, audience).verify_at(&signed(HS256, &claims), now) {
                prop_assert_eq!(&json!(identity.consumer), &sub);
                prop_assert_eq!(&json!(identity.client), &client);
                prop_assert!(identity.session_ends_at() >= now);
            }
        }
    }

    #[test]
    fn exp_and_nbf_are_compared_as_the_contract_says(exp in any::<u64>(), nbf in any::<u64>(), now in any::<u64>(), near in -8i64..8) {
        for (exp, nbf) in [(exp, nbf), (now.saturating_add_signed(near), now.saturating_add_signed(-near))] {
            let claims = json!({ "sub": "a", "exp": exp, "nbf": nbf }).to_string();
            let valid = u128::from(exp) + 5 > now.into() && u128::from(nbf) <= u128::from(now) + 5;
            prop_assert_eq!(verifier(None, None).verify_at(&signed(HS256, &claims), now).is_ok(), valid);
        }
    }
}
