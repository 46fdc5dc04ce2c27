//! Report A03, at the proxy: while the broker blocks whoever publishes, sessions go on, since nothing is published on a
//! connection that carries them.

use std::time::Duration;

use nix::sys::signal::Signal;
use rig::crowd::{Notes, Then};
use rig::{Crowd, Message, Node, Outcome, PATIENCE, Program, Proxy, ProxyProcess, Vhost, wait_until};
use serde_json::json;
use tokio::time::timeout;

use crate::outage::names;
use crate::queue;
use crate::republish::alarms::Alarm;

/// As many as the policy allows.
const BACKLOG: usize = 1_000;
const WINDOW: usize = 16;
/// What every program promises, `docker stop` waits no longer.
const IN_TIME: Duration = Duration::from_secs(10);
/// What a confirm does not take, were publishers not blocked.
const BLOCKED_FOR: Duration = Duration::from_secs(2);

async fn fill(vhost: &Vhost, consumer: &str, messages: usize) {
    vhost.publisher().await.publish_all(consumer, (0..messages).map(|number| format!("{consumer} {number}"))).await;
}

fn bodies(consumer: &str, messages: usize) -> Vec<String> {
    (0..messages).map(|number| format!("{consumer} {number}")).collect()
}

fn received(notes: &Notes) -> Vec<String> {
    notes.arrivals.iter().map(|arrival| arrival.body.clone()).collect()
}

async fn connection_states(vhost: &Vhost, user: &str) -> String {
    let states = format!(
        "[proplists:get_value(state, I) || I <- rabbit_networking:connection_info_all([vhost, user, state]), \
         proplists:get_value(vhost, I) =:= <<\"{}\">>, proplists:get_value(user, I) =:= <<\"{user}\">>].",
        vhost.name()
    );
    vhost.node().eval(&states).await
}

/// One client is there with a full mailbox behind its window, others come during the alarm to a thousand messages.
#[tokio::test(flavor = "multi_thread")]
async fn a03_backlogs_are_delivered_and_acked_to_0_and_newcomers_let_in_while_publishers_are_blocked() {
    const NEWCOMERS: usize = 20;
    let node = Node::private().await;
    let vhost = Vhost::new(&node).await;
    let proxy = Proxy::start(&vhost, &["--ack-timeout", "10m"]);
    let there = Crowd::of(&[proxy.addr()], ["there".to_owned()], Then::Stays).await;
    there.members()[0].hold();
    fill(&vhost, "there", WINDOW).await;
    there.until("a full window", |notes| notes.arrivals.len() == WINDOW).await;
    fill(&vhost, "there", BACKLOG).await;
    assert_eq!(vhost.publisher().await.publish("there", "one too many").await, Outcome::Nacked);
    drop(Crowd::of(&[proxy.addr()], names(1..=NEWCOMERS), Then::Stays).await);
    let consumers = async || vhost.consumers().await.len();
    wait_until(PATIENCE, "they have left", consumers, |consumers| *consumers == 1).await;
    for name in names(1..=NEWCOMERS) {
        fill(&vhost, &name, BACKLOG / NEWCOMERS).await;
    }

    Alarm::Memory.on(&node).await;
    let publisher = vhost.publisher().await;
    let message = Message::new("there", "held back by the broker");
    let mut blocked = Box::pin(publisher.send(&message));
    assert!(timeout(BLOCKED_FOR, &mut blocked).await.is_err(), "publishers are not blocked: nothing is tried here");
    there.members()[0].ack_again();
    let newcomers = Crowd::of(&[proxy.addr()], names(1..=NEWCOMERS), Then::Stays).await;
    newcomers.until("its whole mailbox", |notes| notes.arrivals.len() == BACKLOG / NEWCOMERS).await;
    there.until("its whole mailbox", |notes| notes.arrivals.len() == WINDOW + BACKLOG).await;
    let left = async || vhost.queues().await.iter().map(|queue| queue.ready + queue.unacked).sum::<u64>();
    wait_until(PATIENCE, "all is acked", left, |left| *left == 0).await;
    assert!(timeout(Duration::ZERO, &mut blocked).await.is_err(), "the alarm is not over yet");
    assert!(!connection_states(&vhost, "auth-proxy").await.contains("blocked"));
    assert!(connection_states(&vhost, "producer").await.contains("blocked"));

    Alarm::Memory.off(&node).await;
    assert_eq!(blocked.await, Outcome::Confirmed);
    there.until("what the alarm held back", |notes| notes.has("held back by the broker")).await;
    for member in newcomers.members() {
        let notes = member.notes();
        assert_eq!((notes.refusals, &notes.resumed[..]), (0, &[Some(true)][..]), "{}", member.name);
        assert_eq!(received(&notes), bodies(&member.name, BACKLOG / NEWCOMERS));
    }
    let notes = there.members()[0].notes();
    assert_eq!((notes.redelivered(), notes.notices.len(), notes.ends.len()), (0, 0, 0));
    let expected = [bodies("there", WINDOW), bodies("there", BACKLOG), vec!["held back by the broker".to_owned()]];
    assert_eq!(received(&notes), expected.concat());
}

/// Producers and consumers in full swing, and a client that never acks and so leaves something to hand back.
#[tokio::test(flavor = "multi_thread")]
async fn every_program_stops_in_time_on_sigterm_under_an_alarm() {
    let node = Node::private().await;
    let vhost = Vhost::new(&node).await;
    // What a full mailbox refuses, consumers would call missing.
    vhost.set_policy(json!({"max-length": null, "max-length-bytes": null, "expires": 600_000})).await;
    let mut proxy = ProxyProcess::start(&vhost, &["--ack-timeout", "10m"], &[]).await;
    let crowd = Crowd::of(&[proxy.addr()], ["holds".to_owned()], Then::Stays).await;
    crowd.members()[0].hold();
    fill(&vhost, "holds", 2 * WINDOW).await;
    let mut consumers = Program::consumers(proxy.addr(), &["101", "110", "--protocol", "v1"]);
    consumers.wait_for_line("Connected 10 of 10", PATIENCE).await;
    let mut producers = Program::producers(&vhost, &["201", "202", "101", "110", "--interval", "0"]);
    consumers.wait_for_line("so far", PATIENCE).await;

    Alarm::Memory.on(&node).await;
    producers.wait_for_line("the broker blocks publishing", PATIENCE).await;
    producers.signal(Signal::SIGTERM);
    proxy.program().signal(Signal::SIGTERM);
    let codes = (proxy.program().wait(IN_TIME).await.code(), producers.wait(IN_TIME).await.code());
    consumers.signal(Signal::SIGTERM);
    let last = |program: &Program| program.stdout().last().cloned().unwrap_or_default();
    let consumers_code = consumers.wait(IN_TIME).await.code();
    // What the broker did not confirm before the alarm it does not confirm now.
    let [_, _, nacked, returned, unconfirmed, _] = crate::stopping::numbers(&last(&producers));
    assert_eq!(codes, (Some(0), Some(i32::from(nacked + returned + unconfirmed > 0))), "{}", last(&producers));
    assert_eq!(consumers_code, Some(0), "{}", last(&consumers));
    let handed_back = async || vhost.queue(&queue("holds")).await.map(|queue| (queue.ready, queue.unacked));
    let all = Some((2 * WINDOW as u64, 0));
    wait_until(PATIENCE, "what was not acked is handed back", handed_back, |queue| *queue == all).await;
}
