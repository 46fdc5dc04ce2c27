//! From an accepted connection to a running session.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use broker::{
    mailboxes::{Mailboxes, SubscribeError},
    subscription::Subscription,
};
use bytes::BytesMut;
use protocol::{
    names::{QueueName, RoutingKey},
    token::Identity,
};
use service::shutdown::Shutdown;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    accept::Accepted,
    admission::switching_protocols,
    config::Config,
    counts::Counts,
    liveness::Periods,
    refusal::Refusal,
    session::{Particulars, Session, Terms},
    upgrade::{Admitted, Door},
    wire::Wire,
};

/// How often refusals of upgrades are said at most.
const SAY_REFUSED_EVERY: Duration = Duration::from_secs(10);
/// What a client may send before it has its 101; more than that it waits with.
const EARLY_BYTES_MAX: usize = 4 * 1024;
/// How long an upgrade waits for a broker connection: a proxy that has just started, or a connection that is made anew,
/// should cost a client no refusal.
const BLINK: Duration = Duration::from_secs(5);
/// Beyond any token worth honouring to the second, and far from overflowing a clock.
const SESSION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// What every connection of this process needs.
pub(crate) struct Gateway {
    door: Door,
    mailboxes: Mailboxes,
    terms: Arc<Terms>,
    shutdown: Shutdown,
    window: u16,
    broker_timeout: Duration,
    write_timeout: Duration,
    /// When refusals were last in the log, and how many there were since.
    said: Mutex<(Option<Instant>, u64)>,
}

type Stream = TcpStream;

impl Gateway {
    /// Sessions that are told to end have `drain_timeout` for it: to leave their mailbox, and to say goodbye.
    pub(crate) fn new(
        config: &Config,
        drain_timeout: Duration,
        mailboxes: Mailboxes,
        shutdown: &Shutdown,
    ) -> Arc<Self> {
        // With a margin, so that a session that waited in vain still says it in time.
        let drain_leave_timeout = drain_timeout.saturating_sub(config.close_timeout) * 3 / 4;
        let terms = Terms {
            proxy_id: config.id.clone(),
            log_messages: config.log_messages,
            max_message_bytes: config.max_message_bytes,
            periods: Periods {
                ping_interval: config.ping_interval,
                pong_timeout: config.pong_timeout,
                write_timeout: config.write_timeout,
            },
            close_timeout: config.close_timeout,
            leave_timeout: config.broker_timeout,
            drain_leave_timeout,
            counts: Counts::default(),
            drain: shutdown.token(),
        };
        Arc::new(Self {
            door: Door::new(config, shutdown.clone()),
            mailboxes,
            terms: Arc::new(terms),
            shutdown: shutdown.clone(),
            window: config.window,
            broker_timeout: config.broker_timeout,
            write_timeout: config.write_timeout,
            said: Mutex::default(),
        })
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.terms.counts
    }

    /// Serves one connection to its end.
    pub(crate) async fn serve(self: Arc<Self>, accepted: Accepted) {
        // The upgrade needs far more room than the session; its box is gone when the session starts.
        let Some(session) = Box::pin(self.open(accepted)).await else {
            self.terms.counts.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.terms.counts.sessions.fetch_add(1, Ordering::Relaxed);
        drop(self);
        session.run().await;
    }

    async fn open(&self, accepted: Accepted) -> Option<Session<Stream, Subscription>> {
        let Accepted { mut stream, peer, head_slot } = accepted;
        let Admitted { admission, mut leftover, slot } = self.door.admit(&mut stream, head_slot).await.ok()?;
        let name = admission.address.log_name().to_string();
        let prepared = tokio::select! {
            subscribed = self.subscribe(&admission.queue, &admission.identity) => subscribed.map_err(Some),
            () = self.shutdown.begun() => Err(Some(Refusal::Draining)),
            () = gone(&mut stream, &mut leftover) => Err(None),
        };
        let (subscription, replaced) = match prepared {
            Ok(subscribed) => subscribed,
            Err(refusal) => {
                debug!("No session for {name} from {peer}: {}", refusal.map_or("the client left", Refusal::label));
                if let Some(refusal) = refusal {
                    self.say_refused(refusal);
                    self.door.turn_away(&mut stream, refusal).await;
                }
                return None;
            }
        };
        // A client that is gone drops the subscription, which leaves.
        let answered = timeout(self.write_timeout, stream.write_all(&switching_protocols(&admission))).await;
        if !matches!(answered, Ok(Ok(()))) {
            return None;
        }
        drop(slot);
        let particulars = Particulars { name, expires: expiry(&admission.identity), replaced };
        let wire = Wire::new(stream, &leftover).await;
        Some(Session::new(wire, subscription, self.terms.clone(), particulars))
    }

    /// Upgrades with a good token that cannot be served are in the log, whoever they are for; but not thousands of lines.
    fn say_refused(&self, refusal: Refusal) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.1 += 1;
        if said.0.is_none_or(|at| at.elapsed() >= SAY_REFUSED_EVERY) {
            warn!("Upgrades are refused: {} and {} more since the last such line", refusal.label(), said.1 - 1);
            *said = (Some(Instant::now()), 0);
        }
    }

    /// The broker's part of an upgrade.
    async fn subscribe(
        &self,
        queue: &QueueName,
        identity: &Identity,
    ) -> Result<(Subscription, CancellationToken), Refusal> {
        if timeout(BLINK.min(self.broker_timeout), self.mailboxes.up()).await.is_err() {
            return Err(Refusal::BrokerAway);
        }
        let key = RoutingKey::new(&identity.consumer).map_err(|_| Refusal::NameTooLong)?;
        let deadline = Instant::now() + self.broker_timeout;
        let claim = tokio::time::timeout_at(deadline, self.mailboxes.claim(queue)).await;
        let claim = claim.map_err(|_| Refusal::InstanceBusy)?.map_err(|_| Refusal::InstanceBusy)?;
        let replaced = claim.replaced();
        let subscribing = tokio::time::timeout_at(deadline, self.mailboxes.subscribe(claim, key, self.window));
        tokio::select! {
            subscribed = subscribing => match subscribed {
                Ok(Ok(subscription)) => Ok((subscription, replaced)),
                Ok(Err(error)) => Err(refusal_of(queue, &error)),
                Err(_) => Err(Refusal::BrokerSlow),
            },
            // Of two that are not there yet, the later one wins.
            () = replaced.cancelled() => Err(Refusal::InstanceBusy),
        }
    }
}

fn refusal_of(queue: &QueueName, error: &SubscribeError) -> Refusal {
    use broker::topology::TopologyError;
    match error {
        SubscribeError::Unavailable(_) => Refusal::BrokerAway,
        SubscribeError::Late => Refusal::BrokerSlow,
        SubscribeError::Busy(_) => Refusal::InstanceBusy,
        SubscribeError::LanesFull => Refusal::LanesFull,
        SubscribeError::Refused(TopologyError::Mismatch(_)) => {
            warn!("{queue} exists with other arguments: delete it, or take another client or instance name");
            Refusal::QueueConflict
        }
        SubscribeError::Refused(error) => {
            warn!("No mailbox {queue}: {error}");
            Refusal::BrokerAway
        }
    }
}

/// Waits until the client is gone; what it says meanwhile is kept.
async fn gone(stream: &mut Stream, early: &mut BytesMut) {
    while early.len() < EARLY_BYTES_MAX {
        match stream.read_buf(early).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    std::future::pending::<()>().await;
}

/// When a session of this identity ends, leeway included.
fn expiry(identity: &Identity) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = Duration::from_secs(identity.session_ends_at()).saturating_sub(now);
    Instant::now() + left.min(SESSION_MAX)
}
