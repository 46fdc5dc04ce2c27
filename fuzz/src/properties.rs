//! What the proxy's AMQP library reads: frames from a broker, with properties from any producer, behind the screen.
#![no_main]

use amq_protocol::frame::parse_frame;
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/broker/src/screen"]
mod screen {
    mod frames;

    /// Sent through in reads of this size: what comes out, and how many frames were replaced.
    pub(crate) fn through(mut stream: &[u8], read: usize) -> (Vec<u8>, usize) {
        let (mut frames, mut out, mut replaced) = (frames::Frames::new(), Vec::new(), 0);
        let mut piece = [0; 97];
        loop {
            let taken = frames.take(&mut piece, &mut |_: &str| replaced += 1);
            out.extend_from_slice(&piece[..taken]);
            if taken == 0 && stream.is_empty() {
                return (out, replaced);
            } else if taken == 0 {
                let room = frames.room();
                let (arrived, rest) = stream.split_at(read.min(stream.len()).min(room.len()));
                room[..arrived.len()].copy_from_slice(arrived);
                frames.fill(arrived.len());
                stream = rest;
            }
        }
    }
}

/// Tables and arrays that may lie in each other before the screen says that they are too deep.
const DEPTH_MAX: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let Some((&read, rest)) = bytes.split_first() else { return };
    let read = usize::from(read).max(1);
    // As a stream
    let whole = screen::through(rest, usize::MAX);
    assert_eq!(screen::through(rest, read), whole, "in reads of {read}");
    // As flags and properties
    let Some(length) = u32::try_from(12 + rest.len()).ok().filter(|_| rest.len() >= 2) else { return };
    let head = [&[2, 0, 1][..], &length.to_be_bytes(), &[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]].concat();
    let frame = [&head[..], rest, &[0xCE]].concat();
    let (out, replaced) = screen::through(&frame, read);
    assert!(parse_frame(&out[..]).is_ok_and(|(rest, _)| rest.is_empty()), "the library cannot read {out:02x?}");
    match replaced {
        0 => assert_eq!(out, frame),
        _ => {
            let deep = rest.iter().filter(|byte| matches!(byte, b'A' | b'F')).count() >= DEPTH_MAX;
            assert!(deep || parse_frame(&frame[..]).is_err(), "the library can read {frame:02x?}");
        }
    }
});
