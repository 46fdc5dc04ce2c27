//! One connect: TCP, then the WebSocket upgrade with a token of its own.

use std::borrow::Cow;
use std::io;
use std::time::{Duration, SystemTime};

use protocol::names::{Address, DEFAULT_CLIENT, consumer_id};
use protocol::text::Escaped;
use protocol::token::{Minter, TokenError};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER, SEC_WEBSOCKET_PROTOCOL};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::args::Protocol;
use crate::config::{Config, Target};
use crate::limits::LocalCause;
use crate::policy::{Failure, retry_after};

/// tungstenite allocates its read buffer when the socket opens, 128 KiB by default, which would be most of
/// what an idle connection costs. A longer message makes it grow for as long as that message is read.
const READ_BUFFER_BYTES: usize = 2 * 1024;

/// Pongs, close frames and acks that are gathered already are all that is sent, so nothing is worth gathering here.
const WRITE_BUFFER_BYTES: usize = 0;

/// A foreign error text in a log line is cut here.
const CAUSE_CHARS: usize = 120;

/// An open connection. Boxed: an instance that waits does not pay for it.
pub(crate) type Socket = Box<WebSocketStream<TcpStream>>;

/// One instance of one consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Who {
    pub(crate) consumer: u64,
    pub(crate) instance: u64,
}

/// Opens connections for all instances.
pub(crate) struct Dialer {
    targets: Vec<Target>,
    minter: Minter,
    client: Option<String>,
    token_ttl: Duration,
    connect_timeout: Duration,
    upgrade_timeout: Duration,
    protocol: Protocol,
    window: Option<u16>,
}

impl Dialer {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            targets: config.targets.clone(),
            minter: config.minter.clone(),
            client: config.client.clone(),
            token_ttl: config.token_ttl,
            connect_timeout: config.connect_timeout,
            upgrade_timeout: config.upgrade_timeout,
            protocol: config.protocol,
            window: config.window,
        }
    }

    /// A new token for `who`.
    pub(crate) fn mint(&self, who: Who) -> Result<String, TokenError> {
        self.minter.mint(&consumer_id(who.consumer), self.client.as_deref(), self.token_ttl)
    }

    /// The instance's name in log lines: `consumer.consumer101.1`.
    pub(crate) fn log_name(&self, who: Who) -> String {
        let client = self.client.clone().unwrap_or_else(|| DEFAULT_CLIENT.to_owned());
        let address = Address { client, consumer: consumer_id(who.consumer), instance: who.instance.to_string() };
        address.log_name().to_string()
    }

    /// Connects `who` to the `turn`-th target, counted round the list. With `resume` a v1 server is asked whether the
    /// mailbox of the last connection still exists.
    ///
    /// # Cancel safety
    /// Dropped half way, the connection is closed without a word; nothing else remains.
    pub(crate) async fn dial(&self, who: Who, turn: usize, resume: bool) -> Result<Socket, Failure> {
        let target = self.targets.get(turn % self.targets.len().max(1)).ok_or(Failure::Other("no URL".into()))?;
        let request = self.request(target, who, resume)?;
        let connect = TcpStream::connect((target.host.as_str(), target.port));
        let stream = match timeout(self.connect_timeout, connect).await {
            Ok(connected) => connected.map_err(|error| io_failure(&error))?,
            Err(_) => return Err(Failure::Late { what: "connection", after: self.connect_timeout }),
        };
        stream.set_nodelay(true).map_err(|error| io_failure(&error))?;
        let upgrade = client_async_with_config(request, stream, Some(socket_config()));
        match timeout(self.upgrade_timeout, upgrade).await {
            Ok(Ok((socket, _))) => Ok(Box::new(socket)),
            Ok(Err(error)) => Err(upgrade_failure(&error, self.protocol)),
            Err(_) => Err(Failure::Late { what: "answer to the upgrade", after: self.upgrade_timeout }),
        }
    }

    fn request(&self, target: &Target, who: Who, resume: bool) -> Result<Request, Failure> {
        let token = self.mint(who).map_err(|error| Failure::Other(error.to_string().into()))?;
        let resume = resume && self.protocol == Protocol::V1;
        let mut request = target
            .url_of(who.instance, self.window, resume)
            .as_str()
            .into_client_request()
            .map_err(|error| Failure::Other(cause(&error.to_string())))?;
        let mut authorization = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|error| Failure::Other(cause(&error.to_string())))?;
        authorization.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, authorization);
        request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(self.protocol.name()));
        Ok(request)
    }
}

pub(crate) fn socket_config() -> WebSocketConfig {
    WebSocketConfig::default().read_buffer_size(READ_BUFFER_BYTES).write_buffer_size(WRITE_BUFFER_BYTES)
}

fn upgrade_failure(error: &Error, protocol: Protocol) -> Failure {
    match error {
        Error::Protocol(ProtocolError::SecWebSocketSubProtocolError(_)) => {
            Failure::Protocol { wanted: protocol.name() }
        }
        Error::Http(answer) => Failure::Answer {
            status: answer.status().as_u16(),
            retry_after: answer
                .headers()
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok())
                .and_then(|value| retry_after(value, SystemTime::now())),
        },
        Error::Io(error) => io_failure(error),
        other => Failure::Other(socket_cause(other)),
    }
}

fn io_failure(error: &io::Error) -> Failure {
    LocalCause::of(error).map_or_else(|| Failure::Other(io_cause(error)), Failure::Local)
}

/// What broke a socket, in words that many sockets can share.
pub(crate) fn socket_cause(error: &Error) -> Cow<'static, str> {
    match error {
        Error::Io(error) => io_cause(error),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => "connection ended without a close frame".into(),
        other => cause(&other.to_string()),
    }
}

fn io_cause(error: &io::Error) -> Cow<'static, str> {
    match error.kind() {
        // Name lookups end here, and only their text says more.
        io::ErrorKind::Other => cause(&error.to_string()),
        kind if error.raw_os_error().is_some() => kind.to_string().into(),
        _ => cause(&error.to_string()),
    }
}

fn cause(text: &str) -> Cow<'static, str> {
    Escaped(text).to_string().chars().take(CAUSE_CHARS).collect::<String>().into()
}
