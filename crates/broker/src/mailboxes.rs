//! The front door: who wants the deliveries of a mailbox claims it, subscribes, and gets a [`Subscription`].

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use protocol::names::{QueueName, RoutingKey};
use service::backoff::Backoff;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    claims::{Claim, Claims, Superseded},
    connection::ConnectionOptions,
    declarer::{Declarer, QueueState},
    endpoint::Endpoint,
    lane::{AttachError, Lane, Timing},
    link::{Link, link},
    pool::{LanesFull, Pool},
    seat::Seat,
    subscription::{Found, Subscription},
    topology::{CONTROL, DIRECT, TopologyError},
    vitals::{LinkVitals, Vitals},
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

/// What a session wants of its mailbox.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The most unsettled deliveries, at least 1.
    pub window: u16,
    /// Whether to find out if the mailbox existed before: one request more.
    pub resume: bool,
}

/// Why there is no subscription.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeError {
    /// The broker did not answer in time.
    #[error("the broker did not answer in time")]
    Late,
    /// The broker is away, or went away meanwhile.
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
    /// What works for a subscription: comes to an end when all have left.
    tasks: TaskTracker,
    /// What keeps links and lanes: comes to an end after `stop`.
    keepers: TaskTracker,
    stop: CancellationToken,
}

impl Mailboxes {
    /// Starts to connect and returns at once. Deliveries and declarations have a connection each, so that a storm of
    /// declarations does not stand in the way of acks.
    pub fn start(endpoints: Vec<Endpoint>, options: &Options) -> Self {
        let (tasks, keepers, stop) = (TaskTracker::new(), TaskTracker::new(), CancellationToken::new());
        let endpoints: Arc<[Endpoint]> = endpoints.into();
        let open = |purpose: &str| {
            let options = ConnectionOptions {
                name: format!("{} {purpose}", options.name),
                heartbeat: options.heartbeat,
                timeout: options.request_timeout,
            };
            let (link, driver) = link(endpoints.clone(), options, &[DIRECT, CONTROL]);
            keepers.spawn(driver.run(stop.clone()));
            link
        };
        let (deliveries, declarations) = (open("deliveries"), open("declarations"));
        let declarer = Arc::new(Declarer::new(declarations.clone(), options.declare_channels));
        let timing = Timing { ack_interval: options.ack_interval, request_timeout: options.request_timeout };
        let pool =
            Pool::new(deliveries.clone(), declarer.clone(), timing, options.lanes_max, keepers.clone(), tasks.clone());
        let request_timeout = options.request_timeout;
        Self {
            claims: Claims::default(),
            deliveries,
            declarations,
            declarer,
            pool,
            request_timeout,
            tasks,
            keepers,
            stop,
        }
    }

    /// Whether new subscriptions have a chance now.
    pub fn is_up(&self) -> bool {
        self.deliveries.current().is_some() && self.declarations.current().is_some()
    }

    /// Waits until [`Self::is_up`]. Cancel safe.
    pub async fn up(&self) {
        let _ = tokio::join!(self.deliveries.up(), self.declarations.up());
    }

    /// Whether a lane would take one more subscription of this window.
    pub fn has_room(&self, window: u16) -> bool {
        self.pool.has_room(window)
    }

    /// How it stands with the broker. Cheap: it only reads counters.
    pub fn vitals(&self) -> Vitals {
        let (lanes, open_tags) = self.pool.census();
        let links = [("deliveries", &self.deliveries), ("declarations", &self.declarations)];
        Vitals {
            lanes,
            open_tags,
            lane_rebuilds: self.pool.rebuilds.load(Ordering::Relaxed),
            links: links.into_iter().map(|(purpose, link)| LinkVitals::of(purpose, link)).collect(),
        }
    }

    /// Claims a queue within this process, after its present owner has left.
    ///
    /// # Cancel safety
    /// Dropping the future gives the place in the line up.
    pub async fn claim(&self, queue: &QueueName) -> Result<Claim, Superseded> {
        self.claims.claim(queue).await
    }

    /// Declares the claimed queue, binds it and starts to consume.
    ///
    /// # Cancel safety
    /// The work is done in a task of its own. When nobody waits for it any more, it stops, or leaves again at once.
    pub async fn subscribe(&self, claim: Claim, key: RoutingKey, wish: Wish) -> Result<Subscription, SubscribeError> {
        let Wish { window, resume } = wish;
        let (mut sender, outcome) = oneshot::channel();
        let this = self.clone();
        self.tasks.spawn(async move {
            let deadline = Instant::now() + this.request_timeout;
            // The place comes first: who gets none must not leave a bound queue behind that fills up for nobody.
            let lane = match this.pool.place(window, false) {
                Ok(lane) => lane,
                Err(LanesFull) => return drop(sender.send(Err(SubscribeError::LanesFull))),
            };
            // Here it may stop half-way: a dropped declaration closes its channel.
            let prepared = tokio::select! {
                prepared = this.find(claim.queue(), &key, resume, deadline) => prepared,
                () = sender.closed() => return this.pool.release(&lane, window),
            };
            let found = match prepared {
                Ok(found) => found,
                Err(error) => {
                    this.pool.release(&lane, window);
                    return drop(sender.send(Err(error)));
                }
            };
            // From here on the subscription owns seat, place and claim, and gives them back in the right order; a
            // receiver that is gone drops it.
            let seat = Seat::new(lane.clone(), claim, key, window);
            let attached = this.attach(lane, &seat, deadline).await;
            let subscription = Subscription::new(seat, found, this.pool.clone(), this.tasks.clone());
            drop(sender.send(attached.map(|()| subscription)));
        });
        outcome.await.unwrap_or_else(|_| Err(SubscribeError::Unavailable("the proxy is closing".to_owned())))
    }

    async fn find(
        &self,
        queue: &QueueName,
        key: &RoutingKey,
        resume: bool,
        deadline: Instant,
    ) -> Result<Found, SubscribeError> {
        let existed = if resume {
            Some(self.asked(deadline, async || Ok(self.declarer.look(queue).await?.is_some())).await?)
        } else {
            None
        };
        let state = self.prepare(queue, key, deadline).await?;
        Ok(Found { pending: state.ready, existed })
    }

    async fn prepare(
        &self,
        queue: &QueueName,
        key: &RoutingKey,
        deadline: Instant,
    ) -> Result<QueueState, SubscribeError> {
        let state = self.asked(deadline, || self.declarer.ensure(queue, key)).await?;
        if state.consumers > 0 { Err(SubscribeError::Busy(state.consumers)) } else { Ok(state) }
    }

    /// Asks the broker, again and again while that may help and there is time.
    async fn asked<T, F>(&self, deadline: Instant, ask: impl Fn() -> F) -> Result<T, SubscribeError>
    where
        F: Future<Output = Result<T, TopologyError>>,
    {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_CAP);
        loop {
            if !self.is_up() {
                return Err(SubscribeError::Unavailable("there is no connection".to_owned()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match timeout(left, ask()).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) if !error.is_transient() => return Err(SubscribeError::Refused(error)),
                Ok(Err(error)) if Instant::now() >= deadline => {
                    return Err(SubscribeError::Unavailable(error.to_string()));
                }
                Ok(Err(_)) => sleep(backoff.next()).await,
                Err(_) => return Err(SubscribeError::Late),
            }
        }
    }

    async fn attach(&self, mut lane: Arc<Lane>, seat: &Arc<Seat>, deadline: Instant) -> Result<(), SubscribeError> {
        let mut alone = false;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !lane.ready(left).await {
                return Err(SubscribeError::Late);
            }
            match lane.attach(seat, None).await {
                Ok(()) => return Ok(()),
                Err(AttachError::NoChannel) if alone => {
                    self.prepare(&seat.queue, &seat.key, deadline).await?;
                }
                Err(AttachError::NoChannel) => {}
                Err(AttachError::Leaving) => return Err(SubscribeError::Unavailable("nobody waits".to_owned())),
                Err(AttachError::Refused(error)) if alone => {
                    return Err(SubscribeError::Unavailable(error.to_string()));
                }
                // The queue vanished between declare and consume, and took the channel along. Once more, where nobody
                // else sits.
                Err(AttachError::Refused(_)) => {
                    alone = true;
                    lane = self.pool.place(seat.window, true).map_err(|LanesFull| SubscribeError::LanesFull)?;
                    match seat.move_to(lane.clone()) {
                        Ok(left) | Err(left) => self.pool.release(&left, seat.window),
                    }
                    self.prepare(&seat.queue, &seat.key, deadline).await?;
                }
            }
        }
    }

    /// Closes the connections once every subscription has left; within `patience`, the last quarter of which is for the
    /// connections.
    pub async fn close(self, patience: Duration) {
        let deadline = Instant::now() + patience;
        self.tasks.close();
        let _ = timeout(patience * 3 / 4, self.tasks.wait()).await;
        self.pool.retire();
        self.stop.cancel();
        self.keepers.close();
        let _ = timeout_at(deadline, self.keepers.wait()).await;
    }
}
