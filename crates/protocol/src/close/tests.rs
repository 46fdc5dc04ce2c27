use super::*;
use expect_test::expect;
use proptest::prelude::*;

/// The contract: a change here is a change of what clients were promised.
#[test]
fn the_table() {
    let mut table = String::new();
    for code in CloseCode::ALL {
        table += &format!(
            "{} {} ({:?})\n    {} -> {} ({:?})\n",
            code.code(),
            code.label(),
            code.reason(),
            code.meaning(),
            code.advice(),
            code.duty()
        );
    }
    expect![[r#"
        1000 normal ("goodbye")
            client leaves -> – (Leave)
        1001 going_away ("going away")
            client leaves -> – (Leave)
        1002 protocol ("WebSocket protocol error")
            WebSocket protocol error -> mend (Stop)
        1007 not_utf8 ("text is not UTF-8")
            not UTF-8 -> mend (Stop)
        1009 too_big ("message too big")
            too big -> mend (Stop)
        1011 internal ("internal error")
            our fault -> reconnect with backoff (ReconnectWithBackoff)
        4001 token_expired ("token expired")
            token expired -> get a new token, reconnect (NewToken)
        4002 draining ("draining")
            draining (SIGTERM), raw and v1 -> reconnect within the window in `bye` (raw: in the close reason) (Reconnect)
        4003 does_not_read ("does not read")
            does not read (write deadline) -> reconnect with backoff (ReconnectWithBackoff)
        4004 no_pong ("no pong")
            no pong -> reconnect (Reconnect)
        4005 broker_unavailable ("broker unavailable")
            broker unavailable longer than the operator allows -> reconnect with backoff (ReconnectWithBackoff)
        4006 ack_timeout ("no ack")
            neither ack nor nack for `--ack-timeout` while something waits for one -> reconnect (Reconnect)
        4500 token_invalid ("token invalid")
            token invalid -> stop (Stop)
        4501 contract_broken ("contract broken")
            contract broken -> stop (Stop)
        4503 revoked ("revoked")
            revoked -> stop (Stop)
        4504 limit_reached ("limit reached")
            limit reached -> stop (Stop)
        4506 replaced ("replaced by a newer connection")
            replaced by a newer connection of the same instance -> stop (Stop)
    "#]].assert_eq(&table);
}

#[test]
fn every_row_fits_where_it_is_used() {
    assert!(CloseCode::ALL.is_sorted_by_key(|code| code.code()), "the README lists them in this order");
    for (i, code) in CloseCode::ALL.iter().enumerate() {
        assert!(code.reason().len() <= REASON_BYTES_MAX, "{code:?}");
        assert!(code.label().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{code:?}");
        assert!(CloseCode::ALL[..i].iter().all(|other| other.label() != code.label()), "{code:?}");
        assert!(!code.meaning().contains('|') && !code.advice().contains('|'), "{code:?} breaks the README's table");
        let stays_away = code.duty() == Duty::Stop;
        match code.code() {
            4000..=4499 => assert!(!stays_away, "{code:?}"),
            4500..=4999 => assert!(stays_away, "{code:?}"),
            number => assert!(number < 4000, "{code:?}"),
        }
    }
}

#[test]
fn unknown_codes_are_obeyed_by_their_range() {
    for code in [1005, 1006, 1012, 1013, 3000, 3999, 4000, 4007, 4499, 5000, 0, u16::MAX] {
        assert_eq!(duty_of(code), Duty::ReconnectWithBackoff, "{code}");
    }
    for code in [4502, 4505, 4507, 4999] {
        assert_eq!(duty_of(code), Duty::Stop, "{code}");
    }
}

#[test]
fn a_drain_names_the_window_to_come_back_in() {
    let window = RetryWindow { min_ms: 250, max_ms: 5000 };
    assert_eq!(window.to_string(), "draining; reconnect after 250-5000 ms");
    assert_eq!(RetryWindow::from_reason("draining; reconnect after 250-5000 ms"), Some(window));
    for reason in [
        "",
        "draining",
        "draining; reconnect after 5000-250 ms",
        "draining; reconnect after 250 ms",
        "draining; reconnect after +250-5000 ms",
        "draining; reconnect after 250-5000 ms ",
        "draining; reconnect after 0-18446744073709551616 ms",
    ] {
        assert_eq!(RetryWindow::from_reason(reason), None, "{reason:?}");
    }
}

proptest! {
    #[test]
    fn a_number_is_one_of_ours_or_none(number in any::<u16>()) {
        match CloseCode::from_code(number) {
            Some(code) => {
                prop_assert_eq!(code.code(), number);
                prop_assert_eq!(duty_of(number), code.duty());
            }
            None => prop_assert!(CloseCode::ALL.iter().all(|code| code.code() != number)),
        }
    }

    #[test]
    fn a_window_is_read_back_and_fits_the_close_frame(a in any::<u64>(), b in any::<u64>()) {
        let window = RetryWindow { min_ms: a.min(b), max_ms: a.max(b) };
        let reason = window.to_string();
        prop_assert!(reason.len() <= REASON_BYTES_MAX);
        prop_assert_eq!(RetryWindow::from_reason(&reason), Some(window));
    }

    #[test]
    fn foreign_reasons_never_panic(reason in any::<String>()) {
        let _ = RetryWindow::from_reason(&reason);
    }
}
