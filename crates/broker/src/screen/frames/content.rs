//! Content headers: class, weight, size of the body, a list of properties (AMQP 0-9-1, section 4.2.6.1).

use std::fmt;
use std::str::from_utf8;

use super::wire::{Reader, VALUES_MAX, entry, is_table};
use super::{Replacement, framed};

/// Class, weight and size of the body, which stand before the flags.
const FIXED_BYTES: usize = 2 + 2 + 8;
/// The header of ours that says what was left out.
const NOTE: &[u8] = b"x-properties";

#[derive(Clone, Copy)]
enum Kind {
    ShortString,
    Table,
    Octet,
    Timestamp,
}

/// The properties of class basic, in the order of their flags, the highest bit first.
const PROPERTIES: [(&str, Kind); 14] = [
    ("content-type", Kind::ShortString),
    ("content-encoding", Kind::ShortString),
    ("headers", Kind::Table),
    ("delivery-mode", Kind::Octet),
    ("priority", Kind::Octet),
    ("correlation-id", Kind::ShortString),
    ("reply-to", Kind::ShortString),
    ("expiration", Kind::ShortString),
    ("message-id", Kind::ShortString),
    ("timestamp", Kind::Timestamp),
    ("type", Kind::ShortString),
    ("user-id", Kind::ShortString),
    ("app-id", Kind::ShortString),
    ("cluster-id", Kind::ShortString),
];
const HEADERS: usize = 2;

/// What of a message was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lost {
    /// By their flags.
    properties: u16,
    /// Bytes behind the last property.
    rest: bool,
    /// All, for want of room.
    all: bool,
}

impl Lost {
    const NOTHING: Lost = Lost { properties: 0, rest: false, all: false };
    const ALL: Lost = Lost { all: true, ..Lost::NOTHING };
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.all {
            return f.write_str("all, too long");
        }
        let lost = PROPERTIES.iter().enumerate().filter(|(place, _)| self.properties & flag(*place) != 0);
        let lost = lost.map(|(_, (name, _))| *name).chain(self.rest.then_some("what follows the last"));
        for (place, name) in lost.enumerate() {
            write!(f, "{}{name}", if place == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

fn flag(place: usize) -> u16 {
    0x8000 >> place
}

/// The next property as it stands there, with its length, and whether the library can read it; `None` when there is none.
fn next<'a>(kind: Kind, rest: &mut Reader<'a>, values: &mut usize) -> Option<(&'a [u8], bool)> {
    let whole = rest.rest();
    let readable = match kind {
        Kind::ShortString => from_utf8(rest.short_string()?).is_ok(),
        Kind::Table => is_table(rest.long_string()?, values),
        Kind::Octet => rest.take(1).is_some(),
        Kind::Timestamp => rest.take(8).is_some(),
    };
    let taken = whole.len() - rest.rest().len();
    // An octet or a timestamp that is cut short took nothing.
    if taken == 0 { None } else { Some((whole.get(..taken)?, readable)) }
}

/// Whether the library can read this payload of a header frame, and all of it.
fn is_readable(payload: &[u8]) -> bool {
    let mut rest = Reader::new(payload);
    let mut values = VALUES_MAX;
    let flags = rest.take(FIXED_BYTES).and_then(|_| rest.array());
    let Some(flags) = flags.map(u16::from_be_bytes) else { return false };
    let set = PROPERTIES.iter().enumerate().filter(|(place, _)| flags & flag(*place) != 0);
    set.map(|(_, (_, kind))| next(*kind, &mut rest, &mut values)).all(|read| read.is_some_and(|(_, readable)| readable))
        && rest.is_empty()
}

/// What goes to the library instead of the header frame on `channel` with this payload; `None` when it can read the frame.
/// Of properties and headers those that can be read are kept, and a header says what was left out.
///
/// A payload too short for flags is not one that any producer can cause: the library gets it, and gives up.
pub(super) fn replacement(channel: [u8; 2], payload: &[u8], longest: usize) -> Option<Replacement> {
    if is_readable(payload) {
        return None;
    }
    let mut rest = Reader::new(payload);
    let fixed = rest.array::<FIXED_BYTES>()?;
    let flags = u16::from_be_bytes(rest.array()?);
    let (list, lost) = Kept::of(flags, rest).list();
    let frame = framed(super::HEADER, channel, &[&fixed, &list]);
    // The note is longer than what was left out may have been.
    if frame.len() > longest {
        return Some(all_replaced(channel, fixed));
    }
    Some(Replacement { frame, what: lost.to_string() })
}

/// What goes to the library instead of a header frame that begins so and is too long to look at.
pub(super) fn all_replaced(channel: [u8; 2], fixed: [u8; FIXED_BYTES]) -> Replacement {
    let nothing = Kept { lost: Lost::ALL, ..Kept::default() };
    let (list, lost) = nothing.list();
    Replacement { frame: framed(super::HEADER, channel, &[&fixed, &list]), what: lost.to_string() }
}

/// What of a list of properties can be read.
struct Kept {
    flags: u16,
    before_headers: Vec<u8>,
    headers: Vec<u8>,
    after_headers: Vec<u8>,
    lost: Lost,
}

impl Default for Kept {
    fn default() -> Self {
        let (before_headers, headers, after_headers) = (Vec::new(), Vec::new(), Vec::new());
        Self { flags: 0, before_headers, headers, after_headers, lost: Lost::NOTHING }
    }
}

impl Kept {
    fn of(flags: u16, mut rest: Reader<'_>) -> Self {
        let mut kept = Kept::default();
        for (place, (_, kind)) in PROPERTIES.iter().enumerate().filter(|(place, _)| flags & flag(*place) != 0) {
            match next(*kind, &mut rest, &mut { VALUES_MAX }) {
                Some((bytes, _)) if place == HEADERS => kept.take_headers(bytes),
                Some((bytes, true)) => kept.take(place, bytes),
                Some((_, false)) => kept.lost.properties |= flag(place),
                None => {
                    // Where the next one begins is not known, so none of them is there.
                    kept.lost.properties |= flag(place);
                    rest = Reader::new(&[]);
                }
            }
        }
        kept.lost.rest = !rest.is_empty();
        kept
    }

    fn take(&mut self, place: usize, bytes: &[u8]) {
        self.flags |= flag(place);
        if place < HEADERS { &mut self.before_headers } else { &mut self.after_headers }.extend_from_slice(bytes);
    }

    /// The table with its length.
    fn take_headers(&mut self, table: &[u8]) {
        let mut entries = Reader::new(table.get(4..).unwrap_or_default());
        let mut values = VALUES_MAX;
        while !entries.is_empty() {
            let Some(entry) = entry(&mut entries) else {
                self.lost.properties |= flag(HEADERS);
                return;
            };
            let mut left = values;
            if is_table(entry, &mut left) {
                values = left;
                self.headers.extend_from_slice(entry);
            } else {
                self.lost.properties |= flag(HEADERS);
            }
        }
    }

    /// Flags and properties, the note among the headers. Where there are two of a name the library takes the last.
    fn list(mut self) -> (Vec<u8>, Lost) {
        let note = format!("unreadable: {}", self.lost);
        for part in [&[NOTE_LENGTH][..], NOTE, b"S", &length(note.len()), note.as_bytes()] {
            self.headers.extend_from_slice(part);
        }
        let flags = (self.flags | flag(HEADERS)).to_be_bytes();
        let headers = length(self.headers.len());
        let parts = [&flags[..], &self.before_headers, &headers, &self.headers, &self.after_headers];
        (parts.concat(), self.lost)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "twelve")]
const NOTE_LENGTH: u8 = NOTE.len() as u8;

/// Of at most some frames; nothing here is near 4 GiB.
pub(super) fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}
