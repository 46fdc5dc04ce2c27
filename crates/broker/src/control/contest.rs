//! How a session waits for a mailbox in which another proxy's session still consumes.

use std::time::Duration;

use service::backoff::Backoff;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::debug;

use super::{Control, Unsaid};
use crate::{claims::Stake, declarer::Declarer, topology::TopologyError};

/// How often a new upgrade repeats its notice and looks again: a holder whose proxy died answers nothing, and its consumer
/// is gone as soon as the broker knows.
const NOTICE_EVERY: Duration = Duration::from_secs(1);
/// The same of sessions that subscribe again. They come by the thousand, and what they mostly find is their own consumer
/// on a connection that the broker takes for alive, up to twice the heartbeat.
const CONTEND_FIRST: Duration = Duration::from_secs(1);
const CONTEND_CAP: Duration = Duration::from_secs(5);
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
    let waiting = stake.wait();
    let _ = timeout(BLINK, control.ready()).await;
    loop {
        control.say(stake.queue().as_str(), stake.notice()).await.map_err(Taken::Mute)?;
        tokio::select! {
            () = waiting.news() => {}
            () = sleep(NOTICE_EVERY) => {}
            unsaid = control.mute() => return Err(Taken::Mute(unsaid)),
        }
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
        if Instant::now() >= deadline {
            return Err(Taken::Late(others));
        }
    }
}

/// Settles who keeps a mailbox in which a session has just subscribed again, where a look did not see it alone: returns
/// when it is, or was told that a newer one is there (its claim is replaced then). Until then it is parked behind the other
/// consumer, or the other behind it, by the single active consumer. As long as it takes: a holder that is dead is dropped
/// by the broker.
///
/// # Cancel safety
/// As [`vacate`].
pub(crate) async fn contend(control: &Control, declarer: &Declarer, stake: &Stake, look_timeout: Duration) {
    let waiting = stake.wait();
    let mut backoff = Backoff::new(CONTEND_FIRST, CONTEND_CAP);
    loop {
        match timeout(look_timeout, declarer.look(stake.queue())).await {
            // It knows of itself that it consumes.
            Ok(Ok(state)) if state.is_none_or(|state| state.consumers <= 1) => return,
            Ok(Ok(_)) => {
                if let Err(unsaid) = control.say(stake.queue().as_str(), stake.notice()).await {
                    debug!("{} has another consumer: {unsaid}", stake.queue());
                }
            }
            Ok(Err(error)) => debug!("No look at {}: {error}", stake.queue()),
            Err(_) => debug!("No look at {}: no answer", stake.queue()),
        }
        // Full jitter goes down to nothing, which would be a look without a pause.
        let pause = CONTEND_FIRST / 2 + backoff.next();
        tokio::select! {
            () = waiting.news() => {}
            () = sleep(pause) => {}
            () = stake.replaced() => return,
        }
    }
}
