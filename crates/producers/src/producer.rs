//! One producer: its messages in order, to every consumer, and how each publish ended.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use broker::link::Link;
use broker::publisher::{Message, Publisher, Tally};
use protocol::load::Hello;
use protocol::names::{RoutingKey, consumer_id, producer_id};
use service::shutdown::Shutdown;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{error, info, warn};

use crate::config::Config;
use crate::totals::Counters;

/// Between two tries to open a channel; the link has a backoff of its own.
const CHANNEL_PAUSE: Duration = Duration::from_millis(200);

/// What all producers of a run share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) shutdown: Shutdown,
}

pub(crate) struct Producer {
    shared: Shared,
    link: Link,
    /// `producer201.20902`
    name: String,
    publisher: Option<Publisher>,
    /// Since the last [`Producer::take_tally`].
    tally: Tally,
    /// Set when the shutdown has begun: until then outstanding confirms are awaited.
    drain_until: Option<Instant>,
}

/// What has to come before a producer's next message.
enum Need {
    Nothing,
    Channel,
    Answers,
    Unblocking,
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
        Self { shared, link, name, publisher: None, tally: Tally::default(), drain_until: None }
    }

    /// Sends until the count is reached or the shutdown begins, then waits for outstanding confirms.
    pub(crate) async fn run(mut self) {
        match self.shared.config.interval {
            Some(period) => self.rounds(period).await,
            None => self.load().await,
        }
        while self.undecided() > 0 && self.progress().await == Next::Continue {}
        self.give_up();
        if let Some(publisher) = self.publisher.take() {
            let shutdown = self.shared.shutdown;
            tokio::select! {
                () = publisher.close() => {}
                () = shutdown.forced() => {}
            }
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
        while self.undecided() > 0 && self.progress().await == Next::Continue {}
        self.give_up();
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
            if let Some(message) = self.message(number, consumer)
                && let Some(publisher) = &mut self.publisher
            {
                match publisher.publish(message) {
                    Ok(()) => self.shared.counters.sent(1),
                    Err(error) => error!("not sent: {error}"),
                }
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

    /// Waits until one more message can be published: a channel is open, the broker does not block, and the window
    /// has room. Stops when the shutdown has begun.
    async fn ready(&mut self) -> Next {
        loop {
            if self.shared.shutdown.is_begun() {
                return Next::Stop;
            }
            match self.need() {
                Need::Nothing => return Next::Continue,
                Need::Answers => {
                    // To stop means that the channel was lost, or that the shutdown has begun.
                    let _ = self.progress().await;
                }
                Need::Unblocking => {
                    self.shared.shutdown.token().run_until_cancelled(self.link.unblocked()).await;
                }
                Need::Channel => self.open().await,
            }
        }
    }

    /// What has to come before the next message.
    fn need(&self) -> Need {
        match &self.publisher {
            None => Need::Channel,
            Some(publisher) if !publisher.is_open() && publisher.undecided() == 0 => Need::Channel,
            Some(publisher) if !publisher.is_open() => Need::Answers,
            // Nothing new into a blocked connection: it would wait there, end as unconfirmed, and be sent later.
            Some(publisher) if self.link.is_blocked() && publisher.undecided() == 0 => Need::Unblocking,
            Some(publisher) if self.link.is_blocked() || publisher.room() == 0 => Need::Answers,
            Some(_) => Need::Nothing,
        }
    }

    /// One try to get a publisher.
    async fn open(&mut self) {
        self.publisher = None;
        let options = self.shared.config.publisher;
        let opening = Publisher::open(&self.link, options, self.shared.config.connection.timeout);
        let opened = self.shared.shutdown.token().run_until_cancelled_owned(opening).await;
        match opened {
            Some(Ok(publisher)) => self.publisher = Some(publisher),
            // The link says why; a short wait lets it notice.
            Some(Err(_)) => sleep(CHANNEL_PAUSE).await,
            None => {}
        }
    }

    /// Writes and waits for something to end. Says to stop when the time for that is over, or all is lost.
    async fn progress(&mut self) -> Next {
        let Some(publisher) = &mut self.publisher else { return Next::Stop };
        let shutdown = &self.shared.shutdown;
        let draining = self.drain_until;
        tokio::select! {
            biased;
            () = shutdown.forced() => return Next::Stop,
            () = shutdown.begun(), if draining.is_none() => {
                self.drain_until = Some(Instant::now() + self.shared.config.drain_timeout);
            }
            () = sleep_until(draining.unwrap_or_else(Instant::now)), if draining.is_some() => return Next::Stop,
            result = publisher.progress() => match result {
                Ok(tally) => self.count(tally),
                Err(_) => return self.lost().await,
            },
        }
        Next::Continue
    }

    /// The link says what happened and reconnects.
    async fn lost(&mut self) -> Next {
        if let Some(publisher) = self.publisher.take() {
            self.count(publisher.lost().await);
        }
        Next::Stop
    }

    /// Ends what is undecided still; nothing is after a normal round.
    fn give_up(&mut self) {
        if let Some(publisher) = &mut self.publisher {
            let tally = publisher.give_up();
            self.count(tally);
        }
    }

    fn undecided(&self) -> usize {
        self.publisher.as_ref().map_or(0, Publisher::undecided)
    }

    fn count(&mut self, tally: Tally) {
        self.tally += tally;
        self.shared.counters.ended(tally);
    }

    fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }
}
