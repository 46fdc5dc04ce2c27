//! What the messages carry. Everything random here is the same in each run.

use bytes::Bytes;
use protocol::load::Hello;
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Of every generator here.
const SEED: u64 = 20_902;

pub(crate) fn generator() -> StdRng {
    StdRng::seed_from_u64(SEED)
}

/// What `producers` send, padded: ASCII.
pub(crate) fn hello(size: usize) -> Bytes {
    let hello = Hello { producer: "producer201.20902".into(), number: 8, sent_at_micros: Some(1_700_000_000_000_000) };
    Bytes::from(hello.encode(Some(size)))
}

/// Text in which no two bytes in a row are ASCII: the UTF-8 check has no short cut.
pub(crate) fn cyrillic(size: usize) -> Bytes {
    let mut text = "ш".repeat(size / 2);
    text.extend((text.len()..size).map(|_| ' '));
    Bytes::from(text)
}

/// Not UTF-8, which shows within its first bytes.
pub(crate) fn random(size: usize) -> Bytes {
    let mut body = vec![0; size];
    generator().fill_bytes(&mut body);
    Bytes::from(body)
}
