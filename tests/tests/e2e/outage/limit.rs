//! `--outage-limit`: an operator may rather have clients elsewhere than waiting.

use std::time::Duration;

use protocol::close::CloseCode;
use protocol::v1::Event;
use rig::crowd::Then;
use rig::relay::Cut;
use rig::{Crowd, Dial, Node, Proxy, Vhost};
use tokio::time::Instant;

use super::{names, relay_to};

/// A connection that did not live long is made anew after 2 s at the earliest.
const LIMIT: Duration = Duration::from_secs(6);

/// Without the limit they stay: `outage::broker`.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_end_with_4005_when_the_broker_is_away_for_longer_than_the_limit_and_not_before() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let (relay, url) = relay_to(&vhost, "auth-proxy").await;
    let limit = LIMIT.as_secs().to_string();
    let proxy = Proxy::at(&url, &["--outage-limit", &limit, "--pong-timeout", "1h"]);
    let crowd = Crowd::of(&[proxy.addr()], names(1..=20), Then::Stays).await;
    let mut raw = Dial::to(proxy.addr()).consumer("raw").connect().await;
    // Each outage has a limit of its own: together these last longer.
    let began = Instant::now();
    let mut round = 0;
    while began.elapsed() < LIMIT {
        round += 1;
        relay.cut(Cut::Reset);
        crowd.until("the outage is over", |notes| super::count(notes, Event::BrokerBack) == round).await;
    }
    assert_eq!(crowd.sum(|notes| notes.ends.len()), 0);

    relay.refuse(true);
    relay.cut(Cut::Reset);
    let began = Instant::now();
    crowd.until("each is told to go", |notes| notes.ends == [Some(4005)]).await;
    assert!(began.elapsed() >= LIMIT, "{:?}", began.elapsed());
    assert_eq!(raw.expect_close().await, (4005, CloseCode::BrokerUnavailable.reason().to_owned()));
}
