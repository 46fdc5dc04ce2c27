//! What proxies say to each other about a mailbox: small JSON, and tolerant of everything else.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The one version there is. Another one is somebody else's, and ignored.
const VERSION: u32 = 1;
/// More than any message of ours: a queue name has at most 255 bytes, and numbers are short.
pub(crate) const MESSAGE_BYTES_MAX: usize = 2_048;

/// Names a proxy for its life; drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ProxyId(pub(crate) u64);

/// The order of sessions: by the time of their upgrade, and where that is the same by a number drawn at random. A session
/// keeps it for life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Order {
    at_ms: u64,
    id: u64,
}

impl Order {
    pub(crate) fn now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::new(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), rand::random())
    }

    pub(crate) fn new(at_ms: u64, id: u64) -> Self {
        Self { at_ms, id }
    }
}

/// A session that wants a mailbox in which it found another consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claimant {
    pub(crate) order: Order,
    /// A new upgrade, before its 101; otherwise a session that subscribes again after an outage.
    pub(crate) fresh: bool,
    /// The time since its upgrade when this was said. Durations need no common clock.
    age_ms: u64,
}

impl Claimant {
    pub(crate) fn new(order: Order, fresh: bool, age: Duration) -> Self {
        Self { order, fresh, age_ms: millis(age) }
    }

    /// Whether it is certainly older than a session that had this age when this was heard: it was older when it said so.
    pub(crate) fn began_before(&self, age_when_heard: Duration) -> bool {
        self.age_ms > millis(age_when_heard)
    }

    /// Whether it is certainly newer than a session that had this age when this was asked for.
    pub(crate) fn began_after(&self, age_when_asked: Duration) -> bool {
        self.age_ms < millis(age_when_asked)
    }
}

/// Ages are compared in whole milliseconds on both sides, so that a rounded one is never taken for the lesser.
fn millis(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub(crate) enum Said {
    /// To all: I want this mailbox, and somebody else consumes from it.
    Notice { claimant: Claimant },
    /// To a claimant: do you still? A notice can be minutes old. `mine` is who asks.
    Ask { to: ProxyId, order: Order, nonce: u64, mine: Order },
    /// To who asked, with his number: yes.
    Confirm { to: ProxyId, nonce: u64, claimant: Claimant },
    /// To all: I had it, and everything unsettled is back in it.
    Gone,
    /// To a claimant: no, mine is newer.
    Newer { to: ProxyId, order: Order, mine: Claimant },
}

/// Something said about a mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message {
    v: u32,
    pub(crate) from: ProxyId,
    pub(crate) queue: String,
    #[serde(flatten)]
    pub(crate) said: Said,
}

impl Message {
    pub(crate) fn new(from: ProxyId, queue: &str, said: Said) -> Self {
        Self { v: VERSION, from, queue: queue.to_owned(), said }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        // Numbers and strings: there is nothing in it that JSON could not say.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Unknown fields are skipped, so that a later proxy may say more.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Garbage> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(Garbage::Size(bytes.len()));
        }
        let message: Self = serde_json::from_slice(bytes).map_err(Garbage::Json)?;
        if message.v == VERSION { Ok(message) } else { Err(Garbage::Version(message.v)) }
    }
}

/// Not one of ours.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Garbage {
    #[error("{0} bytes")]
    Size(usize),
    #[error("{0}")]
    Json(serde_json::Error),
    #[error("version {0}")]
    Version(u32),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all_kinds() -> Vec<Said> {
        let claimant = Claimant::new(Order::new(u64::MAX, u64::MAX), true, Duration::MAX);
        let (to, order, nonce) = (ProxyId(u64::MAX), Order::new(1, 2), u64::MAX);
        vec![
            Said::Notice { claimant },
            Said::Ask { to, order, nonce, mine: order },
            Said::Confirm { to, nonce, claimant },
            Said::Gone,
            Said::Newer { to, order, mine: claimant },
        ]
    }

    #[test]
    fn every_kind_survives_the_wire_and_fits() {
        for said in all_kinds() {
            let message = Message::new(ProxyId(7), &"q".repeat(255), said);
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(Message::parse(&bytes).unwrap(), message);
        }
    }

    #[test]
    fn the_wire_format_is_this() {
        let claimant = Claimant::new(Order::new(1_700_000_000_000, 5), true, Duration::from_secs(2));
        let text = String::from_utf8(Message::new(ProxyId(7), "q", Said::Notice { claimant }).encode()).unwrap();
        assert_eq!(
            text,
            r#"{"v":1,"from":7,"queue":"q","type":"notice","claimant":{"order":{"at_ms":1700000000000,"id":5},"fresh":true,"age_ms":2000}}"#
        );
    }

    #[test]
    fn other_versions_and_sizes_are_not_ours_and_more_fields_are() {
        let gone = |v: u32, more: &str| format!(r#"{{"v":{v},"from":1,"queue":"q","type":"gone"{more}}}"#);
        assert!(Message::parse(gone(1, r#","colour":["blue"]"#).as_bytes()).is_ok());
        assert!(matches!(Message::parse(gone(2, "").as_bytes()), Err(Garbage::Version(2))));
        let long = gone(1, &format!(r#","x":"{}""#, " ".repeat(MESSAGE_BYTES_MAX)));
        assert!(matches!(Message::parse(long.as_bytes()), Err(Garbage::Size(_))));
        for garbage in ["", "null", "[]", "\"gone\"", r#"{"v":1}"#, &gone(1, "").replace("gone", "dance")] {
            assert!(matches!(Message::parse(garbage.as_bytes()), Err(Garbage::Json(_))), "{garbage}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::parse(&bytes);
        }

        #[test]
        fn no_damage_is_a_panic(kind in 0..5usize, at in 0..100usize, byte in any::<u8>()) {
            let mut bytes = Message::new(ProxyId(7), "q", all_kinds()[kind]).encode();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = Message::parse(&bytes);
        }
    }
}
