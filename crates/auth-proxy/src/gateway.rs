//! From an accepted connection to a running session.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use broker::{
    mailboxes::{Mailboxes, SubscribeError, Wish},
    subscription::Subscription,
};
use bytes::BytesMut;
use protocol::{
    names::{QueueName, RoutingKey},
    subprotocol::V1,
    v1::{Seconds, ServerFrame, Welcome},
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
    admission::{Admission, switching_protocols},
    config::Config,
    expiry::Expiry,
    liveness::Periods,
    metrics::{Meter, Metrics},
    outbox::Dialect,
    refusal::Refusal,
    roster::Member,
    session::{Drain, Particulars, Session, Terms},
    upgrade::{Admitted, Door, Ended},
    wire::Wire,
};

/// How often refusals of upgrades are said at most.
const SAY_REFUSED_EVERY: Duration = Duration::from_secs(10);
/// What a client may send before it has its 101; more than that it waits with.
const EARLY_BYTES_MAX: usize = 4 * 1024;
/// How long an upgrade waits for a broker connection: a proxy that has just started, or a connection that is made anew,
/// should cost a client no refusal.
const BLINK: Duration = Duration::from_secs(5);
/// Of the time for a drain, what is left after the last session has begun to leave: for its leaving, its goodbye, and the
/// broker connections.
const DRAIN_REST: Duration = Duration::from_secs(3);

/// What every connection of this process needs.
pub(crate) struct Gateway {
    door: Door,
    mailboxes: Mailboxes,
    terms: Arc<Terms>,
    metrics: Arc<Metrics>,
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
        metrics: Arc<Metrics>,
        shutdown: &Shutdown,
    ) -> Arc<Self> {
        let drain = Drain {
            begun: shutdown.token(),
            pace: config.drain_timeout.saturating_sub(DRAIN_REST),
            timeout: drain_timeout,
            spread: config.drain_spread,
        };
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
            ack_timeout: config.ack_timeout,
            outage_limit: config.outage_limit,
            expiring_notice: config.expiring_notice,
            drain,
            verifier: Arc::clone(&config.verifier),
        };
        Arc::new(Self {
            door: Door::new(config, shutdown.clone()),
            mailboxes,
            terms: Arc::new(terms),
            metrics,
            shutdown: shutdown.clone(),
            window: config.window,
            broker_timeout: config.broker_timeout,
            write_timeout: config.write_timeout,
            said: Mutex::default(),
        })
    }

    /// Whether one more upgrade with a valid token would find a place.
    pub(crate) fn has_room(&self) -> bool {
        self.door.has_room()
    }

    /// What a session gets that asks for nothing else.
    pub(crate) fn default_window(&self) -> u16 {
        self.window
    }

    /// Serves one connection to its end.
    pub(crate) async fn serve(self: Arc<Self>, accepted: Accepted) {
        // The upgrade needs far more room than the session; its box is gone when the session starts.
        let session = match Box::pin(self.open(accepted)).await {
            Ok(session) => session,
            Err(Ended::Refused(refusal)) => return self.metrics.upgrades.refused(refusal),
            Err(Ended::Gone) => return self.metrics.upgrades.gone(),
        };
        self.metrics.upgrades.accepted();
        drop(self);
        session.run().await;
    }

    async fn open(&self, accepted: Accepted) -> Result<Session<Stream, Subscription>, Ended> {
        let Accepted { mut stream, peer, head_slot } = accepted;
        let Admitted { admission, mut leftover, slot } = self.door.admit(&mut stream, head_slot).await?;
        let name = admission.name();
        let prepared = tokio::select! {
            subscribed = self.subscribe(&admission) => subscribed.map_err(Some),
            () = self.shutdown.begun() => Err(Some(Refusal::Draining)),
            () = gone(&mut stream, &mut leftover) => Err(None),
        };
        let (subscription, replaced) = match prepared {
            Ok(subscribed) => subscribed,
            Err(refusal) => {
                debug!("No session for {name} from {peer}: {}", refusal.map_or("the client left", Refusal::label));
                let Some(refusal) = refusal else { return Err(Ended::Gone) };
                self.say_refused(refusal);
                self.door.turn_away(&mut stream, refusal).await;
                return Err(Ended::Refused(refusal));
            }
        };
        // A client that is gone drops the subscription, which leaves.
        let answered = timeout(self.write_timeout, stream.write_all(&switching_protocols(&admission))).await;
        if !matches!(answered, Ok(Ok(()))) {
            return Err(Ended::Gone);
        }
        drop(slot);
        let wire = Wire::new(stream, &leftover).await;
        Ok(self.session(wire, subscription, replaced, admission, peer))
    }

    fn session(
        &self,
        wire: Wire<Stream>,
        subscription: Subscription,
        replaced: CancellationToken,
        admission: Admission,
        peer: SocketAddr,
    ) -> Session<Stream, Subscription> {
        let dialect = if admission.subprotocol == Some(V1) { Dialect::V1 } else { Dialect::Raw };
        let (name, window, found) = (admission.name(), self.window(&admission), subscription.found());
        let Admission { identity, address, .. } = admission;
        let id: u64 = rand::random();
        let session = format!("{id:016x}");
        debug!("AuthProxy {}: session {session} of {name} begins, window {window}, {found:?}", self.terms.proxy_id);
        let welcome = ServerFrame::Welcome(Welcome {
            session: session.into(),
            client: address.client.into(),
            consumer: address.consumer.into(),
            instance: address.instance.into(),
            pending: found.pending,
            window,
            expires_at: identity.expires_at,
            ping_interval: Seconds(self.terms.periods.ping_interval.as_secs_f64()),
            resumed: found.existed,
        });
        let expiry = Expiry::of(&identity, self.terms.expiring_notice);
        let meter = Meter::new(&self.metrics, Member { name: name.clone(), peer, dialect, window });
        let particulars = Particulars { name, identity, expiry, replaced, meter };
        Session::new(wire, subscription, dialect, &welcome, self.terms.clone(), particulars)
    }

    fn window(&self, admission: &Admission) -> u16 {
        admission.window.map_or(self.window, |wanted| wanted.min(self.window))
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
    async fn subscribe(&self, admission: &Admission) -> Result<(Subscription, CancellationToken), Refusal> {
        let Admission { queue, identity, resume, .. } = admission;
        let wish = Wish { window: self.window(admission), resume: *resume };
        if timeout(BLINK.min(self.broker_timeout), self.mailboxes.up()).await.is_err() {
            return Err(Refusal::BrokerAway);
        }
        let key = RoutingKey::new(&identity.consumer).map_err(|_| Refusal::NameTooLong)?;
        let deadline = Instant::now() + self.broker_timeout;
        let claim = tokio::time::timeout_at(deadline, self.mailboxes.claim(queue)).await;
        let claim = claim.map_err(|_| Refusal::InstanceBusy)?.map_err(|_| Refusal::InstanceBusy)?;
        let replaced = claim.replaced();
        let subscribing = tokio::time::timeout_at(deadline, self.mailboxes.subscribe(claim, key, wish));
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
        SubscribeError::Busy(_) | SubscribeError::Superseded => Refusal::InstanceBusy,
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

#[cfg(test)]
mod tests {
    use protocol::names::Address;

    use super::*;

    #[test]
    fn whoever_lost_to_another_upgrade_hears_that_the_instance_is_busy() {
        let queue = Address { client: "c".into(), consumer: "a".into(), instance: "1".into() }.queue().unwrap();
        for error in [SubscribeError::Superseded, SubscribeError::Busy(1)] {
            assert_eq!(refusal_of(&queue, &error), Refusal::InstanceBusy);
        }
        assert_eq!(refusal_of(&queue, &SubscribeError::Late), Refusal::BrokerSlow);
    }
}
