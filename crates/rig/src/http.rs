//! HTTP by hand: bytes out, a complete answer back.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wait::within;

/// An answer, read to the end of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The words after it.
    pub reason: String,
    /// In order, as sent.
    pub headers: Vec<(String, String)>,
    /// What follows the head.
    pub body: Vec<u8>,
    /// Every byte.
    pub raw: Vec<u8>,
}

impl Answer {
    /// The value of a header that is there once.
    ///
    /// # Panics
    /// It is there twice.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str());
        let first = values.next();
        assert!(values.next().is_none(), "{name} is there twice: {:?}", self.headers);
        first
    }

    /// The body as text.
    ///
    /// # Panics
    /// It is not UTF-8.
    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("the body is text")
    }

    /// Whether it ends where `Content-Length` says: a client that keeps the connection would wait, or read on.
    pub fn is_complete(&self) -> bool {
        self.header("content-length").is_some_and(|length| length.parse() == Ok(self.body.len()))
    }

    /// Reads bytes that begin with a head; `None` while that is not complete.
    ///
    /// # Panics
    /// They are no HTTP/1.1 answer.
    pub fn parse(raw: &[u8]) -> Option<Answer> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head.parse(raw);
        let length = match parsed.unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(raw))) {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial => return None,
        };
        assert_eq!(head.version, Some(1), "the answer is HTTP/1.1");
        let header = |h: &httparse::Header<'_>| (h.name.to_owned(), String::from_utf8_lossy(h.value).into_owned());
        Some(Answer {
            status: head.code.expect("a complete head has a status"),
            reason: head.reason.unwrap_or_default().to_owned(),
            headers: head.headers.iter().map(header).collect(),
            body: raw.get(length..).unwrap_or_default().to_vec(),
            raw: raw.to_vec(),
        })
    }
}

/// Connects, sends `request` and reads until the other side closes.
///
/// # Panics
/// There is no complete head, or no end, within `deadline`.
pub async fn exchange(address: SocketAddr, request: impl AsRef<[u8]>, deadline: Duration) -> Answer {
    let talk = async {
        let mut stream = TcpStream::connect(address).await.expect("the address takes connections");
        // Whoever is refused early may find the connection closed before all is written.
        let _ = stream.write_all(request.as_ref()).await;
        let mut raw = Vec::new();
        let _ = stream.read_to_end(&mut raw).await;
        raw
    };
    let raw = within(deadline, "an answer and its end", talk).await;
    Answer::parse(&raw).unwrap_or_else(|| panic!("no complete head: {:?}", String::from_utf8_lossy(&raw)))
}
