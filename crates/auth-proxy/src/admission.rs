//! Who may come in: a request head becomes an [`Admission`] or a [`Refusal`].
//!
//! The checks run in this order, and the first that fails is the answer:
//!
//! 1. the request itself (400; what is no HTTP/1.1 at all was refused while it was read)
//! 2. the path (404) and the method (405), so that a lost client is not told about WebSockets
//! 3. the upgrade: asked for (426), version (426), no body and a key (400)
//! 4. the token (401; 400 when it is not clear which one is meant)
//! 5. the instance, the length of the names, window and resume (400)
//! 6. the subprotocol (400)
//!
//! The instance is the only identifier taken from the URL. A token is never looked for there: URLs end up in logs.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode_str;
use protocol::names::{Address, DEFAULT_INSTANCE, NameError, QueueName};
use protocol::subprotocol::{BEARER_PREFIX, RAW, V1};
use protocol::token::{Identity, TokenError, Verifier};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::head::{RequestHead, elements};
use crate::refusal::Refusal;

/// What a request head earned: whose mailbox it is, and how the 101 will read.
#[derive(Clone, Debug)]
pub struct Admission {
    /// What the token says.
    pub identity: Identity,
    /// The consumer instance.
    pub address: Address,
    /// Its queue.
    pub queue: QueueName,
    /// The window that the client asks for, at least 1.
    pub window: Option<u16>,
    /// Whether the client wants to know if its mailbox still existed.
    pub resume: bool,
    /// The subprotocol to select; `None` when the client offered none, which means the raw one.
    pub subprotocol: Option<&'static str>,
    /// The value of `Sec-WebSocket-Accept`.
    pub accept_key: String,
}

impl Admission {
    /// `client.consumer.instance`, fit for a log line.
    pub(crate) fn name(&self) -> String {
        self.address.log_name().to_string()
    }
}

/// Why a request head was refused. Its `Display` is for the log: unlike the answer it tells why a token did not pass,
/// and like the answer it never shows the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAdmitted {
    /// The answer.
    pub refusal: Refusal,
    /// What was wrong with the token, where there was one.
    pub token: Option<TokenError>,
}

impl From<Refusal> for NotAdmitted {
    fn from(refusal: Refusal) -> Self {
        NotAdmitted { refusal, token: None }
    }
}

impl fmt::Display for NotAdmitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.refusal, self.token) {
            (_, Some(cause)) => cause.fmt(f),
            (Refusal::Token, None) => f.write_str("no token"),
            (refusal, None) => f.write_str(refusal.label()),
        }
    }
}

/// Checks a request head in the order of the module's description.
///
/// # Errors
/// The first check that fails.
pub fn admit(head: &RequestHead, verifier: &Verifier) -> Result<Admission, NotAdmitted> {
    check_request(head)?;
    check_upgrade(head)?;
    let accept_key = accept_key(head)?;
    let Some(token) = token(head)? else {
        return Err(Refusal::Token.into());
    };
    let identity =
        verifier.verify(token).map_err(|cause| NotAdmitted { refusal: Refusal::Token, token: Some(cause) })?;
    let address = Address {
        client: identity.client.clone(),
        consumer: identity.consumer.clone(),
        instance: instance(&head.query)?,
    };
    let queue = address.queue().map_err(|error| match error {
        NameError::Empty { .. } => Refusal::Instance,
        NameError::QueueTooLong { .. } | NameError::RoutingKeyTooLong { .. } => Refusal::NameTooLong,
    })?;
    let (window, resume) = (window(&head.query)?, resume(&head.query)?);
    let subprotocol = subprotocol(head)?;
    Ok(Admission { identity, address, queue, window, resume, subprotocol, accept_key })
}

/// The 101 that completes the upgrade (RFC 6455, section 4.2.2).
pub fn switching_protocols(admission: &Admission) -> Vec<u8> {
    let selected = match admission.subprotocol {
        Some(name) => format!("Sec-WebSocket-Protocol: {name}\r\n"),
        None => String::new(),
    };
    format!(
        "HTTP/1.1 101 Switching Protocols\r\n\
         Upgrade: websocket\r\n\
         Connection: Upgrade\r\n\
         Sec-WebSocket-Accept: {key}\r\n\
         {selected}\r\n",
        key = admission.accept_key,
    )
    .into_bytes()
}

fn check_request(head: &RequestHead) -> Result<(), Refusal> {
    // RFC 9112, section 3.2: 400 unless there is exactly one.
    if head.host.len() != 1 {
        return Err(Refusal::MalformedRequest);
    }
    if head.path != "/" {
        return Err(Refusal::Path);
    }
    if head.method != "GET" {
        return Err(Refusal::Method);
    }
    Ok(())
}

fn check_upgrade(head: &RequestHead) -> Result<(), Refusal> {
    let has = |lines, wanted: &str| elements(lines).any(|element| element.eq_ignore_ascii_case(wanted));
    if !has(&head.upgrade, "websocket") || !has(&head.connection, "upgrade") {
        return Err(Refusal::NoUpgrade);
    }
    if head.websocket_version != ["13"] {
        return Err(Refusal::WebSocketVersion);
    }
    if head.has_body {
        return Err(Refusal::RequestBody);
    }
    Ok(())
}

fn accept_key(head: &RequestHead) -> Result<String, Refusal> {
    let [key] = head.websocket_key.as_slice() else {
        return Err(Refusal::WebSocketKey);
    };
    // 16 bytes in base64: 22 characters and two of padding. What the last character's spare bits say is not our concern.
    let is_key = key.strip_suffix("==").is_some_and(|digits| {
        digits.len() == 22 && digits.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/')
    });
    if is_key { Ok(derive_accept_key(key.as_bytes())) } else { Err(Refusal::WebSocketKey) }
}

/// The one token that the request carries, if any.
///
/// An `Authorization` of another scheme does not count: browsers add one by themselves behind a proxy with Basic
/// authentication, and their scripts can only use the subprotocol.
fn token(head: &RequestHead) -> Result<Option<&str>, Refusal> {
    let in_header = match head.authorization.as_slice() {
        [] => None,
        [value] => bearer(value),
        _ => return Err(Refusal::AmbiguousToken),
    };
    let offered = elements(&head.websocket_protocol).filter_map(|element| element.strip_prefix(BEARER_PREFIX));
    let mut tokens = in_header.into_iter().chain(offered);
    let first = tokens.next();
    if tokens.any(|other| Some(other) != first) {
        return Err(Refusal::AmbiguousToken);
    }
    Ok(first)
}

/// The token in `Bearer <token>`; the scheme is case-insensitive (RFC 9110, section 11.1).
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim_start_matches(' '))
}

/// `?instance=`, decoded as browsers' `URLSearchParams` encode it: `%20` and `+` are both a space.
fn instance(query: &str) -> Result<String, Refusal> {
    match parameter(query, "instance").map_err(|Repeated| Refusal::Instance)? {
        None => Ok(DEFAULT_INSTANCE.to_owned()),
        Some(value) => decoded(value),
    }
}

/// `?window=`; what is larger than any window is clamped, as what is larger than the proxy's.
fn window(query: &str) -> Result<Option<u16>, Refusal> {
    let Some(value) = parameter(query, "window").map_err(|Repeated| Refusal::Window)? else { return Ok(None) };
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refusal::Window);
    }
    match value.parse().unwrap_or(u16::MAX) {
        0 => Err(Refusal::Window),
        window => Ok(Some(window)),
    }
}

/// `?resume=`
fn resume(query: &str) -> Result<bool, Refusal> {
    match parameter(query, "resume").map_err(|Repeated| Refusal::Resume)? {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Refusal::Resume),
    }
}

/// A parameter was given more than once, and nobody knows which is meant.
struct Repeated;

fn parameter<'a>(query: &'a str, name: &str) -> Result<Option<&'a str>, Repeated> {
    let mut given = query.split('&').filter_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        percent_decode_str(key).eq(name.bytes()).then_some(value)
    });
    let first = given.next();
    if given.next().is_some() { Err(Repeated) } else { Ok(first) }
}

fn decoded(value: &str) -> Result<String, Refusal> {
    // Decoders leave a `%` alone that two hex digits do not follow; here it is more likely a forgotten encoding, and
    // another mailbox than the client means.
    let mut escapes = value.split('%').skip(1);
    if !escapes.all(|escape| escape.bytes().take_while(u8::is_ascii_hexdigit).take(2).count() == 2) {
        return Err(Refusal::Instance);
    }
    let spaced = value.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8().map(Cow::into_owned).map_err(|_| Refusal::Instance)
}

fn subprotocol(head: &RequestHead) -> Result<Option<&'static str>, Refusal> {
    let mut offered = elements(&head.websocket_protocol).peekable();
    if offered.peek().is_none() {
        return Ok(None);
    }
    let mut with_bearer = false;
    for name in offered {
        // In the client's order, as it prefers them.
        if let Some(ours) = [RAW, V1].into_iter().find(|ours| *ours == name) {
            return Ok(Some(ours));
        }
        with_bearer |= name.starts_with(BEARER_PREFIX);
    }
    Err(if with_bearer { Refusal::BearerAlone } else { Refusal::Subprotocol })
}

#[cfg(test)]
mod tests;
