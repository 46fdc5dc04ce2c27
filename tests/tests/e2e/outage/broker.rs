//! The broker itself is gone, for a moment or for long.

use std::time::Duration;

use protocol::v1::Event;
use rig::crowd::Then;
use rig::{Crowd, Node, PATIENCE, Vhost, wait_until};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::{SESSIONS, Stage, names, number_of};
use crate::republish::Run;

/// Beyond the sum of all pauses that grow (0.5 + 1 + 2 + 4 s at most): from then on a connect is tried every 5 s at most,
/// and nothing in the proxy depends on how often it was. So minutes, or hours, would only repeat the last of these
/// seconds: there is no count of tries to exhaust, sessions wait for one event without a deadline, and mailboxes expire by
/// the clock of the broker, which begins anew when it starts.
const LONG: Duration = Duration::from_secs(9);

/// As a power cut. A process that was killed has no arguments any more before its sockets are closed, and a start refuses
/// a port on which somebody listens.
pub(crate) async fn kill(node: &Node) {
    node.kill().await;
    let connects = async || TcpStream::connect(("127.0.0.1", node.amqp_port())).await.is_ok();
    wait_until(PATIENCE, "nobody listens any more", connects, |connected| !connected).await;
}

/// The broker ends in order and begins again, in a process that stays: its start takes seconds, which only the machine feels.
async fn restart(node: &Node) {
    node.eval("ok = rabbit:stop(), ok = rabbit:start().").await;
}

/// Who was away all the time, with a full mailbox.
const ABSENT: usize = 901;

/// Report A05: a client that connects once and leaves, a thousand persistent messages, and a broker that is gone.
async fn fill_the_mailbox_of_the_absent(stage: &Stage) {
    drop(Crowd::of(&[stage.proxy.addr()], names([ABSENT]), Then::Stays).await);
    let arguments = format!("{ABSENT} {ABSENT} {ABSENT} {ABSENT} --count 1000 --interval 0 --persistent");
    let totals = Run::start(&stage.vhost.amqp_url("producer"), &arguments).end().await;
    assert_eq!(totals.ended.confirmed, 1_000, "{totals}");
}

async fn the_absent_comes_back(stage: &Stage) {
    let crowd = Crowd::of(&[stage.proxy.addr()], names([ABSENT]), Then::Stays).await;
    crowd.until("the whole mailbox", |notes| notes.arrivals.len() == 1_000).await;
    let notes = crowd.members()[0].notes();
    assert_eq!(notes.resumed, [Some(true)]);
    let numbers: Vec<_> = notes.arrivals.iter().map(number_of).collect();
    assert_eq!(numbers, (1..=1_000).collect::<Vec<_>>());
}

/// Reports A02, A05.
#[tokio::test(flavor = "multi_thread")]
async fn a02_sessions_outlive_a_broker_that_is_killed_stopped_for_long_and_restarted_three_times() {
    let node = Node::private().await;
    let vhost = Vhost::new(&node).await;
    // That they expire is tried elsewhere; a machine may be so slow that the one who is absent would meet it here.
    vhost.set_policy(json!({"expires": 600_000})).await;
    let stage = Stage::at(&vhost, &vhost.amqp_url("auth-proxy"), SESSIONS, &[]).await;
    fill_the_mailbox_of_the_absent(&stage).await;
    let url = vhost.amqp_url("producer");
    let everybody = Run::start(&url, &format!("201 201 1 {SESSIONS} --interval 1 --persistent"));
    let control = Run::start(&url, "202 202 1 1 --interval 20ms --persistent");
    let streaming = |notes: &rig::crowd::Notes| !notes.arrivals.is_empty();
    stage.crowd.until("the streams have begun", streaming).await;

    kill(&node).await;
    stage.noticed(Event::BrokerLost, 1).await;
    node.start().await;
    stage.is_well("after the kill").await;
    the_absent_comes_back(&stage).await;

    node.stop().await;
    stage.noticed(Event::BrokerLost, 2).await;
    tokio::join!(sleep(LONG), stage.refuses_newcomers());
    node.start().await;
    stage.is_well("after the long stop").await;

    for _ in 0..3 {
        restart(&node).await;
    }
    stage.is_well("after three restarts").await;

    stage.has_all_of(everybody, "producer201").await;
    stage.has_all_of(control, "producer202").await;
    stage.all_is_acked().await;
    for member in stage.crowd.members() {
        let notices = member.notes().notices;
        // Of three restarts in a row a session may feel one, or all.
        assert!((3..=5).contains(&(notices.len() / 2)), "{}: {notices:?}", member.name);
        let in_turn = notices.chunks(2).all(|pair| pair == [Event::BrokerLost, Event::BrokerBack]);
        assert!(in_turn, "{}: {notices:?}", member.name);
    }
}
