//! One identity, one mailbox, whatever characters it holds and whatever the URL says.

use std::collections::BTreeSet;

use rig::tokens::token_of;
use rig::{Client, Dial, Node, Outcome, Proxy, Vhost};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_alice_never_reaches_bob_whatever_the_url_says() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut bob = Dial::to(proxy.addr()).consumer("bob").connect().await;
    let targets = [
        "/?consumer=bob",
        "/?sub=bob&client_id=bob&consumerId=bob&instance=2",
        "/?instance=bob",
        "/?instance=1-bob-1",
        "/?instance=..%2Fproxy-subscription-consumer-bob-1",
        "/?instance=%00bob",
        "/?instance=3#bob",
        "/?instance=4&token=bob&access_token=bob",
    ];
    let mut alices: Vec<Client> = Vec::new();
    for target in targets {
        let refused_or_alice = Dial::to(proxy.addr()).consumer("alice").target(target).try_connect().await;
        alices.extend(refused_or_alice.ok());
    }
    // A fragment is no part of a request target; all others are instances of alice.
    assert!(alices.len() + 1 >= targets.len(), "{}", alices.len());
    let publisher = vhost.publisher().await;
    assert_eq!(publisher.publish("bob", "for bob").await, Outcome::Confirmed);
    assert_eq!(publisher.publish("alice", "for alice").await, Outcome::Confirmed);
    for alice in &mut alices {
        assert_eq!(alice.text().await, "for alice");
    }
    assert_eq!(bob.text().await, "for bob");
    let of_bob = vhost.queues().await.into_iter().filter(|q| q.name.starts_with("proxy-subscription-consumer-bob-"));
    assert_eq!(of_bob.map(|queue| queue.name).collect::<Vec<_>>(), ["proxy-subscription-consumer-bob-1"]);
}

/// Client, consumer, instance: different in what a careless name would lose.
const IDENTITIES: [[&str; 3]; 26] = [
    ["a", "b", "c"],
    ["a-b", "c", "d"],
    ["a", "b-c", "d"],
    ["a", "b", "c-d"],
    ["a", "b%2Dc", "d"],
    ["a", "b%2dc", "d"],
    ["a", "b_c", "d"],
    ["a", "b.c", "d"],
    ["a.b", "c", "d"],
    ["A", "b", "c"],
    ["a", "B", "c"],
    ["a", "#", "1"],
    ["a", "*", "1"],
    ["a", "%", "1"],
    ["a", "%25", "1"],
    ["a", " ", "1"],
    ["a", "  ", "1"],
    ["a", "x y", "1"],
    ["a", "x+y", "1"],
    ["a", "/", "1"],
    ["a", "\u{e9}", "1"],
    ["a", "e\u{301}", "1"],
    ["a", "\u{1F980}", "\u{1F980}"],
    ["a", "\u{0}", "1"],
    ["a", "line\nbreak", "1"],
    ["a", "\"quotes\" \\ 'all'", "&=?"],
];

#[tokio::test(flavor = "multi_thread")]
async fn identities_that_differ_never_share_a_queue() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut clients = Vec::new();
    for [client, consumer, instance] in IDENTITIES {
        let dial = Dial::to(proxy.addr()).token(&token_of(client, consumer)).instance(instance);
        clients.push(dial.connect().await);
    }
    let queues: BTreeSet<String> = vhost.queues().await.into_iter().map(|queue| queue.name).collect();
    assert_eq!(queues.len(), IDENTITIES.len(), "{queues:#?}");
    // The same consumer id under several clients or instances: each of them gets the message.
    let consumers: BTreeSet<&str> = IDENTITIES.iter().map(|[_, consumer, _]| *consumer).collect();
    let publisher = vhost.publisher().await;
    for consumer in consumers {
        assert_eq!(publisher.publish(consumer, format!("for [{consumer}]")).await, Outcome::Confirmed);
    }
    for ([client, consumer, instance], socket) in IDENTITIES.iter().zip(&mut clients) {
        assert_eq!(socket.text().await, format!("for [{consumer}]"), "{client:?} {consumer:?} {instance:?}");
    }
    assert_eq!(proxy.stop().await.delivered, IDENTITIES.len() as u64);
}
