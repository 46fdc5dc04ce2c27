//! What a session has taken from its mailbox and not yet settled. Pure: no socket, no broker; the caller brings the time.
//!
//! It is bounded by the prefetch: RabbitMQ delivers no more than a window before something is settled. After an interruption
//! one message of before may be here besides, the one that is half sent.
//!
//! In the raw subprotocol a delivery settles with the first completed flush after its last frame.

use std::collections::VecDeque;

use broker::subscription::{Delivery, Tag};
use protocol::frame::{Fragments, Frame};
use tokio::time::Instant;

/// Deliveries on their way to the socket, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Waiting>,
    /// All frames of these are fed, none is known to be flushed.
    fed: Vec<Tag>,
    /// When the first of the fed ones arrived.
    fed_since: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    tag: Tag,
    arrived: Instant,
    body: Fragments,
    started: bool,
}

impl Outbox {
    /// An empty outbox.
    pub fn new() -> Self {
        Self { waiting: VecDeque::new(), fed: Vec::new(), fed_since: None }
    }

    /// Puts a delivery last in line; it arrived `now`.
    pub fn push(&mut self, delivery: Delivery, now: Instant) {
        let Delivery { tag, body, .. } = delivery;
        self.waiting.push_back(Waiting { tag, arrived: now, body: Fragments::new(body), started: false });
    }

    /// When the oldest delivery arrived that is not settled.
    pub fn oldest(&self) -> Option<Instant> {
        self.fed_since.or_else(|| self.waiting.front().map(|delivery| delivery.arrived))
    }

    /// The next frame to feed.
    pub fn next_frame(&mut self) -> Option<Frame> {
        let front = self.waiting.front_mut()?;
        let frame = front.body.next_frame();
        front.started = true;
        if front.body.is_finished() {
            self.fed_since.get_or_insert(front.arrived);
            self.fed.extend(self.waiting.pop_front().map(|done| done.tag));
        }
        frame
    }

    /// Everything fed so far is flushed: hands out what is settled by that.
    pub fn flushed(&mut self) -> impl AsRef<[Tag]> + use<> {
        self.fed_since = None;
        std::mem::take(&mut self.fed)
    }

    /// What is here is delivered again by the broker, under new tags. A message of which some frames are out is finished,
    /// since the client could not make sense of half of it.
    pub fn forget_unsent(&mut self) {
        self.waiting.retain(|delivery| delivery.started);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use protocol::frame::FRAGMENT_BYTES;

    use super::*;

    fn delivery(number: u64, bytes: usize) -> Delivery {
        Delivery { tag: Tag::detached(number), redelivered: false, body: Bytes::from(vec![b'x'; bytes]) }
    }

    fn tags(numbers: impl IntoIterator<Item = u64>) -> Vec<Tag> {
        numbers.into_iter().map(Tag::detached).collect()
    }

    #[test]
    fn a_delivery_settles_with_the_flush_after_its_last_frame() {
        let mut outbox = Outbox::new();
        outbox.push(delivery(1, FRAGMENT_BYTES + 1), Instant::now());
        assert!(outbox.next_frame().is_some_and(|frame| !frame.fin));
        assert_eq!(outbox.flushed().as_ref(), tags([]), "half a message settles nothing");
        assert!(outbox.next_frame().is_some_and(|frame| frame.fin));
        assert!(outbox.next_frame().is_none());
        assert_eq!(outbox.flushed().as_ref(), tags([1]));
        assert_eq!(outbox.flushed().as_ref(), tags([]), "once");
    }

    #[test]
    fn an_empty_body_is_one_frame() {
        let mut outbox = Outbox::new();
        outbox.push(delivery(1, 0), Instant::now());
        assert!(outbox.next_frame().is_some_and(|frame| frame.fin && frame.payload.is_empty()));
        assert_eq!(outbox.flushed().as_ref(), tags([1]));
    }

    #[test]
    fn the_oldest_is_the_first_that_is_not_settled() {
        let (mut outbox, now) = (Outbox::new(), Instant::now());
        let later = now + std::time::Duration::from_secs(1);
        assert_eq!(outbox.oldest(), None);
        outbox.push(delivery(1, 1), now);
        outbox.push(delivery(2, 1), later);
        assert_eq!(outbox.oldest(), Some(now));
        outbox.next_frame();
        assert_eq!(outbox.oldest(), Some(now), "fed is not flushed");
        outbox.flushed();
        assert_eq!(outbox.oldest(), Some(later));
    }

    #[test]
    fn an_interruption_finishes_the_message_that_is_half_sent_and_forgets_the_rest() {
        let mut outbox = Outbox::new();
        outbox.push(delivery(1, FRAGMENT_BYTES + 1), Instant::now());
        outbox.push(delivery(2, 1), Instant::now());
        outbox.next_frame();
        outbox.forget_unsent();
        assert!(outbox.next_frame().is_some_and(|frame| frame.fin));
        assert!(outbox.next_frame().is_none());
        assert_eq!(outbox.flushed().as_ref(), tags([1]));
    }

    proptest! {
        /// Whatever the sizes and wherever the flushes: every delivery settles once, in order, not before its last frame.
        #[test]
        fn deliveries_settle_once_and_in_order(
            sizes in prop::collection::vec(0..3 * FRAGMENT_BYTES, 1..12),
            flushes in prop::collection::vec(any::<bool>(), 64),
        ) {
            let mut outbox = Outbox::new();
            for (number, size) in (1..).zip(&sizes) {
                outbox.push(delivery(number, *size), Instant::now());
            }
            let (mut settled, mut complete) = (Vec::new(), 0);
            for flush in flushes.into_iter().chain([true]) {
                match outbox.next_frame() {
                    Some(frame) if frame.fin => complete += 1,
                    _ => {}
                }
                if flush {
                    settled.extend_from_slice(outbox.flushed().as_ref());
                    prop_assert_eq!(settled.len(), complete);
                }
            }
            prop_assert_eq!(settled, tags(1..=complete as u64));
            prop_assert_eq!(complete, sizes.len());
        }
    }
}
