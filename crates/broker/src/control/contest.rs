//! How a session waits for a mailbox in which another proxy's session still consumes.

use std::time::Duration;

use protocol::names::QueueName;
use service::backoff::Backoff;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tracing::debug;

use super::{Control, Unsaid};
use crate::{
    claims::Stake,
    declarer::{Declarer, QueueState},
    topology::TopologyError,
};

/// Pauses between two looks of who waits, each with a notice before it. Upgrades and sessions that subscribe again come by
/// the thousand after an outage, and what they mostly find is a consumer on a connection that the broker takes for alive,
/// up to twice the heartbeat. Who has a live holder before it is told when that has gone, and does not wait for the pause.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_CAP: Duration = Duration::from_secs(5);
/// The part of the time for a contest that is kept for its last look.
const LAST_LOOK: u32 = 10;
/// How long an upgrade waits for the control connection: that of a proxy that has just started, or one that blinked.
const BLINK: Duration = Duration::from_secs(2);

/// Why a mailbox did not become free.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Nobody gave way in time. This many consume from it.
    Late(u32),
    /// Nobody can be asked.
    Mute(Unsaid),
    /// The broker does not say how many consume from it.
    Unknown(TopologyError),
}

/// Asks the other proxies for the mailbox of a new upgrade, which does not consume from it, and returns when it is free.
///
/// # Cancel safety
/// Dropping the future gives the place in the contest up.
pub(crate) async fn vacate(
    control: &Control,
    declarer: &Declarer,
    stake: &Stake,
    mut others: u32,
    deadline: Instant,
) -> Result<(), Taken> {
    let mut waiting = stake.wait();
    let last_look = deadline - deadline.saturating_duration_since(Instant::now()) / LAST_LOOK;
    let mut pauses = Pauses::new();
    let _ = timeout(BLINK, control.ready()).await;
    loop {
        control.say(stake.queue().as_str(), stake.notice()).await.map_err(Taken::Mute)?;
        let until = last_look.min(Instant::now() + pauses.next());
        tokio::select! {
            () = waiting.news() => {}
            () = sleep_until(until) => {}
            unsaid = control.mute() => return Err(Taken::Mute(unsaid)),
        }
        let last = Instant::now() >= last_look;
        match timeout_at(deadline, declarer.look(stake.queue())).await {
            Ok(Ok(state)) => {
                others = state.map_or(0, |state| state.consumers);
                if waiting.saw(others) {
                    return Ok(());
                }
            }
            Ok(Err(error)) if error.is_transient() => debug!("No look at {}: {error}", stake.queue()),
            Ok(Err(error)) => return Err(Taken::Unknown(error)),
            Err(_) => return Err(Taken::Late(others)),
        }
        if last {
            return Err(Taken::Late(others));
        }
    }
}

/// What a session that has just subscribed again sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Alone,
    Others,
    /// The broker did not say.
    Nothing,
}

/// Looks at a mailbox as one that consumes from it.
pub(crate) async fn look(declarer: &Declarer, queue: &QueueName, patience: Duration) -> Seen {
    match timeout(patience, declarer.look(queue)).await {
        Ok(Ok(state)) if QueueState::is_alone(state) => return Seen::Alone,
        Ok(Ok(_)) => return Seen::Others,
        Ok(Err(error)) => debug!("No look at {queue}: {error}"),
        Err(_) => debug!("No look at {queue}: no answer"),
    }
    Seen::Nothing
}

/// Settles who keeps a mailbox in which a session has just subscribed again, where a look did not see it alone: returns
/// when it is, or was told that a newer one is there (its claim is replaced then). Until then it is parked behind the other
/// consumer, or the other behind it, by the single active consumer. As long as it takes: a holder that is dead is dropped
/// by the broker.
///
/// # Cancel safety
/// As [`vacate`].
pub(crate) async fn contend(
    control: &Control,
    declarer: &Declarer,
    stake: &Stake,
    mut seen: Seen,
    look_timeout: Duration,
) {
    let mut waiting = stake.wait();
    let mut pauses = Pauses::new();
    while seen != Seen::Alone {
        if seen == Seen::Others
            && let Err(unsaid) = control.say(stake.queue().as_str(), stake.notice()).await
        {
            debug!("{} has another consumer: {unsaid}", stake.queue());
        }
        tokio::select! {
            () = waiting.news() => {}
            () = sleep(pauses.next()) => {}
            () = stake.replaced() => return,
        }
        seen = look(declarer, stake.queue(), look_timeout).await;
    }
}

struct Pauses(Backoff);

impl Pauses {
    fn new() -> Self {
        Self(Backoff::new(PAUSE_FIRST, PAUSE_CAP))
    }

    /// Full jitter goes down to nothing, which would be a look without a pause.
    fn next(&mut self) -> Duration {
        PAUSE_FIRST / 2 + self.0.next()
    }
}
