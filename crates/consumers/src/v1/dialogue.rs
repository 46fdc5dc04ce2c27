//! One session of v1 from the client's side: what a frame means, and what is to be said when. Pure: no socket, no
//! clock; the time is told with each call.

use std::time::Duration;

use protocol::v1::{self, ClientFrame, Event, FrameError, ServerFrame, Token, Welcome};
use tokio::time::Instant;

use crate::behaviour::Behaviour;
use crate::v1::acks::Acks;
use crate::v1::liveness::Liveness;
use crate::v1::refresh::Refresh;

/// What was not answered is said in the words of a refusal.
const NO_ANSWER: &str = "no answer in time";

/// A frame that no good server sends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadFrame {
    /// No frame of ours.
    #[error("{0}")]
    Unreadable(#[from] FrameError),
    /// v1 has text frames only.
    #[error("a binary frame")]
    Binary,
    /// The first frame is another.
    #[error("a frame before the welcome")]
    BeforeWelcome,
    /// A session begins once.
    #[error("a second welcome")]
    SecondWelcome,
    /// Seqs are 1, 2, 3, … in each session.
    #[error("message {got} where {due} was due")]
    Seq {
        /// The one after the last.
        due: u64,
        /// The one that came.
        got: u64,
    },
}

/// When to come back, as the server's `bye` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bye {
    /// The close code that was announced.
    pub(crate) code: u16,
    earliest: Instant,
    latest: Instant,
}

impl Bye {
    /// The window as it is seen from `now`: the close comes some time after the `bye`.
    pub(crate) fn window(&self, now: Instant) -> (Duration, Duration) {
        (self.earliest.saturating_duration_since(now), self.latest.saturating_duration_since(now))
    }
}

/// What a frame asks the driver to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// Nothing that concerns it.
    Nothing,
    /// The session has begun.
    Welcome(Box<Welcome<'static>>),
    /// A message.
    Message(Box<v1::Message<'static>>),
    /// A notice.
    Notice(Event),
    /// The token was exchanged.
    Refreshed,
    /// It was not; `last` when that was the last try.
    RefreshFailed { reason: String, last: bool },
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// The welcome, a pong, the answer to a refresh.
    pub(crate) answer: Duration,
    /// Silence after which a ping is sent at the latest.
    pub(crate) idle: Option<Duration>,
    /// Life of a new token.
    pub(crate) token_ttl: Duration,
}

/// The state of the session.
#[derive(Debug)]
pub(crate) struct Dialogue {
    times: Times,
    behaviour: Behaviour,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The welcome is due by then.
    Opening(Instant),
    Open(Box<Open>),
}

#[derive(Debug)]
struct Open {
    acks: Acks,
    refresh: Refresh,
    liveness: Liveness,
    bye: Option<Bye>,
}

impl Dialogue {
    /// Of a connection that was upgraded now.
    pub(crate) fn new(times: Times, behaviour: Behaviour, now: Instant) -> Self {
        Self { times, behaviour, state: State::Opening(now + times.answer) }
    }

    /// Something came, whatever it is.
    pub(crate) fn heard(&mut self, now: Instant) {
        if let State::Open(open) = &mut self.state {
            open.liveness.heard(now);
        }
    }

    /// A text frame came. `unix_now` is the same moment as `now`, since 1970.
    ///
    /// # Errors
    /// No good server sends that.
    pub(crate) fn on_frame(
        &mut self,
        frame: ServerFrame<'static>,
        now: Instant,
        unix_now: Duration,
    ) -> Result<Heard, BadFrame> {
        let left = |expires_at: u64| Duration::from_secs(expires_at).saturating_sub(unix_now).min(LIFE_MAX);
        let open = match &mut self.state {
            State::Open(open) => open,
            State::Opening(_) => {
                let ServerFrame::Welcome(welcome) = frame else { return Err(BadFrame::BeforeWelcome) };
                self.open(&welcome, now, left(welcome.expires_at));
                return Ok(Heard::Welcome(Box::new(welcome)));
            }
        };
        Ok(match frame {
            ServerFrame::Welcome(_) => return Err(BadFrame::SecondWelcome),
            ServerFrame::Message(message) => {
                let due = open.acks.received() + 1;
                if message.seq != due {
                    return Err(BadFrame::Seq { due, got: message.seq });
                }
                open.acks.arrived(now);
                Heard::Message(message)
            }
            ServerFrame::Refreshed { expires_at } => {
                open.refresh.refreshed(now, left(expires_at), dice());
                Heard::Refreshed
            }
            ServerFrame::Expiring { .. } => {
                open.refresh.expiring(now);
                Heard::Nothing
            }
            ServerFrame::Error { reason } => {
                let last = !open.refresh.refused(now, dice());
                Heard::RefreshFailed { reason: reason.into_owned(), last }
            }
            ServerFrame::Notice { event } => Heard::Notice(event),
            ServerFrame::Pong => Heard::Nothing,
            ServerFrame::Bye { code, retry_after_ms: [min, max], .. } => {
                let at = |ms| now + Duration::from_millis(ms).min(LIFE_MAX);
                open.bye = Some(Bye { code, earliest: at(min), latest: at(max.max(min)) });
                open.acks.hurry(now);
                Heard::Nothing
            }
        })
    }

    fn open(&mut self, welcome: &Welcome<'_>, now: Instant, left: Duration) {
        let Times { answer, idle, token_ttl } = self.times;
        self.state = State::Open(Box::new(Open {
            acks: Acks::new(self.behaviour, welcome.window),
            refresh: Refresh::new(now, left, token_ttl, answer, dice()),
            liveness: Liveness::new(now, welcome.ping_interval.0, idle, answer),
            bye: None,
        }));
    }

    /// Lets the time go on until now; says what has failed meanwhile.
    pub(crate) fn on_time(&mut self, now: Instant) -> Heard {
        let State::Open(open) = &mut self.state else { return Heard::Nothing };
        open.acks.work(now);
        if open.refresh.is_late(now, dice()) {
            return Heard::RefreshFailed { reason: NO_ANSWER.to_owned(), last: open.refresh.wake().is_none() };
        }
        Heard::Nothing
    }

    /// What was awaited in vain, if the link is dead.
    pub(crate) fn is_dead(&self, now: Instant) -> Option<&'static str> {
        match &self.state {
            State::Opening(by) => (*by <= now).then_some("no welcome in time"),
            State::Open(open) => open.liveness.is_dead(now).then_some("no pong in time"),
        }
    }

    /// When there will be something to do by time alone.
    pub(crate) fn wake(&self) -> Option<Instant> {
        match &self.state {
            State::Opening(by) => Some(*by),
            State::Open(open) => {
                let wakes = [open.acks.wake(), open.refresh.wake(), open.liveness.wake()];
                wakes.into_iter().flatten().min()
            }
        }
    }

    /// The next thing to say now, and how many messages it acks. `mint` makes a token; what it cannot make is as good
    /// as refused.
    pub(crate) fn say(
        &mut self,
        now: Instant,
        mint: impl FnOnce() -> Option<String>,
    ) -> Option<(ClientFrame<'static>, u64)> {
        let State::Open(open) = &mut self.state else { return None };
        if open.refresh.ask(now) {
            match mint() {
                Some(token) => return Some((ClientFrame::Refresh { token: Token(token.into()) }, 0)),
                None => open.refresh.refused(now, dice()),
            };
        }
        if open.liveness.ask(now) {
            return Some((ClientFrame::Ping, 0));
        }
        open.acks.take(now).map(|(seq, count)| (ClientFrame::Ack { seq }, count))
    }

    /// The ack of all that is processed, if any is not acked yet, and how many it acks: for a goodbye of ours.
    pub(crate) fn last_ack(&mut self, now: Instant) -> Option<(ClientFrame<'static>, u64)> {
        let State::Open(open) = &mut self.state else { return None };
        open.acks.hurry(now);
        open.acks.take(now).map(|(seq, count)| (ClientFrame::Ack { seq }, count))
    }

    /// The server's `bye`, if it said one.
    pub(crate) fn bye(&self) -> Option<&Bye> {
        match &self.state {
            State::Opening(_) => None,
            State::Open(open) => open.bye.as_ref(),
        }
    }
}

/// No time of a server is taken for longer, so that none is beyond the clock's range: ten years.
const LIFE_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

fn dice() -> f64 {
    rand::random()
}

#[cfg(test)]
mod tests;
