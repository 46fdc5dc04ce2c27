//! The connection is well, and a part of what was built on it is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{StreamExt, stream};
use nix::sys::signal::Signal;
use protocol::v1::Event;
use rig::crowd::Then;
use rig::relay::Cut;
use rig::{Crowd, Node, Outcome, PATIENCE, Proxy, ProxyProcess, Vhost, wait_until};
use serde_json::json;

use super::{SESSIONS, Stage, names, relay_to};
use crate::control::Control;
use crate::queue;

async fn delete(vhost: &Vhost, consumers: impl IntoIterator<Item = String>) {
    let deletes = stream::iter(consumers).map(|consumer| async move { vhost.delete_queue(&queue(&consumer)).await });
    let deleted: Vec<bool> = deletes.buffer_unordered(32).collect().await;
    assert!(deleted.iter().all(|deleted| *deleted), "they were there");
}

/// Report A08, with v1: who lost a mailbox is told so, and nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn a08_one_mailbox_deleted_and_then_all_are_made_anew_and_their_clients_told() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let neighbour = Proxy::start(&vhost, &["2"]);
    let control = Control::start(&vhost, neighbour.addr()).await;
    let stage = Stage::at(&vhost, &vhost.amqp_url("auth-proxy"), SESSIONS, &[]).await;

    delete(&vhost, names([7])).await;
    let told = |stage: &Stage| stage.crowd.which(|notes| notes.notices == [Event::QueueRecreated]).len();
    wait_until(PATIENCE, "its client is told", async || told(&stage), |told| *told == 1).await;
    stage.is_well("after one was deleted").await;
    let others = stage.crowd.which(|notes| notes.notices.is_empty()).len();
    assert_eq!((told(&stage), others), (1, SESSIONS - 1));

    delete(&vhost, names(1..=SESSIONS)).await;
    stage.noticed(Event::QueueRecreated, 1).await;
    stage.is_well("after all were deleted").await;
    let victim = stage.crowd.member("consumer7").notes();
    assert_eq!(victim.notices, [Event::QueueRecreated; 2]);
    let twice = stage.crowd.which(|notes| notes.notices != [Event::QueueRecreated]);
    assert_eq!(twice.iter().map(|member| &member.name).collect::<Vec<_>>(), ["consumer7"]);
    assert_eq!(stage.crowd.sum(rig::crowd::Notes::redelivered), 0);
    control.finish().await;
}

/// Report A08: what is published while there is no mailbox is returned to its publisher, and the proxy finds out although
/// it was not running when it happened.
#[tokio::test(flavor = "multi_thread")]
async fn a08_a_mailbox_deleted_while_the_proxy_is_paused_is_made_anew_and_the_gap_is_no_secret() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut proxy = ProxyProcess::start(&vhost, &[], &[]).await;
    let crowd = Crowd::of(&[proxy.addr()], names(1..=20), Then::Stays).await;
    let publisher = vhost.publisher().await;
    proxy.program().signal(Signal::SIGSTOP);
    delete(&vhost, names(1..=20)).await;
    for number in 1..=5 {
        assert_eq!(publisher.publish("consumer1", format!("in the gap {number}")).await, Outcome::Returned);
    }
    proxy.program().signal(Signal::SIGCONT);
    crowd.until("each is told", |notes| notes.notices == [Event::QueueRecreated]).await;
    for name in names(1..=20) {
        assert_eq!(publisher.publish(&name, "after the gap").await, Outcome::Confirmed, "{name}");
    }
    crowd.until("each receives", |notes| notes.has("after the gap")).await;
    crowd.until("and nothing else", |notes| notes.arrivals.len() == 1 && notes.ends.is_empty()).await;
}

/// The broker lives on and forgets mailboxes that nobody consumes from.
#[tokio::test(flavor = "multi_thread")]
async fn mailboxes_that_expired_during_an_outage_are_made_anew_and_their_clients_told() {
    // Longer than a declare and its consume are apart on a busy machine.
    const EXPIRY: Duration = Duration::from_secs(3);
    let vhost = Vhost::new(&Node::shared().await).await;
    vhost.set_policy(json!({"expires": EXPIRY.as_millis()})).await;
    let neighbour = Proxy::start(&vhost, &["2"]);
    let control = Control::start(&vhost, neighbour.addr()).await;
    let (relay, url) = relay_to(&vhost, "auth-proxy").await;
    let stage = Stage::at(&vhost, &url, SESSIONS, &[]).await;
    relay.refuse(true);
    relay.cut(Cut::Reset);
    let left = async || vhost.queues().await.into_iter().map(|queue| queue.name).collect::<Vec<_>>();
    let all_but_the_control = |left: &Vec<String>| *left == [queue("control")];
    wait_until(PATIENCE, "all have expired", left, all_but_the_control).await;
    relay.refuse(false);
    stage.noticed(Event::QueueRecreated, 1).await;
    stage.is_well("after the expiry").await;
    for member in stage.crowd.members() {
        let expected = [Event::BrokerLost, Event::BrokerBack, Event::QueueRecreated];
        assert_eq!(member.notes().notices, expected, "{}", member.name);
    }
    control.finish().await;
}

/// A lane is rebuilt with everybody on it; other lanes of the same proxy feel nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_whose_channel_is_closed_is_rebuilt_and_the_other_lanes_feel_nothing() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let stage = Stage::at(&vhost, &vhost.amqp_url("auth-proxy"), SESSIONS, &[]).await;
    let lanes = async || vhost.channels().await.into_iter().filter(|channel| channel.consumers > 1).collect::<Vec<_>>();
    let before = lanes().await;
    let victim = &before[0];
    let consumers = vhost.consumers().await;
    let on_it: BTreeSet<_> = consumers.iter().filter(|c| c.channel == victim.pid).map(|c| c.queue.clone()).collect();
    assert!((100..=128).contains(&on_it.len()), "{}", on_it.len());
    vhost.close_channel(victim).await;
    let back = |notes: &rig::crowd::Notes| notes.notices == [Event::BrokerLost, Event::BrokerBack];
    let told = async || stage.crowd.which(back).len();
    wait_until(PATIENCE, "those on it are told", told, |told| *told == on_it.len()).await;
    stage.is_well("after the rebuild").await;
    for member in stage.crowd.members() {
        let notes = member.notes();
        assert_eq!(back(&notes), on_it.contains(&queue(&member.name)), "{}: {notes:?}", member.name);
        assert_eq!(notes.notices.is_empty(), !back(&notes), "{}: {notes:?}", member.name);
        assert_eq!(notes.redelivered(), 0, "nothing was on its way to {}", member.name);
    }
    let now: BTreeSet<_> = lanes().await.into_iter().map(|lane| lane.pid).collect();
    let kept = before.iter().filter(|lane| now.contains(&lane.pid)).count();
    assert_eq!((kept, now.len()), (before.len() - 1, before.len()));
}
