//! The broker lives, and the connections to it do not.

use std::time::Duration;

use protocol::v1::Event;
use rig::relay::{Direction, Mode};
use rig::{Node, Proxy, Vhost};
use tokio::time::Instant;

use super::{SESSIONS, SHORT_HEARTBEAT, Stage, relay_to};
use crate::control::Control;
use crate::republish::Run;

/// Two heartbeats of two seconds, and what a busy machine needs to tell everybody.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);
const WINDOW: usize = 16;

/// Report A01 b, at the proxy.
#[tokio::test(flavor = "multi_thread")]
async fn a01_sessions_outlive_connections_that_an_operator_closes() {
    let node = Node::shared().await;
    let (vhost, elsewhere) = (Vhost::new(&node).await, Vhost::new(&node).await);
    let neighbour = Proxy::start(&elsewhere, &["2"]);
    let control = Control::start(&elsewhere, neighbour.addr()).await;
    let stage = Stage::at(&vhost, &vhost.amqp_url("auth-proxy"), SESSIONS, &[]).await;
    let everybody = Run::start(&vhost.amqp_url("producer"), &format!("201 201 1 {SESSIONS} --interval 1"));
    stage.crowd.until("the streams have begun", |notes| !notes.arrivals.is_empty()).await;

    vhost.close_connections("maintenance").await;
    stage.noticed(Event::BrokerBack, 1).await;
    stage.is_well("after the operator").await;
    vhost.cut_connections().await;
    stage.noticed(Event::BrokerBack, 2).await;
    stage.is_well("after the cut").await;

    stage.has_all_of(everybody, "producer201").await;
    stage.all_is_acked().await;
    for member in stage.crowd.members() {
        let notes = member.notes();
        assert_eq!(notes.notices, [Event::BrokerLost, Event::BrokerBack].repeat(2), "{}", member.name);
        assert!(notes.redelivered() <= 2 * WINDOW, "{}: a window for each fault: {notes:?}", member.name);
    }
    control.finish().await;
}

/// Report A01 d, at the proxy: both ways open, nothing arrives, nothing closes; and each way alone.
#[tokio::test(flavor = "multi_thread")]
async fn a01_sessions_outlive_a_path_that_stalls_both_ways_and_one_way() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let neighbour = Proxy::start(&vhost, &["2"]);
    let control = Control::start(&vhost, neighbour.addr()).await;
    let (relay, url) = relay_to(&vhost, "auth-proxy").await;
    let stage = Stage::at(&vhost, &url, SESSIONS, &SHORT_HEARTBEAT).await;
    let everybody = Run::start(&vhost.amqp_url("producer"), &format!("201 201 1 {SESSIONS} --interval 1"));
    stage.crowd.until("the streams have begun", |notes| !notes.arrivals.is_empty()).await;

    let ways = [&[Direction::ToTarget, Direction::ToClient][..], &[Direction::ToClient], &[Direction::ToTarget]];
    for (round, ways) in ways.into_iter().enumerate() {
        let began = Instant::now();
        for way in ways {
            relay.set(*way, Mode::Stall);
        }
        let told = async {
            stage.noticed(Event::BrokerLost, round + 1).await;
            assert!(began.elapsed() < NOTICED_WITHIN, "{ways:?} noticed after {:?}", began.elapsed());
        };
        tokio::join!(told, stage.refuses_newcomers());
        relay.set_both(Mode::Pass);
        stage.is_well(&format!("after a stall of {ways:?}")).await;
    }

    stage.has_all_of(everybody, "producer201").await;
    stage.all_is_acked().await;
    control.finish().await;
}
