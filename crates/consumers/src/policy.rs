//! What an instance does when a connection failed or ended. Pure decisions; nothing here waits.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

use protocol::close::{CloseCode, Duty, RetryWindow, duty_of};

use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use crate::limits::LocalCause;
use crate::v1::dialogue::BadFrame;

/// RFC 6455, 7.1.5: what stands for a close frame without a code.
pub(crate) const NO_CODE: u16 = 1005;

/// A connection that lived shorter proves nothing, so the backoff goes on growing. Otherwise a server that
/// accepts and closes at once would be asked at full speed.
pub(crate) const STABLE_AFTER: Duration = Duration::from_secs(1);

/// However long a server asks to be left alone. A typing error in a header must not park a load test
/// until tomorrow.
const SERVER_WAIT_MAX: Duration = Duration::from_secs(300);

/// So long after one another, on average, come instances back that lost their connections in one moment: 500 a second,
/// half of the cold connects that one broker carries (each declares, binds and consumes a queue).
const COMEBACK_EVERY: Duration = Duration::from_millis(2);

/// Over how long `total` instances come back that lost their connections in one moment. Without it the first pause,
/// below half a second, would bring 5,000 to the door within that; with it they take 10 s.
pub(crate) fn crowd(total: u64, backoff_cap: Duration) -> Duration {
    COMEBACK_EVERY.saturating_mul(u32::try_from(total).unwrap_or(u32::MAX)).min(backoff_cap)
}

/// Why no connection came about. Displays as a cause that many instances can share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A complete HTTP answer other than 101.
    Answer { status: u16, retry_after: Option<Duration> },
    /// The server speaks WebSocket and selected no protocol, or another one than was asked for.
    Protocol { wanted: &'static str },
    /// This machine's limits.
    Local(LocalCause),
    /// No answer within the time.
    Late { what: &'static str, after: Duration },
    /// The network's or the handshake's error.
    Other(Cow<'static, str>),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer { status, .. } => write!(f, "HTTP {status}{}", explanation(*status)),
            Self::Protocol { wanted } => {
                write!(f, "the server did not select the subprotocol {wanted} (is --protocol what it speaks?)")
            }
            Self::Local(cause) => cause.fmt(f),
            Self::Late { what, after } => write!(f, "no {what} within {after:?}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

fn explanation(status: u16) -> &'static str {
    match status {
        400 => " (bad instance, client or window, or a --protocol that the server does not speak)",
        401 => " (token refused: is the secret the proxy's?)",
        403 => " (not allowed)",
        404 => " (no such path)",
        409 => " (the queue exists with other arguments)",
        429 => " (too many)",
        503 => " (unavailable)",
        _ => "",
    }
}

/// Why a connection ended. Displays as a cause that many instances can share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The server said goodbye.
    Closed { code: u16, window: Option<(Duration, Duration)> },
    /// It broke, or ended without a close frame.
    Broken(Cow<'static, str>),
    /// Nothing came for the idle timeout.
    Silent,
    /// An answer was awaited in vain.
    Dead(&'static str),
    /// We ended it: the server broke the contract.
    Bad(BadFrame),
    /// We said goodbye.
    Left,
}

impl End {
    /// As tungstenite reads it.
    pub(crate) fn of_close_frame(frame: Option<CloseFrame>) -> Self {
        frame.map_or(Self::closed(NO_CODE, ""), |frame| Self::closed(frame.code.into(), &frame.reason))
    }

    /// The end of the stream.
    pub(crate) fn without_close_frame() -> Self {
        Self::Broken("connection ended without a close frame".into())
    }

    /// The same end when the server had announced it, and said when to come back: a close frame is best effort, and
    /// its code counts where one came.
    pub(crate) fn after_bye(self, code: u16, window: (Duration, Duration)) -> Self {
        match self {
            Self::Closed { code: NO_CODE, .. } | Self::Broken(_) | Self::Silent | Self::Dead(_) => {
                Self::Closed { code, window: Some(window) }
            }
            Self::Closed { code, .. } => Self::Closed { code, window: Some(window) },
            Self::Bad(_) | Self::Left => self,
        }
    }

    /// The server's close frame; without a `bye` before it only 4002 carries more than the code.
    pub(crate) fn closed(code: u16, reason: &str) -> Self {
        let draining = code == CloseCode::Draining.code();
        Self::Closed { code, window: if draining { drain_window(reason) } else { None } }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed { code, .. } => match CloseCode::from_code(*code) {
                Some(known) => write!(f, "close {code} {}", known.reason()),
                None => write!(f, "close {code}"),
            },
            Self::Broken(text) => f.write_str(text),
            Self::Silent => f.write_str("silent for the idle timeout"),
            Self::Dead(missed) => f.write_str(missed),
            Self::Bad(bad) => write!(f, "the server broke the contract: {bad}"),
            Self::Left => f.write_str("left"),
        }
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Never again: it would be refused again.
    Stop,
    /// After a pause of the backoff.
    Backoff,
    /// After this time and, so that not all come at once, a pause of the backoff.
    After(Duration),
    /// At a random moment of this window.
    Within(Duration, Duration),
}

/// What follows a failed connect. Each one carries a new token, so a refusal is no matter of age: the same
/// refusal would come back for ever, and asking on would only hammer the server.
pub(crate) fn after_failure(failure: &Failure) -> Next {
    match failure {
        Failure::Answer { status, retry_after } if passes(*status) => {
            retry_after.map_or(Next::Backoff, |wait| Next::After(wait.min(SERVER_WAIT_MAX)))
        }
        Failure::Answer { .. } | Failure::Protocol { .. } => Next::Stop,
        Failure::Local(_) | Failure::Late { .. } | Failure::Other(_) => Next::Backoff,
    }
}

/// Whether asking again can help: all but the client's own mistakes (4xx), and of these the ones about time.
/// An odd answer from something that is no proxy yet (a balancer's 200 or 502) stops nobody for ever.
fn passes(status: u16) -> bool {
    !(400..500).contains(&status) || matches!(status, 408 | 425 | 429)
}

/// What follows a connection.
pub(crate) fn after_end(end: &End) -> Next {
    let End::Closed { code, window } = end else { return Next::Backoff };
    match (duty_of(*code), *window) {
        (Duty::Stop, _) => Next::Stop,
        // A window that is over is no reason to come in the same moment as everyone else.
        (_, Some((earliest, latest))) if !latest.is_zero() => {
            Next::Within(earliest.min(SERVER_WAIT_MAX), latest.min(SERVER_WAIT_MAX))
        }
        // Leave is the server's 1000 or 1001: not our goodbye, so this instance is still wanted. Nobody
        // reconnects without a pause, or a thousand that lost one server would come back in one moment.
        (Duty::Leave | Duty::Reconnect | Duty::NewToken | Duty::ReconnectWithBackoff, _) => Next::Backoff,
    }
}

/// Whether a connection that lived so long and ended so shows that all is well and the backoff may start
/// over. One that the server ended in trouble must have outlived the longest pause.
pub(crate) fn proves_recovery(end: &End, lived: Duration, backoff_cap: Duration) -> bool {
    let trouble = match end {
        End::Closed { code, .. } => duty_of(*code) == Duty::ReconnectWithBackoff,
        End::Bad(_) => true,
        End::Broken(_) | End::Silent | End::Dead(_) | End::Left => false,
    };
    lived >= if trouble { backoff_cap.max(STABLE_AFTER) } else { STABLE_AFTER }
}

/// `Retry-After` (RFC 9110, 10.2.3): seconds, or a date.
pub(crate) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or(Duration::ZERO))
}

fn drain_window(reason: &str) -> Option<(Duration, Duration)> {
    let RetryWindow { min_ms, max_ms } = RetryWindow::from_reason(reason)?;
    Some((Duration::from_millis(min_ms), Duration::from_millis(max_ms)))
}

#[cfg(test)]
mod tests;
