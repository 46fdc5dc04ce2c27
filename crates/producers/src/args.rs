//! What is typed.

use std::time::Duration;

use clap::Parser;
use service::cli::{LogArgs, duration};

/// What stands before the names of its environment variables.
pub const ENV_PREFIX: &str = "PRODUCERS";

const EXIT_CODES: &str = "\
Examples:
  producers 201 202 101 103                        2 producers, 3 consumers, a message to each every 3 s
  producers 201 201 1 1000 --interval 0            a load run to 1,000 consumers
  producers 201 201 101 101 --count 1 --persistent one message that survives a restart of the broker

Each message ends as exactly one of:
  confirmed    every mailbox of its consumer has it
  nacked       a mailbox refused it because it is full, or the broker refused it itself because it is too large
  returned     its consumer has no mailbox
  unconfirmed  nobody knows: --give-up passed, or the end of the run came, before the broker answered
Republished counts the copies beyond the first: what a lost connection left unanswered is published again, with the same
message-id and the header x-republished (1, 2, …), before anything newer of its producer. The first copy may have arrived.

SIGINT or SIGTERM: nothing new is sent, outstanding confirms are awaited for --drain-timeout, and the totals are
printed as the last line. A second one: at once.

Exit codes: 0 something was sent and all of it was confirmed, so every message reached a mailbox; 1 otherwise; 2 bad
usage.";

/// Publishes numbered messages to consumers through RabbitMQ, with confirms
///
/// Each producer from FIRST_PRODUCER to LAST_PRODUCER sends the same numbered message to each consumer from
/// FIRST_CONSUMER to LAST_CONSUMER, every --interval. Consumer 101 has the routing key consumer101 on exchange.direct.
#[derive(Clone, Debug, Parser)]
#[command(name = "producers", version, after_help = EXIT_CODES)]
pub struct Args {
    /// Number of the first producer
    pub first_producer: u64,
    /// Number of the last producer
    pub last_producer: u64,
    /// Number of the first consumer
    pub first_consumer: u64,
    /// Number of the last consumer
    pub last_consumer: u64,

    /// Where the broker is: amqp://USER:PASSWORD@HOST:PORT/VHOST, repeated or comma separated for the nodes of a
    /// cluster. Without a user it is producer:producer
    #[arg(long, env = "AMQP_URL", value_name = "URL", default_value = "amqp://127.0.0.1:5672/%2f")]
    pub amqp_url: Vec<String>,

    /// Time from one message to the next. 0: a load run, as fast as confirms allow, without a line per message,
    /// and the time of sending in the body
    #[arg(long, value_name = "TIME", default_value = "3", value_parser = duration)]
    pub interval: Duration,

    /// Messages are written to disk by the broker before it confirms them
    #[arg(long)]
    pub persistent: bool,

    /// How many messages each producer sends to each consumer [default: without end]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Stop after this long, as on SIGINT [default: without end]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,

    /// Pad each body with spaces to this many bytes [default: no padding]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(..=16_777_216))]
    pub size: Option<u32>,

    /// Messages of one producer without a confirm yet; they are kept until then. More is faster up to some hundreds;
    /// beyond some thousands it is slower again
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..))]
    pub window: u16,

    /// A connection on which no confirm arrives for this long is given up, and what it left unanswered is published
    /// again; longer than the largest body takes. An alarm of the broker does not count
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = duration)]
    pub confirm_timeout: Duration,

    /// A message that finds no answer for this long since it was published first is counted as unconfirmed, outages and
    /// alarms included [default: without end]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub give_up: Option<Duration>,

    /// How long to wait for outstanding confirms at the end
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = duration)]
    pub drain_timeout: Duration,

    /// How long a connect may take, login included
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = duration)]
    pub connect_timeout: Duration,

    /// AMQP heartbeat in whole seconds; a silent broker is given up after twice this long
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = duration)]
    pub heartbeat: Duration,

    /// How log lines look
    #[command(flatten)]
    pub log: LogArgs,
}
