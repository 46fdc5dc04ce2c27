//! What can be typed.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use clap::builder::BoolishValueParser;
use protocol::subprotocol;
use service::cli::{LogArgs, duration};

use crate::behaviour::Share;

/// The prefix of the environment variables.
pub const ENV_PREFIX: &str = "CONSUMERS";

const BADLY: &str = "Misbehaviour, for tests and load runs";

const EXAMPLES: &str = "\
Examples:
  consumers 101 103 2                      consumer101 to consumer103, two instances of each
  consumers 1 10000 --url ws://10.0.0.5:9000 --url ws://10.0.0.6:9000
  JWT_SECRET_FILE=secret consumers 1 100 --duration 60
  consumers 1 1000 --stall --stall-share 1% --slow 250ms --slow-share 10%
                                           10 instances never read, the next 100 take 250 ms for each message

Each line `Received for (consumer101 to consumer103)*2: 6*[producer201.20902 says Hello 8]` is one message and \
how many instances have it; bodies that carry their send time (load runs) are counted in a line every few \
seconds instead. The first Ctrl-C or SIGTERM says goodbye to the server and prints the report, the second leaves \
at once; without an answer it takes 10 s at most. The last line is the sum:
  Totals: received N, missing M, duplicated D, out of order O, redelivered R, republished P
received counts each number once; missing are numbers of a producer's run between the lowest and the highest \
that an instance saw. A number that comes again is one of three in v1, and always `duplicated` in raw, whose \
totals end with the order:
  redelivered   the frame says so: the proxy or the broker had sent it before and knows of no ack
  republished   the producer published it twice since the broker's answer to the first was cut off: it says so on the \
second copy (x-republished), and this or an earlier copy of the number bears that
  duplicated    anything else; nobody should see one

v1: what is read is acked after processing, many messages with one frame (half a window, or after 5 ms). A reconnect \
asks to resume; when the mailbox is gone then, a line says so. Shares of misbehaving instances are of all instances, \
rounded up, and mean the first ones: first those that stall, then those that never ack, then the slow ones.

Exit code: 0 when nothing is missing, duplicated or beyond what could be judged, no server broke the contract, no \
instance was refused or told to stay away, and each was connected at least once; else 1; 2 for bad usage.";

/// Connects instances by the thousand and says what arrived, how fast, and what is missing
#[derive(Clone, Debug, Parser)]
#[command(name = "consumers", after_help = EXAMPLES)]
pub struct Args {
    /// Number of the first consumer: 101 is the consumer with the id consumer101
    pub first: u64,
    /// Number of the last consumer
    pub last: u64,
    /// Instances of each consumer, numbered from 1; each has a mailbox of its own
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub instances: u64,

    /// Where the auth-proxy listens, ws://HOST:PORT; give it several times to spread the instances over several
    /// proxies (each new connection of an instance goes to the next one in turn)
    #[arg(long, value_name = "URL", value_delimiter = ',', default_value = "ws://127.0.0.1:9000")]
    pub url: Vec<String>,
    /// What tokens are signed with (HS256); the public development key unless given
    #[arg(long, value_name = "SECRET", env = "JWT_SECRET", hide_env_values = true)]
    pub jwt_secret: Option<String>,
    /// A file that holds the secret; a line break at its end is not part of it
    #[arg(long, value_name = "FILE", env = "JWT_SECRET_FILE")]
    pub jwt_secret_file: Option<PathBuf>,
    /// The client that tokens name in `client_id`; without it they name none, and the proxy takes `consumer`
    #[arg(long, value_name = "CLIENT")]
    pub client_id: Option<String>,
    /// How long a token is good for, in whole seconds. Each connection gets a new one, and v1 sends a newer one when
    /// some 80 % of that time is over
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = positive)]
    pub token_ttl: Duration,
    /// What is spoken. v1: JSON with acks from end to end, nothing is lost with a connection; raw: a frame is a message
    /// body, and what the kernel held when a connection broke is lost
    #[arg(long, value_enum, value_name = "PROTOCOL", default_value_t = Protocol::V1)]
    pub protocol: Protocol,
    /// Ask for a window of so many messages sent and not acked; the proxy's own is the upper limit [default: the
    /// proxy's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub window: Option<u16>,

    /// Connects in progress at a time, over all instances
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub connect_concurrency: u32,
    /// How long the TCP connection may take, name lookup included
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive)]
    pub connect_timeout: Duration,
    /// How long the answer to the upgrade may take; the proxy gives its broker 30 s
    #[arg(long, value_name = "TIME", default_value = "40s", value_parser = positive)]
    pub upgrade_timeout: Duration,
    /// How long a goodbye may take, at most 8 s
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = close_timeout)]
    pub close_timeout: Duration,
    /// A raw connection that is silent for so long is dead (the proxy pings every 25 s); a v1 one is asked by a ping,
    /// after one and a half of the proxy's ping intervals or this time, whichever is shorter. 0: never because of this
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub idle_timeout: Duration,
    /// How long an answer may take in v1: the welcome, a pong, the answer to a new token, and the network to take a
    /// frame. A connection without is dead; a token without is tried again
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive)]
    pub answer_timeout: Duration,
    /// The longest pause before a reconnect; pauses start below 0.5 s, double and are drawn at random from 0 up.
    /// After a lost connection up to 2 ms for each instance come on top, so that not all come back in one moment
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = positive)]
    pub backoff_cap: Duration,

    /// Stop after this time; without it, at a signal
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// How long after its first arrival a message is printed with the count so far
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub flush_after: Duration,

    /// v1: take so long for each message before it is acked, one after the other; what the proxy says otherwise (pings,
    /// notices) is answered meanwhile
    #[arg(long, value_name = "TIME", value_parser = positive, help_heading = BADLY)]
    pub slow: Option<Duration>,
    /// The share of the instances that is slow
    #[arg(long, value_name = "PERCENT", default_value = "100%", value_parser = Share::parse, help_heading = BADLY)]
    pub slow_share: Share,
    /// v1: never ack
    #[arg(long, value_parser = BoolishValueParser::new(), help_heading = BADLY)]
    pub no_ack: bool,
    /// The share of the instances that never acks
    #[arg(long, value_name = "PERCENT", default_value = "100%", value_parser = Share::parse, help_heading = BADLY)]
    pub no_ack_share: Share,
    /// Never read again after the welcome (raw: after the upgrade), and keep the socket open
    #[arg(long, value_parser = BoolishValueParser::new(), help_heading = BADLY)]
    pub stall: bool,
    /// The share of the instances that stalls
    #[arg(long, value_name = "PERCENT", default_value = "100%", value_parser = Share::parse, help_heading = BADLY)]
    pub stall_share: Share,

    /// How log lines look.
    #[command(flatten)]
    pub log: LogArgs,
}

/// A dialect of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// A frame is a message body; nothing is sent back.
    Raw,
    /// JSON with acks from end to end.
    V1,
}

impl Protocol {
    /// The subprotocol that is offered.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => subprotocol::RAW,
            Self::V1 => subprotocol::V1,
        }
    }
}

fn positive(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        time => Ok(time),
    }
}

/// With what comes after the goodbye it must stay within the 10 s that a shutdown may take.
pub(crate) const CLOSE_TIMEOUT_MAX: Duration = Duration::from_secs(8);

fn close_timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time > CLOSE_TIMEOUT_MAX => Err("8 s at most, so that the program ends within 10 s".to_owned()),
        time => Ok(time),
    }
}
