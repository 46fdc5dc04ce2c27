//! What a session has taken from its mailbox and not yet settled. Pure: no socket, no broker; the caller brings the time.
//!
//! It is bounded by the prefetch: RabbitMQ delivers no more than a window before something is settled. After an interruption
//! one message of before may be here besides, the one that is half sent. A mailbox that is deleted under its session adds a
//! window each time: what was in it exists nowhere else any more, so it is kept until the client has it, or is closed since
//! it does not take it.
//!
//! In the raw dialect a delivery settles with the first completed flush after its last frame; in v1 when its client acks.

use std::collections::VecDeque;

use broker::subscription::{Delivery, Tag};
use protocol::{
    frame::{Fragments, Frame},
    v1,
};
use tokio::time::Instant;

/// How a session talks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `rabbitmq-msg.raw`: a frame is a body.
    Raw,
    /// `rabbitmq-msg.v1`: JSON, with acks from end to end.
    V1,
}

/// Deliveries on their way to the socket, and those that wait there for their ack.
#[derive(Debug)]
pub struct Outbox {
    dialect: Dialect,
    /// Frames of v1 that are no messages: each goes out before the next message.
    said: VecDeque<String>,
    waiting: VecDeque<Waiting>,
    sending: Option<Sending>,
    /// All frames of these are fed; ascending by seq.
    sent: VecDeque<Sent>,
    /// The seq of the last message of which all frames are fed.
    last_sent: u64,
    /// Of messages that are fed to their end: what was not asked for yet.
    written: Written,
    /// When the client last acked or nacked something.
    answered_at: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    delivery: Delivery,
    arrived: Instant,
}

#[derive(Debug)]
struct Sending {
    frames: Fragments,
    /// `None` for what is no message.
    message: Option<Sent>,
    body_bytes: usize,
    /// The message is one of before an interruption: nothing is to be settled any more.
    is_void: bool,
}

/// A delivery that the client has or is about to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its number in this session, from 1.
    pub seq: u64,
    /// Names it when it is settled.
    pub tag: Tag,
    /// When it arrived from the broker.
    pub arrived: Instant,
    /// Since when all of it is with the kernel.
    flushed: Option<Instant>,
}

/// Messages that are written out, and their bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// How many.
    pub messages: usize,
    /// Together, as RabbitMQ has them.
    pub body_bytes: usize,
}

/// The client speaks of a message that it cannot have yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSent;

impl Outbox {
    /// An empty outbox.
    pub fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            said: VecDeque::new(),
            waiting: VecDeque::new(),
            sending: None,
            sent: VecDeque::new(),
            last_sent: 0,
            written: Written::default(),
            answered_at: None,
        }
    }

    /// How the session talks.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Puts a delivery last in line; it arrived `now`.
    pub fn push(&mut self, delivery: Delivery, now: Instant) {
        self.waiting.push_back(Waiting { delivery, arrived: now });
    }

    /// Says something in v1: after the message that is being sent, before all that wait.
    pub fn say(&mut self, frame: &v1::ServerFrame<'_>) {
        self.said.push_back(frame.encode());
    }

    /// How many frames that are no messages wait to be sent.
    pub fn unsaid(&self) -> usize {
        self.said.len()
    }

    /// When the oldest delivery arrived that is not settled.
    pub fn oldest(&self) -> Option<Instant> {
        let sent = self.sent.front().map(|sent| sent.arrived);
        sent.or_else(|| self.being_sent().map(|sent| sent.arrived))
            .or_else(|| self.waiting.front().map(|waiting| waiting.arrived))
    }

    /// How many deliveries are not settled.
    pub fn unsettled(&self) -> usize {
        self.sent.len() + usize::from(self.being_sent().is_some()) + self.waiting.len()
    }

    fn being_sent(&self) -> Option<&Sent> {
        self.sending.as_ref().filter(|sending| !sending.is_void)?.message.as_ref()
    }

    /// Since when the client owes an answer: it has a message, and has neither acked nor nacked anything since.
    pub fn silent_since(&self) -> Option<Instant> {
        let has_since = self.sent.front()?.flushed?;
        Some(self.answered_at.map_or(has_since, |at| at.max(has_since)))
    }

    /// The next frame to feed.
    pub fn next_frame(&mut self) -> Option<Frame> {
        if self.sending.is_none() {
            self.sending = Some(self.start_next()?);
        }
        let sending = self.sending.as_mut()?;
        let frame = sending.frames.next_frame();
        if sending.frames.is_finished() {
            self.finished();
        }
        frame
    }

    fn start_next(&mut self) -> Option<Sending> {
        if let Some(text) = self.said.pop_front() {
            return Some(Sending { frames: Fragments::text(text), message: None, body_bytes: 0, is_void: false });
        }
        let Waiting { delivery, arrived } = self.waiting.pop_front()?;
        let message = Sent { seq: self.last_sent + 1, tag: delivery.tag, arrived, flushed: None };
        let body_bytes = delivery.body.len();
        let frames = match self.dialect {
            Dialect::Raw => Fragments::new(delivery.body),
            Dialect::V1 => Fragments::text(as_v1(message.seq, &delivery)),
        };
        Some(Sending { frames, message: Some(message), body_bytes, is_void: false })
    }

    fn finished(&mut self) {
        let Some(Sending { message: Some(message), body_bytes, is_void, .. }) = self.sending.take() else { return };
        self.written.messages += 1;
        self.written.body_bytes += body_bytes;
        self.last_sent = message.seq;
        if !is_void {
            self.sent.push_back(message);
        }
    }

    /// What was fed to its end since this was asked the last time. To be asked once all of it is with the kernel.
    pub fn take_written(&mut self) -> Written {
        std::mem::take(&mut self.written)
    }

    /// Everything fed so far is with the kernel: hands out what is settled by that.
    pub fn flushed(&mut self, now: Instant) -> Vec<Sent> {
        match self.dialect {
            Dialect::Raw => std::mem::take(&mut self.sent).into(),
            Dialect::V1 => {
                let unflushed = self.sent.iter_mut().rev().take_while(|sent| sent.flushed.is_none());
                unflushed.for_each(|sent| sent.flushed = Some(now));
                Vec::new()
            }
        }
    }

    /// The client acks everything up to `seq`: hands out what is settled by that; nothing, if it was answered before.
    ///
    /// # Errors
    /// The client cannot have that one yet.
    pub fn ack(&mut self, seq: u64, now: Instant) -> Result<impl Iterator<Item = Sent>, NotSent> {
        self.check_sent(seq)?;
        let acked = self.sent.partition_point(|sent| sent.seq <= seq);
        if acked > 0 {
            self.answered_at = Some(now);
        }
        Ok(self.sent.drain(..acked))
    }

    /// The client nacks this one: hands it out; nothing, if it was answered before.
    ///
    /// # Errors
    /// The client cannot have that one yet.
    pub fn nack(&mut self, seq: u64, now: Instant) -> Result<Option<Sent>, NotSent> {
        self.check_sent(seq)?;
        let Ok(at) = self.sent.binary_search_by_key(&seq, |sent| sent.seq) else { return Ok(None) };
        self.answered_at = Some(now);
        Ok(self.sent.remove(at))
    }

    fn check_sent(&self, seq: u64) -> Result<(), NotSent> {
        if seq > self.last_sent { Err(NotSent) } else { Ok(()) }
    }

    /// What is here is delivered again by the broker, under new tags and seqs. A message of which some frames are out is
    /// finished, since the client could not make sense of half of it.
    pub fn forget(&mut self) {
        self.waiting.clear();
        self.sent.clear();
        if let Some(sending) = &mut self.sending {
            sending.is_void = true;
        }
    }
}

fn as_v1(seq: u64, delivery: &Delivery) -> String {
    let properties = &delivery.properties;
    let mut message = v1::Message::new(seq, delivery.redelivered, &delivery.body);
    message.message_id = properties.message_id().map(Into::into);
    message.content_type = properties.content_type().map(Into::into);
    message.timestamp = properties.timestamp();
    message.sent_at = properties.sent_at();
    message.headers = properties.headers();
    v1::ServerFrame::Message(Box::new(message)).encode()
}

#[cfg(test)]
mod tests;
