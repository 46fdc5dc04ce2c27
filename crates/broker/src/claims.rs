//! One owner per queue within this process; the newest wins.
//!
//! A claim is held from before the queue is declared until everything that its subscription had not settled is back in
//! the queue. Who asks for a queue that is claimed replaces the holder: the holder is told, and the newcomer waits until
//! the claim is free. A newcomer who is still waiting is itself replaced by the next one.
//!
//! What sessions of other proxies want is decided by the `Party` of the claim. It goes with its claim, so that nothing
//! that was said to an old one touches the next.

use std::{
    borrow::Borrow,
    collections::{HashMap, hash_map::Entry},
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use protocol::names::QueueName;
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    control::{
        message::{Message, Order, ProxyId, Said},
        rules::{Party, Reaction},
    },
    lock,
};

static HOLDERS: AtomicU64 = AtomicU64::new(1);

/// The registry. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Claims(Arc<Mutex<HashMap<Key, Slot>>>);

/// A queue name that can be looked up by its text.
#[derive(Clone, PartialEq, Eq)]
struct Key(QueueName);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_str().hash(state);
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        self.0.as_str()
    }
}

struct Slot {
    stake: Stake,
    party: Party,
    waiter: Option<Waiter>,
}

struct Waiter {
    turn: oneshot::Sender<Claim>,
    entrant: Entrant,
}

/// When somebody came to claim.
#[derive(Clone, Copy)]
struct Entrant {
    order: Order,
    since: Instant,
}

/// Somebody newer wants the same queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a newer connection of the same instance took over")]
pub struct Superseded;

/// The right to subscribe to one queue. Dropping it lets the next one in.
pub struct Claim(Stake);

/// A claim as seen by those who work for it; it does not keep the claim.
#[derive(Clone)]
pub(crate) struct Stake {
    claims: Claims,
    queue: QueueName,
    /// Tells the claims on one queue apart.
    holder: u64,
    entrant: Entrant,
    replaced: CancellationToken,
    released: CancellationToken,
    news: Arc<watch::Sender<()>>,
}

/// What is to be done about a message.
pub(crate) enum Answer {
    Nothing,
    Say(Said),
    /// The session was told to end; say so when this is cancelled.
    SayGoneAfter(CancellationToken),
}

/// A claim whose holder found another consumer in its mailbox; it hears of others until this is dropped.
pub(crate) struct Waiting<'a> {
    stake: &'a Stake,
    news: watch::Receiver<()>,
}

impl Claims {
    /// Waits for the queue, after telling its holder that it is replaced.
    ///
    /// # Cancel safety
    /// Dropping the future gives the place in the line up; a claim that was handed over meanwhile is released.
    pub(crate) async fn claim(&self, queue: &QueueName) -> Result<Claim, Superseded> {
        let entrant = Entrant { order: Order::now(), since: Instant::now() };
        let turn = {
            let mut slots = lock(&self.0);
            match slots.entry(Key(queue.clone())) {
                Entry::Vacant(vacant) => {
                    let stake = Stake::new(self.clone(), queue.clone(), entrant);
                    vacant.insert(Slot::new(stake.clone()));
                    return Ok(Claim(stake));
                }
                Entry::Occupied(mut occupied) => {
                    let (turn, receiver) = oneshot::channel();
                    occupied.get().stake.replaced.cancel();
                    occupied.get_mut().waiter = Some(Waiter { turn, entrant });
                    receiver
                }
            }
        };
        turn.await.map_err(|_| Superseded)
    }

    /// What another proxy said.
    pub(crate) fn hear(&self, me: ProxyId, message: &Message) -> Answer {
        let mut slots = lock(&self.0);
        let Some(Slot { stake, party, .. }) = slots.get_mut(message.queue.as_str()) else { return Answer::Nothing };
        match party.hear(me, message.from, &message.said, stake.entrant.since.elapsed(), rand::random()) {
            Reaction::Nothing => Answer::Nothing,
            Reaction::Say(said) => Answer::Say(said),
            Reaction::End => {
                stake.replaced.cancel();
                Answer::SayGoneAfter(stake.released.clone())
            }
            Reaction::Lose => {
                stake.replaced.cancel();
                Answer::Nothing
            }
            Reaction::Look => {
                stake.news.send_replace(());
                Answer::Nothing
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

impl Slot {
    fn new(stake: Stake) -> Self {
        Self { party: Party::new(stake.entrant.order), stake, waiter: None }
    }
}

impl Claim {
    /// The queue.
    pub fn queue(&self) -> &QueueName {
        &self.0.queue
    }

    /// Cancelled when a newer connection asks for the queue.
    pub fn replaced(&self) -> CancellationToken {
        self.0.replaced.clone()
    }

    pub(crate) fn stake(&self) -> Stake {
        self.0.clone()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Self(stake) = self;
        let mut slots = lock(&stake.claims.0);
        let refused = match slots.get_mut(stake.queue.as_str()) {
            Some(slot) if slot.stake.holder == stake.holder => match slot.waiter.take() {
                None => {
                    slots.remove(stake.queue.as_str());
                    None
                }
                Some(Waiter { turn, entrant }) => {
                    let next = Stake::new(stake.claims.clone(), stake.queue.clone(), entrant);
                    *slot = Slot::new(next.clone());
                    turn.send(Claim(next)).err()
                }
            },
            _ => None,
        };
        drop(slots);
        stake.released.cancel();
        // A waiter that went away hands its claim back here, where the lock is free again.
        drop(refused);
    }
}

impl Stake {
    fn new(claims: Claims, queue: QueueName, entrant: Entrant) -> Self {
        Self {
            claims,
            queue,
            holder: HOLDERS.fetch_add(1, Ordering::Relaxed),
            entrant,
            replaced: CancellationToken::new(),
            released: CancellationToken::new(),
            news: Arc::new(watch::Sender::new(())),
        }
    }

    pub(crate) fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// Waits until a newer connection asks for the queue. Cancel safe.
    pub(crate) async fn replaced(&self) {
        self.replaced.cancelled().await;
    }

    /// The mailbox is its own: from here on it is a session, and no longer an upgrade.
    pub(crate) fn establish(&self) {
        self.with_party(Party::establish);
    }

    /// Whether its upgrade is still on its way.
    pub(crate) fn is_fresh(&self) -> bool {
        self.with_party(|party| party.is_fresh()).unwrap_or(false)
    }

    /// When what takes `patience` from the claim on is late. A wait for a predecessor is part of it.
    pub(crate) fn deadline(&self, patience: Duration) -> Instant {
        self.entrant.since + patience
    }

    /// It found another consumer. More than one may wait on the same claim.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        let news = self.news.subscribe();
        self.with_party(Party::wait);
        Waiting { stake: self, news }
    }

    /// What it says about itself to other proxies.
    pub(crate) fn notice(&self) -> Said {
        let age = self.entrant.since.elapsed();
        let claimant = self.with_party(|party| party.claimant(age));
        // Without a claim nobody waits: this is said in vain, and answered by nobody.
        let claimant = claimant.unwrap_or_else(|| Party::new(self.entrant.order).claimant(age));
        Said::Notice { claimant }
    }

    fn with_party<T>(&self, act: impl FnOnce(&mut Party) -> T) -> Option<T> {
        let mut slots = lock(&self.claims.0);
        let slot = slots.get_mut(self.queue.as_str()).filter(|slot| slot.stake.holder == self.holder)?;
        Some(act(&mut slot.party))
    }
}

impl Waiting<'_> {
    /// Waits until there is a reason to look. Cancel safe.
    pub(crate) async fn news(&mut self) {
        // The sender lives as long as the stake.
        let _ = self.news.changed().await;
    }

    /// Notes what a look saw; true when the mailbox is free.
    pub(crate) fn saw(&self, others: u32) -> bool {
        self.stake.with_party(|party| party.saw(others)).unwrap_or(true)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.stake.with_party(Party::stop_waiting);
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

    fn hear(claims: &Claims, queue: &QueueName, said: Said) {
        let message = Message::new(ProxyId(2), queue.as_str(), said);
        assert!(matches!(claims.hear(ProxyId(1), &message), Answer::Nothing));
    }

    #[test]
    fn all_that_wait_on_a_claim_hear_the_news_until_the_last_of_them_is_gone() {
        let (claims, queue) = (Claims::default(), queue("a"));
        let holder = claims.claim(&queue).now_or_never().unwrap().unwrap();
        let stake = holder.stake();
        let (mut one, mut two, three) = (stake.wait(), stake.wait(), stake.wait());
        drop(three);
        hear(&claims, &queue, Said::Gone);
        assert!(one.news().now_or_never().is_some());
        assert!(two.news().now_or_never().is_some());
        assert!(two.news().now_or_never().is_none(), "each once");
        drop(one);
        hear(&claims, &queue, Said::Gone);
        assert!(two.news().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_a_predecessor_is_part_of_the_time_of_a_claim() {
        let (claims, queue) = (Claims::default(), queue("a"));
        let (began, patience) = (Instant::now(), Duration::from_secs(10));
        let holder = claims.claim(&queue).await.unwrap();
        let mut newcomer = Box::pin(claims.claim(&queue));
        assert!(newcomer.as_mut().now_or_never().is_none());
        tokio::time::advance(Duration::from_secs(7)).await;
        drop(holder);
        assert_eq!(newcomer.await.unwrap().stake().deadline(patience), began + patience);
    }
}
