//! What all instances share, what they tell while they run, and what each hands in at its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use protocol::load::Hello;
use service::shutdown::Shutdown;
use tokio::sync::{Semaphore, mpsc};

use crate::args::Protocol;
use crate::config::Config;
use crate::dial::{Dialer, Who};
use crate::latency::Latencies;
use crate::policy::{End, Failure, crowd};
use crate::tally::{Marks, Tally};
use crate::v1::{Counts, Note};

/// What an instance tells while it runs. What it counted comes at the end, as an [`Outcome`].
#[derive(Debug)]
pub(crate) enum Event {
    /// A message of a round arrived for the first time.
    Hello(Hello),
    /// The upgrade succeeded.
    Connected,
    /// Something that the server said and that people should hear.
    Noted(Note),
    /// No connection came about; with `stopped` this instance never tries again.
    Failed { who: Who, failure: Failure, stopped: bool },
    /// A connection ended; with `stopped` this instance never comes back.
    Ended { who: Who, end: End, stopped: bool },
}

/// What all instances share.
pub(crate) struct World {
    pub(crate) dialer: Dialer,
    /// Connects in progress.
    pub(crate) permits: Semaphore,
    /// Bounded: an instance that gets ahead of the printing waits, and its socket with it.
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) shutdown: Shutdown,
    pub(crate) arrivals: Arrivals,
    pub(crate) latencies: Latencies,
    pub(crate) protocol: Protocol,
    pub(crate) close_timeout: Duration,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) answer_timeout: Duration,
    pub(crate) token_ttl: Duration,
    pub(crate) backoff_cap: Duration,
    /// Over how long all instances come back that lost their connections in one moment.
    pub(crate) crowd: Duration,
}

impl World {
    /// What `config` asks for; events go to `events`.
    pub(crate) fn new(config: &Config, events: mpsc::Sender<Event>, shutdown: Shutdown) -> Self {
        Self {
            dialer: Dialer::new(config),
            permits: Semaphore::new(config.connect_concurrency),
            events,
            shutdown,
            arrivals: Arrivals::default(),
            latencies: Latencies::default(),
            protocol: config.protocol,
            close_timeout: config.close_timeout,
            idle_timeout: config.idle_timeout,
            answer_timeout: config.answer_timeout,
            token_ttl: config.token_ttl,
            backoff_cap: config.backoff_cap,
            crowd: crowd(config.total(), config.backoff_cap),
        }
    }

    /// Nobody listens any more only when the program gives up on its instances.
    pub(crate) async fn tell(&self, event: Event) {
        let _ = self.events.send(event).await;
    }
}

/// For the lines that say how it goes; an event for each message would cost a load run half its rate.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Messages with their send time, repeats included.
    pub(crate) load: AtomicU64,
    /// Bodies that are no [`Hello`].
    pub(crate) other: AtomicU64,
}

/// What one instance did.
pub(crate) struct Outcome {
    pub(crate) who: Who,
    pub(crate) tally: Tally,
    pub(crate) other: u64,
    /// Connections that came about.
    pub(crate) opened: u64,
    /// Of these, ended by something else than our goodbye.
    pub(crate) dropped: u64,
    /// Connects that failed, this machine's limits apart.
    pub(crate) failed: u64,
    /// Connects that this machine's limits prevented.
    pub(crate) local: u64,
    /// Refused, or told to stay away.
    pub(crate) stopped: bool,
    /// Of the v1 sessions; empty in raw.
    pub(crate) v1: Box<Counts>,
}

impl Outcome {
    /// Of an instance that has done nothing yet.
    pub(crate) fn new(who: Who, tally: Tally) -> Self {
        let v1 = Box::default();
        Self { who, tally, other: 0, opened: 0, dropped: 0, failed: 0, local: 0, stopped: false, v1 }
    }

    /// A message arrived; `sent_at` is what its frame says (unix µs), else the body may say it. Returns what is to be
    /// told of it.
    pub(crate) fn on_body(&mut self, world: &World, body: &[u8], marks: Marks, sent_at: Option<u64>) -> Option<Event> {
        let Some(hello) = Hello::parse(body) else {
            self.other += 1;
            world.arrivals.other.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let verdict = self.tally.record(&hello.producer, hello.number, marks);
        // A copy that came again took its way through an outage; the first arrival says what that cost.
        if verdict.is_first()
            && let Some(sent_at) = sent_at.or(hello.sent_at_micros)
        {
            world.latencies.record_now(sent_at);
        }
        if hello.sent_at_micros.is_some() {
            world.arrivals.load.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        (!verdict.is_copy()).then_some(Event::Hello(hello))
    }
}
