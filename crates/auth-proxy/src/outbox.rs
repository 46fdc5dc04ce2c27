//! What a session has taken from its mailbox and not yet settled. Pure: no socket, no broker, no clock.
//!
//! In the raw subprotocol a delivery settles with the first completed flush after its last frame.

use std::collections::VecDeque;

use broker::subscription::{Delivery, Tag};
use protocol::frame::{Fragments, Frame};

/// Deliveries on their way to the socket, in order.
#[derive(Debug)]
pub struct Outbox {
    window: usize,
    waiting: VecDeque<Waiting>,
    /// All frames of these are fed, none is known to be flushed.
    fed: Vec<Tag>,
}

#[derive(Debug)]
struct Waiting {
    tag: Tag,
    body: Fragments,
    started: bool,
}

impl Outbox {
    /// An empty outbox for at most `window` deliveries.
    pub fn new(window: u16) -> Self {
        Self { window: window.into(), waiting: VecDeque::new(), fed: Vec::new() }
    }

    /// Whether another delivery may be taken from the mailbox.
    pub fn has_room(&self) -> bool {
        self.waiting.len() + self.fed.len() < self.window
    }

    /// Puts a delivery last in line.
    pub fn push(&mut self, delivery: Delivery) {
        self.waiting.push_back(Waiting { tag: delivery.tag, body: Fragments::new(delivery.body), started: false });
    }

    /// The next frame to feed.
    pub fn next_frame(&mut self) -> Option<Frame> {
        let front = self.waiting.front_mut()?;
        let frame = front.body.next_frame();
        front.started = true;
        if front.body.is_finished() {
            self.fed.extend(self.waiting.pop_front().map(|done| done.tag));
        }
        frame
    }

    /// Everything fed so far is flushed: hands out what is settled by that.
    pub fn flushed(&mut self) -> impl AsRef<[Tag]> + use<> {
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
        let mut outbox = Outbox::new(4);
        outbox.push(delivery(1, FRAGMENT_BYTES + 1));
        assert!(outbox.next_frame().is_some_and(|frame| !frame.fin));
        assert_eq!(outbox.flushed().as_ref(), tags([]), "half a message settles nothing");
        assert!(outbox.next_frame().is_some_and(|frame| frame.fin));
        assert!(outbox.next_frame().is_none());
        assert_eq!(outbox.flushed().as_ref(), tags([1]));
        assert_eq!(outbox.flushed().as_ref(), tags([]), "once");
    }

    #[test]
    fn an_empty_body_is_one_frame() {
        let mut outbox = Outbox::new(1);
        outbox.push(delivery(1, 0));
        assert!(outbox.next_frame().is_some_and(|frame| frame.fin && frame.payload.is_empty()));
        assert_eq!(outbox.flushed().as_ref(), tags([1]));
    }

    #[test]
    fn the_window_counts_what_is_not_flushed() {
        let mut outbox = Outbox::new(2);
        outbox.push(delivery(1, 1));
        outbox.push(delivery(2, 1));
        assert!(!outbox.has_room());
        outbox.next_frame();
        assert!(!outbox.has_room(), "fed is not flushed");
        outbox.flushed();
        assert!(outbox.has_room());
    }

    #[test]
    fn an_interruption_finishes_the_message_that_is_half_sent_and_forgets_the_rest() {
        let mut outbox = Outbox::new(4);
        outbox.push(delivery(1, FRAGMENT_BYTES + 1));
        outbox.push(delivery(2, 1));
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
            let mut outbox = Outbox::new(16);
            for (number, size) in (1..).zip(&sizes) {
                outbox.push(delivery(number, *size));
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
