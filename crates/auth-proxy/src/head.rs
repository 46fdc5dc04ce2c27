//! The request head of an upgrade, read under limits and kept as small as it can be.
//!
//! tungstenite answers nothing to a request that is no upgrade, so the head is read here and the stream is handed over
//! once the 101 is written.

use std::fmt;
use std::io;

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::refusal::Refusal;

/// Bytes of a request head. The usual one has 500 to 1,500, most of them token; 8 KiB is what common servers grant one
/// header line, and a token of that size leaves room for its neighbours.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Header lines of a request head. Browsers send about 15, a chain of reverse proxies adds as many again.
pub const HEADERS_MAX: usize = 64;

/// Room for the first read: a usual head fits, and a silent connection costs no more.
const FIRST_READ_BYTES: usize = 1024;

/// What the gateway needs of a request head. Header fields hold one entry per header line.
///
/// `Debug` shows the method and the path alone: the rest may hold a token.
#[derive(Clone, Default)]
pub struct RequestHead {
    /// The method, as sent.
    pub method: String,
    /// The path, as sent: not decoded, without the query.
    pub path: String,
    /// What follows the `?`; empty without one.
    pub query: String,
    /// `Authorization`.
    pub authorization: Vec<String>,
    /// `Connection`.
    pub connection: Vec<String>,
    /// `Host`.
    pub host: Vec<String>,
    /// `Origin`.
    pub origin: Vec<String>,
    /// `Sec-WebSocket-Key`.
    pub websocket_key: Vec<String>,
    /// `Sec-WebSocket-Protocol`.
    pub websocket_protocol: Vec<String>,
    /// `Sec-WebSocket-Version`.
    pub websocket_version: Vec<String>,
    /// `Upgrade`.
    pub upgrade: Vec<String>,
    /// Whether `Content-Length` (other than 0) or `Transfer-Encoding` announces a body.
    pub has_body: bool,
}

impl fmt::Debug for RequestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHead").field("method", &self.method).field("path", &self.path).finish_non_exhaustive()
    }
}

/// Why there is no request head.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// The peer closed before the head was complete, often before its first byte: a probe.
    #[error("closed after {0} bytes of a request head")]
    Closed(usize),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The bytes are not an HTTP request head.
    #[error("not an HTTP request: {0}")]
    Malformed(&'static str),
    /// A version other than HTTP/1.1.
    #[error("not HTTP/1.1")]
    Version,
    /// More than [`HEAD_BYTES_MAX`] or [`HEADERS_MAX`].
    #[error("the request head is too large")]
    TooLarge,
}

impl HeadError {
    /// The answer that is due, if anybody is there to hear it.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            HeadError::Closed(_) | HeadError::Broken(_) => None,
            HeadError::Malformed(_) => Some(Refusal::MalformedRequest),
            HeadError::Version => Some(Refusal::HttpVersion),
            HeadError::TooLarge => Some(Refusal::HeadTooLarge),
        }
    }
}

impl From<httparse::Error> for HeadError {
    fn from(error: httparse::Error) -> Self {
        match error {
            httparse::Error::TooManyHeaders => HeadError::TooLarge,
            httparse::Error::Version => HeadError::Version,
            httparse::Error::HeaderName => HeadError::Malformed("invalid header name"),
            httparse::Error::HeaderValue => HeadError::Malformed("invalid header value"),
            httparse::Error::NewLine => HeadError::Malformed("invalid line end"),
            httparse::Error::Status | httparse::Error::Token => HeadError::Malformed("invalid request line"),
        }
    }
}

/// Reads one request head. Also returns the bytes after it: a client may send its first frames with its request.
///
/// Has no deadline of its own. Reads at most [`HEAD_BYTES_MAX`], the bytes after the head included.
///
/// # Errors
/// [`HeadError`]; where [`HeadError::refusal`] gives one, the peer waits for an answer.
///
/// # Cancel safety
/// Not cancel safe: what was read is gone. Whoever gives up gives up the connection.
pub async fn read_head<S>(stream: &mut S) -> Result<(RequestHead, BytesMut), HeadError>
where
    S: AsyncRead + Unpin,
{
    let mut buffer = BytesMut::with_capacity(FIRST_READ_BYTES);
    let mut parse_at = 1;
    loop {
        let seen = buffer.len();
        if seen >= HEAD_BYTES_MAX {
            return Err(HeadError::TooLarge);
        }
        if seen == buffer.capacity() {
            buffer.reserve(seen);
        }
        if stream.read_buf(&mut (&mut buffer).limit(HEAD_BYTES_MAX - seen)).await? == 0 {
            return Err(HeadError::Closed(seen));
        }
        // A head that comes byte by byte must not be parsed at each of them. A blank line may end it; otherwise nonsense
        // is still told early, at each doubling.
        if buffer.len() < parse_at && !has_blank_line(&buffer, seen) {
            continue;
        }
        parse_at = buffer.len() * 2;
        if let Some((head, length)) = RequestHead::parse(&buffer)? {
            buffer.advance(length);
            // A copy, so that the session does not keep the whole head for the sake of a few bytes.
            return Ok((head, BytesMut::from(buffer.as_ref())));
        }
    }
}

/// Whether a blank line ends in the bytes from `from` on.
fn has_blank_line(buffer: &[u8], from: usize) -> bool {
    let tail = buffer.get(from.saturating_sub(2)..).unwrap_or_default();
    tail.windows(2).any(|pair| pair == b"\n\n") || tail.windows(3).any(|three| three == b"\n\r\n")
}

impl RequestHead {
    /// The head at the start of `bytes` with its length, or `None` while it is not complete.
    ///
    /// # Errors
    /// [`HeadError::Malformed`], [`HeadError::Version`], [`HeadError::TooLarge`].
    pub fn parse(bytes: &[u8]) -> Result<Option<(RequestHead, usize)>, HeadError> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let httparse::Status::Complete(length) = request.parse(bytes)? else {
            return Ok(None);
        };
        // RFC 9110, section 7.8: an Upgrade in an HTTP/1.0 request is to be ignored, so none can succeed.
        if request.version != Some(1) {
            return Err(HeadError::Version);
        }
        let mut head = RequestHead { method: request.method.unwrap_or_default().to_owned(), ..RequestHead::default() };
        (head.path, head.query) = path_and_query(request.path.unwrap_or_default())?;
        for header in request.headers.iter() {
            head.take(header)?;
        }
        Ok(Some((head, length)))
    }

    fn take(&mut self, header: &httparse::Header<'_>) -> Result<(), HeadError> {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let lines = if is("authorization") {
            &mut self.authorization
        } else if is("connection") {
            &mut self.connection
        } else if is("host") {
            &mut self.host
        } else if is("origin") {
            &mut self.origin
        } else if is("sec-websocket-key") {
            &mut self.websocket_key
        } else if is("sec-websocket-protocol") {
            &mut self.websocket_protocol
        } else if is("sec-websocket-version") {
            &mut self.websocket_version
        } else if is("upgrade") {
            &mut self.upgrade
        } else {
            self.has_body |= is("transfer-encoding") || (is("content-length") && header.value != b"0");
            return Ok(());
        };
        let value = std::str::from_utf8(header.value).map_err(|_| HeadError::Malformed("a header is not UTF-8"))?;
        lines.push(trimmed(value).to_owned());
        Ok(())
    }
}

/// The elements of a comma-separated list that may span several header lines (RFC 9110, section 5.6.1).
pub(crate) fn elements(lines: &[String]) -> impl Iterator<Item = &str> {
    lines.iter().flat_map(|line| line.split(',')).map(trimmed).filter(|element| !element.is_empty())
}

/// Without the optional white space of RFC 9110, which is spaces and tabs only.
fn trimmed(value: &str) -> &str {
    value.trim_matches([' ', '\t'])
}

/// Splits a request target in origin form or absolute form, which a server must understand too (RFC 9112, section 3.2.2).
/// The other forms come out as a path that is nobody's.
fn path_and_query(target: &str) -> Result<(String, String), HeadError> {
    if target.contains('#') {
        return Err(HeadError::Malformed("a fragment in the request target"));
    }
    let (rest, query) = target.split_once('?').unwrap_or((target, ""));
    let path = match rest.split_once("://") {
        Some((_, authority_and_path)) if !rest.starts_with('/') => {
            authority_and_path.split_once('/').map_or(String::from("/"), |(_, path)| format!("/{path}"))
        }
        _ => rest.to_owned(),
    };
    Ok((path, query.to_owned()))
}

#[cfg(test)]
mod tests;
