//! Messages: to fill mailboxes, at a fixed rate, or as fast as they arrive.

use std::convert::Infallible;
use std::time::Duration;

use broker::connection::ConnectionOptions;
use broker::endpoint::Endpoint;
use broker::link::link;
use broker::publisher::{Message, Publisher, PublisherOptions, Tally};
use broker::topology::DIRECT;
use protocol::names::RoutingKey;
use rig::{PATIENCE, Vhost, within};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::args::{BODY_BYTES, IN_FLIGHT};
use crate::score::{Score, unix_micros};

/// The timer of tokio is a millisecond coarse: so far it is the timer that is late, and beyond the publisher, whose delay is
/// part of the latency then.
const TIMER: Duration = Duration::from_millis(2);
const OPTIONS: PublisherOptions =
    PublisherOptions { window: 1000, confirm_timeout: PATIENCE, open_timeout: PATIENCE, give_up: None };

/// How fast.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// So many a second, whatever becomes of them.
    Rate(u64),
    /// As many as arrive, with so many [`IN_FLIGHT`].
    Full,
}

/// Publishes to each of some consumers in turn.
pub(crate) struct Load {
    publisher: Publisher,
    to: Vec<RoutingKey>,
    score: Score,
    /// To those in `to`.
    sent: u64,
    numbers: u64,
    tally: Tally,
    /// Stops it when dropped.
    _link: JoinSet<()>,
}

impl Load {
    /// Nothing is published yet.
    pub(crate) fn new(vhost: &Vhost, to: Vec<RoutingKey>, score: Score) -> Load {
        let endpoint = Endpoint::parse(&vhost.amqp_url("producer"), "producer").expect("rig makes good URLs");
        let name = "bench".to_owned();
        let options = ConnectionOptions { name, heartbeat: Duration::from_secs(10), timeout: PATIENCE };
        let (link, driver) = link([endpoint].into(), options, &[DIRECT]);
        let mut driving = JoinSet::new();
        driving.spawn(driver.run(CancellationToken::new()));
        let publisher = Publisher::new(link, OPTIONS);
        Load { publisher, to, score, sent: 0, numbers: 0, tally: Tally::default(), _link: driving }
    }

    /// Publishes so many messages of so many bytes to each of these, and waits until the broker has them.
    pub(crate) async fn fill(&mut self, keys: &[RoutingKey], count: u64, bytes: usize) {
        for _ in 0..count {
            for key in keys {
                self.room().await;
                self.publish(key.clone(), bytes, unix_micros());
            }
        }
        self.settle().await;
    }

    /// Publishes until it is dropped, which it may be at any await.
    pub(crate) async fn run(&mut self, pace: Pace) -> Infallible {
        match pace {
            Pace::Rate(rate) => self.at_rate(rate).await,
            Pace::Full => self.at_full_speed().await,
        }
    }

    async fn at_rate(&mut self, rate: u64) -> Infallible {
        let (began, period) = (Instant::now(), Duration::from_secs(1).div_f64(rate as f64));
        for number in 0u64.. {
            let due = began + period.mul_f64(number as f64);
            self.until(due).await;
            self.room().await;
            let late = due.elapsed();
            let counts = if late > TIMER { u64::try_from(late.as_micros()).unwrap_or(u64::MAX) } else { 0 };
            self.send(unix_micros().saturating_sub(counts));
        }
        unreachable!("the numbers have no end")
    }

    async fn at_full_speed(&mut self) -> Infallible {
        loop {
            let may_send = self.sent - self.score.received() < IN_FLIGHT;
            if may_send && self.publisher.has_room() {
                self.send(unix_micros());
                continue;
            }
            let waits = may_send || self.publisher.undecided() > 0;
            tokio::select! {
                () = self.score.arrival(), if !may_send => {}
                tally = self.publisher.progress(), if waits => self.tally += tally,
            }
        }
    }

    /// Waits until the broker has all that was published. Whatever it refused makes the measurement void.
    pub(crate) async fn settle(&mut self) {
        while self.publisher.undecided() > 0 {
            self.tally += within(PATIENCE, "the broker's confirms", self.publisher.progress()).await;
        }
        assert!(self.tally.is_all_confirmed(), "not all was confirmed: {}", self.tally);
        assert_eq!(self.tally.republished, 0, "the connection was lost");
    }

    /// How many were published to those who read.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    async fn until(&mut self, due: Instant) {
        while Instant::now() < due {
            let undecided = self.publisher.undecided() > 0;
            tokio::select! {
                () = sleep_until(due) => {}
                tally = self.publisher.progress(), if undecided => self.tally += tally,
            }
        }
    }

    async fn room(&mut self) {
        while !self.publisher.has_room() {
            self.tally += within(PATIENCE, "room for a message", self.publisher.progress()).await;
        }
    }

    /// To the next in turn.
    fn send(&mut self, sent_at: u64) {
        let turn = usize::try_from(self.sent).unwrap_or_default() % self.to.len();
        let key = self.to.get(turn).cloned().expect("somebody reads");
        self.publish(key, BODY_BYTES, sent_at);
        self.sent += 1;
    }

    fn publish(&mut self, routing_key: RoutingKey, bytes: usize, sent_at: u64) {
        self.numbers += 1;
        let message = Message {
            id: format!("bench.{}", self.numbers),
            routing_key,
            body: vec![b'x'; bytes],
            sent_at_micros: i64::try_from(sent_at).unwrap_or(i64::MAX),
            persistent: false,
        };
        self.publisher.publish(message).expect("the id is short");
    }
}
