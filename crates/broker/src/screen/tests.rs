use std::{collections::VecDeque, future::poll_fn, io::IoSliceMut};

use super::*;

/// What arrives, read by read: bytes, or nothing yet. Then the end. What is written is kept.
struct Wire {
    arrives: VecDeque<Option<Vec<u8>>>,
    written: Vec<u8>,
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        assert!(!out.is_empty(), "a read into nothing looks like the end");
        match self.arrives.pop_front() {
            None => Poll::Ready(Ok(0)),
            Some(None) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Some(bytes)) => {
                out[..bytes.len()].copy_from_slice(&bytes);
                Poll::Ready(Ok(bytes.len()))
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn screened(arrives: impl IntoIterator<Item = Option<Vec<u8>>>) -> (Screened<Wire>, Unreadable) {
    let unreadable = Unreadable::default();
    let report = Report { name: "test".into(), unreadable: unreadable.clone(), said: None, unsaid: 0 };
    let inner = Wire { arrives: arrives.into_iter().collect(), written: Vec::new() };
    (Screened { inner, frames: Frames::new(), report }, unreadable)
}

/// Into two slices at a time, as the library reads, until the end.
async fn read(stream: &mut Screened<Wire>) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let (mut first, mut second) = ([0; 5], [0; 64]);
        let slices = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        let read = poll_fn(|cx| Pin::new(&mut *stream).poll_read_vectored(cx, slices)).await.unwrap();
        if read == 0 {
            return all;
        }
        all.extend([first.as_slice(), &second].concat().into_iter().take(read));
    }
}

const HEARTBEAT: &[u8] = &[8, 0, 0, 0, 0, 0, 0, 0xCE];

/// A header frame whose message-id is one byte, this one.
fn with_message_id(byte: u8) -> Vec<u8> {
    [&[2, 0, 1, 0, 0, 0, 16, 0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0x80, 1][..], &[byte, 0xCE]].concat()
}

#[tokio::test]
async fn a_frame_in_pieces_is_one_frame() {
    let good = with_message_id(b'i');
    let pieces = good.iter().flat_map(|byte| [None, Some(vec![*byte])]);
    let (mut stream, unreadable) = screened(pieces.chain([Some(HEARTBEAT.to_vec())]));
    assert_eq!(read(&mut stream).await, [&good, HEARTBEAT].concat());
    assert_eq!(unreadable.count(), 0);
}

#[tokio::test]
async fn what_is_replaced_is_counted() {
    let bad = [with_message_id(0xFF), HEARTBEAT.to_vec(), with_message_id(0xFF)].concat();
    let (mut stream, unreadable) = screened([Some(bad.clone()), None, Some(bad)]);
    let out = read(&mut stream).await;
    assert_eq!(unreadable.count(), 4);
    assert_eq!(stream.report.unsaid, 3, "and said once for a while");
    assert!(!out.contains(&0xFF) && out.ends_with(b"unreadable: message-id\xCE"), "{out:02x?}");
}

#[tokio::test]
async fn half_a_frame_ends_with_the_stream() {
    let (mut stream, _) = screened([Some(HEARTBEAT.to_vec()), Some(with_message_id(b'i')[..20].to_vec())]);
    assert_eq!(read(&mut stream).await, HEARTBEAT);
}

#[tokio::test]
async fn a_read_into_nothing_reads_nothing() {
    let (mut stream, _) = screened([Some(HEARTBEAT.to_vec())]);
    assert_eq!(poll_fn(|cx| Pin::new(&mut stream).poll_read(cx, &mut [])).await.unwrap(), 0);
    assert_eq!(read(&mut stream).await, HEARTBEAT);
}

#[tokio::test]
async fn what_is_written_passes() {
    let (mut stream, _) = screened([]);
    let bytes = with_message_id(0xFF);
    let slices = [IoSlice::new(&bytes[..4]), IoSlice::new(&bytes[4..])];
    let mut written = poll_fn(|cx| Pin::new(&mut stream).poll_write_vectored(cx, &slices)).await.unwrap();
    written += poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, &bytes[written..])).await.unwrap();
    assert_eq!((written, stream.inner.written), (bytes.len(), bytes));
}
