//! A connection that is there again after each loss, shared by whoever works on it.
//!
//! The client library's own recovery gives up after some attempts and does not rebuild channels, so a lost connection is
//! dropped and a new one made, for as long as it takes. Deliveries, declarations and publishing have a link each: an alarm
//! blocks the connection that published, with all that is on it, and a storm of declarations must not hold up acks.

mod record;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use lapin::{Connection, Event};
use service::backoff::Backoff;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::connection::{ConnectError, ConnectionOptions, connect};
use crate::endpoint::Endpoint;
use crate::link::record::{Record, SAY_AGAIN, Trouble};
use crate::lock;
use crate::screen::Unreadable;
use crate::topology::{Exchange, TopologyError, check_exchanges};

/// For a close handshake, which a blocked connection does not answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_CAP: Duration = Duration::from_secs(5);
/// What needs a person (a refused login, a missing exchange) is tried at most this often. The proxy has three links, and
/// one try a second in all is enough.
const REFUSED_PAUSE: Duration = Duration::from_secs(3);
/// A connection that lived this long was a good one: the next loss starts with a short wait again.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// How often the state of the connection is looked at, beside the events that it sends.
const LOOK: Duration = Duration::from_secs(1);

/// A handle to the connection. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    state: watch::Receiver<State>,
    troubles: watch::Receiver<u64>,
    suspects: mpsc::Sender<String>,
    record: Arc<Mutex<Record>>,
    unreadable: Unreadable,
}

#[derive(Clone, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    blocked: bool,
}

impl State {
    fn is_up(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.status().connected())
    }
}

/// Keeps the connection of a [`Link`]; its owner runs it beside those who work on it.
pub struct LinkDriver {
    endpoints: Arc<[Endpoint]>,
    options: ConnectionOptions,
    exchanges: &'static [Exchange],
    state: watch::Sender<State>,
    troubles: watch::Sender<u64>,
    suspects: mpsc::Receiver<String>,
    record: Arc<Mutex<Record>>,
    unreadable: Unreadable,
    trouble: Trouble,
}

/// A link over `endpoints` and its driver. Nothing is connected before the driver runs; a connection counts only when
/// `exchanges` are there.
pub fn link(
    endpoints: Arc<[Endpoint]>,
    options: ConnectionOptions,
    exchanges: &'static [Exchange],
) -> (Link, LinkDriver) {
    let (state, state_seen) = watch::channel(State::default());
    let (troubles, troubles_seen) = watch::channel(0);
    // One is enough: whoever finds it full would say the same.
    let (suspect, suspects) = mpsc::channel(1);
    let record = Arc::new(Mutex::new(Record::new()));
    let unreadable = Unreadable::default();
    let link = Link {
        state: state_seen,
        troubles: troubles_seen,
        suspects: suspect,
        record: record.clone(),
        unreadable: unreadable.clone(),
    };
    let trouble = Trouble::default();
    (link, LinkDriver { endpoints, options, exchanges, state, troubles, suspects, record, unreadable, trouble })
}

impl Link {
    /// The connection, if there is one now.
    pub(crate) fn current(&self) -> Option<Arc<Connection>> {
        self.state.borrow().connection.clone().filter(|connection| connection.status().connected())
    }

    /// Waits for a connection, however long it takes; for ever once the driver has ended.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    pub(crate) async fn up(&self) -> Arc<Connection> {
        self.when(State::is_up).await
    }

    /// As [`up`](Self::up), and the broker does not block it.
    pub(crate) async fn ready(&self) -> Arc<Connection> {
        self.when(|state| state.is_up() && !state.blocked).await
    }

    async fn when(&self, holds: impl Fn(&State) -> bool) -> Arc<Connection> {
        let mut state = self.state.clone();
        let connection = match state.wait_for(holds).await {
            Ok(state) => state.connection.clone(),
            Err(_) => None,
        };
        match connection {
            Some(connection) => connection,
            // The driver has ended, so there will be no connection, and the owner is about to end us too.
            None => std::future::pending().await,
        }
    }

    /// Whether the broker blocks the connection (an alarm: memory or disk). Nothing is written then.
    pub(crate) fn is_blocked(&self) -> bool {
        self.state.borrow().blocked
    }

    /// How often there was another connection after the first, so far.
    pub(crate) fn reconnects(&self) -> u64 {
        lock(&self.record).reconnects()
    }

    /// How many frames had something in them that could not be read, over all connections so far.
    pub(crate) fn unreadable(&self) -> u64 {
        self.unreadable.count()
    }

    /// How long there was no connection, in all since the start; one that lasts is counted up to now.
    pub(crate) fn outages(&self) -> Duration {
        lock(&self.record).outages()
    }

    /// Waits until the broker does not block the connection, or there is another one.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    pub(crate) async fn unblocked(&self) {
        let mut state = self.state.clone();
        let _ = state.wait_for(|state| !state.blocked).await;
    }

    /// Waits until the broker blocks the connection.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    pub(crate) async fn blocked(&self) {
        self.when(|state| state.blocked).await;
    }

    /// Changes whenever the connection or one of its channels reports an error: a reason to look at one's channel.
    pub(crate) fn troubles(&self) -> watch::Receiver<u64> {
        self.troubles.clone()
    }

    /// Tells the driver that the connection is of no use although it looks well.
    pub(crate) fn suspect(&self, reason: String) {
        // Full: somebody else has said it already.
        let _ = self.suspects.try_send(reason);
    }
}

impl LinkDriver {
    /// Connects, watches, reconnects with backoff, for as long as it takes, until `stop`; then it closes the
    /// connection in order, for at most a second.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_CAP);
        while let Some(connection) = stop.run_until_cancelled(self.connected(&mut backoff)).await {
            let since = Instant::now();
            let ended = stop.run_until_cancelled(self.watch(&connection)).await;
            self.state.send_replace(State::default());
            lock(&self.record).down();
            self.trouble_seen();
            close(&connection).await;
            let Some(reason) = ended else { return };
            let good = since.elapsed() > GOOD_AFTER;
            if good {
                backoff.reset();
                self.trouble.over();
            }
            self.say(&format!("lost the connection, reconnecting: {reason}"));
            // A publish that is refused again and again (403) closes each new connection as soon as it is there.
            let pause = backoff.next().max(if good { Duration::ZERO } else { REFUSED_PAUSE });
            if stop.run_until_cancelled(sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    fn say(&mut self, what: &str) {
        self.trouble.say(&format!("{}: {what}", self.options.name));
    }

    fn trouble_seen(&self) {
        self.troubles.send_modify(|count| *count += 1);
    }

    async fn connected(&mut self, backoff: &mut Backoff) -> Arc<Connection> {
        loop {
            match self.try_connect().await {
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    // Whoever suspected the last connection does not mean this one.
                    while self.suspects.try_recv().is_ok() {}
                    return connection;
                }
                Err(failure) => {
                    self.say(&format!("no broker, trying again: {failure}"));
                    let pause = if failure.is_transient() { Duration::ZERO } else { REFUSED_PAUSE };
                    sleep(backoff.next().max(pause)).await;
                }
            }
        }
    }

    async fn try_connect(&self) -> Result<Connection, LinkError> {
        let connection = connect(&self.endpoints, &self.options, &self.unreadable).await?;
        match timeout(self.options.timeout, check_exchanges(&connection, self.exchanges)).await {
            Ok(Ok(())) => Ok(connection),
            Ok(Err(error)) => {
                close(&connection).await;
                Err(LinkError::Exchange { vhost: connection.status().vhost().to_string(), error })
            }
            Err(_) => Err(LinkError::Silent(self.options.timeout)),
        }
    }

    /// Until the connection is of no use any more; says why.
    async fn watch(&mut self, connection: &Arc<Connection>) -> String {
        let mut events = Box::pin(connection.events_listener());
        let status = connection.status();
        info!("{}: connected to the broker as {} on vhost {}", self.options.name, status.username(), status.vhost());
        lock(&self.record).up();
        self.state.send_replace(State { connection: Some(Arc::clone(connection)), blocked: false });
        let mut looks = interval(LOOK);
        let mut blocked: Option<(String, Instant)> = None;
        loop {
            tokio::select! {
                biased;
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => blocked = Some((reason, Instant::now())),
                    Some(Event::ConnectionUnblocked) => blocked = None,
                    Some(Event::Error(error)) if !connection.status().connected() => return error.to_string(),
                    // A channel's error: whose it was looks after it.
                    Some(Event::Error(_)) => self.trouble_seen(),
                    Some(_) => {}
                    None => return "the connection is gone".to_owned(),
                },
                reason = self.suspects.recv() => return reason.unwrap_or_default(),
                _ = looks.tick() => {}
            }
            if !connection.status().connected() {
                return "the connection was lost".to_owned();
            }
            if connection.status().blocked() && blocked.is_none() {
                blocked = Some(("it gave no reason".to_owned(), Instant::now()));
            }
            self.say_blocked(&mut blocked);
        }
    }

    fn say_blocked(&mut self, blocked: &mut Option<(String, Instant)>) {
        let was = self.state.borrow().blocked;
        match blocked {
            Some((reason, said)) if !was || said.elapsed() > SAY_AGAIN => {
                warn!(
                    "{}: the broker blocks publishing ({reason}); waiting until its alarm is over",
                    self.options.name
                );
                *said = Instant::now();
            }
            None if was => info!("{}: the broker accepts messages again", self.options.name),
            _ => return,
        }
        self.state.send_modify(|state| state.blocked = blocked.is_some());
    }
}

/// Why there is no connection to work on.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("vhost {vhost}: {error}")]
    Exchange { vhost: String, error: TopologyError },
    #[error("no answer within {0:?} while checking the exchanges")]
    Silent(Duration),
}

impl LinkError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_transient(),
            Self::Exchange { error, .. } => error.is_transient(),
            Self::Silent(_) => true,
        }
    }
}

async fn close(connection: &Connection) {
    // An error means that it is closed already.
    let _ = timeout(CLOSE_TIMEOUT, connection.close(200, "OK".into())).await;
}
