//! What the options mean: parsed, checked and complete before a port opens.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use broker::endpoint::{Endpoint, EndpointError, parse_list};
use protocol::token::{TokenError, Verifier};

use crate::args::Args;

mod key;

pub use key::KeyError;
use key::SigningKey;

/// User and password of a broker URL that has none: those of the definitions that ship with the proxy.
const DEFAULT_USER: &str = "auth-proxy";

/// The longest proxy id, in bytes. It stands in every log line of a message, and in the name of its connections.
const ID_BYTES_MAX: usize = 64;

/// The longest deadline. Two weeks are longer than any and far from overflowing a clock.
const DURATION_MAX: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// The longest time for which acks may be gathered: RabbitMQ closes a channel whose delivery waits 30 min for its ack, and
/// every client waits for its window.
const ACK_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// The longest time for an ack, for the same reason with room to spare.
const ACK_TIMEOUT_MAX: Duration = Duration::from_secs(25 * 60);

/// The longest heartbeat: AMQP carries it as 16 bits of seconds, and beyond some minutes nobody would call it one.
const HEARTBEAT_MAX: Duration = Duration::from_secs(600);

/// Everything that [`run`](crate::run) needs to know.
///
/// `Debug` shows neither the signing key nor a broker's password.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this proxy in log lines: `AuthProxy <id>: …`. Printable, not empty, at most 64 bytes.
    pub id: String,
    /// Where to listen. Port 0 means a free one.
    pub listen: SocketAddr,
    /// Where to listen for the operator, if at all. Port 0 means a free one.
    pub admin_listen: Option<SocketAddr>,
    /// The broker's nodes, at least one.
    pub endpoints: Vec<Endpoint>,
    /// Checks tokens.
    pub verifier: Arc<Verifier>,
    /// Messages that a session may hold unacked, at least 1. Also its AMQP prefetch.
    pub window: u16,
    /// Largest body that is forwarded, in bytes.
    pub max_message_bytes: usize,
    /// Time between pings.
    pub ping_interval: Duration,
    /// Time from a ping to its pong.
    pub pong_timeout: Duration,
    /// Time since the socket last took a byte while something waits for it.
    pub write_timeout: Duration,
    /// Time for the request head, from accept to its last byte.
    pub head_timeout: Duration,
    /// Time for the broker's part of one upgrade: declare, bind, consume.
    pub broker_timeout: Duration,
    /// Connections whose request head is being read, at least 1.
    pub max_heads: usize,
    /// Admitted upgrades in progress at the broker, at least 1.
    pub max_upgrades: usize,
    /// Time for a goodbye: a close frame and its reply, or a refusal and its reader. May be 0.
    pub close_timeout: Duration,
    /// Time for which a v1 client may leave everything unanswered that it has.
    pub ack_timeout: Duration,
    /// How long before the end of its token a v1 client is told. May be 0.
    pub expiring_notice: Duration,
    /// How long the broker may be away before sessions end; `None` for as long as it takes.
    pub outage_limit: Option<Duration>,
    /// Time from the begin of a shutdown to its end. May be 0.
    pub drain_timeout: Duration,
    /// Over how long the clients of a stopping proxy come back. May be 0.
    pub drain_spread: Duration,
    /// Time for which acks are gathered. May be 0.
    pub ack_interval: Duration,
    /// AMQP heartbeat: whole seconds, at least 1.
    pub heartbeat: Duration,
    /// Channels that may carry sessions, at least 1.
    pub max_lanes: usize,
    /// Channels that declare queues, at least 1.
    pub declare_channels: usize,
    /// Whether to log a line for each forwarded message.
    pub log_messages: bool,
    /// What the operator should hear at the start, one line each, to be logged as warnings.
    pub warnings: Vec<String>,
}

/// What is wrong with the configuration and what to do, in one line without any secret.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The proxy id cannot stand in a log line.
    #[error("ID must be 1 to 64 bytes of printable characters without spaces; leave it out for 1")]
    Id,
    /// A broker URL.
    #[error("--amqp-url: {0}")]
    AmqpUrl(#[from] EndpointError),
    /// The signing key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An issuer or audience that no token could name.
    #[error("{0} is empty; name it, or unset it to accept any")]
    EmptyClaim(&'static str),
    /// A duration that cannot work.
    #[error("{flag} must be {wanted}")]
    Duration {
        /// The option.
        flag: &'static str,
        /// What it may be.
        wanted: &'static str,
    },
    /// The verifier did not take the key.
    #[error("the secret cannot be used: {0}")]
    Verifier(#[from] TokenError),
}

impl Config {
    /// Checks and completes what was typed. Reads the secret file, if one is named.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn from_args(args: Args) -> Result<Config, ConfigError> {
        check_id(&args.id)?;
        check_durations(&args)?;
        let endpoints = parse_list(&args.amqp_url, DEFAULT_USER)?;
        let SigningKey { secret, mut warnings } = SigningKey::choose(&args.tokens, args.listen)?;
        warnings.extend(args.admin_listen.and_then(exposed));
        let issuer = claim("--jwt-issuer", args.tokens.jwt_issuer.as_deref())?;
        let audience = claim("--jwt-audience", args.tokens.jwt_audience.as_deref())?;
        let verifier = Arc::new(Verifier::hs256(&secret, issuer, audience)?);
        Ok(Config {
            id: args.id,
            listen: args.listen,
            admin_listen: args.admin_listen,
            endpoints,
            verifier,
            window: args.sessions.window,
            max_message_bytes: count(args.sessions.max_message_bytes),
            ping_interval: args.sessions.ping_interval,
            pong_timeout: args.sessions.pong_timeout,
            write_timeout: args.sessions.write_timeout,
            head_timeout: args.upgrades.head_timeout,
            broker_timeout: args.upgrades.broker_timeout,
            max_heads: count(args.upgrades.max_heads),
            max_upgrades: count(args.upgrades.max_upgrades),
            close_timeout: args.sessions.close_timeout,
            ack_timeout: args.sessions.ack_timeout,
            expiring_notice: args.sessions.expiring_notice,
            outage_limit: args.broker.outage_limit,
            drain_timeout: args.drain_timeout,
            drain_spread: args.drain_spread,
            ack_interval: args.broker.ack_interval,
            heartbeat: args.broker.heartbeat,
            max_lanes: count(args.broker.max_lanes),
            declare_channels: usize::from(args.broker.declare_channels),
            log_messages: args.log_messages,
            warnings,
        })
    }
}

/// What is to be said of an admin port that others can reach.
fn exposed(admin: SocketAddr) -> Option<String> {
    (!admin.ip().to_canonical().is_loopback()).then(|| {
        format!(
            "--admin-listen {admin} is not loopback and asks nobody for a password: WHOEVER REACHES IT SEES WHO IS \
             CONNECTED and from where; let only the operator's network reach it, or listen on 127.0.0.1"
        )
    })
}

/// Where `usize` has 16 bits the gateway has other worries.
fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn check_id(id: &str) -> Result<(), ConfigError> {
    let fits = (1..=ID_BYTES_MAX).contains(&id.len());
    if fits && id.chars().all(|c| !c.is_whitespace() && c.escape_debug().len() == 1) {
        Ok(())
    } else {
        Err(ConfigError::Id)
    }
}

fn claim<'a>(flag: &'static str, value: Option<&'a str>) -> Result<Option<&'a str>, ConfigError> {
    if value == Some("") { Err(ConfigError::EmptyClaim(flag)) } else { Ok(value) }
}

fn check_durations(args: &Args) -> Result<(), ConfigError> {
    let deadlines = [
        ("--ping-interval", args.sessions.ping_interval),
        ("--pong-timeout", args.sessions.pong_timeout),
        ("--write-timeout", args.sessions.write_timeout),
        ("--head-timeout", args.upgrades.head_timeout),
        ("--broker-timeout", args.upgrades.broker_timeout),
    ];
    for (flag, duration) in deadlines {
        ensure(flag, "more than 0 and at most 14 days", !duration.is_zero() && duration <= DURATION_MAX)?;
    }
    let spans = [
        ("--close-timeout", args.sessions.close_timeout),
        ("--expiring-notice", args.sessions.expiring_notice),
        ("--drain-timeout", args.drain_timeout),
        ("--drain-spread", args.drain_spread),
        ("--outage-limit", args.broker.outage_limit.unwrap_or_default()),
    ];
    for (flag, duration) in spans {
        ensure(flag, "at most 14 days", duration <= DURATION_MAX)?;
    }
    let ack_timeout = args.sessions.ack_timeout;
    ensure(
        "--ack-timeout",
        "more than 0 and at most 25 min",
        !ack_timeout.is_zero() && ack_timeout <= ACK_TIMEOUT_MAX,
    )?;
    ensure("--ack-interval", "at most 10 s", args.broker.ack_interval <= ACK_INTERVAL_MAX)?;
    let heartbeat = args.broker.heartbeat;
    let is_whole = heartbeat.subsec_nanos() == 0 && !heartbeat.is_zero();
    ensure("--heartbeat", "1 to 600 whole seconds", is_whole && heartbeat <= HEARTBEAT_MAX)
}

fn ensure(flag: &'static str, wanted: &'static str, holds: bool) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError::Duration { flag, wanted }) }
}

#[cfg(test)]
mod tests;
