//! Drives one session of v1 over its socket, from the upgrade to its end.

use std::pin::pin;
use std::time::{SystemTime, UNIX_EPOCH};

use protocol::close::CloseCode;
use protocol::names::HEADER_REPUBLISHED;
use protocol::v1::{Message as Delivery, ServerFrame, Welcome};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::behaviour::Behaviour;
use crate::dial::socket_cause;
use crate::farewell::{self, see_off, turn_away};
use crate::policy::End;
use crate::tally::Marks;
use crate::v1::counts::Note;
use crate::v1::dialogue::{BadFrame, Dialogue, Heard, Times};
use crate::v1::link::{Happened, Link};
use crate::world::{Event, Outcome, World};

/// What this client is like and what it asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// How it treats the server.
    pub(crate) behaviour: Behaviour,
    /// Whether it asked to resume.
    pub(crate) resume: bool,
}

/// One session, until it ends.
struct Session<'a, S> {
    world: &'a World,
    outcome: &'a mut Outcome,
    manner: Manner,
    dialogue: Dialogue,
    link: Link<'a, S>,
}

enum Step {
    Happened(Happened),
    Leave,
    Alarm,
}

/// What follows a step.
enum Then {
    GoOn,
    Tell(Event),
    End(Ending),
}

/// The ways out.
enum Ending {
    /// The connection is over already.
    Over(End),
    /// The server said goodbye.
    SeeOff(End),
    /// We say goodbye.
    Leave,
    /// The server broke the contract.
    Refuse(BadFrame),
    /// On purpose, nothing is read any more.
    Stall,
}

/// Receives and acks until the connection ends; says goodbye when the shutdown begins. As in raw the ways out are boxed.
pub(crate) async fn serve<S>(
    world: &World,
    outcome: &mut Outcome,
    manner: Manner,
    socket: &mut WebSocketStream<S>,
) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let times = Times { answer: world.answer_timeout, idle: world.idle_timeout, token_ttl: world.token_ttl };
    let dialogue = Dialogue::new(times, manner.behaviour, Instant::now());
    let link = Link::new(socket, world.answer_timeout);
    Session { world, outcome, manner, dialogue, link }.run().await
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<'_, S> {
    async fn run(mut self) -> End {
        let world = self.world;
        let mut begun = pin!(world.shutdown.begun());
        let mut alarm = pin!(sleep_until(Instant::now()));
        loop {
            let now = Instant::now();
            let mut then = self.on_time(now);
            if matches!(then, Then::GoOn) {
                self.say(now);
                // Moved only when it must ring sooner or has rung: most messages leave it as it is.
                if let Some(wake) = self.wake()
                    && (wake < alarm.deadline() || alarm.is_elapsed())
                {
                    alarm.as_mut().reset(wake);
                }
                let step = tokio::select! {
                    happened = self.link.next() => Step::Happened(happened),
                    () = &mut begun => Step::Leave,
                    () = &mut alarm, if !alarm.is_elapsed() => Step::Alarm,
                };
                then = match step {
                    Step::Happened(Happened::Read(item)) => self.on_item(item),
                    Step::Happened(Happened::Sent) | Step::Alarm => Then::GoOn,
                    Step::Leave => Then::End(Ending::Leave),
                };
            }
            match then {
                Then::GoOn => {}
                Then::Tell(event) => world.tell(event).await,
                Then::End(ending) => return Box::pin(self.end(ending)).await,
            }
        }
    }

    /// While a frame of ours is on its way out nothing else can be said, and nothing else is waited for.
    fn wake(&self) -> Option<Instant> {
        self.link.deadline().or_else(|| self.dialogue.wake())
    }

    fn on_time(&mut self, now: Instant) -> Then {
        let stuck = self.link.deadline().is_some_and(|by| by <= now).then_some("our frames are not taken");
        if let Some(missed) = stuck.or_else(|| self.dialogue.is_dead(now)) {
            return self.over(End::Dead(missed));
        }
        let heard = self.dialogue.on_time(now);
        self.on_heard(heard)
    }

    fn say(&mut self, now: Instant) {
        if !self.link.is_free() {
            return;
        }
        let (dialer, who) = (&self.world.dialer, self.outcome.who);
        let said = self.dialogue.say(now, || {
            let minted = dialer.mint(who);
            minted.inspect_err(|error| tracing::warn!("no token for {}: {error}", dialer.log_name(who))).ok()
        });
        if let Some((frame, acked)) = said {
            self.link.start(frame.encode(), now);
            self.count_acked(acked);
        }
    }

    fn count_acked(&mut self, acked: u64) {
        self.outcome.v1.acked += acked;
        self.outcome.v1.acks += u64::from(acked > 0);
    }

    fn on_item(&mut self, item: Option<Result<Message, Error>>) -> Then {
        self.dialogue.heard(Instant::now());
        match item {
            Some(Ok(Message::Text(text))) => self.on_text(&text),
            Some(Ok(Message::Binary(_))) => Then::End(Ending::Refuse(BadFrame::Binary)),
            Some(Ok(Message::Close(frame))) => Then::End(Ending::SeeOff(self.after_bye(End::of_close_frame(frame)))),
            // tungstenite answers pings itself with the next read.
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Then::GoOn,
            Some(Err(error)) => self.over(End::Broken(socket_cause(&error))),
            None => self.over(End::without_close_frame()),
        }
    }

    fn on_text(&mut self, text: &Utf8Bytes) -> Then {
        let unix_now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let frame = ServerFrame::parse(text).map_err(BadFrame::from);
        match frame.and_then(|frame| self.dialogue.on_frame(frame, Instant::now(), unix_now)) {
            Ok(heard) => self.on_heard(heard),
            Err(bad) => Then::End(Ending::Refuse(bad)),
        }
    }

    fn on_heard(&mut self, heard: Heard) -> Then {
        match heard {
            Heard::Nothing => Then::GoOn,
            Heard::Welcome(welcome) => self.on_welcome(&welcome),
            Heard::Message(message) => self.on_message(&message),
            Heard::Refreshed => {
                self.outcome.v1.refreshed += 1;
                Then::GoOn
            }
            Heard::RefreshFailed { reason, last } => {
                self.outcome.v1.refresh_failed += 1;
                Then::Tell(Event::Noted(Note::refresh_failed(&reason, last)))
            }
            Heard::Notice(event) => {
                self.outcome.v1.notice(event);
                Then::Tell(Event::Noted(Note::Notice(event)))
            }
        }
    }

    fn on_welcome(&mut self, welcome: &Welcome<'_>) -> Then {
        tracing::debug!(
            "{}: welcome to session {}, {} pending, window {}",
            self.world.dialer.log_name(self.outcome.who),
            protocol::text::Escaped(&welcome.session),
            welcome.pending,
            welcome.window
        );
        let resumed = welcome.resumed == Some(true);
        if self.manner.resume {
            self.outcome.v1.resumed += u64::from(resumed);
            self.outcome.v1.not_resumed += u64::from(!resumed);
        }
        if self.manner.behaviour == Behaviour::Stall {
            return Then::End(Ending::Stall);
        }
        if self.manner.resume && !resumed { Then::Tell(Event::Noted(Note::NotResumed)) } else { Then::GoOn }
    }

    fn on_message(&mut self, message: &Delivery<'_>) -> Then {
        let republished = message.headers.contains_key(HEADER_REPUBLISHED);
        let marks = Marks { redelivered: message.redelivered, republished };
        let news = self.outcome.on_body(self.world, message.body(), marks, message.sent_at);
        news.map_or(Then::GoOn, Then::Tell)
    }

    fn over(&self, end: End) -> Then {
        Then::End(Ending::Over(self.after_bye(end)))
    }

    /// The server's announcement counts more than how the connection then ended.
    fn after_bye(&self, end: End) -> End {
        match self.dialogue.bye() {
            Some(bye) => end.after_bye(bye.code, bye.window(Instant::now())),
            None => end,
        }
    }

    async fn end(&mut self, ending: Ending) -> End {
        let world = self.world;
        match ending {
            Ending::Over(end) => end,
            Ending::SeeOff(end) => {
                see_off(world, self.link.socket()).await;
                end
            }
            Ending::Leave => self.leave().await,
            Ending::Refuse(bad) => {
                self.outcome.v1.bad_frames += 1;
                turn_away(world, self.link.socket(), CloseCode::ContractBroken).await;
                End::Bad(bad)
            }
            Ending::Stall => {
                world.shutdown.begun().await;
                End::Left
            }
        }
    }

    /// What comes after our goodbye is not acked and goes back to the mailbox, so it is not counted here.
    async fn leave(&mut self) -> End {
        let last_ack = self.dialogue.last_ack(Instant::now());
        let (text, acked) = last_ack.map_or((None, 0), |(frame, acked)| (Some(frame.encode()), acked));
        if farewell::leave(self.world, self.link.socket(), text).await {
            self.count_acked(acked);
        }
        End::Left
    }
}
