//! From a claim to a subscription: place, queue, consumer, and a look whether it is the only one.

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use protocol::names::RoutingKey;
use service::backoff::Backoff;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use crate::{
    claims::{Claim, Stake},
    control::{Taken, vacate},
    declarer::QueueState,
    lane::{AttachError, Lane, Leaver},
    mailboxes::{Mailboxes, SubscribeError, Wish},
    pool::LanesFull,
    seat::Seat,
    subscription::{Found, Subscription},
    topology::TopologyError,
};

const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_CAP: Duration = Duration::from_secs(1);
/// Of the time for a subscription, what is left when the wait for another proxy's session is given up, so that whoever
/// waits hears why.
const CONTEST_MARGIN: u32 = 10;

impl Mailboxes {
    /// Declares the claimed queue, binds it, takes it over from another proxy if one has it, and starts to consume.
    ///
    /// Returns with a subscription that is the only one of its queue. One that a newer upgrade wins meanwhile ends with
    /// [`SubscribeError::Superseded`]. The time for it runs from the claim on: who waited long for a predecessor within this
    /// process waits the shorter for one elsewhere.
    ///
    /// # Cancel safety
    /// The work is done in a task of its own. When nobody waits for it any more, it stops, or leaves again at once.
    pub async fn subscribe(&self, claim: Claim, key: RoutingKey, wish: Wish) -> Result<Subscription, SubscribeError> {
        let (sender, outcome) = oneshot::channel();
        let this = self.clone();
        self.tasks.spawn(this.subscribe_for(sender, claim, key, wish));
        outcome.await.unwrap_or_else(|_| Err(SubscribeError::Unavailable("the proxy is closing".to_owned())))
    }

    async fn subscribe_for(self, mut sender: Sender, claim: Claim, key: RoutingKey, wish: Wish) {
        let Wish { window, resume } = wish;
        let stake = claim.stake();
        let deadline = stake.deadline(self.request_timeout);
        // The place comes first: who gets none must not leave a bound queue behind that fills up for nobody.
        let lane = match self.pool.place(window, false) {
            Ok(lane) => lane,
            Err(LanesFull) => return drop(sender.send(Err(SubscribeError::LanesFull))),
        };
        // Here it may stop half-way: a dropped declaration closes its channel.
        let found = match while_wanted(&mut sender, &stake, self.find(&stake, &key, resume, deadline)).await {
            Ok(found) => found,
            Err(error) => {
                self.pool.release(&lane, window);
                return drop(sender.send(Err(error)));
            }
        };
        // From here on the subscription owns seat, place and claim, and gives them back in the right order; a receiver
        // that is gone drops it.
        let seat = Seat::new(lane, claim, key, window);
        let attached = self.attach_alone(&mut sender, &seat, deadline).await;
        let pending = attached.as_ref().copied().unwrap_or_default().unwrap_or(found.pending);
        let subscription = Subscription::new(seat, Found { pending, ..found }, self.pool.clone(), self.tasks.clone());
        drop(sender.send(attached.map(|_| subscription)));
    }

    async fn find(
        &self,
        stake: &Stake,
        key: &RoutingKey,
        resume: bool,
        deadline: Instant,
    ) -> Result<Found, SubscribeError> {
        let existed = if resume {
            Some(self.asked(deadline, async || Ok(self.declarer.look(stake.queue()).await?.is_some())).await?)
        } else {
            None
        };
        let state = self.free(stake, key, deadline).await?;
        Ok(Found { pending: state.ready, existed })
    }

    /// Returns when the queue is there, bound, and without a consumer.
    async fn free(&self, stake: &Stake, key: &RoutingKey, deadline: Instant) -> Result<QueueState, SubscribeError> {
        loop {
            let state = self.declared(stake, key, deadline).await?;
            if state.consumers == 0 {
                return Ok(state);
            }
            let until = deadline - self.request_timeout / CONTEST_MARGIN;
            vacate(&self.control, &self.declarer, stake, state.consumers, until).await?;
        }
    }

    async fn declared(&self, stake: &Stake, key: &RoutingKey, deadline: Instant) -> Result<QueueState, SubscribeError> {
        self.asked(deadline, || self.declarer.ensure(stake.queue(), key)).await
    }

    /// Starts to consume, and makes sure that nobody else does: the later one of two sees two (tried), and the broker
    /// tells a second one nothing, it only parks it. Whoever sees two stops again, so that what the other one gives back is
    /// in order when this one begins. Returns how many messages waited then, where that was looked at anew.
    async fn attach_alone(
        &self,
        sender: &mut Sender,
        seat: &Arc<Seat>,
        deadline: Instant,
    ) -> Result<Option<u32>, SubscribeError> {
        let mut pending = None;
        loop {
            seat.begin_anew();
            self.attach(seat.lane(), seat, deadline).await?;
            let generation = seat.attached.load(Ordering::Acquire);
            let look = self.asked(deadline, || self.declarer.look(&seat.queue));
            let state = while_wanted(sender, &seat.stake, look).await?;
            if QueueState::is_alone(state) {
                if seat.lane().establish(seat, generation).await {
                    return Ok(pending);
                }
                // A lane that was rebuilt meanwhile, or will be: the one consumer may have been somebody else's.
                continue;
            }
            let lane = seat.withdraw();
            let leaver = Leaver { seat: seat.clone(), live: None, consumer: None, unsettled: Vec::new() };
            lane.leave(leaver).await;
            let free = self.free(&seat.stake, &seat.key, deadline);
            pending = Some(while_wanted(sender, &seat.stake, free).await?.ready);
        }
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
                    self.declared(&seat.stake, &seat.key, deadline).await?;
                }
                Err(AttachError::NoChannel) => {}
                Err(AttachError::Unwanted) => return Err(SubscribeError::Unavailable("nobody waits".to_owned())),
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
                    self.declared(&seat.stake, &seat.key, deadline).await?;
                }
            }
        }
    }
}

type Sender = oneshot::Sender<Result<Subscription, SubscribeError>>;

/// The outcome of `work`, unless nobody waits for it any more or somebody newer came.
async fn while_wanted<T>(
    sender: &mut Sender,
    stake: &Stake,
    work: impl Future<Output = Result<T, SubscribeError>>,
) -> Result<T, SubscribeError> {
    tokio::select! {
        done = work => done,
        () = sender.closed() => Err(SubscribeError::Unavailable("nobody waits".to_owned())),
        () = stake.replaced() => Err(SubscribeError::Superseded),
    }
}

impl From<Taken> for SubscribeError {
    fn from(taken: Taken) -> Self {
        match taken {
            Taken::Late(consumers) => Self::Busy(consumers),
            Taken::Mute(unsaid) => Self::Unavailable(unsaid.to_string()),
            Taken::Unknown(error) => Self::Refused(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use protocol::names::Address;

    use super::*;
    use crate::claims::Claims;

    #[tokio::test]
    async fn an_upgrade_that_a_newer_one_replaces_hears_that() {
        let claims = Claims::default();
        let queue = Address { client: "c".into(), consumer: "a".into(), instance: "1".into() }.queue().unwrap();
        let older = claims.claim(&queue).await.unwrap();
        let (mut sender, _outcome) = oneshot::channel();
        let mut newer = Box::pin(claims.claim(&queue));
        assert!(newer.as_mut().now_or_never().is_none());
        let stopped = while_wanted(&mut sender, &older.stake(), std::future::pending::<Result<(), _>>()).await;
        assert!(matches!(stopped, Err(SubscribeError::Superseded)), "{stopped:?}");
    }
}
