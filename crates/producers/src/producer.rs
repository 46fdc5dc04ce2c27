//! One producer: its messages in order, to every consumer, and how each publish ended.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use broker::link::Link;
use broker::publisher::{Message, Publisher, Tally};
use protocol::load::Hello;
use protocol::names::{RoutingKey, consumer_id, producer_id};
use service::shutdown::Shutdown;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::{error, info, warn};

use crate::config::Config;
use crate::totals::Counters;

/// What all producers of a run share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) shutdown: Shutdown,
}

pub(crate) struct Producer {
    shared: Shared,
    /// `producer201.20902`
    name: String,
    publisher: Publisher,
    /// Since the last [`Producer::take_tally`].
    tally: Tally,
    /// Set when the shutdown has begun: until then outstanding confirms are awaited.
    drain_until: Option<Instant>,
}

/// Whether to go on with what is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

impl Producer {
    /// Producer `number` with a random number of its own, so that a second run does not look like a repetition.
    pub(crate) fn new(shared: Shared, link: Link, number: u64) -> Self {
        let run = rand::random_range(10_000..=99_999u32);
        let name = format!("{}.{run}", producer_id(number));
        let publisher = Publisher::new(link, shared.config.publisher);
        Self { shared, name, publisher, tally: Tally::default(), drain_until: None }
    }

    /// Sends until the count is reached or the shutdown begins, then waits for outstanding confirms.
    pub(crate) async fn run(mut self) {
        match self.shared.config.interval {
            Some(period) => self.rounds(period).await,
            None => self.load().await,
        }
        self.decided().await;
        let shutdown = self.shared.shutdown;
        tokio::select! {
            () = self.publisher.close() => {}
            () = shutdown.forced() => {}
        }
    }

    async fn rounds(&mut self, period: Duration) {
        let shutdown = self.shared.shutdown.clone();
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for number in 1..=self.shared.config.count.unwrap_or(u64::MAX) {
            let tick = shutdown.token().run_until_cancelled_owned(ticks.tick()).await;
            let due = Instant::now();
            if tick.is_none() || self.ready().await == Next::Stop {
                return;
            }
            if due.elapsed() > period {
                // The broker was away: the next message keeps its distance to this one.
                ticks.reset();
            }
            self.round(number).await;
        }
    }

    async fn round(&mut self, number: u64) {
        let hello = Hello { producer: self.name.clone(), number, sent_at_micros: None };
        info!("Sending to ({}): [{hello}]", self.shared.config.consumers_text());
        self.send(number).await;
        info!("Confirming");
        self.decided().await;
        let tally = self.take_tally();
        if tally.is_all_confirmed() {
            info!("OK");
        } else {
            warn!("Not all of [{hello}] was confirmed: {tally}");
        }
    }

    async fn load(&mut self) {
        for number in 1..=self.shared.config.count.unwrap_or(u64::MAX) {
            if self.send(number).await == Next::Stop {
                return;
            }
        }
    }

    /// Publishes message `number` to every consumer, as the window has room; what is still in flight at the end
    /// stays so.
    async fn send(&mut self, number: u64) -> Next {
        for consumer in self.shared.config.consumers.clone() {
            if self.ready().await == Next::Stop {
                return Next::Stop;
            }
            let Some(message) = self.message(number, consumer) else { continue };
            match self.publisher.publish(message) {
                Ok(()) => self.shared.counters.sent(1),
                Err(error) => error!("not sent: {error}"),
            }
        }
        Next::Continue
    }

    fn message(&self, number: u64, consumer: u64) -> Option<Message> {
        let config = &self.shared.config;
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let sent_at_micros = config.interval.is_none().then(|| u64::try_from(micros).ok()).flatten();
        let hello = Hello { producer: self.name.clone(), number, sent_at_micros };
        Some(Message {
            id: format!("{}.{number}", self.name),
            routing_key: RoutingKey::new(&consumer_id(consumer))
                .inspect_err(|error| error!("not sent to consumer {consumer}: {error}"))
                .ok()?,
            body: hello.encode(config.size),
            sent_at_micros: i64::try_from(micros).unwrap_or(i64::MAX),
            persistent: config.persistent,
        })
    }

    /// Waits until one more message can be published, behind nothing older. Stops when the shutdown has begun.
    async fn ready(&mut self) -> Next {
        while !self.shared.shutdown.is_begun() {
            if self.publisher.has_room() {
                return Next::Continue;
            }
            let _ = self.progress().await;
        }
        Next::Stop
    }

    /// Waits until all that was sent is decided, as long as that takes; what is not when the time for it is over ends as
    /// unconfirmed.
    async fn decided(&mut self) {
        while self.publisher.undecided() > 0 && self.progress().await == Next::Continue {}
        let tally = self.publisher.give_up();
        self.count(tally);
    }

    /// Publishes, also again, and waits for something to end. Says to stop when the time for that is over.
    async fn progress(&mut self) -> Next {
        let shutdown = &self.shared.shutdown;
        let draining = self.drain_until;
        tokio::select! {
            biased;
            () = shutdown.forced() => return Next::Stop,
            () = shutdown.begun(), if draining.is_none() => {
                self.drain_until = Some(Instant::now() + self.shared.config.drain_timeout);
            }
            () = sleep_until(draining.unwrap_or_else(Instant::now)), if draining.is_some() => return Next::Stop,
            tally = self.publisher.progress() => self.count(tally),
        }
        Next::Continue
    }

    fn count(&mut self, tally: Tally) {
        self.tally += tally;
        self.shared.counters.ended(tally);
    }

    fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }
}
