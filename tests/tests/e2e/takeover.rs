//! The newest connection of an instance wins, and the cleanup of the old one never touches it.

use std::time::Duration;

use rand::RngExt;
use rig::{Dial, Node, Proxy, Vhost};
use tokio::time::sleep;

use crate::queue;

/// 500 takeovers at random offsets, the old socket ending in every way.
#[tokio::test(flavor = "multi_thread")]
async fn a11_stale_cleanup_never_kills_the_new_session() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let publisher = vhost.publisher().await;
    let dial = || Dial::to(proxy.addr()).consumer("a");
    let mut silent = Vec::new();
    let mut old = dial().connect().await;
    for round in 0..500 {
        // The offset is what the report varies; nothing waits for it.
        sleep(Duration::from_micros(rand::rng().random_range(0..50_000))).await;
        let way = round % 4;
        let new = if way == 3 {
            // The newcomer knocks while the old one is still closing.
            let closing = old.close();
            let dial = dial();
            tokio::join!(dial.connect(), closing).0
        } else {
            let dial = dial();
            let connecting = dial.connect();
            match way {
                0 => drop(old),
                1 => old.reset(),
                _ => silent.push(old.drop_silently()),
            }
            connecting.await
        };
        let mut new = new;
        let bodies = [0, 1, 2].map(|number| format!("{round}.{number}"));
        publisher.publish_all("a", bodies.clone()).await;
        for body in bodies {
            assert_eq!(new.text().await, body);
        }
        old = new;
        silent.truncate(100);
    }
    let queue = vhost.queue(&queue("a")).await.expect("the queue");
    assert_eq!((queue.consumers, queue.ready), (1, 0), "{queue:?}");
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_older_socket_is_closed_with_4506() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let dial = || Dial::to(proxy.addr()).consumer("a");
    let mut old = dial().connect().await;
    let mut new = dial().connect().await;
    assert_eq!(old.expect_close().await.0, 4506);
    vhost.publisher().await.publish_all("a", ["hello"]).await;
    assert_eq!(new.text().await, "hello");
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_instance_is_another_mailbox_and_no_takeover() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut one = Dial::to(proxy.addr()).consumer("a").instance("1").connect().await;
    let mut two = Dial::to(proxy.addr()).consumer("a").instance("2").connect().await;
    vhost.publisher().await.publish_all("a", ["hello"]).await;
    assert_eq!((one.text().await, two.text().await), ("hello".to_owned(), "hello".to_owned()));
    proxy.stop().await;
}
