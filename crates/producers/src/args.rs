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

Each publish ends as exactly one of:
  confirmed    every mailbox of its consumer has it
  nacked       a mailbox refused it because it is full
  returned     its consumer has no mailbox
  unconfirmed  the broker's answer never came: connection lost, or --confirm-timeout passed

SIGINT or SIGTERM: nothing new is sent, outstanding confirms are awaited for --drain-timeout, and the totals are
printed as the last line. A second one: at once.

Exit codes: 0 something was sent and all of it was confirmed, 1 otherwise, 2 bad usage.";

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

    /// Publishes of one producer without a confirm yet. More is faster up to some hundreds; beyond some thousands
    /// it is slower again
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..))]
    pub window: u16,

    /// A publish without an answer for this long is counted as unconfirmed
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = duration)]
    pub confirm_timeout: Duration,

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
