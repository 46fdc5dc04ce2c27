//! Several broker URLs: each is tried in its turn, whichever comes first.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use protocol::v1::Event;
use rig::crowd::Then;
use rig::relay::{Cut, Mode};
use rig::{Crowd, Node, PATIENCE, Proxy, Vhost, wait_until};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::{SHORT_HEARTBEAT, Stage, names, relay_to};

/// Connections of a proxy to its broker.
const LINKS: u64 = 3;
/// With three links each, that none of them takes a given one of two URLs first happens once in 16 million runs.
const PROXIES: usize = 8;

async fn all_serve(proxies: &[Proxy]) {
    for (number, proxy) in proxies.iter().enumerate() {
        let ready = async || proxy.admin().ready().await.0;
        wait_until(PATIENCE, "the proxy is ready", ready, |status| *status == 200).await;
        drop(Crowd::of(&[proxy.addr()], names([number]), Then::Stays).await);
    }
}

fn proxies(urls: [&str; 2]) -> Vec<Proxy> {
    let urls = urls.join(",");
    (0..PROXIES).map(|number| Proxy::at(&urls, &[&format!("of-many-{number}")])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_brokers_both_are_somebodys_first_and_each_takes_over_from_the_other() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let ((one, first), (other, second)) = (relay_to(&vhost, "auth-proxy").await, relay_to(&vhost, "auth-proxy").await);
    let started = proxies([&first, &second]);
    all_serve(&started).await;
    let connections = [one.connections(), other.connections()];
    assert!(connections.iter().all(|connections| *connections > 0), "the start is at random: {connections:?}");
    assert_eq!(connections[0] + connections[1], PROXIES as u64 * LINKS, "who answers is not left: {connections:?}");
    drop(started);

    other.refuse(true);
    let stage = Stage::at(&vhost, &format!("{first},{second}"), 50, &[]).await;
    for (round, (dies, lives)) in [(&one, &other), (&other, &one), (&one, &other)].into_iter().enumerate() {
        lives.refuse(false);
        dies.refuse(true);
        dies.cut(Cut::Reset);
        stage.noticed(Event::BrokerBack, round + 1).await;
        stage.is_well(&format!("round {round}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_refuses_connections_is_passed_over() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let (refusing, dead) = relay_to(&vhost, "auth-proxy").await;
    refusing.refuse(true);
    let started = proxies([&dead, &vhost.amqp_url("auth-proxy")]);
    all_serve(&started).await;
    assert_eq!(refusing.connections(), 0);
}

/// A machine that is off, or behind a firewall that drops: a connect waits for an answer that does not come. All sessions
/// have to be back long before their mailboxes expire (60 s), so one such address may not cost the 30 s that a request has.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_silent_costs_each_connection_some_seconds() {
    const SECONDS: Duration = Duration::from_secs(15);
    let vhost = Vhost::new(&Node::shared().await).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let silent = vhost.amqp_url_at("auth-proxy", &address.to_string());
    let began = Instant::now();
    let started = proxies([&silent, &vhost.amqp_url("auth-proxy")]);
    // Somebody has to meet it first, or nothing is tried here.
    let _held = listener.accept().await.unwrap();
    all_serve(&started).await;
    assert!(began.elapsed() < SECONDS, "all are served after {:?}", began.elapsed());
}

/// The same to a connection that was well: nothing is refused, nothing closes.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_move_to_the_other_broker_when_theirs_falls_silent() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let ((one, first), (other, second)) = (relay_to(&vhost, "auth-proxy").await, relay_to(&vhost, "auth-proxy").await);
    other.refuse(true);
    let stage = Stage::at(&vhost, &format!("{first},{second}"), 50, &SHORT_HEARTBEAT).await;
    other.refuse(false);
    one.set_both(Mode::Swallow);
    stage.noticed(Event::BrokerBack, 1).await;
    stage.is_well("after the silence").await;
}
