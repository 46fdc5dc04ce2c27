//! The broker's own rules: how long a delivery may wait for its ack, what a policy makes of a mailbox, and what later
//! versions do not allow any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::v1::Event;
use rig::crowd::Then;
use rig::{Client, Crowd, Dial, Message, Node, Outcome, PATIENCE, Proxy, Received, Vhost, wait_until};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::count;
use crate::control::Control;
use crate::queue;

async fn lanes(vhost: &Vhost) -> BTreeSet<String> {
    let channels = vhost.channels().await.into_iter().filter(|channel| channel.consumers > 0);
    channels.map(|channel| channel.pid).collect()
}

/// The end of a session whose client did not read for a while.
async fn end_of(mut client: Client) -> Option<u16> {
    loop {
        match client.receive().await {
            Received::Close(close) => return close.map(|(code, _)| code),
            Received::Gone => return None,
            Received::Text(_) | Received::Binary(_) => {}
        }
    }
}

/// Report A09: the proxy's own limits come first, and the lane that stalled clients share with others lives on.
#[tokio::test(flavor = "multi_thread")]
async fn a09_stalled_clients_are_closed_before_the_brokers_delivery_timeout_would_close_their_lane() {
    const BROKER: Duration = Duration::from_secs(8);
    let node = Node::private().await;
    let settings = format!(
        "[application:set_env(rabbit, K, V) || {{K, V}} <- [{{consumer_timeout, {}}}, {{channel_tick_interval, 500}}]].",
        BROKER.as_millis()
    );
    node.eval(&settings).await;
    let vhost = Vhost::new(&node).await;
    let proxy = Proxy::start(&vhost, &["--ack-timeout", "2", "--write-timeout", "2"]);
    let control = Control::start(&vhost, proxy.addr()).await;
    let silent = Crowd::of(&[proxy.addr()], ["silent".to_owned()], Then::Stays).await;
    silent.members()[0].hold();
    let deaf = Dial::to(proxy.addr()).consumer("deaf").receive_buffer(4096).connect().await;
    control.shares_lane_with(&vhost, "silent").await;
    control.shares_lane_with(&vhost, "deaf").await;
    let (before, publisher) = (lanes(&vhost).await, vhost.publisher().await);
    publisher.publish_all("silent", ["1", "2", "3"]).await;
    publisher.publish_all("deaf", (0..50).map(|_| vec![b'.'; 256 * 1024])).await;
    let stalled = Instant::now();
    silent.until("it is closed", |notes| notes.ends == [Some(4006)]).await;
    let back = async || {
        let state = |queue: rig::vhost::Queue| (queue.ready > 0, queue.unacked, queue.consumers);
        (vhost.queue(&queue("silent")).await.map(state), vhost.queue(&queue("deaf")).await.map(state))
    };
    let ready = Some((true, 0, 0));
    wait_until(PATIENCE, "all is back in both mailboxes", back, |seen| *seen == (ready, ready)).await;
    assert!(stalled.elapsed() < BROKER, "closed after {:?}", stalled.elapsed());
    assert_eq!(end_of(deaf).await, Some(4003));
    sleep((BROKER + Duration::from_secs(2)).saturating_sub(stalled.elapsed())).await;
    assert_eq!(lanes(&vhost).await, before, "the lane is the same one");
    control.finish().await;

    // That the broker's timeout is at work: without limits of its own the proxy loses the lane, and no session with it.
    let patient = Proxy::start(&vhost, &["2", "--ack-timeout", "10m"]);
    let silent = Crowd::of(&[patient.addr()], ["stays".to_owned()], Then::Stays).await;
    silent.members()[0].hold();
    publisher.publish_all("stays", ["1"]).await;
    silent.until("the lane was closed and is back", |notes| count(notes, Event::BrokerBack) > 0).await;
    silent.until("the message comes again", |notes| notes.redelivered() > 0).await;
    silent.members()[0].ack_again();
    publisher.publish_all("stays", ["2"]).await;
    silent.until("the session goes on", |notes| notes.has("2") && notes.ends.is_empty()).await;
}

/// What policy is in force for a queue.
async fn effective_policy(vhost: &Vhost, queue: &str) -> Value {
    let ask = format!(
        "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"{}\">>, queue, <<\"{queue}\">>)), \
         rabbit_json:encode(maps:from_list(rabbit_policy:effective_definition(Q))).",
        vhost.name()
    );
    serde_json::from_str(&vhost.node().eval(&ask).await).unwrap()
}

async fn foreign_policy(vhost: &Vhost, name: &str, priority: u32) {
    let set = format!(
        "ok = rabbit_policy:set(<<\"{}\">>, <<\"{name}\">>, <<\".*\">>, [{{<<\"max-length\">>, 5}}], {priority}, \
         <<\"all\">>, <<\"rig\">>).",
        vhost.name()
    );
    vhost.node().eval(&set).await;
}

/// Report A14, a and b.
#[tokio::test(flavor = "multi_thread")]
async fn a14_the_shipped_policy_is_in_force_and_a_foreign_one_for_everything_does_not_win() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let crowd = Crowd::of(&[proxy.addr()], ["a".to_owned()], Then::Stays).await;
    let shipped =
        json!({"expires": 60_000, "max-length": 1_000, "max-length-bytes": 16 << 20, "overflow": "reject-publish"});
    assert_eq!(effective_policy(&vhost, &queue("a")).await, shipped);
    // Of two policies with one priority either may win, by chance: several show it.
    for name in ["one", "two", "three", "four"] {
        foreign_policy(&vhost, name, 0).await;
        drop(Crowd::of(&[proxy.addr()], [name.to_owned()], Then::Stays).await);
        for queue in vhost.queues().await.iter().filter(|queue| queue.name.starts_with("proxy-subscription-")) {
            assert_eq!(effective_policy(&vhost, &queue.name).await, shipped, "{} beside {name}", queue.name);
        }
    }
    assert_eq!(crowd.sum(|notes| notes.ends.len() + notes.notices.len()), 0);
}

/// Report A14, c and d.
#[tokio::test(flavor = "multi_thread")]
async fn a14_a_changed_expiry_holds_for_mailboxes_that_exist_and_v1_clients_hear_what_became_of_theirs() {
    const EXPIRY_MS: u64 = 4_000;
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let publisher = vhost.publisher().await;
    let connected = async || Crowd::of(&[proxy.addr()], ["a".to_owned()], Then::Stays).await;
    let first = connected().await;
    vhost.set_policy(json!({"expires": EXPIRY_MS})).await;
    let changed = async || effective_policy(&vhost, &queue("a")).await["expires"].clone();
    wait_until(PATIENCE, "the new policy is in force", changed, |expires| *expires == EXPIRY_MS).await;
    sleep(Duration::from_millis(EXPIRY_MS + 1_000)).await;
    assert_eq!(publisher.publish("a", "a connected one keeps its mailbox").await, Outcome::Confirmed);
    first.until("its message", |notes| notes.arrivals.len() == 1).await;

    drop(first);
    let gone = async || vhost.consumers().await.len();
    wait_until(PATIENCE, "it has left", gone, |consumers| *consumers == 0).await;
    assert_eq!(publisher.publish("a", "meanwhile").await, Outcome::Confirmed);
    let second = connected().await;
    second.until("what came meanwhile", |notes| notes.arrivals.len() == 1 && notes.resumed == [Some(true)]).await;

    drop(second);
    let expired = async || vhost.queue(&queue("a")).await;
    wait_until(PATIENCE, "the mailbox has expired", expired, Option::is_none).await;
    for number in 0..5 {
        assert_eq!(publisher.publish("a", format!("to nobody {number}")).await, Outcome::Returned);
    }
    let third = connected().await;
    assert_eq!(publisher.publish("a", "fresh").await, Outcome::Confirmed);
    let fresh = "a mailbox that is new, and it is told so";
    third.until(fresh, |notes| notes.resumed == [Some(false)] && notes.arrivals.len() == 1 && notes.has("fresh")).await;
}

/// Report A15: RabbitMQ 4.3 refuses queues that are neither durable nor exclusive, prefetch counts for a whole channel
/// (it answers ok and takes them per consumer), `x-queue-version=1`, frames below 8 KiB, and bodies above 16 MiB. The
/// installed broker may be older, so what is looked at is what our programs do.
#[tokio::test(flavor = "multi_thread")]
async fn a15_nothing_that_later_versions_refuse_is_in_use() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &["--window", "7"]);
    let crowd = Crowd::of(&[proxy.addr()], ["a".to_owned()], Then::Stays).await;
    let run = crate::republish::Run::start(&vhost.amqp_url("producer"), "201 201 101 101 --interval 0");
    assert_eq!(vhost.publisher().await.send(&Message::new("a", "x")).await, Outcome::Confirmed);
    crowd.until("its message", |notes| notes.has("x")).await;
    let ours = |list: &str, items: &str| {
        format!(
            "rabbit_json:encode([maps:from_list([{{K, case V of P when is_pid(P) -> <<\"process\">>; _ -> V end}} \
             || {{K, V}} <- I, K =/= arguments, K =/= vhost, K =/= name]) || I <- {list}({items}), \
             proplists:get_value(vhost, I, <<\"{0}\">>) =:= <<\"{0}\">>]).",
            vhost.name()
        )
    };
    let ask = async |list: &str, items: &str| -> Vec<BTreeMap<String, Value>> {
        serde_json::from_str(&vhost.node().eval(&ours(list, items)).await).unwrap()
    };
    let by_vhost = format!("<<\"{}\">>, ", vhost.name());
    let queues = ask("rabbit_amqqueue:info_all", &format!("{by_vhost}[durable, exclusive]")).await;
    assert!(queues.len() >= 2, "a mailbox and a control queue: {queues:?}");
    assert!(queues.iter().all(|queue| queue["durable"] == true || queue["exclusive"] == true), "{queues:?}");
    let channels = ask("rabbit_channel:info_all", "[vhost, global_prefetch_count]").await;
    assert!(channels.len() > 2 && channels.iter().all(|c| c["global_prefetch_count"] == 0), "{channels:?}");
    let connections = ask("rabbit_networking:connection_info_all", "[vhost, frame_max]").await;
    assert!(connections.len() >= 4, "{connections:?}");
    assert!(connections.iter().all(|c| c["frame_max"].as_u64() >= Some(8_192)), "{connections:?}");
    let prefetch = vhost.consumers().await.into_iter().find(|consumer| consumer.queue == queue("a"));
    assert_eq!(prefetch.map(|consumer| consumer.prefetch), Some(7), "the window counts for a consumer");
    let ask = format!(
        "[A || Q <- rabbit_amqqueue:list(<<\"{}\">>), {{A, _, _}} <- amqqueue:get_arguments(Q)].",
        vhost.name()
    );
    let arguments = vhost.node().eval(&ask).await;
    assert!(arguments.contains("x-queue-type") && !arguments.contains("x-queue-version"), "{arguments}");
    run.stop().await;
}
