//! The messages that are not decided: those that the present channel publishes, and those that wait to be published.
//! Arithmetic without a broker.
//!
//! All are in the order in which they were accepted: what a lost channel left unanswered goes back to the front, so that
//! nothing newer is published before it.
//!
//! **A refused message is found by being alone.** The broker refuses a message (too large) by closing the channel, and
//! says neither which one it meant nor what became of the others. So after a refusal all that was on its way is
//! [suspect](Publish::suspect), and a suspect is published only when nothing else is on its way. The culprit is refused
//! alone, twice, since a channel can be closed for other reasons too; the others are decided. That costs a round trip for
//! each of the window, and two channels for each message that is refused. Whatever is as large as the culprit is suspect
//! from then on, until such a one is taken after all: a whole window is at stake only once. (And with it the connection:
//! lapin sends the frames that it has queued for the channel after the close, and the broker answers with 504.)

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::message::Message;
use super::outcomes::{Completion, Outcomes};
use super::tally::Tally;

/// So often a channel is closed with one message alone on it before that message is taken for the reason.
const REFUSALS_ALONE: u32 = 2;

/// A message that is not decided, and what was tried with it.
#[derive(Clone, Debug)]
pub(super) struct Publish {
    message: Arc<Message>,
    /// When it was accepted.
    pub(super) since: Instant,
    /// How often it was handed to a channel.
    published: u32,
    /// It was on its way when the broker refused something.
    suspect: bool,
    /// How often the broker refused something and nothing else was on its way.
    refused_alone: u32,
}

impl Publish {
    /// Not published yet.
    pub(super) fn new(message: Arc<Message>, since: Instant) -> Self {
        Self { message, since, published: 0, suspect: false, refused_alone: 0 }
    }

    /// Whether it is the message `id` for the consumer `key`.
    pub(super) fn is(&self, id: &str, key: &str) -> bool {
        self.message.routing_key.as_str() == key && self.message.id == id
    }
}

/// What to hand to the channel.
#[derive(Debug)]
pub(super) struct Order {
    /// Names this publish; no other one has it, on whatever channel.
    pub(super) number: u64,
    pub(super) message: Arc<Message>,
    /// How often the message was published before.
    pub(super) republished: u32,
}

/// Why a channel was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// A connection that is gone blames no message.
    Connection,
    /// The broker closed the channel over whatever was published on it: no exchange (404), no permission (403).
    Channel,
    /// The broker closed the channel over one message (406, 311).
    Message,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    on_channel: Outcomes,
    waiting: VecDeque<Publish>,
    /// What is on its way is one suspect, with a body of so many bytes.
    alone: Option<usize>,
    /// The size of the last body that was refused, if no other one of that size was taken since.
    refused_bytes: Option<usize>,
    ended: Tally,
}

impl Undecided {
    /// Takes a message; it is published by a later [`next`](Self::next).
    pub(super) fn accept(&mut self, message: Message, now: Instant) {
        let suspect = self.refused_bytes.is_some_and(|refused| message.body.len() >= refused);
        self.waiting.push_back(Publish { suspect, ..Publish::new(Arc::new(message), now) });
    }

    /// What is to be published now, if anything, with `in_flight` publishes on their way, given-up ones included.
    pub(super) fn next(&mut self, in_flight: usize) -> Option<Order> {
        if in_flight == 0
            && let Some(taken) = self.alone.take()
        {
            self.refused_bytes = self.refused_bytes.filter(|refused| taken < *refused);
        }
        if self.alone.is_some() || (in_flight > 0 && self.waiting.front()?.suspect) {
            return None;
        }
        let mut publish = self.waiting.pop_front()?;
        self.alone = publish.suspect.then_some(publish.message.body.len());
        let republished = publish.published;
        self.ended.republished += u64::from(republished > 0);
        publish.published = republished.saturating_add(1);
        let message = Arc::clone(&publish.message);
        Some(Order { number: self.on_channel.published(publish), message, republished })
    }

    /// Publish `number` was answered.
    pub(super) fn completed(&mut self, number: u64, completion: Completion) {
        self.on_channel.completed(number, completion);
    }

    /// Ends what can be decided, and says how what ended since the last call did.
    pub(super) fn settle(&mut self) -> Tally {
        self.ended += self.on_channel.settle();
        std::mem::take(&mut self.ended)
    }

    /// Gives up what was accepted at `until` or before.
    pub(super) fn expire(&mut self, until: Instant) {
        self.ended += self.on_channel.settle();
        self.on_channel.expire(until);
        while self.waiting.front().is_some_and(|publish| publish.since <= until) {
            self.waiting.pop_front();
            self.ended.unconfirmed += 1;
        }
    }

    /// The channel is gone. What it left unanswered waits for the next one; returns the message that the broker refuses,
    /// if it was found, which has ended as nacked.
    pub(super) fn lost(&mut self, loss: Loss) -> Option<Arc<Message>> {
        let (answered, mut unanswered) = self.on_channel.lost();
        self.ended += answered;
        self.alone = None;
        if loss != Loss::Connection {
            unanswered.iter_mut().for_each(|publish| publish.suspect = true);
        }
        if loss == Loss::Message
            && unanswered.len() == 1
            && let Some(only) = unanswered.front_mut()
        {
            only.refused_alone += 1;
        }
        let found = unanswered.front().is_some_and(|publish| publish.refused_alone >= REFUSALS_ALONE);
        let culprit = if found { unanswered.pop_front() } else { None };
        self.ended.nacked += u64::from(found);
        unanswered.append(&mut self.waiting);
        self.waiting = unanswered;
        let culprit = culprit?.message;
        self.refused_bytes = Some(culprit.body.len());
        Some(culprit)
    }

    /// Nobody waits any longer: what the broker has not answered ends as unconfirmed.
    pub(super) fn abandon(&mut self) -> Tally {
        let _ = self.lost(Loss::Connection);
        self.ended.unconfirmed += self.waiting.drain(..).count() as u64;
        std::mem::take(&mut self.ended)
    }

    /// How many are not decided.
    pub(super) fn len(&self) -> usize {
        self.on_channel.undecided() + self.waiting.len()
    }

    /// Whether a message that is accepted now would be published at once, behind nothing older.
    pub(super) fn is_open(&self) -> bool {
        self.waiting.is_empty() && self.alone.is_none()
    }

    /// When the oldest was accepted.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.on_channel.oldest().or_else(|| self.waiting.front().map(|publish| publish.since))
    }
}

#[cfg(test)]
mod tests;
