//! What was typed: options and their environment variables. [`Config`](crate::config::Config) says what it means.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use secrecy::SecretString;
use service::cli::{LogArgs, duration};

/// The prefix of the environment variables.
pub const ENV_PREFIX: &str = "AUTH_PROXY";

/// Pushes each consumer's RabbitMQ messages to its WebSocket, after a look at its token
///
/// A client connects to ws://HOST:PORT/?instance=NAME with a JWT (HS256; `sub` is its consumer id) in `Authorization:
/// Bearer ...`, or in the subprotocol `bearer.<JWT>` beside one of the dialects. The proxy declares the client's queue,
/// binds it to exchange.direct with the consumer id as routing key, answers 101 and forwards what arrives.
///
/// In the dialect rabbitmq-msg.v1 (JSON) a message is acked to RabbitMQ when its client has acked it; `&window=N` asks
/// for fewer unacked messages, `&resume=true` whether the mailbox still existed. In rabbitmq-msg.raw, which a client gets
/// that offers none, a frame is a body, and acked once it is written.
///
/// Once it is up it prints `listening on ADDR:PORT`. SIGTERM or SIGINT closes every session with 4002 and ends with exit
/// code 0; a second signal does not wait for anybody. Bad usage or configuration ends with exit code 2.
// No Debug: a broker URL holds a password.
#[derive(Clone, clap::Parser)]
#[command(name = "auth-proxy", version)]
#[command(after_help = "Durations are seconds (25, 0.5) or carry a unit (250ms, 2m).")]
pub struct Args {
    /// Name of this proxy in its log lines
    #[arg(value_name = "ID", default_value = "1")]
    pub id: String,

    /// Address and port to listen on; port 0 picks a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9000", value_parser = socket_address)]
    pub listen: SocketAddr,

    /// Address and port for the operator: /healthz, /readyz, /metrics and /stats [default: off]
    ///
    /// It asks nobody for a password: whoever reaches it sees who is connected. So it belongs on loopback, or on an address
    /// that only the operator reaches; on any that is not loopback the proxy warns. Port 0 picks a free one; stdout says
    /// `admin on ADDR:PORT`.
    #[arg(long, value_name = "ADDR:PORT", value_parser = socket_address)]
    pub admin_listen: Option<SocketAddr>,

    /// Broker URL; repeatable or comma separated, tried in turn. Without user and password: auth-proxy:auth-proxy
    #[arg(long, value_name = "URL", env = "AMQP_URL", default_value = "amqp://127.0.0.1:5672/%2f")]
    pub amqp_url: Vec<String>,

    /// Time for everything to end after SIGTERM; what is left then is cut off
    ///
    /// Clients leave one after the other over this time less 3 s. The default is below the ten seconds that `docker stop`
    /// gives.
    #[arg(long, value_name = "TIME", default_value = "8", value_parser = duration)]
    pub drain_timeout: Duration,

    /// Over how long the clients of a stopping proxy come back, each told its own moment
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = duration)]
    pub drain_spread: Duration,

    /// Log a line for each message that is forwarded; costs throughput
    #[arg(long, value_parser = BoolishValueParser::new())]
    pub log_messages: bool,

    #[command(flatten)]
    #[expect(missing_docs, reason = "a doc comment here would become the help text of the group")]
    pub log: LogArgs,

    // The groups come last: what follows one would stand under its heading in --help.
    #[command(flatten)]
    #[expect(missing_docs, reason = "as above")]
    pub tokens: TokenArgs,

    #[command(flatten)]
    #[expect(missing_docs, reason = "as above")]
    pub sessions: SessionArgs,

    #[command(flatten)]
    #[expect(missing_docs, reason = "as above")]
    pub upgrades: UpgradeArgs,

    #[command(flatten)]
    #[expect(missing_docs, reason = "as above")]
    pub broker: BrokerArgs,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Tokens")]
#[expect(missing_docs, reason = "a doc comment would replace the help text of the command")]
pub struct TokenArgs {
    /// Secret that tokens are signed with, at least 32 bytes. Prefer a file: arguments are seen by other users
    #[arg(long, value_name = "SECRET", env = "JWT_SECRET", value_parser = secret)]
    pub jwt_secret: Option<SecretString>,

    /// File with that secret; a line end after it does not count
    #[arg(long, value_name = "FILE", env = "JWT_SECRET_FILE")]
    pub jwt_secret_file: Option<PathBuf>,

    /// Issuer that tokens must name in `iss`
    #[arg(long, value_name = "NAME", env = "JWT_ISSUER")]
    pub jwt_issuer: Option<String>,

    /// Audience that tokens must name in `aud`
    #[arg(long, value_name = "NAME", env = "JWT_AUDIENCE")]
    pub jwt_audience: Option<String>,

    /// Allow the public development key, which is used without a secret, on an address that is not loopback
    #[arg(long, value_parser = BoolishValueParser::new())]
    pub development_key: bool,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Sessions")]
#[expect(missing_docs, reason = "a doc comment would replace the help text of the command")]
pub struct SessionArgs {
    /// Messages that a session may hold unacked, 1 to 65535
    ///
    /// Sessions share AMQP channels (lanes), and the unacked messages of a lane are bounded by 2,048, since the broker
    /// slows down beyond: 128 sessions at window 16, 20 at 100, a session alone from 1,025 on. A larger window thus means
    /// more lanes (see --max-lanes) and more memory per session: up to window x largest message.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..))]
    pub window: u16,

    /// Largest message that is forwarded; a larger one is rejected and logged
    #[arg(long, value_name = "BYTES", default_value = "1048576", value_parser = clap::value_parser!(u32).range(1..=MESSAGE_BYTES_LIMIT))]
    pub max_message_bytes: u32,

    /// Time between pings
    #[arg(long, value_name = "TIME", default_value = "25", value_parser = duration)]
    pub ping_interval: Duration,

    /// Time for the pong, else 4004
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = duration)]
    pub pong_timeout: Duration,

    /// Time since the socket last took a byte while something waits for it, else 4003
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = duration)]
    pub write_timeout: Duration,

    /// Time for which a v1 client may leave everything unanswered that it has, else 4006; at most 25 min
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = duration)]
    pub ack_timeout: Duration,

    /// How long before its token's end a v1 client is told; at most a fifth of what the token had left
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = duration)]
    pub expiring_notice: Duration,

    /// Time for a goodbye: a close frame and its reply, or a refusal and its reader
    #[arg(long, value_name = "TIME", default_value = "2", value_parser = duration)]
    pub close_timeout: Duration,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Upgrades")]
#[expect(missing_docs, reason = "a doc comment would replace the help text of the command")]
pub struct UpgradeArgs {
    /// Time for the request head, else 408
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = duration)]
    pub head_timeout: Duration,

    /// Time for the broker's part of an upgrade, else 503
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = duration)]
    pub broker_timeout: Duration,

    /// Connections whose request head is still awaited; beyond, 503 at once
    #[arg(long, value_name = "N", default_value = "16384", value_parser = clap::value_parser!(u32).range(1..=COUNT_LIMIT))]
    pub max_heads: u32,

    /// Upgrades with a valid token that may be in progress at the broker; beyond, 503 at once
    #[arg(long, value_name = "N", default_value = "16384", value_parser = clap::value_parser!(u32).range(1..=COUNT_LIMIT))]
    pub max_upgrades: u32,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Broker")]
#[expect(missing_docs, reason = "a doc comment would replace the help text of the command")]
pub struct BrokerArgs {
    /// AMQP heartbeat in whole seconds; a dead broker is noticed after two
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = duration)]
    pub heartbeat: Duration,

    /// Time for which acks are gathered; 0 sends each at once
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = duration)]
    pub ack_interval: Duration,

    /// Channels that carry sessions; beyond what they hold, 503. At the default window a lane holds 128 sessions
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=COUNT_LIMIT))]
    pub max_lanes: u32,

    /// End sessions with 4005 when the broker is away for longer; without it they wait as long as it takes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub outage_limit: Option<Duration>,

    /// Channels that declare queues, one request in flight on each; more than 16 made nothing faster
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub declare_channels: u16,
}

/// RabbitMQ's own upper limit of `max_message_size`: 512 MiB.
const MESSAGE_BYTES_LIMIT: i64 = 512 * 1024 * 1024;

/// More than any machine carries, and far from any overflow.
const COUNT_LIMIT: i64 = 1_000_000;

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an IP address and a port: 127.0.0.1:9000, 0.0.0.0:9000 or [::1]:9000".to_owned())
}

#[expect(clippy::unnecessary_wraps, reason = "clap wants a Result")]
fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(SecretString::from(text))
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::builder::Resettable;
    use clap::{CommandFactory, FromArgMatches};

    use super::Args;

    /// The arguments alone: whoever runs the tests may have set `AMQP_URL` or `JWT_SECRET`.
    pub(crate) fn without_environment(options: &[&str]) -> Result<Args, clap::Error> {
        let command = Args::command().mut_args(|argument| argument.env(Resettable::Reset));
        let mut matches = command.try_get_matches_from(std::iter::once("auth-proxy").chain(options.iter().copied()))?;
        Args::from_arg_matches_mut(&mut matches)
    }

    #[test]
    fn the_command_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn shared_settings_have_shared_variables() {
        let command = Args::command();
        let variables: Vec<_> = command
            .get_arguments()
            .filter_map(|argument| Some((argument.get_long()?, argument.get_env()?.to_str()?)))
            .collect();
        let expected = [
            ("amqp-url", "AMQP_URL"),
            ("jwt-secret", "JWT_SECRET"),
            ("jwt-secret-file", "JWT_SECRET_FILE"),
            ("jwt-issuer", "JWT_ISSUER"),
            ("jwt-audience", "JWT_AUDIENCE"),
        ];
        assert_eq!(variables, expected);
    }
}
