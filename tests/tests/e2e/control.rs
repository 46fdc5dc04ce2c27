//! The healthy client that is there in every test of a fault: it streams throughout, misses nothing, and sees nothing that
//! it did not cause itself.

use std::net::SocketAddr;
use std::time::Duration;

use protocol::v1::ServerFrame;
use rig::{Client, Dial, Outcome, PATIENCE, Vhost, wait_until, within};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::queue;

const CONSUMER: &str = "control";

/// Between two messages: a hundred a second, and room on the machine for those that the test is about.
const PAUSE: Duration = Duration::from_millis(10);

/// Publishes to itself through the proxy, one message after the other, until told to finish.
pub(crate) struct Control {
    run: JoinSet<Stream>,
    finish: CancellationToken,
}

/// What it has had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// Messages, each sent, received and acked.
    pub(crate) messages: u64,
    /// The longest time from a confirm to the message's arrival.
    pub(crate) longest: Duration,
}

impl Control {
    /// Connects and begins.
    pub(crate) async fn start(vhost: &Vhost, proxy: SocketAddr) -> Control {
        let dial = Dial::to(proxy).consumer(CONSUMER).v1();
        // A proxy that has just started may not have its broker yet.
        let mut client = None;
        let status = async || match dial.try_connect().await {
            Ok(connected) => client.insert(connected).answer.status,
            Err(refusal) => refusal.status,
        };
        wait_until(PATIENCE, "the proxy serves", status, |status| *status == 101).await;
        let mut client = client.expect("it is connected");
        client.welcome().await;
        let (finish, mut run) = (CancellationToken::new(), JoinSet::new());
        run.spawn(stream(client, vhost.clone(), finish.clone()));
        Control { run, finish }
    }

    /// Ends the stream and says how it was.
    ///
    /// # Panics
    /// Something was missing, came twice or flagged, or came beside the messages.
    pub(crate) async fn finish(mut self) -> Stream {
        self.finish.cancel();
        let stream = within(PATIENCE, "the end of the control client", self.run.join_next()).await;
        let stream = stream.expect("it runs").expect("the control client was disturbed");
        assert!(stream.messages > 0, "the control client had nothing");
        stream
    }

    /// The consumer of this other client is on the same lane.
    ///
    /// # Panics
    /// It is not: what it does could not disturb.
    pub(crate) async fn shares_lane_with(&self, vhost: &Vhost, consumer: &str) {
        let consumers = vhost.consumers().await;
        let lane = |consumer| consumers.iter().find(|c| c.queue == queue(consumer)).map(|c| c.channel.clone());
        let (own, other) = (lane(CONSUMER), lane(consumer));
        assert!(own.is_some() && own == other, "{consumer} is not on the lane of the control client: {consumers:?}");
    }
}

async fn stream(mut client: Client, vhost: Vhost, finish: CancellationToken) -> Stream {
    let publisher = vhost.publisher().await;
    let mut stream = Stream { messages: 0, longest: Duration::ZERO };
    while !finish.is_cancelled() || stream.messages == 0 {
        stream.messages += 1;
        let body = format!("control {}", stream.messages);
        assert_eq!(publisher.publish(CONSUMER, body.as_str()).await, Outcome::Confirmed);
        let sent = Instant::now();
        match client.said().await {
            ServerFrame::Message(message) => {
                let seen = (message.seq, message.redelivered, message.body());
                assert_eq!(seen, (stream.messages, false, body.as_bytes()));
            }
            other => panic!("a message was expected, not {other:?}"),
        }
        stream.longest = stream.longest.max(sent.elapsed());
        client.ack(stream.messages).await;
        sleep(PAUSE).await;
    }
    client.close().await;
    stream
}
