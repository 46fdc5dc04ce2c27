use super::*;

const MS: Duration = Duration::from_millis(1);

fn texts(lines: impl IntoIterator<Item = Line>) -> Vec<String> {
    let text = |line| match line {
        Line::Info(text) | Line::Warn(text) | Line::Error(text) => text,
    };
    lines.into_iter().map(text).collect()
}

fn connected(total: u64, now: Instant) -> Status {
    let mut status = Status::new(total, now);
    for _ in 0..total {
        status.on_connected(now);
    }
    status
}

#[test]
fn all_connected_is_said_at_once_and_once() {
    let now = Instant::now();
    let mut status = Status::new(2, now);
    assert_eq!(status.on_connected(now), None);
    assert_eq!(status.on_connected(now), Some(Line::Info("Connected 2 of 2".to_owned())));
    assert_eq!(status.due(now + SAY_EVERY), []);
}

#[test]
fn progress_comes_every_few_seconds() {
    let now = Instant::now();
    let mut status = Status::new(3, now);
    status.on_connected(now);
    assert_eq!(status.due(now + SAY_EVERY - MS), []);
    assert_eq!(texts(status.due(now + SAY_EVERY)), ["Connected 1 of 3"]);
    status.on_connected(now + SAY_EVERY);
    assert_eq!(status.due(now + SAY_EVERY + MS), []);
    assert_eq!(texts(status.due(now + SAY_EVERY * 2)), ["Connected 2 of 3"]);
}

#[test]
fn a_thousand_drops_are_one_line() {
    let now = Instant::now();
    let mut status = connected(1_000, now);
    for _ in 0..998 {
        status.on_ended(&End::Broken("connection reset".into()), false, now);
    }
    status.on_ended(&End::closed(4001, ""), false, now);
    status.on_ended(&End::Left, false, now);
    assert_eq!(status.due(now + GATHER - MS), []);
    let line = "Disconnected 999, 0 of 1000 connected now: 998 × connection reset, 1 × close 4001 token expired";
    assert_eq!(texts(status.due(now + GATHER)), [line]);
    status.on_ended(&End::Silent, false, now + GATHER);
    assert_eq!(status.due(now + GATHER * 2), [], "not again so soon");
    assert_eq!(texts(status.due(now + GATHER + SAY_EVERY)).len(), 1);
}

#[test]
fn all_back_after_a_drop_is_said_again() {
    let now = Instant::now();
    let mut status = connected(2, now);
    status.on_ended(&End::Silent, false, now);
    assert_eq!(status.on_connected(now + MS), None, "one that flaps waits for its turn");
    status.flush(now + MS);
    assert_eq!(texts(status.due(now + SAY_FULL_EVERY)), ["Connected 2 of 2"]);
}

#[test]
fn local_causes_and_stops_have_lines_of_their_own() {
    let now = Instant::now();
    let mut status = connected(3, now);
    status.on_failed(&Failure::Local(crate::limits::LocalCause::Descriptors), now);
    status.on_failed(&Failure::Other("connection refused".into()), now);
    status.on_ended(&End::closed(4506, ""), true, now);
    status.on_stopped(&End::closed(4506, ""), || "consumer.consumer101.1".to_owned(), now);
    let lines = status.flush(now);
    assert!(matches!(lines.last(), Some(Line::Error(_))), "{lines:?}");
    let texts = texts(lines);
    assert_eq!(texts.len(), 3, "what stopped is not said twice: {texts:?}");
    assert!(
        texts[0].starts_with("This machine, not the server, stopped 1 connects, 2 of 3 connected now: 1 × no file")
    );
    assert_eq!(texts[1], "Could not connect 1 times, 2 of 3 connected now: 1 × connection refused");
    assert_eq!(
        texts[2],
        "Stopped 1 for good (1 of 3), consumer.consumer101.1 first: 1 × close 4506 replaced by a newer connection"
    );
}

#[test]
fn what_the_server_tells_many_is_one_line() {
    use protocol::v1::Event;
    let now = Instant::now();
    let mut status = connected(3, now);
    for _ in 0..3 {
        status.on_noted(&Note::Notice(Event::BrokerLost), now);
    }
    status.on_noted(&Note::refresh_failed("bad\nsignature", false), now);
    status.on_noted(&Note::NotResumed, now);
    let lines = texts(status.due(now + GATHER));
    assert_eq!(lines.len(), 1);
    let start = "Told 5 times by the server, 3 of 3 connected now: 3 × broker-lost, deliveries pause, 1 × ";
    assert!(lines[0].starts_with(start), "{lines:?}");
    assert!(lines[0].contains("1 × the mailbox was gone at the reconnect, there may be a gap"));
    assert!(lines[0].contains("1 × token not refreshed, will try again: bad\\nsignature"), "{lines:?}");
}

#[test]
fn a_server_that_invents_causes_fills_no_memory() {
    let now = Instant::now();
    let mut status = connected(100, now);
    for code in 3_000..3_100 {
        status.on_ended(&End::Closed { code, window: None }, false, now);
    }
    assert_eq!(status.dropped.causes.len(), CAUSES + 1);
    assert!(texts(status.due(now + GATHER))[0].contains("92 × other causes"));
}
