use amq_protocol::frame::{AMQPFrame, parse_frame};

use super::*;

mod any;
mod properties;
mod streams;

/// Sent through in reads of these sizes, taken out in pieces of those, both over and over: what came out, and what was said
/// to be left out.
fn through(stream: &[u8], reads: &[usize], outs: &[usize]) -> (Vec<u8>, Vec<String>) {
    let (mut frames, mut left, mut out, mut said) = (Frames::new(), stream, Vec::new(), Vec::new());
    let (mut reads, mut outs) = (reads.iter().cycle(), outs.iter().cycle());
    loop {
        let mut piece = vec![0; *outs.next().unwrap()];
        let taken = frames.take(&mut piece, &mut |what: &str| said.push(what.to_owned()));
        assert!(taken > 0 || frames.given == frames.decided, "what may go out goes out");
        out.extend_from_slice(&piece[..taken]);
        if taken > 0 {
            continue;
        }
        if left.is_empty() {
            return (out, said);
        }
        let room = frames.room();
        let read = left.len().min(room.len()).min(*reads.next().unwrap());
        assert!(read > 0, "there is always room for more");
        room[..read].copy_from_slice(&left[..read]);
        left = &left[read..];
        frames.fill(read);
    }
}

/// At once.
fn screened(stream: &[u8]) -> (Vec<u8>, Vec<String>) {
    through(stream, &[usize::MAX], &[1 << 20])
}

/// As the library reads them, to the last byte.
fn parsed(mut stream: &[u8]) -> Vec<AMQPFrame> {
    let mut frames = Vec::new();
    while !stream.is_empty() {
        let (rest, frame) = parse_frame(stream).unwrap_or_else(|error| panic!("{error}: {stream:02x?}"));
        frames.push(frame);
        stream = rest;
    }
    frames
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    framed(kind, [0, 7], &[payload])
}

fn short(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&content::length(bytes.len())[..], bytes].concat()
}

fn entry(name: &[u8], kind: u8, value: &[u8]) -> Vec<u8> {
    [&short(name)[..], &[kind], value].concat()
}

/// A header frame for a body of five bytes.
fn header(flags: u16, properties: &[u8]) -> Vec<u8> {
    frame(HEADER, &[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5][..], &flags.to_be_bytes(), properties].concat())
}

const HEADERS: u16 = 1 << 13;

/// A header frame with these entries in its table.
fn with_headers(entries: &[u8]) -> Vec<u8> {
    header(HEADERS, &long(entries))
}

fn deliver(exchange: &[u8], key: &[u8]) -> Vec<u8> {
    let method = [0, 60, 0, 60];
    let before = [&short(b"tag")[..], &[0, 0, 0, 0, 0, 0, 0, 9, 1]].concat();
    frame(METHOD, &[&method[..], &before, &short(exchange), &short(key)].concat())
}

/// The broker's proposal: this many bytes a frame.
fn tune(frame_max: u32) -> Vec<u8> {
    frame(METHOD, &[&[0, 10, 0, 30, 7, 255][..], &frame_max.to_be_bytes(), &[0, 60]].concat())
}
