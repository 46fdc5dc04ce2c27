//! The front door: who wants the deliveries of a mailbox claims it, subscribes, and gets a [`Subscription`].

use std::{sync::Arc, time::Duration};

use protocol::names::{QueueName, RoutingKey};
use service::backoff::Backoff;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    claims::{Claim, Claims, Superseded},
    connection::ConnectionOptions,
    declarer::Declarer,
    endpoint::Endpoint,
    lane::{AttachError, Lane, Timing},
    link::{Link, link},
    pool::Pool,
    seat::Seat,
    subscription::Subscription,
    topology::{CONTROL, DIRECT, TopologyError},
};

const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_CAP: Duration = Duration::from_secs(1);

/// How the broker is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names the connections in the broker's lists: `<name> deliveries`, `<name> declarations`.
    pub name: String,
    /// A silent broker is given up after twice this long.
    pub heartbeat: Duration,
    /// For a connect, and for each request afterwards; one that is not answered in time costs the channel it is on.
    pub request_timeout: Duration,
    /// How long settlements are gathered before the ack.
    pub ack_interval: Duration,
    /// The most lanes, that is channels with deliveries.
    pub lanes_max: usize,
    /// Channels for declarations.
    pub declare_channels: usize,
}

/// Why there is no subscription.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeError {
    /// The broker is away, slow, or went away meanwhile.
    #[error("the broker is not available: {0}")]
    Unavailable(String),
    /// The queue has a consumer already, of another proxy.
    #[error("the queue has {0} consumer(s) elsewhere")]
    Busy(u32),
    /// As many lanes as allowed, and all full.
    #[error("all lanes are full")]
    LanesFull,
    /// The broker said no.
    #[error(transparent)]
    Refused(TopologyError),
}

/// The broker as a place full of mailboxes. Cheap to clone.
#[derive(Clone)]
pub struct Mailboxes {
    claims: Claims,
    deliveries: Link,
    declarations: Link,
    declarer: Arc<Declarer>,
    pool: Arc<Pool>,
    request_timeout: Duration,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Mailboxes {
    /// Starts to connect and returns at once. Deliveries and declarations have a connection each, so that a storm of
    /// declarations does not stand in the way of acks.
    pub fn start(endpoints: Vec<Endpoint>, options: &Options) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let endpoints: Arc<[Endpoint]> = endpoints.into();
        let open = |purpose: &str| {
            let options = ConnectionOptions {
                name: format!("{} {purpose}", options.name),
                heartbeat: options.heartbeat,
                timeout: options.request_timeout,
            };
            let (link, driver) = link(endpoints.clone(), options, &[DIRECT, CONTROL]);
            tasks.spawn(driver.run(stop.clone()));
            link
        };
        let (deliveries, declarations) = (open("deliveries"), open("declarations"));
        let declarer = Arc::new(Declarer::new(declarations.clone(), options.declare_channels));
        let timing = Timing { ack_interval: options.ack_interval, request_timeout: options.request_timeout };
        let pool = Pool::new(deliveries.clone(), declarer.clone(), timing, options.lanes_max, tasks.clone());
        let request_timeout = options.request_timeout;
        Self { claims: Claims::default(), deliveries, declarations, declarer, pool, request_timeout, tasks, stop }
    }

    /// Whether new subscriptions have a chance now.
    pub fn is_up(&self) -> bool {
        self.deliveries.current().is_some() && self.declarations.current().is_some()
    }

    /// Waits until [`Self::is_up`]. Cancel safe.
    pub async fn up(&self) {
        let _ = tokio::join!(self.deliveries.up(), self.declarations.up());
    }

    /// How many lanes there are, empty ones included.
    pub fn lanes(&self) -> usize {
        self.pool.lanes()
    }

    /// Claims a queue within this process, after its present owner has left.
    ///
    /// # Cancel safety
    /// Dropping the future gives the place in the line up.
    pub async fn claim(&self, queue: &QueueName) -> Result<Claim, Superseded> {
        self.claims.claim(queue).await
    }

    /// Declares the claimed queue, binds it and starts to consume, with at most `window` unsettled deliveries.
    ///
    /// # Cancel safety
    /// The work goes on in a task of its own; when nobody waits for it any more, it leaves again at once.
    pub async fn subscribe(&self, claim: Claim, key: RoutingKey, window: u16) -> Result<Subscription, SubscribeError> {
        let (sender, outcome) = oneshot::channel();
        let this = self.clone();
        self.tasks.spawn(async move {
            // A receiver that is gone drops the subscription, which leaves.
            drop(sender.send(this.subscribe_owned(claim, key, window.max(1)).await));
        });
        outcome.await.unwrap_or_else(|_| Err(SubscribeError::Unavailable("the proxy is closing".to_owned())))
    }

    async fn subscribe_owned(
        &self,
        claim: Claim,
        key: RoutingKey,
        window: u16,
    ) -> Result<Subscription, SubscribeError> {
        let deadline = Instant::now() + self.request_timeout;
        // The place comes first: who gets none must not leave a bound queue behind that fills up for nobody.
        let lane = self.pool.place(window, false).map_err(|_| SubscribeError::LanesFull)?;
        if let Err(error) = self.prepare(claim.queue(), &key, deadline).await {
            self.pool.release(&lane, window);
            return Err(error);
        }
        let seat = Seat::new(lane.clone(), claim, key, window);
        // From here on the subscription owns seat, place and claim, and gives them back in the right order.
        let attached = self.attach(&lane, &seat, deadline).await;
        let subscription = Subscription::new(seat, self.pool.clone(), self.tasks.clone());
        attached.map(|()| subscription)
    }

    async fn prepare(&self, queue: &QueueName, key: &RoutingKey, deadline: Instant) -> Result<(), SubscribeError> {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_CAP);
        loop {
            if !self.is_up() {
                return Err(SubscribeError::Unavailable("there is no connection".to_owned()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let reason = match timeout(left, self.declarer.ensure(queue, key)).await {
                Ok(Ok(queue)) if queue.consumers > 0 => return Err(SubscribeError::Busy(queue.consumers)),
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) if !error.is_transient() => return Err(SubscribeError::Refused(error)),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it did not answer in time".to_owned(),
            };
            if Instant::now() >= deadline {
                return Err(SubscribeError::Unavailable(reason));
            }
            sleep(backoff.next()).await;
        }
    }

    async fn attach(&self, lane: &Arc<Lane>, seat: &Arc<Seat>, deadline: Instant) -> Result<(), SubscribeError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !lane.ready(left).await {
                return Err(SubscribeError::Unavailable("it did not answer in time".to_owned()));
            }
            match lane.attach(seat, false).await {
                Ok(()) => return Ok(()),
                Err(AttachError::NoChannel) => {}
                Err(AttachError::Leaving) => return Err(SubscribeError::Unavailable("nobody waits".to_owned())),
                // The queue vanished between declare and consume, and took the channel along. Once more, where nobody
                // else sits.
                Err(AttachError::Refused(_)) => return self.attach_alone(seat).await,
            }
        }
    }

    async fn attach_alone(&self, seat: &Arc<Seat>) -> Result<(), SubscribeError> {
        let lane = self.pool.place(seat.window, true).map_err(|_| SubscribeError::LanesFull)?;
        match seat.move_to(lane.clone()) {
            Ok(left) | Err(left) => self.pool.release(&left, seat.window),
        }
        self.pool.try_alone(&lane, seat).await.map_err(SubscribeError::Unavailable)
    }

    /// Closes the connections, after every subscription has left or `patience` is over.
    pub async fn close(self, patience: Duration) {
        self.tasks.close();
        self.pool.retire();
        self.stop.cancel();
        let _ = timeout(patience, self.tasks.wait()).await;
    }
}
