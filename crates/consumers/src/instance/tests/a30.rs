//! The report A30: storms of reconnects, refusals that are asked for ever, one odd answer that stops all. What needs a
//! server is in `tests/loopback.rs`.

use super::*;

const INSTANCES: usize = 5_000;
const TENTH: Duration = Duration::from_millis(100);

/// When each of many instances knocks, from the moment in which all lose their connection: until `up_at` in vain.
fn knocks(up_at: Duration) -> (Vec<Duration>, Vec<Duration>) {
    let mut rig = rig("--protocol v1");
    let crowd = crate::policy::crowd(INSTANCES as u64, rig.world.backoff_cap);
    let (mut all, mut back) = (Vec::new(), Vec::new());
    for _ in 0..INSTANCES {
        rig.instance.backoff.reset();
        let lost = after_end(&End::Broken("connection reset".into()));
        let mut now = rig.instance.pause_before(lost, crowd, false).unwrap();
        all.push(now);
        while now < up_at {
            let refused = after_failure(&Failure::Other("connection refused".into()));
            now += rig.instance.pause_before(refused, Duration::ZERO, true).unwrap();
            all.push(now);
        }
        back.push(now);
    }
    (all, back)
}

fn busiest_tenth(knocks: &[Duration]) -> usize {
    let mut tenths = std::collections::HashMap::<u128, usize>::new();
    for knock in knocks {
        *tenths.entry(knock.as_millis() / TENTH.as_millis()).or_default() += 1;
    }
    tenths.into_values().max().unwrap()
}

#[test]
fn a30_a_server_that_is_back_at_once_meets_no_storm() {
    let (all, back) = knocks(Duration::ZERO);
    let (first, last) = (back.iter().min().unwrap(), back.iter().max().unwrap());
    assert!(*last - *first >= Duration::from_secs(5), "all are back between {first:?} and {last:?}");
    assert!(*last <= Duration::from_secs(60));
    // Even over 10 s they would be 50; 1,000 would be a storm.
    assert!(busiest_tenth(&all) <= 150, "{} in one tenth of a second", busiest_tenth(&all));
}

#[test]
fn a30_a_server_that_was_away_is_not_beaten_when_it_returns() {
    let up_at = Duration::from_secs(10);
    let (all, back) = knocks(up_at);
    let last = *back.iter().max().unwrap();
    assert!(last <= Duration::from_secs(60), "the last is back after {last:?}");
    assert!(last - up_at >= Duration::from_secs(5), "all within {:?}", last - up_at);
    // A refused connect costs little: it is tried again sooner than a lost connection. At half a second each they
    // would be 1,000.
    assert!(busiest_tenth(&all) <= 400, "{} in one tenth of a second", busiest_tenth(&all));
    assert!(all.len() <= INSTANCES * 10, "{} attempts", all.len());
}

#[tokio::test]
async fn a30_a_short_window_at_once_and_again_does_not_keep_the_pauses_short() {
    let mut rig = rig("--protocol v1 --backoff-cap 1h");
    let drain = End::Closed { code: 4002, window: Some((Duration::ZERO, Duration::from_millis(1))) };
    let mut longest = Duration::ZERO;
    for _ in 0..30 {
        longest = longest.max(rig.instance.on_end(&rig.world, drain.clone(), TENTH).await.unwrap());
    }
    assert!(longest > Duration::from_secs(10), "{longest:?}");
    let lived = Duration::from_secs(60);
    let pause = rig.instance.on_end(&rig.world, drain, lived).await.unwrap();
    assert!(pause <= Duration::from_millis(1), "one that lived is obeyed to the letter: {pause:?}");
}

#[tokio::test]
async fn a30_refusals_are_asked_once_and_counted() {
    for status in [400, 401, 403, 404, 409] {
        let mut rig = rig("--protocol v1");
        let failure = Failure::Answer { status, retry_after: None };
        assert_eq!(rig.instance.on_failure(&rig.world, failure).await, None, "{status}");
        assert!(rig.instance.outcome.stopped && rig.instance.outcome.failed == 1);
    }
}
