//! Putting subscriptions back after their channel, or their queue, was lost.

use std::sync::{Arc, atomic::Ordering};

use futures::{StreamExt, future::join_all, stream};
use service::backoff::Backoff;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::{AttachError, Lane, RETRY_CAP, RETRY_FIRST};
use crate::{
    control::{Seen, contend, look},
    live::Live,
    seat::Seat,
};

/// How many subscriptions of a lane are probed at once after an outage; the broker's own limit is near.
const RESUME_CONCURRENCY: usize = 8;

/// Whether a subscription is to be tried again on the same life of the channel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tried {
    Done,
    Again,
}

impl Tried {
    fn is_again(self) -> bool {
        self == Self::Again
    }
}

impl Lane {
    /// A first try for each, a few at a time. After the last of those the ones that failed go on, each by itself, and the
    /// others look for other consumers: so deliveries are under way again before anybody looks.
    pub(super) async fn resume_all(&self, seats: Vec<Arc<Seat>>, live: &Arc<Live>) {
        let tried = stream::iter(seats)
            .map(|seat| async move { (self.try_resume(&seat, live).await, seat) })
            .buffer_unordered(RESUME_CONCURRENCY)
            .collect::<Vec<_>>()
            .await;
        let (failed, restored): (Vec<_>, Vec<_>) = tried.into_iter().partition(|(tried, _)| tried.is_again());
        let contests = async {
            let contested = stream::iter(restored)
                .map(|(_, seat)| async move { (self.look(&seat).await, seat) })
                .buffer_unordered(RESUME_CONCURRENCY)
                .collect::<Vec<_>>()
                .await;
            join_all(contested.iter().map(|(seen, seat)| self.contend(seat, live, *seen))).await;
        };
        tokio::join!(contests, join_all(failed.iter().map(|(_, seat)| self.resume(seat, live))));
    }

    /// Puts a subscription back on this life of the channel, as long as that takes or lasts.
    pub(crate) async fn resume(&self, seat: &Arc<Seat>, live: &Arc<Live>) {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_CAP);
        while self.try_resume(seat, live).await.is_again() {
            sleep(backoff.next()).await;
        }
        let seen = self.look(seat).await;
        self.contend(seat, live, seen).await;
    }

    /// One look whether a subscription that was put back is the only one of its mailbox. An upgrade that is still on its
    /// way looks for itself.
    async fn look(&self, seat: &Seat) -> Seen {
        let Some(pool) = self.pool.upgrade() else { return Seen::Alone };
        if seat.leaving.is_cancelled() || seat.stake.is_fresh() {
            return Seen::Alone;
        }
        look(&pool.declarer, &seat.queue, self.timing.request_timeout).await
    }

    /// Settles with other proxies whose mailbox it is, while the subscription and this life of the channel last.
    async fn contend(&self, seat: &Seat, live: &Live, seen: Seen) {
        let Some(pool) = self.pool.upgrade() else { return };
        tokio::select! {
            () = contend(&pool.control, &pool.declarer, &seat.stake, seen, self.timing.request_timeout) => {}
            () = seat.leaving.cancelled() => {}
            () = live.dead.cancelled() => {}
        }
    }

    /// Looks whether the queue is still there, makes it anew if not, and consumes.
    async fn try_resume(&self, seat: &Arc<Seat>, live: &Arc<Live>) -> Tried {
        let Some(pool) = self.pool.upgrade() else { return Tried::Done };
        if !live.is_alive() || seat.leaving.is_cancelled() {
            return Tried::Done;
        }
        match timeout(self.timing.request_timeout, pool.restore(seat)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if !error.is_transient() => {
                warn!("Subscription of {} cannot be restored: {error}", seat.queue);
                self.lose(seat, error.to_string());
                return Tried::Done;
            }
            Ok(Err(error)) => {
                debug!("Subscription of {} is not restored yet: {error}", seat.queue);
                return Tried::Again;
            }
            Err(_) => {
                debug!("Subscription of {} is not restored yet: no answer", seat.queue);
                return Tried::Again;
            }
        }
        if let Err(AttachError::Refused(error)) = self.attach(seat, Some(live.generation)).await {
            warn!("Lane {} lost its channel to the consume of {}: {error}", self.id, seat.queue);
            if self.quarantined.load(Ordering::Acquire) {
                self.lose(seat, error.to_string());
            } else {
                pool.relocate(seat.clone());
            }
        }
        Tried::Done
    }

    fn lose(&self, seat: &Seat, reason: String) {
        self.quarantined.store(false, Ordering::Release);
        seat.lose(reason);
    }

    /// Takes in a seat that has no consumer; it gets one now, or when the lane has a channel.
    pub(crate) async fn adopt(&self, seat: &Arc<Seat>) {
        let live = {
            let mut turn = self.turn.lock().await;
            // After its leaving nobody would take it out again.
            if seat.leaving.is_cancelled() {
                return;
            }
            turn.seats.insert(seat.id, seat.clone());
            turn.live.clone()
        };
        if let Some(live) = live {
            self.resume(seat, &live).await;
        }
    }

    /// The broker cancelled one consumer: its queue was deleted. The channel lives on.
    pub(crate) async fn resume_after_cancel(&self, seat: &Arc<Seat>, live: &Arc<Live>) {
        {
            let _turn = self.turn.lock().await;
            seat.attached.store(0, Ordering::Release);
        }
        self.resume(seat, live).await;
    }
}
