//! A broker or a proxy that is killed without a word, under load, in v1: everything that was confirmed to the producers is
//! acked by a client, and what comes twice says so. (Clients that are killed: `killed`.)

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use nix::sys::signal::Signal;
use producers::Totals;
use rig::crowd::{Arrival, Notes, Then};
use rig::{Crowd, Node, Proxy, ProxyProcess, Vhost, wait_until};
use serde_json::json;

use crate::control::Control;
use crate::outage::{broker::kill, names, number_of};
use crate::republish::Run;

const MEMBERS: usize = 50;
const WINDOW: usize = 16;
/// Until everybody has taken what waited, in a debug build on a machine that is busy.
const CROWD_PATIENCE: Duration = Duration::from_secs(120);

/// Mailboxes that take whatever comes, so that none of the load is refused.
async fn without_limits(node: &Node) -> Vhost {
    let vhost = Vhost::new(node).await;
    vhost.set_policy(json!({"max-length": null, "max-length-bytes": null, "expires": 600_000})).await;
    vhost
}

/// Two producers as fast as the broker confirms.
fn load(vhost: &Vhost) -> Run {
    let arguments = format!("201 202 1 {MEMBERS} --interval 0 --window 200 --persistent");
    Run::start(&vhost.amqp_url("producer"), &arguments)
}

/// Waits until each has so many messages more than now.
async fn more(crowd: &Crowd, messages: usize) {
    let now: BTreeMap<_, _> =
        crowd.members().iter().map(|member| (member.name.clone(), member.look(|notes| notes.arrivals.len()))).collect();
    crowd.each_until("messages arrive", |name, notes| notes.arrivals.len() >= now[name] + messages).await;
}

/// Waits until the crowd has all that was confirmed, and the mailboxes are empty.
async fn nothing_is_missing(vhost: &Vhost, crowd: &Crowd, totals: Totals) {
    assert_eq!(totals.sent, totals.ended.confirmed, "{totals}");
    let received = async || crowd.sum(Notes::distinct) as u64;
    let all = format!("all that was confirmed: {totals}");
    wait_until(CROWD_PATIENCE, &all, received, |received| *received == totals.ended.confirmed).await;
    all_is_acked(vhost).await;
    for member in crowd.members() {
        let notes = member.notes();
        assert_eq!(notes.unflagged(), Vec::<&Arrival>::new(), "{}", member.name);
        no_gap(&member.name, &notes);
    }
}

async fn all_is_acked(vhost: &Vhost) {
    let left = async || vhost.queues().await.iter().map(|queue| queue.ready + queue.unacked).sum::<u64>();
    wait_until(CROWD_PATIENCE, "all is acked", left, |left| *left == 0).await;
}

/// The messages of each producer are there without a gap.
fn no_gap(name: &str, notes: &Notes) {
    let mut numbers: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for arrival in &notes.arrivals {
        let producer = arrival.key().rsplit_once('.').expect("an id has a producer").0;
        numbers.entry(producer).or_default().push(number_of(arrival));
    }
    assert_eq!(numbers.len(), 2, "{name}: {:?}", numbers.keys());
    for (producer, mut numbers) in numbers {
        numbers.sort_unstable();
        numbers.dedup();
        let expected: Vec<_> = (1..).take(numbers.len()).collect();
        assert_eq!(numbers, expected, "{name} misses something of {producer}");
    }
}

/// Messages that came again because they were delivered before, not because they were published again.
fn again(notes: &Notes) -> usize {
    let mut seen = HashSet::new();
    notes.arrivals.iter().filter(|arrival| !seen.insert(arrival.key()) && !arrival.republished).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_twice_under_load_loses_nothing_that_it_confirmed() {
    let node = Node::private().await;
    let vhost = without_limits(&node).await;
    let proxy = Proxy::start(&vhost, &[]);
    let crowd = Crowd::of(&[proxy.addr()], names(1..=MEMBERS), Then::Stays).await;
    let run = load(&vhost);
    for _ in 0..2 {
        more(&crowd, 100).await;
        kill(&node).await;
        node.start().await;
    }
    more(&crowd, 20).await;
    let totals = run.stop().await;
    assert!(totals.ended.republished > 0, "nothing was on its way: {totals}");
    nothing_is_missing(&vhost, &crowd, totals).await;
    assert!(crowd.sum(again) > 0, "nothing was unacked at any kill");
    assert_eq!(crowd.which(|notes| notes.sessions == 1 && notes.ends.is_empty()).len(), MEMBERS);
}

/// Its clients find another one; what the dead one held comes there first.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_is_killed_under_load_loses_nothing() {
    let vhost = without_limits(&Node::shared().await).await;
    let mut first = ProxyProcess::start(&vhost, &["1"], &[]).await;
    let second = Proxy::start(&vhost, &["2"]);
    let control = Control::start(&vhost, second.addr()).await;
    let crowd = Crowd::of(&[first.addr(), second.addr()], names(1..=MEMBERS), Then::Returns).await;
    let run = load(&vhost);
    more(&crowd, 50).await;
    first.program().signal(Signal::SIGKILL);
    crowd.until("all have moved", |notes| notes.sessions == 2).await;
    more(&crowd, 20).await;
    let totals = run.stop().await;
    assert_eq!(totals.ended.republished, 0, "producers were not disturbed: {totals}");
    control.finish().await;
    nothing_is_missing(&vhost, &crowd, totals).await;
    assert!(crowd.sum(again) > 0, "nothing was unacked");
    for member in crowd.members() {
        let notes = member.notes();
        assert!(again(&notes) <= notes.redelivered() && notes.redelivered() <= WINDOW, "{}: {notes:?}", member.name);
        assert_eq!(notes.resumed, [Some(false), Some(true)], "{}", member.name);
    }
}
