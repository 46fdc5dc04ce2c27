//! A proxy that is cut off, and comes back to a mailbox that is another's.

use std::net::SocketAddr;

use rig::relay::Cut;

use super::*;

/// A proxy with a network of its own to the broker.
async fn far_away(vhost: &Vhost) -> (Proxy, Relay) {
    let broker = SocketAddr::from(([127, 0, 0, 1], vhost.node().amqp_port()));
    let network = Relay::start(broker).await;
    let url = vhost.amqp_url_at("auth-proxy", &network.addr().to_string());
    (Proxy::at(&url, LATE_PONGS), network)
}

fn cut_off(network: &Relay) {
    network.refuse(true);
    network.cut(Cut::Reset);
}

async fn free(vhost: &Vhost) {
    wait_until(PATIENCE, "the broker has dropped the consumer", async || consumers(vhost).await, |count| *count == 0)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relic_that_comes_back_after_an_outage_never_ends_the_live_one() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let ((first, network), second) = (far_away(&vhost).await, Proxy::start(&vhost, LATE_PONGS));
    let mut relic = joined(&first).await;
    lives(&vhost, &mut relic, "hello").await;
    cut_off(&network);
    free(&vhost).await;
    let mut live = joined(&second).await;
    lives(&vhost, &mut live, "hopped").await;

    network.refuse(false);
    replaced(relic).await;
    for round in 0..20 {
        lives(&vhost, &mut live, &format!("undisturbed {round}")).await;
    }
    assert_eq!(consumers(&vhost).await, 1);
    first.stop().await;
    second.stop().await;
}

/// Both are cut off, and the relic is back first.
#[tokio::test(flavor = "multi_thread")]
async fn the_live_one_that_comes_back_after_the_relic_ends_it() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let ((first, to_first), (second, to_second)) = (far_away(&vhost).await, far_away(&vhost).await);
    let mut relic = joined(&first).await;
    lives(&vhost, &mut relic, "hello").await;
    cut_off(&to_first);
    free(&vhost).await;
    let mut live = joined(&second).await;
    lives(&vhost, &mut live, "hopped").await;
    cut_off(&to_second);
    free(&vhost).await;

    to_first.refuse(false);
    wait_until(PATIENCE, "the relic has the mailbox", async || consumers(&vhost).await, |count| *count == 1).await;
    to_second.refuse(false);
    // It is the single active consumer at first, and is told that it is back.
    let (said, close) = relic.until_close().await;
    assert_eq!(close.map(|(code, _)| code), Some(REPLACED), "{said:?}");
    wait_until(PATIENCE, "one consumer", async || consumers(&vhost).await, |count| *count == 1).await;
    lives(&vhost, &mut live, "undisturbed").await;
    first.stop().await;
    second.stop().await;
}

/// Ends a proxy's control connection twice: it had just come back, so it takes its time to come again.
async fn cut_control(vhost: &Vhost, id: &str) {
    let name = format!("auth-proxy {id} control");
    let control = async || vhost.connections().await.into_iter().find(|connection| connection.name == name);
    let mut last = String::new();
    for _ in 0..2 {
        let up = async || control().await.map(|connection| connection.pid);
        let pid =
            wait_until(PATIENCE, "a control connection", up, |pid| pid.as_ref().is_some_and(|pid| *pid != last)).await;
        last = pid.unwrap();
        vhost.node().eval(&format!("exit(list_to_pid(\"{last}\"), kill).")).await;
    }
    wait_until(PATIENCE, "no control connection", control, Option::is_none).await;
}

fn named(vhost: &Vhost, id: &str) -> Proxy {
    let timeout = format!("{}ms", SHORT.as_millis());
    Proxy::start(vhost, &[LATE_PONGS, &[id, "--broker-timeout", &timeout]].concat())
}

async fn refused(proxy: &Proxy) {
    let refusal = Dial::to(proxy.addr()).consumer("a").try_connect().await.err().expect("refused");
    assert_eq!(refusal.status, 503);
    assert!(refusal.header("retry-after").is_some(), "{refusal:?}");
}

/// Served as soon as the link is back, and the older one ends.
async fn taken_over(vhost: &Vhost, old: Client, proxy: &Proxy) {
    let dial = Dial::to(proxy.addr()).consumer("a").v1();
    let mut new = None;
    let served = async || {
        new = dial.try_connect().await.ok();
        new.is_some()
    };
    wait_until(PATIENCE, "a takeover", served, |served| *served).await;
    let mut new = new.unwrap();
    new.welcome().await;
    replaced(old).await;
    lives(vhost, &mut new, "taken over").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_control_link_is_cut_keeps_its_mailbox_until_it_is_back() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let (first, second) = (named(&vhost, "1"), named(&vhost, "2"));
    let mut old = joined(&first).await;
    cut_control(&vhost, "1").await;
    refused(&second).await;
    lives(&vhost, &mut old, "still mine").await;
    taken_over(&vhost, old, &second).await;
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_whose_proxy_has_no_control_link_gets_what_is_free_and_nothing_else() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let (first, second) = (named(&vhost, "1"), named(&vhost, "2"));
    let mut old = joined(&first).await;
    cut_control(&vhost, "2").await;
    let mut other = Dial::to(second.addr()).consumer("b").v1().connect().await;
    other.welcome().await;
    refused(&second).await;
    lives(&vhost, &mut old, "still mine").await;
    taken_over(&vhost, old, &second).await;
    first.stop().await;
    second.stop().await;
}
