//! Methods that carry a producer's words: where a message was published, and to what key. RabbitMQ 3.10 checks the UTF-8 of
//! neither, and a message reaches a mailbox under another key by the header `CC`.

use std::str::from_utf8;

use super::wire::Reader;
use super::{Replacement, framed};

const BASIC: u16 = 60;
const RETURN: u16 = 50;
const DELIVER: u16 = 60;
const GET_OK: u16 = 71;
const CONNECTION: u16 = 10;
const TUNE: u16 = 30;

/// The longest frame of a method that is looked at: none of the three has more than three short strings.
pub(super) const FRAME_BYTES_MAX: u64 = 1024;

/// What goes to the library instead of the method on `channel` with this payload; `None` when it can read it. An exchange or
/// a key that is not UTF-8 becomes an empty one.
pub(super) fn replacement(channel: [u8; 2], payload: &[u8]) -> Option<Replacement> {
    let mut rest = Reader::new(payload);
    let (class, method) = (u16::from_be_bytes(rest.array()?), u16::from_be_bytes(rest.array()?));
    match (class, method) {
        (BASIC, DELIVER) => {
            // Consumer tag, which is ours; delivery tag and flag
            rest.short_string()?;
            rest.take(8 + 1)?;
        }
        (BASIC, GET_OK) => drop(rest.take(8 + 1)?),
        (BASIC, RETURN) => {
            // Reply code and text
            rest.take(2)?;
            rest.short_string()?;
        }
        _ => return None,
    }
    let before = payload.get(..payload.len() - rest.rest().len())?;
    let (exchange, key) = (rest.short_string()?, rest.short_string()?);
    let what = match (from_utf8(exchange).is_ok(), from_utf8(key).is_ok()) {
        (true, true) => return None,
        (true, false) => "routing key",
        (false, true) => "exchange",
        (false, false) => "exchange, routing key",
    };
    let [exchange, key] = [exchange, key].map(readable);
    let frame = framed(super::METHOD, channel, &[before, &exchange, &key, rest.rest()]);
    Some(Replacement { frame, what: what.to_owned() })
}

/// A short string with its length.
fn readable(bytes: &[u8]) -> Vec<u8> {
    match (from_utf8(bytes), u8::try_from(bytes.len())) {
        (Ok(_), Ok(length)) => [&[length], bytes].concat(),
        _ => vec![0],
    }
}

/// The longest frame that the broker lets both sides send, when this is where it says so; 0 is no limit.
pub(super) fn frame_max(payload: &[u8]) -> Option<usize> {
    let mut rest = Reader::new(payload);
    let (class, method) = (u16::from_be_bytes(rest.array()?), u16::from_be_bytes(rest.array()?));
    if (class, method) != (CONNECTION, TUNE) {
        return None;
    }
    // Before it stands the number of channels.
    rest.take(2)?;
    usize::try_from(u32::from_be_bytes(rest.array()?)).ok()
}
