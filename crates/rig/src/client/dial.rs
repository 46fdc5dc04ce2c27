//! An upgrade request, part by part.

use std::io;
use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::Client;
use crate::http::Answer;
use crate::tokens;
use crate::wait::{PATIENCE, within};

/// What to ask for. `Dial::to(proxy.addr()).consumer("alice").instance("2").connect().await`.
#[derive(Clone, Debug)]
pub struct Dial {
    address: SocketAddr,
    target: String,
    headers: Vec<(String, String)>,
    subprotocols: Vec<String>,
    receive_buffer: Option<u32>,
}

/// Why there is no WebSocket.
#[derive(Debug)]
pub enum Failure {
    /// An HTTP answer other than 101, read to its end.
    Refused(Answer),
    /// Nobody listens, or the connection ended before a complete head.
    Unanswered(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Unanswered(error)
    }
}

impl Dial {
    /// An upgrade of `/` without a token.
    pub fn to(address: SocketAddr) -> Dial {
        let (headers, subprotocols) = (Vec::new(), Vec::new());
        Dial { address, target: "/".to_owned(), headers, subprotocols, receive_buffer: None }
    }

    /// With a good [token](tokens::token) for this consumer.
    #[must_use]
    pub fn consumer(self, consumer: &str) -> Dial {
        self.token(&tokens::token(consumer))
    }

    /// With `Authorization: Bearer …`.
    #[must_use]
    pub fn token(self, token: &str) -> Dial {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    /// With the token as a subprotocol, as browsers do.
    #[must_use]
    pub fn bearer(self, token: &str) -> Dial {
        self.subprotocol(&format!("bearer.{token}"))
    }

    /// Offers a subprotocol.
    #[must_use]
    pub fn subprotocol(mut self, name: &str) -> Dial {
        self.subprotocols.push(name.to_owned());
        self
    }

    /// Offers `rabbitmq-msg.v1`.
    #[must_use]
    pub fn v1(self) -> Dial {
        self.subprotocol(protocol::subprotocol::V1)
    }

    /// With `?instance=`, percent-encoded.
    #[must_use]
    pub fn instance(self, instance: &str) -> Dial {
        self.target(&format!("/?instance={}", utf8_percent_encode(instance, NON_ALPHANUMERIC)))
    }

    /// Another request target than `/`.
    #[must_use]
    pub fn target(self, target: &str) -> Dial {
        Dial { target: target.to_owned(), ..self }
    }

    /// A further header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Dial {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A small `SO_RCVBUF` (bytes): the kernel takes little of what this client does not read.
    #[must_use]
    pub fn receive_buffer(self, bytes: u32) -> Dial {
        Dial { receive_buffer: Some(bytes), ..self }
    }

    /// The request and the `Sec-WebSocket-Accept` that belongs to it.
    pub fn request(&self) -> (String, String) {
        let key = STANDARD.encode(rand::random::<[u8; 16]>());
        let mut request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: {key}\r\n",
            self.target, self.address
        );
        if !self.subprotocols.is_empty() {
            request += &format!("Sec-WebSocket-Protocol: {}\r\n", self.subprotocols.join(", "));
        }
        for (name, value) in &self.headers {
            request += &format!("{name}: {value}\r\n");
        }
        (request + "\r\n", derive_accept_key(key.as_bytes()))
    }

    /// Connects; the upgrade must succeed.
    ///
    /// # Panics
    /// It is refused.
    pub async fn connect(&self) -> Client {
        self.try_connect().await.unwrap_or_else(|refusal| panic!("refused: {} {}", refusal.status, refusal.text()))
    }

    /// Connects.
    ///
    /// # Errors
    /// The refusal, read to its end.
    ///
    /// # Panics
    /// There is no complete answer, or a 101 that RFC 6455 does not allow.
    pub async fn try_connect(&self) -> Result<Client, Answer> {
        self.attempt().await.map_err(|failure| match failure {
            Failure::Refused(answer) => answer,
            Failure::Unanswered(error) => panic!("no answer to the upgrade: {error}"),
        })
    }

    /// Connects to a server that may vanish meanwhile.
    ///
    /// # Errors
    /// The refusal, or that there was no complete answer.
    ///
    /// # Panics
    /// There is a 101 that RFC 6455 does not allow, or nothing at all for a minute.
    pub async fn attempt(&self) -> Result<Client, Failure> {
        within(PATIENCE, "an answer to the upgrade", self.upgrade()).await
    }

    async fn upgrade(&self) -> Result<Client, Failure> {
        let (request, accept) = self.request();
        let mut stream = self.open().await?;
        stream.write_all(request.as_bytes()).await?;
        let mut buffer = BytesMut::new();
        let mut answer = loop {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            if let Some(answer) = Answer::parse(&buffer) {
                break answer;
            }
        };
        if answer.status != 101 {
            let _ = stream.read_buf(&mut buffer).await;
            while stream.read_buf(&mut buffer).await.is_ok_and(|read| read > 0) {}
            return Err(Failure::Refused(Answer::parse(&buffer).unwrap_or(answer)));
        }
        assert_eq!(answer.header("sec-websocket-accept"), Some(accept.as_str()), "the answer belongs to the request");
        assert_eq!(answer.header("upgrade").map(str::to_lowercase).as_deref(), Some("websocket"));
        // What came with the head are the first frames.
        let frames = std::mem::take(&mut answer.body);
        answer.raw.truncate(answer.raw.len() - frames.len());
        Ok(Client::new(stream, BytesMut::from(&frames[..]), answer))
    }

    async fn open(&self) -> io::Result<TcpStream> {
        let socket = if self.address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let socket = socket.expect("a socket");
        if let Some(bytes) = self.receive_buffer {
            socket.set_recv_buffer_size(bytes).expect("a socket takes SO_RCVBUF");
        }
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true).expect("a socket takes TCP_NODELAY");
        Ok(stream)
    }
}
