//! One owner per queue within this process; the newest wins.
//!
//! A claim is held from before the queue is declared until everything that its subscription had not settled is back in
//! the queue. Who asks for a queue that is claimed replaces the holder: the holder is told, and the newcomer waits until
//! the claim is free. A newcomer who is still waiting is itself replaced by the next one.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex},
};

use protocol::names::QueueName;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::lock;

/// The registry. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Claims(Arc<Mutex<HashMap<QueueName, Slot>>>);

struct Slot {
    replaced: CancellationToken,
    waiter: Option<oneshot::Sender<Claim>>,
}

/// Somebody newer wants the same queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a newer connection of the same instance took over")]
pub struct Superseded;

/// The right to subscribe to one queue. Dropping it lets the next one in.
pub struct Claim {
    queue: QueueName,
    replaced: CancellationToken,
    claims: Claims,
}

impl Claims {
    /// Waits for the queue, after telling its holder that it is replaced.
    ///
    /// # Cancel safety
    /// Dropping the future gives the place in the line up; a claim that was handed over meanwhile is released.
    pub(crate) async fn claim(&self, queue: &QueueName) -> Result<Claim, Superseded> {
        let turn = {
            let mut slots = lock(&self.0);
            match slots.entry(queue.clone()) {
                Entry::Vacant(vacant) => {
                    let claim = self.new_claim(queue.clone());
                    vacant.insert(Slot { replaced: claim.replaced.clone(), waiter: None });
                    return Ok(claim);
                }
                Entry::Occupied(mut occupied) => {
                    let (sender, turn) = oneshot::channel();
                    occupied.get().replaced.cancel();
                    occupied.get_mut().waiter = Some(sender);
                    turn
                }
            }
        };
        turn.await.map_err(|_| Superseded)
    }

    fn new_claim(&self, queue: QueueName) -> Claim {
        Claim { queue, replaced: CancellationToken::new(), claims: self.clone() }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

impl Claim {
    /// The queue.
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// Cancelled when a newer connection asks for the queue.
    pub fn replaced(&self) -> CancellationToken {
        self.replaced.clone()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut slots = lock(&self.claims.0);
        let Some(slot) = slots.get_mut(&self.queue) else { return };
        let refused = match slot.waiter.take() {
            None => {
                slots.remove(&self.queue);
                None
            }
            Some(waiter) => {
                let claim = self.claims.new_claim(self.queue.clone());
                slot.replaced = claim.replaced.clone();
                waiter.send(claim).err()
            }
        };
        drop(slots);
        // A waiter that went away hands its claim back here, where the lock is free again.
        drop(refused);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use protocol::names::Address;

    use super::*;

    fn queue(consumer: &str) -> QueueName {
        Address { client: "c".into(), consumer: consumer.into(), instance: "1".into() }.queue().unwrap()
    }

    #[test]
    fn a_newcomer_waits_for_the_holder_who_is_told() {
        let (claims, queue) = (Claims::default(), queue("a"));
        let holder = claims.claim(&queue).now_or_never().unwrap().unwrap();
        assert!(!holder.replaced().is_cancelled());
        let mut newcomer = Box::pin(claims.claim(&queue));
        assert!(newcomer.as_mut().now_or_never().is_none());
        assert!(holder.replaced().is_cancelled());
        drop(holder);
        let newcomer = newcomer.now_or_never().unwrap().unwrap();
        assert!(!newcomer.replaced().is_cancelled());
        drop(newcomer);
        assert_eq!(claims.len(), 0);
    }

    #[test]
    fn of_two_newcomers_the_later_one_wins() {
        let (claims, queue) = (Claims::default(), queue("a"));
        let holder = claims.claim(&queue).now_or_never().unwrap().unwrap();
        let mut first = Box::pin(claims.claim(&queue));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(claims.claim(&queue));
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(first.now_or_never().unwrap().err(), Some(Superseded));
        drop(holder);
        assert!(second.now_or_never().unwrap().is_ok());
        assert_eq!(claims.len(), 0);
    }

    #[test]
    fn a_newcomer_that_gives_up_leaves_nothing() {
        for handed_over in [false, true] {
            let (claims, queue) = (Claims::default(), queue("a"));
            let holder = claims.claim(&queue).now_or_never().unwrap().unwrap();
            let mut newcomer = Box::pin(claims.claim(&queue));
            assert!(newcomer.as_mut().now_or_never().is_none());
            if handed_over {
                drop(holder);
                drop(newcomer);
            } else {
                drop(newcomer);
                drop(holder);
            }
            assert_eq!(claims.len(), 0, "handed over: {handed_over}");
        }
    }

    #[test]
    fn other_queues_are_not_concerned() {
        let claims = Claims::default();
        let one = claims.claim(&queue("a")).now_or_never().unwrap().unwrap();
        let _two = claims.claim(&queue("b")).now_or_never().unwrap().unwrap();
        assert!(!one.replaced().is_cancelled());
    }
}
