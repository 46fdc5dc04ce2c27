//! One client and its mailbox, from the 101 to the end.
//!
//! One task, one `select!`, whose arms only make an event; what an event means is decided below it. A flush is one of the
//! arms and never awaited in a handler, so that a peer that does not read delays neither its expiry nor its successor.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use broker::{
    ledger::Outcome,
    subscription::{Delivery, Incoming, Subscription, Tag},
};
use futures::poll;
use protocol::text::Escaped;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, sleep_until, timeout},
};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    counts::Counts,
    end::End,
    liveness::{Due, Liveness, Periods},
    outbox::Outbox,
    wire::{UNFLUSHED_BYTES_MAX, Wire, WireEvent},
};

/// RabbitMQ up to 4.2 closes a channel on which a delivery has waited for its ack for 30 min, and with it the lane of 127
/// others. A client that reads so slowly that it comes near has to go.
const DELIVERY_AGE_MAX: Duration = Duration::from_secs(25 * 60);
/// How much is taken in from a peer that would be called dead: a flush, and what it said before its pong.
const LOOKS_BEFORE_DEATH: usize = 16;

/// Where a session's deliveries come from and what becomes of them.
pub trait Mailbox: Send + Sized {
    /// Waits for what comes next. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Incoming> + Send;
    /// What is there already.
    fn try_next(&mut self) -> Option<Incoming>;
    /// Settles deliveries; returns how many there were to settle.
    fn settle(&mut self, tags: &[Tag], outcome: Outcome) -> usize;
    /// Returns once everything unsettled is back in the queue.
    fn leave(self) -> impl Future<Output = ()> + Send;
}

impl Mailbox for Subscription {
    fn next(&mut self) -> impl Future<Output = Incoming> + Send {
        self.next()
    }

    fn try_next(&mut self) -> Option<Incoming> {
        self.try_next()
    }

    fn settle(&mut self, tags: &[Tag], outcome: Outcome) -> usize {
        self.settle(tags, outcome)
    }

    fn leave(self) -> impl Future<Output = ()> + Send {
        self.leave()
    }
}

/// What all sessions of a gateway have in common.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) proxy_id: String,
    pub(crate) log_messages: bool,
    pub(crate) max_message_bytes: usize,
    pub(crate) periods: Periods,
    pub(crate) close_timeout: Duration,
    /// How long an end waits for everything to be back in the queue.
    pub(crate) leave_timeout: Duration,
    /// The same while the proxy shuts down, where the goodbye has to be said in time.
    pub(crate) drain_leave_timeout: Duration,
    pub(crate) counts: Counts,
    /// Begun when the proxy shuts down.
    pub(crate) drain: CancellationToken,
}

/// What is particular to one session.
pub(crate) struct Particulars {
    /// `client.consumer.instance`, fit for a log line.
    pub(crate) name: String,
    /// When the token's time is over, leeway included.
    pub(crate) expires: Instant,
    /// Cancelled when a newer connection of the same instance comes.
    pub(crate) replaced: CancellationToken,
}

/// A session of the raw subprotocol.
pub(crate) struct Session<S, M> {
    wire: Wire<S>,
    mailbox: M,
    outbox: Outbox,
    liveness: Liveness,
    terms: Arc<Terms>,
    particulars: Particulars,
}

enum Event {
    Expired,
    Replaced,
    Draining,
    Timer,
    Wire(WireEvent),
    Incoming(Incoming),
}

impl<S, M> Session<S, M>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    M: Mailbox,
{
    pub(crate) fn new(wire: Wire<S>, mailbox: M, terms: Arc<Terms>, particulars: Particulars) -> Self {
        let offset = terms.periods.ping_interval.mul_f64(rand::random());
        let liveness = Liveness::new(terms.periods, Instant::now(), offset);
        let outbox = Outbox::new();
        Self { wire, mailbox, outbox, liveness, terms, particulars }
    }

    /// Runs to the end. The mailbox is left before the client is told, so that a client that hops to another proxy finds
    /// everything back.
    pub(crate) async fn run(mut self) -> End {
        let end = self.talk().await;
        let Self { mut wire, mailbox, terms, particulars, .. } = self;
        say(&terms, &particulars.name, &end);
        // A broker that does not answer keeps nobody for ever: only the waiting stops, the leaving goes on.
        let patience = if matches!(end, End::Draining) { terms.drain_leave_timeout } else { terms.leave_timeout };
        let leave = timeout(patience, mailbox.leave());
        match end.close_code() {
            None => {
                // It was the client that closed: its own close frame is answered meanwhile.
                let _ = tokio::join!(leave, drain(&mut wire, terms.close_timeout));
            }
            Some(code) => {
                let _ = leave.await;
                if wire.feed_close(code, &end.reason()).is_ok() {
                    drain(&mut wire, terms.close_timeout).await;
                }
            }
        }
        end
    }

    async fn talk(&mut self) -> End {
        let (replaced, drain) = (self.particulars.replaced.clone(), self.terms.drain.clone());
        let mut replaced = pin!(replaced.cancelled());
        let mut draining = pin!(drain.cancelled());
        let mut expiry = pin!(sleep_until(self.particulars.expires));
        let mut timer = pin!(sleep_until(self.wake_at()));
        loop {
            if let Err(end) = self.feed() {
                return end;
            }
            if self.wake_at() < timer.deadline() {
                timer.as_mut().reset(self.wake_at());
            }
            let event = tokio::select! {
                () = &mut expiry => Event::Expired,
                () = &mut replaced => Event::Replaced,
                () = &mut draining => Event::Draining,
                () = &mut timer => Event::Timer,
                event = poll_fn(|cx| self.wire.poll_event(cx)) => Event::Wire(event),
                incoming = self.mailbox.next() => Event::Incoming(incoming),
            };
            let went_on = match event {
                Event::Expired => Err(End::Expired),
                Event::Replaced => Err(End::Replaced),
                Event::Draining => Err(End::Draining),
                Event::Timer => {
                    let went_on = self.on_timer().await;
                    timer.as_mut().reset(self.wake_at());
                    went_on
                }
                Event::Wire(event) => self.on_wire(event),
                Event::Incoming(incoming) => self.on_incoming(incoming),
            };
            if let Err(end) = went_on {
                return end;
            }
        }
    }

    fn wake_at(&self) -> Instant {
        let too_old = self.outbox.oldest().map(|arrived| arrived + DELIVERY_AGE_MAX);
        too_old.map_or(self.liveness.wake_at(), |too_old| too_old.min(self.liveness.wake_at()))
    }

    /// Feeds frames while little waits for the socket.
    fn feed(&mut self) -> Result<(), End> {
        while self.wire.unflushed() < UNFLUSHED_BYTES_MAX
            && let Some(frame) = self.outbox.next_frame()
        {
            self.wire.feed(frame)?;
        }
        if self.wire.unflushed() > 0 {
            self.liveness.fed(Instant::now());
        }
        Ok(())
    }

    /// Never waits. After a pause of this process, the timer is due while the pong lies in the socket, and while the
    /// socket has long had room: so the wire is looked at before a peer is called dead.
    async fn on_timer(&mut self) -> Result<(), End> {
        if self.outbox.oldest().is_some_and(|arrived| arrived.elapsed() >= DELIVERY_AGE_MAX) {
            return Err(End::DoesNotRead);
        }
        let mut due = self.liveness.due(Instant::now(), self.wire.took_at());
        for _ in 0..LOOKS_BEFORE_DEATH {
            if !matches!(due, Some(Due::NoPong | Due::DoesNotRead)) {
                break;
            }
            let looked = poll!(poll_fn(|cx| self.wire.poll_event(cx)));
            let nothing_more = looked.is_pending();
            if let Poll::Ready(event) = looked {
                self.on_wire(event)?;
            }
            due = self.liveness.due(Instant::now(), self.wire.took_at());
            if nothing_more {
                break;
            }
        }
        match due {
            None => Ok(()),
            Some(Due::NoPong) => Err(End::NoPong),
            Some(Due::DoesNotRead) => Err(End::DoesNotRead),
            Some(Due::Ping) => {
                self.liveness.pinged();
                Ok(self.wire.feed_ping()?)
            }
        }
    }

    fn on_wire(&mut self, event: WireEvent) -> Result<(), End> {
        match event {
            WireEvent::Flushed => {
                self.liveness.flushed(Instant::now());
                let settled = self.outbox.flushed();
                let acked = self.mailbox.settle(settled.as_ref(), Outcome::Ack);
                self.terms.counts.delivered.fetch_add(acked as u64, Ordering::Relaxed);
                Ok(())
            }
            WireEvent::Frame(Some(Message::Close(frame))) => Err(End::Closed(frame.map(|frame| frame.code.into()))),
            WireEvent::Frame(None) => Err(End::Gone("the connection was closed".to_owned())),
            // Pings are answered by the library; a raw client has nothing else to say that would be listened to.
            WireEvent::Frame(Some(_)) => {
                self.liveness.heard();
                Ok(())
            }
            WireEvent::Broken(error) => Err(error.into()),
        }
    }

    fn on_incoming(&mut self, incoming: Incoming) -> Result<(), End> {
        let mut next = Some(incoming);
        // What waits already goes out with the same flush.
        while let Some(incoming) = next {
            match incoming {
                Incoming::Delivery(delivery) => self.on_delivery(delivery),
                Incoming::Interrupted { redelivers: true } => self.outbox.forget_unsent(),
                Incoming::Interrupted { redelivers: false } => {}
                Incoming::Restored { recreated: false } => {}
                Incoming::Restored { recreated: true } => {
                    warn!("The mailbox of {} had gone and was made anew", self.particulars.name);
                }
                Incoming::Lost(reason) => return Err(End::MailboxLost(reason)),
            }
            next = self.mailbox.try_next();
        }
        Ok(())
    }

    fn on_delivery(&mut self, delivery: Delivery) {
        let bytes = delivery.body.len();
        if bytes > self.terms.max_message_bytes {
            self.terms.counts.rejected.fetch_add(1, Ordering::Relaxed);
            warn!("A message of {bytes} bytes for {} is above the limit and rejected", self.particulars.name);
            self.mailbox.settle(&[delivery.tag], Outcome::Reject);
            return;
        }
        if self.terms.log_messages {
            let body = String::from_utf8_lossy(&delivery.body);
            let (id, name) = (&self.terms.proxy_id, &self.particulars.name);
            info!("AuthProxy {id}: For {name}: Forwarding [{}]", Escaped(body.trim_end()));
        }
        self.outbox.push(delivery, Instant::now());
    }
}

/// Each end is in the log with its code. Those that come by the thousand on a quiet day are for who asks for them.
fn say(terms: &Terms, name: &str, end: &End) {
    let id = &terms.proxy_id;
    match end {
        End::Closed(_) | End::Gone(_) | End::Draining => debug!("AuthProxy {id}: {name} ended: {end}"),
        _ => info!("AuthProxy {id}: {name} ended: {end}"),
    }
}

/// Lets what is fed go out and reads until the client has closed too, within `patience`.
async fn drain<S: AsyncRead + AsyncWrite + Unpin>(wire: &mut Wire<S>, patience: Duration) {
    let closed = async {
        loop {
            match poll_fn(|cx| wire.poll_event(cx)).await {
                WireEvent::Frame(None) | WireEvent::Broken(_) => return,
                WireEvent::Flushed | WireEvent::Frame(Some(_)) => {}
            }
        }
    };
    let _ = timeout(patience, closed).await;
}

#[cfg(test)]
mod tests;
