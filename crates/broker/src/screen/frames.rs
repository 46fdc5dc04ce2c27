//! The stream of frames from a broker, followed; what the client library cannot read is replaced. Pure: bytes in, bytes out.

mod content;
mod method;
#[cfg(test)]
mod tests;
mod wire;

/// Types of frames (AMQP 0-9-1, section 4.2.3).
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
/// The first byte of `AMQP0091`, by which a broker answers a client of another protocol before it hangs up.
const PROTOCOL: u8 = b'A';
const FRAME_END: u8 = 0xCE;
/// Type, channel, size.
const HEAD_BYTES: usize = 1 + 2 + 4;
/// What a frame weighs beside its payload.
const OVERHEAD_BYTES: u64 = HEAD_BYTES as u64 + 1;
/// A connection may always send frames so long (`FRAME_MIN_SIZE`).
const FRAME_BYTES_ALWAYS: usize = 4096;
/// The longest header frame that is looked at, and the buffer for it: what RabbitMQ's `frame_max` is unless configured.
const BUFFER_BYTES: usize = 128 * 1024;

/// What goes to the library instead of a frame.
struct Replacement {
    frame: Vec<u8>,
    /// What is left out, for people.
    what: String,
}

fn framed(kind: u8, channel: [u8; 2], payload: &[&[u8]]) -> Vec<u8> {
    let payload = payload.concat();
    [&[kind][..], &channel, &content::length(payload.len()), &payload, &[FRAME_END]].concat()
}

/// What is to be done at the first byte that is not decided on.
enum Verdict {
    /// So many bytes go out as they are.
    Pass(usize),
    /// This goes out instead of so many bytes, the first of which are there.
    Replace(Replacement, u64),
    /// The frame must be complete first, or longer.
    Wait,
}

/// Follows one connection. Bytes are copied once: into its buffer by the reader of the socket, out of it by
/// [`take`](Self::take); frames are looked at where they lie.
///
/// Its memory is one buffer of 128 KiB, and one frame that replaces another. It takes 0.25 µs a delivery (three frames, 97
/// bytes of properties among 242, with both copies; a core of a shared machine), and 1.3 µs where something is replaced.
pub(super) struct Frames {
    /// In this order: bytes that went out, those that may, those not decided on, room.
    buffer: Box<[u8]>,
    given: usize,
    decided: usize,
    filled: usize,
    /// So many bytes of a frame that passes are not decided on yet; they may not be there. Endless after what is no frame,
    /// where the library gives the connection up.
    passing: u64,
    /// Goes out after the decided ones.
    replacement: Vec<u8>,
    replacement_given: usize,
    /// So many bytes are dropped after that, those of the frame that was replaced.
    dropping: u64,
    /// The longest header frame that the library gets.
    longest: usize,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into(),
            given: 0,
            decided: 0,
            filled: 0,
            passing: 0,
            replacement: Vec::new(),
            replacement_given: 0,
            dropping: 0,
            longest: FRAME_BYTES_ALWAYS,
        }
    }

    /// Room for more bytes from the broker, never none once [`take`](Self::take) gave nothing.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.given..self.filled, 0);
        self.decided -= self.given;
        self.filled -= self.given;
        self.given = 0;
        self.buffer.get_mut(self.filled..).unwrap_or_default()
    }

    /// So many bytes are there now, at the beginning of the room.
    pub(super) fn fill(&mut self, bytes: usize) {
        self.filled = self.buffer.len().min(self.filled + bytes);
    }

    /// Fills `out` as far as there is anything for the library, and tells `replaced` what of a frame was left out.
    pub(super) fn take(&mut self, out: &mut [u8], replaced: &mut impl FnMut(&str)) -> usize {
        let mut taken = 0;
        loop {
            taken += self.give(out.get_mut(taken..).unwrap_or_default());
            if taken == out.len() || !self.decide(replaced) {
                return taken;
            }
        }
    }

    fn give(&mut self, out: &mut [u8]) -> usize {
        let decided = copy(self.buffer.get(self.given..self.decided).unwrap_or_default(), out);
        self.given += decided;
        let room = out.get_mut(decided..).unwrap_or_default();
        let more = copy(self.replacement.get(self.replacement_given..).unwrap_or_default(), room);
        self.replacement_given += more;
        if self.replacement_given == self.replacement.len() {
            (self.replacement, self.replacement_given) = (Vec::new(), 0);
        }
        decided + more
    }

    /// Goes on over whole frames, up to one that is replaced. False when there is nothing to decide on. Only after everything
    /// decided on before is given out.
    fn decide(&mut self, replaced: &mut impl FnMut(&str)) -> bool {
        let before = self.decided;
        if self.dropping > 0 {
            let dropped = at_most(self.dropping, self.filled - self.decided);
            self.dropping -= dropped as u64;
            self.decided += dropped;
            self.given = self.decided;
            return dropped > 0;
        }
        loop {
            match self.verdict() {
                Verdict::Pass(bytes) => self.decided += bytes,
                Verdict::Wait => return self.decided > before,
                Verdict::Replace(replacement, bytes) => {
                    replaced(&replacement.what);
                    self.replacement = replacement.frame;
                    self.dropping = bytes;
                    return true;
                }
            }
        }
    }

    fn verdict(&mut self) -> Verdict {
        let waiting = self.buffer.get(self.decided..self.filled).unwrap_or_default();
        let Some(kind) = waiting.first() else { return Verdict::Wait };
        if self.passing > 0 {
            let bytes = at_most(self.passing, waiting.len());
            self.passing -= bytes as u64;
            return Verdict::Pass(bytes);
        }
        if !matches!(*kind, METHOD | HEADER | BODY | HEARTBEAT | PROTOCOL) {
            self.passing = u64::MAX;
            return Verdict::Pass(0);
        }
        let Some((head, rest)) = waiting.split_first_chunk() else { return Verdict::Wait };
        let head = Head::of(*head);
        if head.kind == HEADER && head.frame_bytes > self.longest as u64 {
            let Some(fixed) = rest.first_chunk() else { return Verdict::Wait };
            return Verdict::Replace(content::all_replaced(head.channel, *fixed), head.frame_bytes);
        }
        if !head.is_looked_at() {
            self.passing = head.frame_bytes;
            return Verdict::Pass(0);
        }
        let bytes = at_most(head.frame_bytes, usize::MAX);
        let Some(frame) = waiting.get(..bytes) else { return Verdict::Wait };
        let [payload @ .., FRAME_END] = frame.get(HEAD_BYTES..).unwrap_or_default() else {
            // The library refuses a frame without its end before it looks at what is in it.
            return Verdict::Pass(bytes);
        };
        let replacement = if head.kind == HEADER {
            content::replacement(head.channel, payload, self.longest)
        } else {
            if let Some(frame_max) = method::frame_max(payload) {
                self.longest = longest(frame_max);
            }
            method::replacement(head.channel, payload)
        };
        replacement.map_or(Verdict::Pass(bytes), |replacement| Verdict::Replace(replacement, head.frame_bytes))
    }
}

/// What stands before a payload.
struct Head {
    kind: u8,
    channel: [u8; 2],
    /// All of it.
    frame_bytes: u64,
}

impl Head {
    fn of([kind, c0, c1, size @ ..]: [u8; HEAD_BYTES]) -> Self {
        // The eight bytes of `AMQP0091` are as many as a frame has without a payload.
        let size = if kind == PROTOCOL { 0 } else { u32::from_be_bytes(size) };
        Self { kind, channel: [c0, c1], frame_bytes: u64::from(size) + OVERHEAD_BYTES }
    }

    fn is_looked_at(&self) -> bool {
        self.kind == HEADER || self.kind == METHOD && self.frame_bytes <= method::FRAME_BYTES_MAX
    }
}

/// The longest header frame that the library gets, when the broker proposes this much for any frame; 0 is no limit.
///
/// RabbitMQ sends what it got, and may have grown it (`x-death`); the library gives a connection up for a byte too much.
fn longest(frame_max: usize) -> usize {
    let frame_max = if frame_max == 0 { usize::MAX } else { frame_max };
    frame_max.clamp(FRAME_BYTES_ALWAYS, BUFFER_BYTES)
}

fn at_most(bytes: u64, most: usize) -> usize {
    usize::try_from(bytes).map_or(most, |bytes| bytes.min(most))
}

fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let bytes = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..bytes), to.get_mut(..bytes)) {
        to.copy_from_slice(from);
    }
    bytes
}
