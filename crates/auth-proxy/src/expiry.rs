//! How long a token lets its session live.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use protocol::token::{Identity, LEEWAY};
use tokio::time::Instant;

/// Beyond any token worth honouring to the second, and far from overflowing a clock.
const SESSION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Of the time that a token has left, what may pass at the least before its client is warned.
const WARN_SHARE: u32 = 5;

/// The moments of one token's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expiry {
    /// `exp`
    expires: Instant,
    /// When the session ends: a leeway after `exp`.
    pub(crate) ends: Instant,
    /// When the client is told that the end is near; `None` once it was.
    pub(crate) warns: Option<Instant>,
}

impl Expiry {
    /// Of the token of `identity`, with a warning `notice` ahead: less with a token so short that it would come at once.
    pub(crate) fn of(identity: &Identity, notice: Duration) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::new(Duration::from_secs(identity.expires_at).saturating_sub(unix), notice)
    }

    pub(crate) fn new(left: Duration, notice: Duration) -> Self {
        let left = left.min(SESSION_MAX);
        let expires = Instant::now() + left;
        let warns = expires - notice.min(left / WARN_SHARE);
        Self { expires, ends: expires + LEEWAY, warns: Some(warns) }
    }

    /// Seconds until `exp`, rounded.
    pub(crate) fn seconds_left(&self) -> u64 {
        (self.expires.saturating_duration_since(Instant::now()) + Duration::from_millis(500)).as_secs()
    }
}
