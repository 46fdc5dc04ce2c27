//! Clients that are slow and well. The periods are a part of the defaults, and the speeds as many times those in question, so
//! that a test takes seconds.

use std::time::Duration;

use rig::relay::Relay;
use rig::{Dial, Node, Proxy, Vhost};
use tokio::time::{Instant, sleep};

use super::{KIB, MIB, number_of, publish, take_all, welcomed};
use crate::control::Control;

const FIFTH: &[&str] = &["--write-timeout", "3", "--ack-timeout", "3", "--ping-interval", "2.5", "--pong-timeout", "1"];

/// 20 KiB/s for a body of 1 MiB, three times: it takes longer than any of the periods, and the pong stands in line behind
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_line_and_bodies_of_1_mib() {
    const MESSAGES: usize = 2;
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, FIFTH);
    let control = Control::start(&vhost, proxy.addr()).await;
    let relay = Relay::start(proxy.addr()).await;
    let mut client = welcomed(&Dial::to(relay.addr()).consumer("a").v1()).await;
    // 100 KiB/s
    relay.pace(2 * KIB, Duration::from_millis(20));
    let began = Instant::now();
    let sending = async {
        publish(&vhost, "a", MESSAGES, MIB).await;
        control.shares_lane_with(&vhost, "a").await;
    };
    let (redelivered, ()) = tokio::join!(take_all(&mut client, MESSAGES), sending);
    assert_eq!(redelivered, 0, "nothing came twice");
    let took = began.elapsed();
    assert!(took > Duration::from_secs(18), "the line was not slow: {took:?}");
    control.finish().await;
    proxy.stop().await;
}

/// One message a second with a full window: sixteen that it has take it half as long again as the time for an ack.
#[tokio::test(flavor = "multi_thread")]
async fn one_message_a_second_with_a_full_window() {
    const MESSAGES: usize = 70;
    let vhost = Vhost::new(&Node::shared().await).await;
    let arguments = ["--write-timeout", "1", "--ack-timeout", "1", "--ping-interval", "0.5", "--pong-timeout", "0.5"];
    let proxy = Proxy::start(&vhost, &arguments);
    let control = Control::start(&vhost, proxy.addr()).await;
    let mut client = welcomed(&Dial::to(proxy.addr()).consumer("a").v1()).await;
    let sending = async {
        publish(&vhost, "a", MESSAGES, 2 * KIB).await;
        control.shares_lane_with(&vhost, "a").await;
    };
    let working = async {
        for number in 0..MESSAGES {
            let message = client.message().await;
            assert_eq!((number_of(message.body()), message.redelivered), (number, false));
            // What it does with a message; it reads nothing meanwhile, and answers no ping.
            sleep(Duration::from_millis(100)).await;
            client.ack(message.seq).await;
        }
    };
    tokio::join!(working, sending);
    assert!(client.pings > 0, "it was asked meanwhile");
    control.finish().await;
    proxy.stop().await;
}
