//! A producer that writes its own AMQP frames: for properties that no client library would send, or could.

use bytes::{Buf, BufMut, BytesMut};
use protocol::names::EXCHANGE_DIRECT;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Outcome, Vhost};
use crate::wait::{PATIENCE, within};

/// Kinds of frames, class and method numbers: AMQP 0-9-1, sections 4.2 and the class reference; confirms are RabbitMQ's.
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const FRAME_END: u8 = 0xCE;
const START: (u16, u16) = (10, 10);
const START_OK: (u16, u16) = (10, 11);
const TUNE: (u16, u16) = (10, 30);
const TUNE_OK: (u16, u16) = (10, 31);
const OPEN: (u16, u16) = (10, 40);
const OPEN_OK: (u16, u16) = (10, 41);
const CHANNEL_OPEN: (u16, u16) = (20, 10);
const CHANNEL_OPEN_OK: (u16, u16) = (20, 11);
const PUBLISH: (u16, u16) = (60, 40);
const RETURN: (u16, u16) = (60, 50);
const ACK: (u16, u16) = (60, 80);
const NACK: (u16, u16) = (60, 120);
const SELECT: (u16, u16) = (85, 10);
const SELECT_OK: (u16, u16) = (85, 11);
const CLASS_BASIC: u16 = 60;
const MANDATORY: u8 = 1;

/// The properties of a message as they stand in its header frame. A broker reads them in the order of their bits.
#[derive(Clone, Debug, Default)]
pub struct RawProperties {
    flags: u16,
    bytes: Vec<u8>,
}

impl RawProperties {
    /// Headers: the inside of the table, of whatever makes sense or none.
    #[must_use]
    pub fn headers(self, entries: &[u8]) -> Self {
        self.with(1 << 13, &long(entries))
    }

    /// A message-id of at most 255 bytes.
    #[must_use]
    pub fn message_id(self, id: &[u8]) -> Self {
        self.with(1 << 7, &short(id))
    }

    fn with(mut self, flag: u16, bytes: &[u8]) -> Self {
        assert!(self.flags.trailing_zeros() > flag.trailing_zeros(), "properties come in the order of their bits");
        self.flags |= flag;
        self.bytes.extend_from_slice(bytes);
        self
    }
}

/// An entry of a table: a name, the letter of a type, and the bytes of its value.
pub fn entry(name: &[u8], kind: u8, value: &[u8]) -> Vec<u8> {
    [&short(name)[..], &[kind], value].concat()
}

/// A short string: a length of one byte before it.
pub fn short(bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("a short string has at most 255 bytes");
    [&[length], bytes].concat()
}

/// A long string, a table, an array: a length of four bytes before it.
pub fn long(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("less than 4 GiB");
    [&length.to_be_bytes()[..], bytes].concat()
}

/// A connection as `producer` with one channel, confirms on; publishes are mandatory.
pub struct RawPublisher {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Vhost {
    /// Connects as `producer`, by hand.
    ///
    /// # Panics
    /// The broker does not say what it should.
    pub async fn raw_publisher(&self) -> RawPublisher {
        let stream = TcpStream::connect(("127.0.0.1", self.node().amqp_port())).await.expect("the broker listens");
        let mut publisher = RawPublisher { stream, buffer: BytesMut::new() };
        within(PATIENCE, "the login as producer", publisher.open(self.name())).await;
        publisher
    }
}

impl RawPublisher {
    async fn open(&mut self, vhost: &str) {
        self.stream.write_all(b"AMQP\x00\x00\x09\x01").await.expect("the broker reads");
        self.expect(START).await;
        let login = [&long(b"")[..], &short(b"PLAIN"), &long(b"\0producer\0producer"), &short(b"en_US")].concat();
        self.method(0, START_OK, &login).await;
        let limits = self.expect(TUNE).await;
        // As the broker proposes, but without heartbeats, which nobody here would send.
        let limits = [&limits[..6], &[0, 0]].concat();
        self.method(0, TUNE_OK, &limits).await;
        self.method(0, OPEN, &[&short(vhost.as_bytes())[..], &[0, 0]].concat()).await;
        self.expect(OPEN_OK).await;
        self.method(1, CHANNEL_OPEN, &[0]).await;
        self.expect(CHANNEL_OPEN_OK).await;
        self.method(1, SELECT, &[0]).await;
        self.expect(SELECT_OK).await;
    }

    /// Publishes one message and says what became of it.
    ///
    /// # Panics
    /// The broker closes the channel: it does not take such a message.
    pub async fn publish(&mut self, key: &str, properties: &RawProperties, body: &[u8]) -> Outcome {
        let target = [&[0, 0][..], &short(EXCHANGE_DIRECT.as_bytes()), &short(key.as_bytes()), &[MANDATORY]].concat();
        self.method(1, PUBLISH, &target).await;
        let mut header = Vec::new();
        header.put_u16(CLASS_BASIC);
        header.put_u16(0);
        header.put_u64(body.len() as u64);
        header.put_u16(properties.flags);
        header.extend_from_slice(&properties.bytes);
        self.frame(HEADER, 1, &header).await;
        for part in body.chunks(64 * 1024) {
            self.frame(BODY, 1, part).await;
        }
        within(PATIENCE, "the broker's confirm", self.outcome()).await
    }

    async fn outcome(&mut self) -> Outcome {
        let mut outcome = Outcome::Confirmed;
        loop {
            match self.said().await {
                (RETURN, _) => outcome = Outcome::Returned,
                (ACK, _) => return outcome,
                (NACK, _) => return Outcome::Nacked,
                (method, arguments) => panic!("{method:?}: {}", String::from_utf8_lossy(&arguments)),
            }
        }
    }

    async fn expect(&mut self, method: (u16, u16)) -> Vec<u8> {
        let (said, arguments) = self.said().await;
        assert_eq!(said, method, "{}", String::from_utf8_lossy(&arguments));
        arguments
    }

    /// The next method; content that comes with one is skipped.
    async fn said(&mut self) -> ((u16, u16), Vec<u8>) {
        loop {
            if let Some((kind, mut payload)) = self.buffered()
                && kind == METHOD
            {
                return ((payload.get_u16(), payload.get_u16()), payload.to_vec());
            } else if !self.is_complete() {
                let read = self.stream.read_buf(&mut self.buffer).await.expect("the broker talks");
                assert!(read > 0, "the broker closed the connection");
            }
        }
    }

    fn length(&self) -> Option<usize> {
        let length = self.buffer.get(3..7)?;
        Some(u32::from_be_bytes(length.try_into().expect("four bytes")) as usize)
    }

    fn is_complete(&self) -> bool {
        self.length().is_some_and(|length| self.buffer.len() >= length + 8)
    }

    fn buffered(&mut self) -> Option<(u8, BytesMut)> {
        let length = self.length().filter(|_| self.is_complete())?;
        let mut frame = self.buffer.split_to(length + 8);
        let kind = frame.get_u8();
        frame.advance(6);
        frame.truncate(length);
        Some((kind, frame))
    }

    async fn method(&mut self, channel: u16, (class, method): (u16, u16), arguments: &[u8]) {
        let payload = [&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat();
        self.frame(METHOD, channel, &payload).await;
    }

    async fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let frame = [&[kind][..], &channel.to_be_bytes(), &long(payload), &[FRAME_END]].concat();
        // An error is not told: the reader sees why the broker closed.
        let _ = self.stream.write_all(&frame).await;
    }
}
