//! A connection for publishing that is there again after each loss.
//!
//! Publishing has connections of its own: a memory alarm blocks the connection that published, with all that is on it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Connection, Event, ExchangeKind};
use protocol::names::EXCHANGE_DIRECT;
use service::backoff::Backoff;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{CLOSE_TIMEOUT, PublishError, Publisher, PublisherOptions};
use crate::connection::{ConnectError, ConnectionOptions, connect};
use crate::endpoint::Endpoint;

const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_CAP: Duration = Duration::from_secs(5);
/// What needs a person (a refused login, a missing exchange) is tried at most this often.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// A connection that lived this long was a good one: the next loss starts with a short wait again.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// How often the same trouble is said again, and a block that lasts.
const SAY_AGAIN: Duration = Duration::from_secs(30);
/// How often the state of the connection is looked at, beside the events that it sends.
const LOOK: Duration = Duration::from_secs(1);

/// A handle to the connection. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    state: watch::Receiver<State>,
    suspects: mpsc::Sender<String>,
    timeout: Duration,
}

#[derive(Clone, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    blocked: bool,
}

/// Keeps the connection of a [`Link`]; its owner runs it beside those who publish.
pub struct LinkDriver {
    endpoints: Vec<Endpoint>,
    options: ConnectionOptions,
    state: watch::Sender<State>,
    suspects: mpsc::Receiver<String>,
    trouble: Trouble,
}

/// A link over `endpoints` and its driver. Nothing is connected before the driver runs.
pub fn link(endpoints: Vec<Endpoint>, options: ConnectionOptions) -> (Link, LinkDriver) {
    let (state, receiver) = watch::channel(State::default());
    // One is enough: whoever finds it full would say the same.
    let (suspect, suspects) = mpsc::channel(1);
    let link = Link { state: receiver, suspects: suspect, timeout: options.timeout };
    (link, LinkDriver { endpoints, options, state, suspects, trouble: Trouble::default() })
}

impl Link {
    /// A publisher on a channel of its own, as soon as the connection is there and not blocked.
    ///
    /// # Errors
    /// The connection was lost meanwhile, or it has no more channels; the driver says so and reconnects.
    ///
    /// # Cancel safety
    /// Safe: a half-open channel is closed in the background.
    pub async fn publisher(&self, options: PublisherOptions) -> Result<Publisher, PublishError> {
        let connection = self.ready().await;
        let open = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok::<_, lapin::Error>(channel)
        };
        let error = match timeout(self.timeout, open).await {
            Ok(Ok(channel)) => return Ok(Publisher::new(self.clone(), channel, options)),
            Ok(Err(error)) => error.into(),
            Err(_) => PublishError::Stuck(self.timeout),
        };
        self.suspect(&error);
        Err(error)
    }

    /// Whether the broker blocks the connection (an alarm: memory or disk). Nothing is written then.
    pub fn is_blocked(&self) -> bool {
        self.state.borrow().blocked
    }

    /// Waits until the broker does not block the connection, or there is another one.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    pub async fn unblocked(&self) {
        let mut state = self.state.clone();
        let _ = state.wait_for(|state| !state.blocked).await;
    }

    pub(super) fn suspect(&self, error: &PublishError) {
        // Full: somebody else has said it already.
        let _ = self.suspects.try_send(error.to_string());
    }

    async fn ready(&self) -> Arc<Connection> {
        let mut state = self.state.clone();
        let connection = match state.wait_for(|state| state.connection.is_some() && !state.blocked).await {
            Ok(state) => state.connection.clone(),
            Err(_) => None,
        };
        match connection {
            Some(connection) => connection,
            // The driver has ended, so there will be no connection, and the owner is about to end us too.
            None => std::future::pending().await,
        }
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
            close(&connection).await;
            let Some(reason) = ended else { return };
            let good = since.elapsed() > GOOD_AFTER;
            if good {
                backoff.reset();
                self.trouble.over();
            }
            self.trouble.say(&format!("publishing stopped, reconnecting: {reason}"));
            // A publish that is refused again and again (403) closes each new connection as soon as it is there.
            let pause = backoff.next().max(if good { Duration::ZERO } else { REFUSED_PAUSE });
            if stop.run_until_cancelled(sleep(pause)).await.is_none() {
                return;
            }
        }
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
                    self.trouble.say(&format!("no broker to publish to, trying again: {failure}"));
                    let pause = if failure.is_transient() { Duration::ZERO } else { REFUSED_PAUSE };
                    sleep(backoff.next().max(pause)).await;
                }
            }
        }
    }

    async fn try_connect(&self) -> Result<Connection, LinkError> {
        let connection = connect(&self.endpoints, &self.options).await?;
        match timeout(self.options.timeout, check_exchange(&connection)).await {
            Ok(Ok(())) => Ok(connection),
            Ok(Err(error)) if error.is_amqp_soft_error() => {
                let vhost = connection.status().vhost().to_string();
                Err(LinkError::Exchange { vhost, reason: error.to_string() })
            }
            Ok(Err(error)) => Err(LinkError::Lost(error)),
            Err(_) => Err(LinkError::Silent(self.options.timeout)),
        }
    }

    /// Until the connection is of no use any more; says why.
    async fn watch(&mut self, connection: &Arc<Connection>) -> String {
        let mut events = Box::pin(connection.events_listener());
        info!("connected to the broker as {} on vhost {}", connection.status().username(), connection.status().vhost());
        self.state.send_replace(State { connection: Some(Arc::clone(connection)), blocked: false });
        let mut looks = interval(LOOK);
        let mut blocked: Option<(String, Instant)> = None;
        loop {
            tokio::select! {
                biased;
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => blocked = Some((reason, Instant::now())),
                    Some(Event::ConnectionUnblocked) => blocked = None,
                    Some(Event::Error(error)) => return PublishError::from(error).to_string(),
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
                warn!("the broker blocks publishing ({reason}); waiting until its alarm is over");
                *said = Instant::now();
            }
            None if was => info!("the broker accepts messages again"),
            _ => return,
        }
        self.state.send_modify(|state| state.blocked = blocked.is_some());
    }
}

/// Why there is no connection to publish on.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("exchange {EXCHANGE_DIRECT} cannot be used on vhost {vhost} ({reason}); load rabbit_definitions.json")]
    Exchange { vhost: String, reason: String },
    #[error("lost while checking the exchange: {0}")]
    Lost(lapin::Error),
    #[error("no answer within {0:?} while checking the exchange")]
    Silent(Duration),
}

impl LinkError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_transient(),
            Self::Exchange { .. } => false,
            Self::Lost(_) | Self::Silent(_) => true,
        }
    }
}

async fn check_exchange(connection: &Connection) -> lapin::Result<()> {
    let channel = connection.create_channel().await?;
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let kind = ExchangeKind::Direct;
    channel.exchange_declare(EXCHANGE_DIRECT.into(), kind, options, FieldTable::default()).await?;
    channel.close(200, "OK".into()).await
}

async fn close(connection: &Connection) {
    // An error means that it is closed already.
    let _ = timeout(CLOSE_TIMEOUT, connection.close(200, "OK".into())).await;
}

/// Says the same thing once, and again every so often while it lasts.
#[derive(Default)]
struct Trouble {
    said: Option<(String, Instant)>,
}

impl Trouble {
    fn say(&mut self, what: &str) {
        if self.said.as_ref().is_some_and(|(said, at)| said == what && at.elapsed() < SAY_AGAIN) {
            return;
        }
        warn!("{what}");
        self.said = Some((what.to_owned(), Instant::now()));
    }

    fn over(&mut self) {
        self.said = None;
    }
}
