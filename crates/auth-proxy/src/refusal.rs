//! Every answer that is no 101: a closed table of complete HTTP/1.1 responses.
//!
//! A client library shows its user little more than the status and the body of a refused upgrade, so each one says what
//! was wrong and what would be right, and none repeats anything that the client sent: a token could be among it.

/// Why an upgrade was refused.
///
/// [`Refusal::answer_to`] makes it a response, [`Refusal::label`] a word for logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// 400: the bytes are no HTTP/1.1 request head, or one with no `Host` or two of them (RFC 9112, section 3.2).
    MalformedRequest,
    /// 400: the upgrade request announces a body. Its bytes would be taken for WebSocket frames.
    RequestBody,
    /// 400: `Sec-WebSocket-Key` is absent, repeated, or not 16 bytes in base64 (RFC 6455, section 4.2.1).
    WebSocketKey,
    /// 400: more than one `Authorization`, or two different tokens.
    AmbiguousToken,
    /// 400: `?instance=` is empty, given twice, wrongly encoded, or not UTF-8.
    Instance,
    /// 400: `?window=` is 0, no number, or given twice.
    Window,
    /// 400: `?resume=` is neither true nor false, or given twice.
    Resume,
    /// 400: client, consumer and instance do not fit the 255 bytes of a queue name.
    NameTooLong,
    /// 400: a `bearer.` subprotocol beside none of ours, which leaves nothing to select.
    BearerAlone,
    /// 400: subprotocols were offered and none is ours.
    Subprotocol,
    /// 401: no token, or one that does not pass. Which of the two, and why, is for the log alone.
    Token,
    /// 404: a path other than `/`.
    Path,
    /// 405: a method other than GET.
    Method,
    /// 408: the request head was not complete in time.
    HeadTimeout,
    /// 409: the queue exists with other arguments than the proxy's.
    QueueConflict,
    /// 426: a plain HTTP request.
    NoUpgrade,
    /// 426: a `Sec-WebSocket-Version` other than 13.
    WebSocketVersion,
    /// 431: the request head has too many bytes or headers.
    HeadTooLarge,
    /// 503: no connection to the broker.
    BrokerAway,
    /// 503: the broker did not answer in time.
    BrokerSlow,
    /// 503: another connection consumes from this mailbox and did not leave in time.
    InstanceBusy,
    /// 503: the proxy has no lane left for another session.
    LanesFull,
    /// 503: too many upgrades are in progress.
    TooManyUpgrades,
    /// 503: the proxy is shutting down.
    Draining,
    /// 505: an HTTP version other than 1.1.
    HttpVersion,
}

/// What the table says of one refusal.
struct Facts {
    status: Status,
    label: &'static str,
    text: &'static str,
}

/// The status line, and the headers that come with the status alone.
struct Status {
    line: &'static str,
    code: u16,
    headers: &'static str,
}

const fn status(code: u16, line: &'static str, headers: &'static str) -> Status {
    Status { line, code, headers }
}

const BAD_REQUEST: Status = status(400, "400 Bad Request", "");
// RFC 9110, section 7.8: a 426 names the protocol in `Upgrade`, and `Connection` names `Upgrade`. RFC 6455, section
// 4.4: the version that would be understood.
const UPGRADE_REQUIRED: Status =
    status(426, "426 Upgrade Required", "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n");

/// 503 with the seconds after which another try is worth its cost.
macro_rules! unavailable {
    ($seconds:literal) => {
        status(503, "503 Service Unavailable", concat!("Retry-After: ", $seconds, "\r\n"))
    };
}

impl Refusal {
    /// All of them, in the order of their status.
    pub const ALL: [Refusal; 25] = [
        Refusal::MalformedRequest,
        Refusal::RequestBody,
        Refusal::WebSocketKey,
        Refusal::AmbiguousToken,
        Refusal::Instance,
        Refusal::Window,
        Refusal::Resume,
        Refusal::NameTooLong,
        Refusal::BearerAlone,
        Refusal::Subprotocol,
        Refusal::Token,
        Refusal::Path,
        Refusal::Method,
        Refusal::HeadTimeout,
        Refusal::QueueConflict,
        Refusal::NoUpgrade,
        Refusal::WebSocketVersion,
        Refusal::HeadTooLarge,
        Refusal::BrokerAway,
        Refusal::BrokerSlow,
        Refusal::InstanceBusy,
        Refusal::LanesFull,
        Refusal::TooManyUpgrades,
        Refusal::Draining,
        Refusal::HttpVersion,
    ];

    const fn facts(self) -> Facts {
        let (status, label, text) = match self {
            Refusal::MalformedRequest => {
                (BAD_REQUEST, "malformed_request", "This is not a valid HTTP/1.1 request with one Host header.")
            }
            Refusal::RequestBody => (BAD_REQUEST, "request_body", "A WebSocket upgrade request has no body."),
            Refusal::WebSocketKey => {
                (BAD_REQUEST, "websocket_key", "Sec-WebSocket-Key must be given once, as 16 bytes in base64.")
            }
            Refusal::AmbiguousToken => (
                BAD_REQUEST,
                "ambiguous_token",
                "Give one token: one Authorization header, or one bearer. subprotocol.",
            ),
            Refusal::Instance => (
                BAD_REQUEST,
                "instance",
                "The query parameter instance must be given at most once, not empty, as percent-encoded UTF-8.",
            ),
            Refusal::Window => {
                (BAD_REQUEST, "window", "The query parameter window must be given at most once, as a number from 1 on.")
            }
            Refusal::Resume => {
                (BAD_REQUEST, "resume", "The query parameter resume must be given at most once, as true or false.")
            }
            Refusal::NameTooLong => (
                BAD_REQUEST,
                "name_too_long",
                "Client, consumer and instance together do not fit a queue name of 255 bytes; shorten the instance.",
            ),
            Refusal::BearerAlone => (
                BAD_REQUEST,
                "bearer_alone",
                "Offer rabbitmq-msg.v1 or rabbitmq-msg.raw beside the bearer. subprotocol: the token itself is never selected.",
            ),
            Refusal::Subprotocol => (
                BAD_REQUEST,
                "subprotocol",
                "None of the offered subprotocols is supported; supported: rabbitmq-msg.v1, rabbitmq-msg.raw.",
            ),
            Refusal::Token => (
                status(401, "401 Unauthorized", "WWW-Authenticate: Bearer\r\n"),
                "token",
                "A valid token is needed: Authorization: Bearer <JWT>, or the subprotocol bearer.<JWT>.",
            ),
            Refusal::Path => (status(404, "404 Not Found", ""), "path", "The WebSocket is at the path /."),
            Refusal::Method => (
                status(405, "405 Method Not Allowed", "Allow: GET\r\n"),
                "method",
                "A WebSocket upgrade is a GET request.",
            ),
            Refusal::HeadTimeout => {
                (status(408, "408 Request Timeout", ""), "head_timeout", "The request head was not complete in time.")
            }
            Refusal::QueueConflict => (
                status(409, "409 Conflict", ""),
                "queue_conflict",
                "The queue of this instance exists with other arguments; an operator has to delete it.",
            ),
            Refusal::NoUpgrade => (
                UPGRADE_REQUIRED,
                "no_upgrade",
                "This is a WebSocket endpoint: send Connection: Upgrade and Upgrade: websocket.",
            ),
            Refusal::WebSocketVersion => {
                (UPGRADE_REQUIRED, "websocket_version", "The one supported Sec-WebSocket-Version is 13.")
            }
            Refusal::HeadTooLarge => (
                status(431, "431 Request Header Fields Too Large", ""),
                "head_too_large",
                "The request head may have 16 KiB and 64 headers.",
            ),
            Refusal::BrokerAway => {
                (unavailable!("5"), "broker_away", "The broker cannot be reached at the moment; try again later.")
            }
            Refusal::BrokerSlow => {
                (unavailable!("5"), "broker_slow", "The broker did not answer in time; try again later.")
            }
            Refusal::InstanceBusy => (
                unavailable!("2"),
                "instance_busy",
                "Another connection of this instance is still consuming; try again later.",
            ),
            // Lanes come free as sessions leave, which takes longer than a burst of upgrades.
            Refusal::LanesFull => (
                unavailable!("15"),
                "lanes_full",
                "This proxy carries as many sessions as it may; try again later or elsewhere.",
            ),
            Refusal::TooManyUpgrades => {
                (unavailable!("1"), "too_many_upgrades", "Too many upgrades are in progress; try again later.")
            }
            Refusal::Draining => {
                (unavailable!("1"), "draining", "This proxy is shutting down; connect again to reach another.")
            }
            Refusal::HttpVersion => (
                status(505, "505 HTTP Version Not Supported", ""),
                "http_version",
                "A WebSocket upgrade is an HTTP/1.1 request.",
            ),
        };
        Facts { status, label, text }
    }

    /// The HTTP status code.
    pub const fn status(self) -> u16 {
        self.facts().status.code
    }

    /// One word in snake_case for logs and metrics. The list is closed: [`Refusal::ALL`].
    pub const fn label(self) -> &'static str {
        self.facts().label
    }

    /// The response that closes the connection, to a request of this method (`None` where it is not known).
    ///
    /// The answer to HEAD announces a body and carries none (RFC 9110, section 9.3.2).
    pub fn answer_to(self, method: Option<&str>) -> Vec<u8> {
        let Facts { status, text, .. } = self.facts();
        let Status { line, code, headers } = status;
        let connection = if code == 426 { "Upgrade, close" } else { "close" };
        let body = if method == Some("HEAD") { String::new() } else { format!("{text}\n") };
        format!(
            "HTTP/1.1 {line}\r\n\
             Content-Type: text/plain; charset=utf-8\r\n\
             Content-Length: {length}\r\n\
             Cache-Control: no-store\r\n\
             Connection: {connection}\r\n\
             {headers}\r\n{body}",
            length = text.len() + 1,
        )
        .into_bytes()
    }
}

#[cfg(test)]
mod tests;
