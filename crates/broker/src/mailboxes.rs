//! The front door: who wants the deliveries of a mailbox claims it, subscribes, and gets a
//! [`Subscription`](crate::subscription::Subscription).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use protocol::names::QueueName;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    claims::{Claim, Claims, Superseded},
    connection::ConnectionOptions,
    control::Control,
    declarer::Declarer,
    endpoint::Endpoint,
    lane::Timing,
    link::{Link, link},
    pool::{Parts, Pool},
    topology::{CONTROL, DIRECT, TopologyError},
    vitals::{LinkVitals, Vitals},
};

/// How the broker is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names the connections in the broker's lists: `<name> deliveries`, `<name> declarations`, `<name> control`.
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
    /// The queue has a consumer already, of another proxy, that did not give way in time.
    #[error("the queue has {0} consumer(s) elsewhere")]
    Busy(u32),
    /// A newer upgrade for the queue came, here or at another proxy.
    #[error("a newer upgrade came")]
    Superseded,
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
    control_link: Link,
    pub(crate) control: Control,
    pub(crate) declarer: Arc<Declarer>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) request_timeout: Duration,
    /// What works for a subscription: comes to an end when all have left.
    pub(crate) tasks: TaskTracker,
    /// What keeps links and lanes: comes to an end after `stop`.
    keepers: TaskTracker,
    stop: CancellationToken,
}

impl Mailboxes {
    /// Starts to connect and returns at once. Deliveries, declarations and the talk between proxies have a connection each:
    /// a storm of declarations does not stand in the way of acks, nor does an alarm, which blocks a connection that
    /// publishes.
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
        let control_link = open("control");
        let request_timeout = options.request_timeout;
        let claims = Claims::default();
        let control = Control::new(control_link.clone(), claims.clone(), request_timeout, tasks.clone());
        keepers.spawn(stop.clone().run_until_cancelled_owned(control.clone().listen()));
        let declarer = Arc::new(Declarer::new(declarations.clone(), options.declare_channels));
        let timing = Timing { ack_interval: options.ack_interval, request_timeout };
        let parts = Parts {
            link: deliveries.clone(),
            declarer: declarer.clone(),
            control: control.clone(),
            keepers: keepers.clone(),
            tasks: tasks.clone(),
        };
        let pool = Pool::new(parts, timing, options.lanes_max);
        Self {
            claims,
            deliveries,
            declarations,
            control_link,
            control,
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
        let links =
            [("deliveries", &self.deliveries), ("declarations", &self.declarations), ("control", &self.control_link)];
        Vitals {
            lanes,
            open_tags,
            lane_rebuilds: self.pool.rebuilds.load(Ordering::Relaxed),
            control_listening: self.control.is_listening(),
            control_ignored: self.control.ignored(),
            unreadable: links.iter().map(|(_, link)| link.unreadable()).sum(),
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
