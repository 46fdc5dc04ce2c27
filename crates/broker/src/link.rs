//! A connection that comes back.
//!
//! The client library's own recovery gives up after some attempts and does not rebuild channels, so a lost connection
//! is dropped and a new one made, for as long as it takes.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use lapin::{Connection, Event};
use service::backoff::Backoff;
use tokio::{
    sync::watch,
    time::{Instant, interval, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use crate::{
    connection::{ConnectionOptions, connect},
    endpoint::Endpoint,
    topology,
};

/// The first pause between two attempts; doubled each time, with full jitter.
const RECONNECT_FIRST: Duration = Duration::from_millis(250);
/// The longest pause: ten thousand waiting clients should not wait much longer than the broker needs.
const RECONNECT_CAP: Duration = Duration::from_secs(5);
/// After a refused login or a missing exchange: a wrong password must not hammer the broker.
const REFUSED_PAUSE: Duration = Duration::from_secs(2);
/// How often an unchanged reason is said again while the broker is away.
const SAY_AGAIN: Duration = Duration::from_secs(30);
/// The client library says when a connection dies; this only bounds what a missed event could cost.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// For a polite close; nothing is written while the broker blocks the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// One supervised connection. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Link {
    connection: watch::Receiver<Option<Arc<Connection>>>,
    troubles: watch::Receiver<u64>,
}

impl Link {
    /// Starts to connect, in a task of `tasks`, and goes on until `stop`.
    pub(crate) fn start(
        endpoints: Arc<[Endpoint]>,
        options: ConnectionOptions,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (connection_tx, connection) = watch::channel(None);
        let (troubles_tx, troubles) = watch::channel(0);
        let supervisor = Supervisor { endpoints, options, connection: connection_tx, troubles: troubles_tx };
        tasks.spawn(async move {
            stop.run_until_cancelled(supervisor.run()).await;
            supervisor.close().await;
        });
        Self { connection, troubles }
    }

    /// The connection, if there is one now.
    pub(crate) fn current(&self) -> Option<Arc<Connection>> {
        self.connection.borrow().clone().filter(|connection| connection.status().connected())
    }

    /// Waits for a connection, however long it takes. `None` once the link is stopped for good. Cancel safe.
    pub(crate) async fn up(&self) -> Option<Arc<Connection>> {
        let mut connection = self.connection.clone();
        let up = connection.wait_for(|connection| connection.as_ref().is_some_and(|c| c.status().connected()));
        up.await.ok().and_then(|connection| connection.clone())
    }

    /// Changes whenever the connection or one of its channels reports an error: a reason to look at one's channel.
    pub(crate) fn troubles(&self) -> watch::Receiver<u64> {
        self.troubles.clone()
    }
}

struct Supervisor {
    endpoints: Arc<[Endpoint]>,
    options: ConnectionOptions,
    connection: watch::Sender<Option<Arc<Connection>>>,
    troubles: watch::Sender<u64>,
}

impl Supervisor {
    async fn run(&self) {
        let mut backoff = Backoff::new(RECONNECT_FIRST, RECONNECT_CAP);
        let mut said: Option<(String, Instant)> = None;
        loop {
            match self.establish().await {
                Ok(connection) => {
                    info!("Connected to the broker as {}", self.options.name);
                    (said, backoff) = (None, Backoff::new(RECONNECT_FIRST, RECONNECT_CAP));
                    self.watch(connection).await;
                    warn!("Lost the broker connection {}; reconnecting", self.options.name);
                }
                Err(failure) => {
                    let again =
                        |(reason, at): &(String, Instant)| *reason == failure.reason && at.elapsed() < SAY_AGAIN;
                    if !said.as_ref().is_some_and(again) {
                        warn!("No broker connection {}: {}; trying again", self.options.name, failure.reason);
                        said = Some((failure.reason, Instant::now()));
                    }
                    if failure.needs_a_person {
                        sleep(REFUSED_PAUSE).await;
                    }
                    sleep(backoff.next()).await;
                }
            }
        }
    }

    async fn establish(&self) -> Result<Arc<Connection>, Failure> {
        let connection = connect(&self.endpoints, &self.options)
            .await
            .map_err(|error| Failure { needs_a_person: !error.is_transient(), reason: error.to_string() })?;
        let checked = timeout(self.options.timeout, topology::check_exchanges(&connection)).await;
        let reason = match checked {
            Ok(Ok(())) => return Ok(Arc::new(connection)),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the broker did not answer within {:?}", self.options.timeout),
        };
        Err(Failure { reason, needs_a_person: true })
    }

    /// Publishes the connection and returns when it is gone.
    async fn watch(&self, connection: Arc<Connection>) {
        let mut events = Box::pin(connection.events_listener());
        let mut look = interval(LOOK_EVERY);
        self.connection.send_replace(Some(connection.clone()));
        while connection.status().connected() {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => {
                        warn!("The broker blocks publishers on {}: {reason}", self.options.name);
                    }
                    Some(Event::ConnectionUnblocked) => info!("The broker takes publishes again on {}", self.options.name),
                    Some(Event::Error(_)) => self.troubles.send_modify(|count| *count += 1),
                    Some(_) => {}
                    None => break,
                },
                _ = look.tick() => {}
            }
        }
        self.connection.send_replace(None);
        self.troubles.send_modify(|count| *count += 1);
    }

    async fn close(&self) {
        if let Some(connection) = self.connection.send_replace(None) {
            // A broker that does not answer any more loses the connection with the process.
            let _ = timeout(CLOSE_TIMEOUT, connection.close(200, "bye".into())).await;
        }
    }
}

struct Failure {
    reason: String,
    needs_a_person: bool,
}
