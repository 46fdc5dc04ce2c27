//! A message body becomes WebSocket frames (RFC 6455, section 5): text when it is UTF-8, binary
//! when it is not, in fragments so that a ping never waits for a megabyte.

use bytes::Bytes;

/// The largest payload of one frame, in bytes. Small enough that a control frame gets its turn
/// soon on a slow link (some 0.8 s at 20 KiB/s) and that a session's write buffer stays small.
pub const FRAGMENT_BYTES: usize = 16 * 1024;

/// The data opcodes of RFC 6455, section 5.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// The first fragment of a body that is valid UTF-8 as a whole. A fragment may end inside a
    /// character: receivers check the message, not the frame (section 5.6).
    Text,
    /// The first fragment of any other body.
    Binary,
    /// Each further fragment.
    Continuation,
}

/// One frame of a body, not yet on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the receiver takes the payload for.
    pub opcode: Opcode,
    /// Whether the message ends here.
    pub fin: bool,
    /// At most [`FRAGMENT_BYTES`]; shares the body's memory.
    pub payload: Bytes,
}

/// The frames of one body, made as they are asked for. Nothing is copied.
#[derive(Clone, Debug)]
pub struct Fragments {
    rest: Bytes,
    /// Of the next frame; `None` once the final one is out.
    next: Option<Opcode>,
}

impl Fragments {
    /// Looks through the body once to choose between text and binary.
    #[must_use]
    pub fn new(body: Bytes) -> Self {
        let text = std::str::from_utf8(&body).is_ok();
        Fragments { rest: body, next: Some(if text { Opcode::Text } else { Opcode::Binary }) }
    }

    /// A body that is known to be text.
    #[must_use]
    pub fn text(body: String) -> Self {
        Fragments { rest: body.into(), next: Some(Opcode::Text) }
    }

    /// The next frame, `None` after the final one. An empty body has one, empty and final.
    pub fn next_frame(&mut self) -> Option<Frame> {
        let opcode = self.next?;
        let payload = self.rest.split_to(self.rest.len().min(FRAGMENT_BYTES));
        let fin = self.rest.is_empty();
        self.next = if fin { None } else { Some(Opcode::Continuation) };
        Some(Frame { opcode, fin, payload })
    }

    /// How many bytes of the body are in no frame yet. 0 does not mean that the final frame is
    /// out: that of an empty body has nothing to count. See [`is_finished`](Self::is_finished).
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Whether the final frame is out.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.next.is_none()
    }
}

#[cfg(test)]
mod tests;
