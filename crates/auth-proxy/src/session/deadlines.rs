//! What a session does because time has passed.

use std::{future::poll_fn, task::Poll, time::Duration};

use broker::ledger::Outcome;
use futures::poll;
use protocol::{
    close::{CloseCode, RetryWindow},
    v1::ServerFrame,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{Mailbox, Session};
use crate::{end::End, liveness::Due, metrics::Requeue};

/// RabbitMQ up to 4.2 closes a channel on which a delivery has waited for its ack for 30 min, and with it the lane of 127
/// others. A client that comes near, since it reads so slowly or answers all but one, has to go.
pub(super) const DELIVERY_AGE_MAX: Duration = Duration::from_secs(25 * 60);
/// How many frames are taken in at most from a peer that would be called dead: what it said before its pong or its ack. A
/// bound, since it may talk without end.
const LOOKS_BEFORE_DEATH: usize = 256;

/// How the sessions of a proxy go when it shuts down.
#[derive(Debug)]
pub(crate) struct Drain {
    /// Begun when the proxy shuts down.
    pub(crate) begun: CancellationToken,
    /// Over how long they go, so that the next proxy does not get all of them in one moment.
    pub(crate) pace: Duration,
    /// When all have to be gone, counted from the beginning.
    pub(crate) timeout: Duration,
    /// Over how long their clients come back, counted from the close.
    pub(crate) spread: Duration,
}

/// When and how a session goes in a drain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    at: Instant,
    /// When the proxy will not wait any longer.
    by: Instant,
    window: RetryWindow,
}

impl Drain {
    fn departure(&self) -> Departure {
        let now = Instant::now();
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        // A window of its own for each: a quarter of the spread, anywhere within.
        let width = self.spread / 4;
        let min = (self.spread - width).mul_f64(rand::random());
        let window = RetryWindow { min_ms: ms(min), max_ms: ms(min + width) };
        Departure { at: now + self.pace.mul_f64(rand::random()), by: now + self.timeout, window }
    }

    /// How long a session may wait for everything to be back: in a drain a part of what is left, since its client has to
    /// be told in time.
    pub(super) fn patience(&self, departure: Option<&Departure>, usual: Duration) -> Duration {
        departure.map_or(usual, |departure| usual.min((departure.by - Instant::now()) * 3 / 4))
    }
}

impl<S, M> Session<S, M>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    M: Mailbox,
{
    /// When to call [`Self::on_timer`] next.
    pub(super) fn wake_at(&self) -> Instant {
        let Self { outbox, requeues, liveness, interrupted, departure, terms, particulars, .. } = self;
        let others = [
            Some(particulars.expiry.ends),
            particulars.expiry.warns,
            outbox.oldest().map(|arrived| arrived + DELIVERY_AGE_MAX),
            outbox.silent_since().map(|since| since + terms.ack_timeout),
            requeues.wake_at(),
            interrupted.zip(terms.outage_limit).map(|(interruption, limit)| interruption.since + limit),
            departure.map(|departure| departure.at),
        ];
        others.into_iter().flatten().fold(liveness.wake_at(), Instant::min)
    }

    /// The proxy shuts down: the session goes on until it is its turn to leave, so that what its client has can be acked.
    pub(super) fn prepare_departure(&mut self) {
        let departure = self.terms.drain.departure();
        let RetryWindow { min_ms, max_ms } = departure.window;
        let code = CloseCode::Draining;
        let reason = code.reason().into();
        self.say(&ServerFrame::Bye { code: code.code(), reason, retry_after_ms: [min_ms, max_ms] });
        self.departure = Some(departure);
    }

    /// Never waits. After a pause of this process, the timer is due while the pong or the ack lies in the socket, and
    /// while the socket has long had room: so the wire is looked at before a peer is called dead.
    pub(super) async fn on_timer(&mut self) -> Result<(), End> {
        self.check_time()?;
        let mut due = self.due();
        for _ in 0..LOOKS_BEFORE_DEATH {
            if !matches!(due, Some(Due::NoPong | Due::DoesNotRead | Due::NoAck)) {
                break;
            }
            let looked = poll!(poll_fn(|cx| self.wire.poll_event(cx, true)));
            let nothing_more = looked.is_pending();
            if let Poll::Ready(event) = looked {
                self.on_wire(event)?;
            }
            due = self.due();
            if nothing_more {
                break;
            }
        }
        match due {
            None => Ok(()),
            Some(Due::NoPong) => Err(End::NoPong),
            Some(Due::DoesNotRead) => Err(End::DoesNotRead),
            Some(Due::NoAck) => Err(End::NoAck),
            Some(Due::Ping) => {
                self.liveness.pinged();
                Ok(self.wire.feed_ping()?)
            }
        }
    }

    /// What is over whatever the client says now, and what is to be done without it.
    fn check_time(&mut self) -> Result<(), End> {
        let now = Instant::now();
        if self.particulars.expiry.ends <= now {
            return Err(End::Expired);
        }
        if let Some(departure) = self.departure.filter(|departure| departure.at <= now) {
            return Err(End::Draining(departure.window));
        }
        let limit = self.interrupted.zip(self.terms.outage_limit);
        if limit.is_some_and(|(interruption, limit)| interruption.since + limit <= now) {
            return Err(End::BrokerUnavailable);
        }
        if self.outbox.oldest().is_some_and(|arrived| arrived + DELIVERY_AGE_MAX <= now) {
            return Err(if self.outbox.silent_since().is_some() { End::NoAck } else { End::DoesNotRead });
        }
        let requeued = self.requeues.due(now);
        let settled = self.mailbox.settle(&requeued, Outcome::Requeue);
        self.particulars.meter.requeued(Requeue::Client, settled);
        if self.particulars.expiry.warns.is_some_and(|at| at <= now) {
            self.particulars.expiry.warns = None;
            let r#in = self.particulars.expiry.seconds_left();
            self.say(&ServerFrame::Expiring { r#in });
        }
        Ok(())
    }

    fn due(&mut self) -> Option<Due> {
        let now = Instant::now();
        if self.outbox.silent_since().is_some_and(|since| since + self.terms.ack_timeout <= now) {
            return Some(Due::NoAck);
        }
        self.liveness.due(now, self.wire.took_at())
    }
}
