//! Bytes read from the front, and what the client library can make of a field table. No recursion.

use std::str::from_utf8;

/// How deep tables and arrays may lie in each other, the table of headers itself included. The library takes a stack
/// frame or two for each: some 8,000 of them overflow the 2 MiB of a thread. What clients are told ends at 32.
pub(super) const DEPTH_MAX: usize = 64;
/// How many values a message may have in its headers, nested ones included. A void in an array is one byte on the wire and
/// 32 in memory, an entry with a name of two bytes four and some hundred: so many take about as much as the largest body
/// does (1 MiB), where 128 KiB of voids would take 4 MiB, and that for each message in a window.
pub(super) const VALUES_MAX: usize = 8_192;

/// What was not read yet.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn octet(&mut self) -> Option<u8> {
        self.array().map(|[octet]| octet)
    }

    pub(super) fn short_string(&mut self) -> Option<&'a [u8]> {
        let length = self.octet()?;
        self.take(usize::from(length))
    }

    /// Of a long string, a table, an array: behind it lie as many bytes, or it is none.
    fn length(&mut self) -> Option<usize> {
        let length = usize::try_from(u32::from_be_bytes(self.array()?)).ok()?;
        (length <= self.0.len()).then_some(length)
    }

    pub(super) fn long_string(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        self.take(length)
    }
}

/// What stands behind the byte that names a type.
#[derive(Clone, Copy)]
enum Shape {
    /// So many bytes.
    Fixed(usize),
    /// A length of four bytes, and so many bytes of whatever.
    Bytes,
    Table,
    Array,
}

/// As `AMQPType::from_id` and `parse_raw_value` of amq-protocol-types 10.6 have it. RabbitMQ 3.10 knows the same types but
/// for `U`, and closes the connection of a producer that sends another; later ones may know more.
fn shape(kind: u8) -> Option<Shape> {
    Some(match kind {
        b'V' => Shape::Fixed(0),
        b't' | b'b' | b'B' => Shape::Fixed(1),
        b's' | b'U' | b'u' => Shape::Fixed(2),
        b'I' | b'i' | b'f' => Shape::Fixed(4),
        b'D' => Shape::Fixed(5),
        b'L' | b'l' | b'd' | b'T' => Shape::Fixed(8),
        b'S' | b'x' => Shape::Bytes,
        b'F' => Shape::Table,
        b'A' => Shape::Array,
        _ => return None,
    })
}

/// Cuts the first entry off a table, whatever its value holds inside. `None`: what is left of the table is none, or begins
/// with a type that nobody knows, so that nobody knows where it ends.
pub(super) fn entry<'a>(table: &mut Reader<'a>) -> Option<&'a [u8]> {
    let whole = table.0;
    let mut rest = *table;
    rest.short_string()?;
    match shape(rest.octet()?)? {
        Shape::Fixed(length) => rest.take(length)?,
        Shape::Bytes | Shape::Table | Shape::Array => rest.long_string()?,
    };
    *table = rest;
    whole.get(..whole.len() - rest.0.len())
}

/// A table or an array that is being read.
#[derive(Clone, Copy)]
struct Open {
    /// How many bytes are not read yet when it ends.
    end: usize,
    has_names: bool,
}

/// Whether the library reads `entries`, the inside of a table, to its last byte: names in UTF-8, known types, lengths that
/// add up, nothing deeper than [`DEPTH_MAX`]. Takes each value from `values` and says no once there are none left.
///
/// The bytes of nested tables follow each other, so one pass over them is enough, with the ends of what is open kept in an
/// array.
pub(super) fn is_table(entries: &[u8], values: &mut usize) -> bool {
    walk(entries, values).is_some()
}

fn walk(entries: &[u8], values: &mut usize) -> Option<()> {
    let mut rest = Reader::new(entries);
    let mut outer = [Open { end: 0, has_names: true }; DEPTH_MAX - 1];
    let mut depth = 0_usize;
    let mut inner = Open { end: 0, has_names: true };
    loop {
        while rest.0.len() == inner.end {
            let Some(above) = depth.checked_sub(1) else { return Some(()) };
            depth = above;
            inner = *outer.get(depth)?;
        }
        *values = values.checked_sub(1)?;
        if inner.has_names {
            from_utf8(rest.short_string()?).ok()?;
        }
        let shape = shape(rest.octet()?)?;
        match shape {
            Shape::Fixed(length) => drop(rest.take(length)?),
            Shape::Bytes => drop(rest.long_string()?),
            Shape::Table | Shape::Array => {
                let length = rest.length()?;
                let opened = Open { end: rest.0.len().checked_sub(length)?, has_names: matches!(shape, Shape::Table) };
                if opened.end < inner.end {
                    return None;
                }
                *outer.get_mut(depth)? = inner;
                depth += 1;
                inner = opened;
            }
        }
        // Beyond the end of what it lies in
        if rest.0.len() < inner.end {
            return None;
        }
    }
}
