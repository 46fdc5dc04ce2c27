//! A WebSocket client that does exactly what the test says: it reads only when asked to, and shows every frame.

mod dial;
mod v1;

use std::io::Cursor;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, Data, OpCode};

pub use dial::{Dial, Failure};

use crate::http::Answer;
use crate::wait::{PATIENCE, within};

/// What [`Client::receive`] gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A whole text message.
    Text(String),
    /// A whole binary message.
    Binary(Vec<u8>),
    /// A close frame, with its code and reason where it has them.
    Close(Option<(u16, String)>),
    /// The end of the connection: its regular end, or a reset.
    Gone,
}

/// One frame as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub opcode: OpCode,
    /// Whether it is the last of its message.
    pub fin: bool,
    /// What it holds.
    pub payload: Bytes,
}

/// An open WebSocket. Nothing is read from its socket between two calls: a client that is left alone is one that does
/// not read, and does not answer pings either. Dropped, it closes the TCP connection without a word.
pub struct Client {
    stream: TcpStream,
    buffer: BytesMut,
    /// The answer to the upgrade.
    pub answer: Answer,
    /// Whether [`receive`](Self::receive) answers pings; it does unless told otherwise.
    pub answers_pings: bool,
    /// Pings that have been received.
    pub pings: usize,
    fragments: Vec<usize>,
    partial: Option<(bool, Vec<u8>)>,
}

impl Client {
    fn new(stream: TcpStream, buffer: BytesMut, answer: Answer) -> Client {
        let fragments = Vec::new();
        Client { stream, buffer, answer, answers_pings: true, pings: 0, fragments, partial: None }
    }

    /// The next frame, whatever it is; `None` at the end of the connection.
    ///
    /// # Panics
    /// It is not what a server may send (RFC 6455): masked, with a reserved bit, a control frame that is long or in
    /// pieces.
    ///
    /// # Cancel safety
    /// Safe: what has been read stays for the next call.
    pub async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.buffered() {
                return Some(frame);
            }
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    fn buffered(&mut self) -> Option<Frame> {
        let mut cursor = Cursor::new(&self.buffer[..]);
        let (header, length) = FrameHeader::parse(&mut cursor).expect("a frame header")?;
        let head = usize::try_from(cursor.position()).expect("a header is short");
        let length = usize::try_from(length).expect("a length fits the memory");
        if self.buffer.len() - head < length {
            self.buffer.reserve(head + length - self.buffer.len());
            return None;
        }
        self.buffer.advance(head);
        let payload = self.buffer.split_to(length).freeze();
        assert!(header.mask.is_none(), "a server masks nothing: {header:?}");
        assert!(!header.rsv1 && !header.rsv2 && !header.rsv3, "no extension was agreed on: {header:?}");
        if matches!(header.opcode, OpCode::Control(_)) {
            assert!(header.is_final && length <= 125, "control frames are short and whole: {header:?} {length}");
        }
        Some(Frame { opcode: header.opcode, fin: header.is_final, payload })
    }

    /// The next message, close frame or end. Pings are answered meanwhile, a close frame too.
    ///
    /// # Panics
    /// As [`frame`](Self::frame), for fragments out of turn, for text that is not UTF-8, and after [`PATIENCE`].
    pub async fn receive(&mut self) -> Received {
        within(PATIENCE, "a message, a close frame or the end", self.next()).await
    }

    /// As [`receive`](Self::receive), or `None` when nothing comes in this time.
    ///
    /// # Cancel safety
    /// What has been read is kept: the next call goes on with it.
    pub async fn try_receive(&mut self, time: Duration) -> Option<Received> {
        timeout(time, self.next()).await.ok()
    }

    async fn next(&mut self) -> Received {
        while let Some(Frame { opcode, fin, payload }) = self.frame().await {
            match opcode {
                OpCode::Control(Control::Ping) => {
                    self.pings += 1;
                    if self.answers_pings {
                        self.send(OpCode::Control(Control::Pong), true, &payload).await;
                    }
                }
                OpCode::Control(Control::Close) => {
                    self.send(OpCode::Control(Control::Close), true, payload.get(..2).unwrap_or_default()).await;
                    return Received::Close(close_of(&payload));
                }
                OpCode::Control(_) => {}
                OpCode::Data(data) => {
                    if let Some(message) = self.gather(data, fin, &payload) {
                        return message;
                    }
                }
            }
        }
        Received::Gone
    }

    fn gather(&mut self, data: Data, fin: bool, payload: &[u8]) -> Option<Received> {
        match (data, &mut self.partial) {
            (Data::Text | Data::Binary, None) => {
                self.fragments.clear();
                self.partial = Some((data == Data::Text, payload.to_vec()));
            }
            (Data::Continue, Some((_, body))) => body.extend_from_slice(payload),
            (data, partial) => panic!("{data:?} while {} bytes wait", partial.as_ref().map_or(0, |(_, b)| b.len())),
        }
        self.fragments.push(payload.len());
        let (text, body) = self.partial.take_if(|_| fin)?;
        if !text {
            return Some(Received::Binary(body));
        }
        Some(Received::Text(String::from_utf8(body).expect("a text message is UTF-8")))
    }

    /// The payload sizes of the frames that the last message came in.
    pub fn fragments(&self) -> &[usize] {
        &self.fragments
    }

    /// The next thing, which must be a text message.
    ///
    /// # Panics
    /// It is something else.
    pub async fn text(&mut self) -> String {
        match self.receive().await {
            Received::Text(text) => text,
            other => panic!("a text message was expected, not {other:?}"),
        }
    }

    /// The next thing, which must be a message of either kind; its bytes.
    ///
    /// # Panics
    /// It is something else.
    pub async fn body(&mut self) -> Vec<u8> {
        match self.receive().await {
            Received::Text(text) => text.into_bytes(),
            Received::Binary(body) => body,
            other => panic!("a message was expected, not {other:?}"),
        }
    }

    /// The next thing, which must be a close frame with a code, followed by the end; its code and reason.
    ///
    /// # Panics
    /// It is something else.
    pub async fn expect_close(&mut self) -> (u16, String) {
        match self.receive().await {
            Received::Close(Some(close)) => {
                assert_eq!(self.receive().await, Received::Gone, "nothing follows a close frame");
                close
            }
            other => panic!("a close frame was expected, not {other:?}"),
        }
    }

    /// Sends a frame, masked as a client must. An error is not told: the reader sees the end.
    pub async fn send(&mut self, opcode: OpCode, fin: bool, payload: &[u8]) {
        let mask: [u8; 4] = rand::random();
        let header = FrameHeader { is_final: fin, opcode, mask: Some(mask), ..FrameHeader::default() };
        let mut bytes = Vec::with_capacity(payload.len() + 14);
        header.format(payload.len() as u64, &mut bytes).expect("a vector takes all");
        bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.send_bytes(&bytes).await;
    }

    /// Sends bytes that need not be frames.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = within(PATIENCE, "room in the socket", self.stream.write_all(bytes)).await;
    }

    /// Sends a text message.
    pub async fn send_text(&mut self, text: &str) {
        self.send(OpCode::Data(Data::Text), true, text.as_bytes()).await;
    }

    /// Sends a close frame and says what the server answered, and that it then closed; messages on their way are read
    /// and dropped.
    ///
    /// # Panics
    /// There is no answer, or no end after it.
    pub async fn close(mut self) -> Option<(u16, String)> {
        self.send(OpCode::Control(Control::Close), true, &1000u16.to_be_bytes()).await;
        loop {
            match self.receive().await {
                Received::Close(close) => {
                    assert_eq!(self.receive().await, Received::Gone, "nothing follows a close frame");
                    return close;
                }
                Received::Gone => panic!("the connection ended without an answer to the close frame"),
                Received::Text(_) | Received::Binary(_) => {}
            }
        }
    }

    /// Ends the connection with a TCP reset, as a crash or a dropped NAT entry does.
    pub fn reset(self) {
        self.stream.set_zero_linger().expect("a socket takes SO_LINGER");
    }

    /// Never reads again and keeps the TCP connection open while the result is held, as a phone without network does.
    pub fn drop_silently(self) -> TcpStream {
        self.stream
    }

    /// Its own end of the connection.
    pub fn local_addr(&self) -> SocketAddr {
        self.stream.local_addr().expect("a connected socket has an address")
    }
}

fn close_of(payload: &[u8]) -> Option<(u16, String)> {
    let (code, reason) = payload.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*code), str::from_utf8(reason).expect("a close reason is UTF-8").to_owned()))
}
