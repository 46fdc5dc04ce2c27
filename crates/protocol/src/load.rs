//! The bodies that producers send, readable by anyone and measurable by a raw client:
//! `producer201.20902 says Hello 8 @1700000000000000`, then spaces up to the wanted size.

use std::fmt::{self, Display, Formatter};

use crate::text::{Escaped, digits};

const SAYS_HELLO: &str = " says Hello ";
const SENT_AT: &str = " @";

/// One message of a producer to all its consumers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// Producer id and a number chosen per run, `producer201.20902`, so that a producer that
    /// starts again does not look like one that repeats itself. Any text.
    pub producer: String,
    /// 1, 2, … per producer and run.
    pub number: u64,
    /// When it was sent, in µs since 1970; `None` when the body does not say.
    pub sent_at_micros: Option<u64>,
}

impl Hello {
    /// The body, padded with spaces to `size` bytes. Text that is longer already stays whole.
    #[must_use]
    pub fn encode(&self, size: Option<usize>) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.producer.len().saturating_add(64));
        body.extend_from_slice(self.producer.as_bytes());
        body.extend_from_slice(SAYS_HELLO.as_bytes());
        body.extend_from_slice(self.number.to_string().as_bytes());
        if let Some(micros) = self.sent_at_micros {
            body.extend_from_slice(SENT_AT.as_bytes());
            body.extend_from_slice(micros.to_string().as_bytes());
        }
        if let Some(size) = size
            && size > body.len()
        {
            body.resize(size, b' ');
        }
        body
    }

    /// Reads a body back; `None` for any that [`encode`](Self::encode) would not have written.
    /// Trailing spaces and a missing time are fine.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<Hello> {
        let text = std::str::from_utf8(body).ok()?.trim_end_matches(' ');
        // From the right: the words can stand in a producer's name, but not in a number.
        let (producer, rest) = text.rsplit_once(SAYS_HELLO)?;
        let (number, sent_at_micros) = match rest.split_once(SENT_AT) {
            Some((number, micros)) => (number, Some(digits(micros)?)),
            None => (rest, None),
        };
        Some(Hello { producer: producer.to_owned(), number: digits(number)?, sent_at_micros })
    }
}

/// What log lines show, without the time, safe for one line.
impl Display for Hello {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{SAYS_HELLO}{}", Escaped(&self.producer), self.number)
    }
}

#[cfg(test)]
mod tests;
