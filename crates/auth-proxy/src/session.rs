//! One client and its mailbox, from the 101 to the end.
//!
//! One task, one `select!`, whose arms only make an event; what an event means is decided below it. A flush is one of the
//! arms and never awaited in a handler, so that a peer that does not read delays neither its expiry nor its successor.

mod client;
mod deadlines;
mod incoming;
mod mailbox;

use std::{future::poll_fn, pin::pin, sync::Arc, time::Duration};

use broker::{
    ledger::Outcome,
    subscription::{Incoming, Tag},
};
use protocol::{
    token::{Identity, Verifier},
    v1::ServerFrame,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, sleep_until, timeout},
};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::{
    end::End,
    expiry::Expiry,
    liveness::{Liveness, Periods},
    metrics::{Meter, Rejection, Requeue},
    outbox::{Dialect, Outbox, Sent},
    requeues::Requeues,
    wire::{UNFLUSHED_BYTES_MAX, Wire, WireEvent},
};
use deadlines::Departure;
pub(crate) use deadlines::Drain;
pub use mailbox::Mailbox;

/// How many answers may wait for a client to read before what it says waits too.
const UNSAID_MAX: usize = 8;

/// What all sessions of a gateway have in common.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) proxy_id: String,
    pub(crate) log_messages: bool,
    pub(crate) max_message_bytes: usize,
    pub(crate) periods: Periods,
    /// How long a v1 client may leave everything unanswered that it has.
    pub(crate) ack_timeout: Duration,
    /// How long the broker may be away before the session ends; `None` for as long as it takes.
    pub(crate) outage_limit: Option<Duration>,
    /// How long ahead of its token's end a v1 client is told.
    pub(crate) expiring_notice: Duration,
    pub(crate) close_timeout: Duration,
    /// How long an end waits for everything to be back in the queue.
    pub(crate) leave_timeout: Duration,
    pub(crate) drain: Drain,
    pub(crate) verifier: Arc<Verifier>,
}

/// What is particular to one session.
pub(crate) struct Particulars {
    /// `client.consumer.instance`, fit for a log line.
    pub(crate) name: String,
    /// Whose token it is, and how long it lasts.
    pub(crate) identity: Identity,
    pub(crate) expiry: Expiry,
    /// Cancelled when a newer connection of the same instance comes.
    pub(crate) replaced: CancellationToken,
    /// What is counted of it.
    pub(crate) meter: Meter,
}

/// A client and its mailbox.
pub(crate) struct Session<S, M> {
    wire: Wire<S>,
    mailbox: M,
    outbox: Outbox,
    requeues: Requeues,
    liveness: Liveness,
    /// Since when nothing comes from the broker.
    interrupted: Option<Interruption>,
    departure: Option<Departure>,
    /// The client was told that a new token is no good.
    refresh_refused: bool,
    terms: Arc<Terms>,
    particulars: Particulars,
}

#[derive(Clone, Copy, Debug)]
struct Interruption {
    since: Instant,
    /// What was delivered comes again; the client was told.
    redelivers: bool,
}

enum Event {
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
    /// A session that begins by saying `welcome`, if its dialect has one.
    pub(crate) fn new(
        wire: Wire<S>,
        mailbox: M,
        dialect: Dialect,
        welcome: &ServerFrame<'_>,
        terms: Arc<Terms>,
        particulars: Particulars,
    ) -> Self {
        let offset = terms.periods.ping_interval.mul_f64(rand::random());
        let liveness = Liveness::new(terms.periods, Instant::now(), offset);
        let (interrupted, departure, requeues) = (None, None, Requeues::default());
        let outbox = Outbox::new(dialect);
        let refresh_refused = false;
        let mut session = Self {
            wire,
            mailbox,
            outbox,
            requeues,
            liveness,
            interrupted,
            departure,
            refresh_refused,
            terms,
            particulars,
        };
        session.say(welcome);
        session
    }

    /// Runs to the end. The mailbox is left before the client is told, so that a client that hops to another proxy finds
    /// everything back.
    pub(crate) async fn run(mut self) -> End {
        let end = self.talk().await;
        self.particulars.meter.requeued(Requeue::SessionEnd, self.unsettled());
        self.particulars.meter.ends(&end);
        let Self { mut wire, mailbox, terms, particulars, departure, .. } = self;
        log_end(&terms, &particulars.name, &end);
        // A broker that does not answer keeps nobody for ever: only the waiting stops, the leaving goes on.
        let patience = terms.drain.patience(departure.as_ref(), terms.leave_timeout);
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
        let (replaced, draining) = (self.particulars.replaced.clone(), self.terms.drain.begun.clone());
        let mut replaced = pin!(replaced.cancelled());
        let mut draining = pin!(draining.cancelled());
        let mut timer = pin!(sleep_until(self.wake_at()));
        loop {
            if let Err(end) = self.feed() {
                return end;
            }
            if self.wake_at() < timer.deadline() {
                timer.as_mut().reset(self.wake_at());
            }
            self.particulars.meter.holds(self.unsettled(), self.outbox.oldest());
            // A client that asks and does not read the answers is not listened to either.
            let listens = self.outbox.unsaid() < UNSAID_MAX;
            let event = tokio::select! {
                () = &mut replaced => Event::Replaced,
                () = &mut draining, if self.departure.is_none() => Event::Draining,
                () = &mut timer => Event::Timer,
                event = poll_fn(|cx| self.wire.poll_event(cx, listens)) => Event::Wire(event),
                incoming = self.mailbox.next() => Event::Incoming(incoming),
            };
            let went_on = match event {
                Event::Replaced => Err(End::Replaced),
                Event::Draining => {
                    self.prepare_departure();
                    Ok(())
                }
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

    /// How many deliveries are not settled.
    fn unsettled(&self) -> usize {
        self.outbox.unsettled() + self.requeues.len()
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

    fn say(&mut self, frame: &ServerFrame<'_>) {
        if self.outbox.dialect() == Dialect::V1 {
            self.outbox.say(frame);
        }
    }

    fn on_wire(&mut self, event: WireEvent) -> Result<(), End> {
        match event {
            WireEvent::Flushed => {
                let now = Instant::now();
                self.liveness.flushed(now);
                let written = self.outbox.take_written();
                self.particulars.meter.delivered(written.messages, written.body_bytes);
                let settled = self.outbox.flushed(now);
                self.settle(&settled, Outcome::Ack);
                Ok(())
            }
            WireEvent::Frame(Some(Message::Close(frame))) => Err(End::Closed(frame.map(|frame| frame.code.into()))),
            WireEvent::Frame(None) => Err(End::Gone("the connection was closed".to_owned())),
            WireEvent::Frame(Some(message)) => {
                self.liveness.heard();
                match (self.outbox.dialect(), message) {
                    // A raw client has nothing to say that would be listened to.
                    (Dialect::Raw, _) => Ok(()),
                    (Dialect::V1, Message::Text(text)) => self.on_client(&text),
                    (Dialect::V1, Message::Binary(_)) => Err(End::ContractBroken("a binary frame".to_owned())),
                    // Pings are answered by the library.
                    (Dialect::V1, _) => Ok(()),
                }
            }
            WireEvent::Broken(error) => Err(error.into()),
        }
    }

    fn settle(&mut self, sent: &[Sent], outcome: Outcome) {
        if sent.is_empty() {
            return;
        }
        let tags: Vec<Tag> = sent.iter().map(|sent| sent.tag).collect();
        let settled = self.mailbox.settle(&tags, outcome);
        let meter = &self.particulars.meter;
        if outcome == Outcome::Ack {
            meter.acked(sent.iter().map(|sent| sent.arrived), settled, Instant::now());
        } else {
            meter.rejected(Rejection::Client, settled);
        }
    }
}

/// Each end is in the log with its code. Those that come by the thousand on a quiet day are for who asks for them.
fn log_end(terms: &Terms, name: &str, end: &End) {
    let id = &terms.proxy_id;
    match end {
        End::Closed(_) | End::Gone(_) | End::Draining(_) => debug!("AuthProxy {id}: {name} ended: {end}"),
        _ => info!("AuthProxy {id}: {name} ended: {end}"),
    }
}

/// Lets what is fed go out and reads until the client has closed too, within `patience`.
async fn drain<S: AsyncRead + AsyncWrite + Unpin>(wire: &mut Wire<S>, patience: Duration) {
    let closed = async {
        loop {
            match poll_fn(|cx| wire.poll_event(cx, true)).await {
                WireEvent::Frame(None) | WireEvent::Broken(_) => return,
                WireEvent::Flushed | WireEvent::Frame(Some(_)) => {}
            }
        }
    };
    let _ = timeout(patience, closed).await;
}

#[cfg(test)]
mod tests;
