//! `?window=` and `?resume=`: what a client may ask for, and what it gets.

use rig::{Client, Dial, Node, Proxy, Vhost};

use super::{LATE_PONGS, expect, expect_pong, numbers, reaches, state};
use crate::control::Control;
use crate::queue;

async fn with(dial: &Dial) -> (Client, protocol::v1::Welcome<'static>) {
    let mut client = dial.connect().await;
    let welcome = client.welcome().await;
    (client, welcome)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_smaller_window_is_kept_and_a_larger_one_is_not_given() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let control = Control::start(&vhost, proxy.addr()).await;
    let publisher = vhost.publisher().await;
    for (asked, given) in [("1", 1), ("5", 5), ("16", 16), ("17", 16), ("65535", 16), ("65536", 16), ("1e3", 0)] {
        let dial = Dial::to(proxy.addr()).consumer("a").v1().target(&format!("/?window={asked}"));
        if given == 0 {
            assert_eq!(dial.try_connect().await.err().map(|answer| answer.status), Some(400), "{asked}");
            continue;
        }
        let (mut client, welcome) = with(&dial).await;
        assert_eq!(welcome.window, given, "{asked}");
        let consumers = vhost.consumers().await;
        let own = consumers.iter().find(|consumer| consumer.queue == queue("a")).expect("its consumer");
        assert_eq!(own.prefetch, u64::from(given), "{asked}");
        publisher.publish_all("a", numbers(1..=40)).await;
        let window = usize::from(given);
        // Each ack makes room for one more, and never is more out than the window.
        for number in 1..=40 - window {
            expect(&mut client, &numbers(number..=number), false).await;
            let (ready, unacked) = state(&vhost).await;
            assert!(unacked <= u64::from(given), "{unacked} unacked of a window of {given}, {ready} ready");
            if number == 1 {
                reaches(&vhost, 40 - u64::from(given), u64::from(given)).await;
            }
            client.ack(number as u64).await;
        }
        expect(&mut client, &numbers(41 - window..=40), false).await;
        expect_pong(&mut client).await;
        client.ack(40).await;
        reaches(&vhost, 0, 0).await;
        client.close().await;
    }
    control.finish().await;
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_window_and_no_answer_are_400() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let control = Control::start(&vhost, proxy.addr()).await;
    let wrong = ["window=0", "window=x", "window=", "window=-1", "window=1.5", "window=+5", "window=%2016"];
    let wrong = wrong.iter().chain(&["window=5&window=5", "resume=perhaps", "resume=1&resume=0"]);
    for query in wrong {
        let dial = Dial::to(proxy.addr()).consumer("a").v1().target(&format!("/?{query}"));
        let answer = dial.try_connect().await.err().unwrap_or_else(|| panic!("{query} was taken"));
        assert!(answer.status == 400 && answer.is_complete(), "{query}: {answer:?}");
    }
    assert!(vhost.queue(&queue("a")).await.is_none(), "what is refused declares nothing");
    control.finish().await;
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_to_resume_is_told_whether_its_mailbox_still_existed() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let dial = |query: &str| Dial::to(proxy.addr()).consumer("a").v1().target(query);
    let (client, welcome) = with(&dial("/?resume=true")).await;
    assert_eq!((welcome.resumed, welcome.pending), (Some(false), 0));
    client.close().await;
    vhost.publisher().await.publish_all("a", numbers(1..=25)).await;
    let (client, welcome) = with(&dial("/?resume=true")).await;
    assert_eq!((welcome.resumed, welcome.pending), (Some(true), 25));
    client.close().await;
    reaches(&vhost, 25, 0).await;
    let (client, welcome) = with(&dial("/")).await;
    assert_eq!((welcome.resumed, welcome.pending), (None, 25), "who does not ask is not told");
    client.close().await;
    let (client, welcome) = with(&dial("/?resume=false")).await;
    assert_eq!((welcome.resumed, welcome.pending), (None, 25));
    client.close().await;
    vhost.delete_queue(&queue("a")).await;
    let (client, welcome) = with(&dial("/?resume=true")).await;
    assert_eq!((welcome.resumed, welcome.pending), (Some(false), 0));
    client.close().await;
    proxy.stop().await;
}
