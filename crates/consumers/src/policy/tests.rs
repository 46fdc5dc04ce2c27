use super::*;

const S: Duration = Duration::from_secs(1);
const CAP: Duration = Duration::from_secs(20);

fn answer(status: u16, retry_after: Option<Duration>) -> Next {
    after_failure(&Failure::Answer { status, retry_after })
}

fn close(code: u16, reason: &str) -> Next {
    after_end(&End::closed(code, reason))
}

#[test]
fn refusals_stop_and_trouble_does_not() {
    for status in [400, 401, 403, 404, 405, 409, 426] {
        assert_eq!(answer(status, None), Next::Stop, "{status}");
        assert_eq!(answer(status, Some(S)), Next::Stop, "{status}: a Retry-After changes nothing");
    }
    for status in [200, 302, 408, 425, 429, 500, 502, 503, 504] {
        assert_eq!(answer(status, None), Next::Backoff, "{status}");
        assert_eq!(answer(status, Some(7 * S)), Next::After(7 * S), "{status}");
    }
    for failure in [
        Failure::Local(LocalCause::Ports),
        Failure::Late { what: "connection", after: S },
        Failure::Other("connection refused".into()),
    ] {
        assert_eq!(after_failure(&failure), Next::Backoff);
    }
}

#[test]
fn a_server_cannot_park_an_instance_for_a_day() {
    assert_eq!(answer(503, Some(Duration::from_secs(86_400))), Next::After(SERVER_WAIT_MAX));
    assert_eq!(close(4002, &reason(86_400_000, 86_400_001)), Next::Within(SERVER_WAIT_MAX, SERVER_WAIT_MAX));
}

#[test]
fn every_close_code_gets_its_duty() {
    for code in CloseCode::ALL {
        let expected = if code.duty() == Duty::Stop { Next::Stop } else { Next::Backoff };
        assert_eq!(close(code.code(), ""), expected, "{code:?}");
    }
    assert_eq!(close(4506, ""), Next::Stop);
    assert_eq!(close(4777, ""), Next::Stop, "an unknown code of the range that says stay away");
    assert_eq!(close(4444, ""), Next::Backoff, "an unknown code of the range that says come back");
    for end in [End::Broken("connection reset".into()), End::Silent, End::Closed { code: 1005, window: None }] {
        assert_eq!(after_end(&end), Next::Backoff);
    }
}

#[test]
fn a_draining_proxy_names_the_window() {
    let window = Next::Within(Duration::from_millis(500), Duration::from_millis(3_000));
    assert_eq!(close(4002, &reason(500, 3_000)), window);
    assert_eq!(close(4002, "draining"), Next::Backoff, "no window");
    assert_eq!(close(4004, &reason(500, 3_000)), Next::Backoff, "only a drain has a window");
    assert_eq!(close(4002, &reason(0, 0)), Next::Backoff, "nobody comes back in the same moment as everyone");
}

#[test]
fn a_bye_counts_whatever_the_end_looks_like() {
    let window = (Duration::from_millis(500), Duration::from_millis(3_000));
    let within = Next::Within(window.0, window.1);
    for end in [
        End::closed(4002, ""),
        End::closed(4002, &reason(1, 2)),
        End::of_close_frame(None),
        End::without_close_frame(),
        End::Dead("no pong in time"),
    ] {
        let end = end.after_bye(4002, window);
        assert_eq!((after_end(&end), &end), (within, &End::Closed { code: 4002, window: Some(window) }));
    }
    let expired = End::closed(4001, "").after_bye(4001, window);
    assert_eq!(after_end(&expired), within, "not only a drain says when");
    let other = End::closed(4506, "").after_bye(4002, window);
    assert_eq!(after_end(&other), Next::Stop, "the close code that came counts more");
    assert_eq!(
        after_end(&End::closed(4002, "").after_bye(4002, (Duration::ZERO, Duration::ZERO))),
        Next::Backoff,
        "the window is over"
    );
    assert_eq!(End::Left.after_bye(4002, window), End::Left);
}

#[test]
fn a_server_that_speaks_something_else_is_not_asked_again_and_one_that_errs_is() {
    let failure = Failure::Protocol { wanted: "rabbitmq-msg.v1" };
    assert_eq!(after_failure(&failure), Next::Stop);
    assert!(failure.to_string().contains("rabbitmq-msg.v1"));
    let bad = End::Bad(BadFrame::BeforeWelcome);
    assert_eq!(after_end(&bad), Next::Backoff);
    assert!(!proves_recovery(&bad, 19 * S, CAP) && proves_recovery(&bad, CAP, CAP));
}

fn reason(min_ms: u64, max_ms: u64) -> String {
    RetryWindow { min_ms, max_ms }.to_string()
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
    let parsed = |value| retry_after(value, now);
    assert_eq!(parsed("0"), Some(Duration::ZERO));
    assert_eq!(parsed(" 120 "), Some(120 * S));
    assert_eq!(parsed("99999999999999999999999"), Some(Duration::from_secs(u64::MAX)));
    assert_eq!(parsed("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30 * S));
    assert_eq!(parsed("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO), "past");
    for value in ["", "soon", "-1", "1.5", "+3"] {
        assert_eq!(parsed(value), None, "{value}");
    }
}

#[test]
fn a_short_life_does_not_reset_the_backoff() {
    let broken = End::Broken("connection reset".into());
    assert!(!proves_recovery(&broken, S * 9 / 10, CAP));
    assert!(proves_recovery(&broken, S, CAP));
    let expired = End::closed(4001, "");
    assert!(!proves_recovery(&expired, S / 2, CAP));
    assert!(proves_recovery(&expired, S, CAP));
    let broker_away = End::closed(4005, "");
    assert!(!proves_recovery(&broker_away, 19 * S, CAP), "a server in trouble must outlast the longest pause");
    assert!(proves_recovery(&broker_away, CAP, CAP));
}
