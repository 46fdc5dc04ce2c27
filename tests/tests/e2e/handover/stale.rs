//! What comes late, what is none of ours, and what cannot be said at all.

use serde_json::json;
use std::time::{SystemTime, UNIX_EPOCH};

use super::*;

const NOBODY: u64 = 4711;
/// Far below the time that the broker's part of an upgrade may take, and above what a busy machine needs.
const AT_ONCE: Duration = Duration::from_secs(15);

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

/// A notice as a proxy would have said it that is not there any more.
fn notice(order: &Value) -> Value {
    json!({"v": 1, "from": NOBODY, "queue": queue("a"), "type": "notice",
           "claimant": {"order": order, "fresh": true, "age_ms": 0}})
}

fn confirm(ask: &Value) -> Value {
    json!({"v": 1, "from": NOBODY, "queue": queue("a"), "type": "confirm", "to": ask["from"], "nonce": ask["nonce"],
           "claimant": {"order": ask["order"], "fresh": true, "age_ms": 0}})
}

impl Spy {
    async fn says_json(&self, message: &Value) {
        self.says(message.to_string().as_bytes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notice_that_arrives_minutes_late_ends_nobody() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let mut client = joined(&proxy).await;
    let mut spy = Spy::start(&vhost).await;
    let order = json!({"at_ms": now_ms() - 120_000, "id": 1});
    for round in 0..3 {
        spy.says_json(&notice(&order)).await;
        let ask = spy.hears("ask").await;
        assert_eq!((&ask["to"], &ask["order"]), (&json!(NOBODY), &order), "it asks whether the newcomer still waits");
        lives(&vhost, &mut client, &format!("nobody answered {round}")).await;
    }
    // Nor does the answer to a question of another life.
    spy.says_json(&notice(&order)).await;
    let mut ask = spy.hears("ask").await;
    let nonce = ask["nonce"].clone();
    ask["nonce"] = json!(1);
    spy.says_json(&confirm(&ask)).await;
    // What was said before this has been heard by then.
    spy.says_json(&notice(&order)).await;
    spy.hears("ask").await;
    lives(&vhost, &mut client, "another answer").await;
    // The right one does: what was tried here is what it looked like.
    ask["nonce"] = nonce;
    spy.says_json(&confirm(&ask)).await;
    replaced(client).await;
    assert_eq!(spy.hears("gone").await["queue"], json!(queue("a")));
    assert_eq!(consumers(&vhost).await, 0, "who is gone has left before he says so");
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_none_of_ours_on_the_control_exchange_is_ignored() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let (first, second) = two_proxies(&vhost).await;
    let mut old = joined(&first).await;
    let spy = Spy::start(&vhost).await;
    let order = json!({"at_ms": u64::MAX, "id": u64::MAX});
    let mut strange = vec![
        b"".to_vec(),
        b"\xff\xfe".to_vec(),
        b"null".to_vec(),
        vec![b'['; 100_000],
        vec![b' '; 1 << 20],
        json!({"v": 2, "from": 1, "queue": queue("a"), "type": "gone"}).to_string().into_bytes(),
        json!({"v": 1, "from": 1, "queue": queue("a"), "type": "dance"}).to_string().into_bytes(),
        json!({"v": 1, "from": 1, "queue": "x".repeat(5_000), "type": "gone"}).to_string().into_bytes(),
    ];
    for name in ["nobody-has-it", "", "amq.gen"] {
        let mut notice = notice(&order);
        notice["queue"] = json!(name);
        strange.push(notice.to_string().into_bytes());
    }
    for body in &strange {
        spy.says(body).await;
    }
    lives(&vhost, &mut old, "unimpressed").await;
    let mut new = joined(&second).await;
    replaced(old).await;
    lives(&vhost, &mut new, "taken over").await;
    first.stop().await;
    second.stop().await;
}

/// The broker holds the notice back and blocks the connection that said it: the newcomer is refused at once, and when the
/// alarm is over, the notice arrives and ends nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_under_an_alarm_is_503_and_the_older_one_lives_on() {
    let vhost = Vhost::new(&Node::private().await).await;
    let (first, second) = two_proxies(&vhost).await;
    let mut old = joined(&first).await;
    lives(&vhost, &mut old, "before").await;
    let mut spy = Spy::start(&vhost).await;
    vhost.node().eval("vm_memory_monitor:set_vm_memory_high_watermark({absolute, 1000000}).").await;
    let alarms = async || vhost.node().eval("rabbit_alarm:get_alarms().").await;
    wait_until(PATIENCE, "an alarm", alarms, |alarms| alarms.contains("memory")).await;

    for _ in 0..3 {
        let dial = Dial::to(second.addr()).consumer("a");
        let refusal = within(AT_ONCE, "a refusal", dial.try_connect()).await.err().expect("refused");
        assert_eq!(refusal.status, 503);
        assert!(refusal.header("retry-after").is_some(), "{refusal:?}");
    }
    let mut other = Dial::to(second.addr()).consumer("b").v1().connect().await;
    other.welcome().await;

    vhost.node().eval("vm_memory_monitor:set_vm_memory_high_watermark(0.9).").await;
    wait_until(PATIENCE, "no alarm", alarms, |alarms| alarms == "[]").await;
    // The notice of the refused upgrade, and the question that nobody answers.
    spy.hears("notice").await;
    spy.hears("ask").await;
    lives(&vhost, &mut old, "after").await;
    let unblocked = async || Dial::to(second.addr()).consumer("a").v1().try_connect().await.ok();
    let seen = async || unblocked().await.map(|client| client.local_addr());
    wait_until(PATIENCE, "a takeover", seen, Option::is_some).await;
    replaced(old).await;
    first.stop().await;
    second.stop().await;
}
