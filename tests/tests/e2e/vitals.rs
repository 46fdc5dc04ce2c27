//! What the broker crate says of itself is what is so.

use std::time::Duration;

use broker::{
    endpoint::parse_list,
    ledger::Outcome,
    mailboxes::{Mailboxes, Options, Wish},
    subscription::{Incoming, Subscription, Tag},
};
use protocol::names::{Address, RoutingKey};
use rig::{Node, PATIENCE, Vhost, wait_until, within};

async fn subscribed(mailboxes: &Mailboxes, consumer: &str) -> Subscription {
    let address = Address { client: "consumer".into(), consumer: consumer.into(), instance: "1".into() };
    let claim = mailboxes.claim(&address.queue().unwrap()).await.expect("nobody else wants it");
    let key = RoutingKey::new(consumer).unwrap();
    mailboxes.subscribe(claim, key, Wish { window: 16, resume: false }).await.expect("the broker is there")
}

async fn taken(subscription: &mut Subscription) -> Tag {
    match within(PATIENCE, "a delivery", subscription.next()).await {
        Incoming::Delivery(delivery) => delivery.tag,
        other => panic!("a delivery was expected, not {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vitals_count_open_tags_lanes_and_losses() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let options = Options {
        name: "vitals".to_owned(),
        heartbeat: Duration::from_secs(10),
        request_timeout: PATIENCE,
        ack_interval: Duration::from_millis(5),
        lanes_max: 4,
        declare_channels: 2,
    };
    let mailboxes = Mailboxes::start(parse_list(&[vhost.amqp_url("auth-proxy")], "").unwrap(), &options);
    within(PATIENCE, "the connections", mailboxes.up()).await;
    let (mut one, mut two) = (subscribed(&mailboxes, "one").await, subscribed(&mailboxes, "two").await);
    let publisher = vhost.publisher().await;
    publisher.publish_all("one", ["1", "2", "3"]).await;
    publisher.publish_all("two", ["4"]).await;
    let tags = [taken(&mut one).await, taken(&mut one).await, taken(&mut one).await];
    let other = taken(&mut two).await;
    let vitals = mailboxes.vitals();
    assert_eq!((vitals.lanes, vitals.open_tags, vitals.lane_rebuilds, vitals.reconnects()), (1, 4, 0, 0));
    assert!(vitals.links.iter().all(|link| link.up && !link.blocked), "{vitals:?}");
    one.settle(&tags[..2], Outcome::Ack);
    two.settle(&[other], Outcome::Reject);
    assert_eq!(mailboxes.vitals().open_tags, 1);
    one.leave().await;
    assert_eq!(mailboxes.vitals().open_tags, 0, "what is given back is open no more");

    let before = mailboxes.vitals();
    vhost.cut_connections().await;
    let again = async || mailboxes.vitals();
    let all_back = wait_until(PATIENCE, "all connections and the lane are back", again, |now| {
        now.links.iter().all(|link| link.up && link.reconnects == 1) && now.lane_rebuilds == 1
    })
    .await;
    assert!(all_back.outages() > before.outages(), "{all_back:?}");
    let lasting = mailboxes.vitals().outages();
    assert_eq!(lasting, mailboxes.vitals().outages(), "no outage, no time");
    two.leave().await;
    mailboxes.close(PATIENCE).await;
}
