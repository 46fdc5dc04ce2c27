//! What the arguments mean, complete before anything is opened.

use std::ops::RangeInclusive;
use std::time::Duration;

use broker::connection::ConnectionOptions;
use broker::endpoint::{Endpoint, EndpointError, parse_list};
use broker::publisher::PublisherOptions;
use protocol::names::consumer_id;

use crate::args::Args;

/// Without a user in the broker's URL, this is user and password.
const DEFAULT_USER: &str = "producer";

/// Each producer is a task with an AMQP channel and a window of messages.
const PRODUCERS_MAX: u64 = 10_000;

/// A shorter deadline would give up what a healthy broker is about to confirm.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// A run of producers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Numbers of the producers.
    pub producers: RangeInclusive<u64>,
    /// Numbers of the consumers.
    pub consumers: RangeInclusive<u64>,
    /// The broker's nodes, at least one.
    pub endpoints: Vec<Endpoint>,
    /// How connections are made.
    pub connection: ConnectionOptions,
    /// How much is in flight, and for how long.
    pub publisher: PublisherOptions,
    /// From one message to the next; `None` in a load run.
    pub interval: Option<Duration>,
    /// Whether messages survive a restart of the broker.
    pub persistent: bool,
    /// Messages of each producer; `None` is without end.
    pub count: Option<u64>,
    /// After this long the run stops as on a signal.
    pub duration: Option<Duration>,
    /// Bodies are padded to this many bytes.
    pub size: Option<usize>,
    /// For outstanding confirms at the end.
    pub drain_timeout: Duration,
}

/// What is wrong with the arguments, and what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A range that runs backwards.
    #[error("first {what} {first} is greater than last {what} {last}; give the smaller number first")]
    Range {
        /// producer or consumer
        what: &'static str,
        /// As given.
        first: u64,
        /// As given.
        last: u64,
    },
    /// More producers than one process runs.
    #[error("{0} producers; run at most {PRODUCERS_MAX} in one process")]
    TooMany(u64),
    /// The broker's URL.
    #[error("--amqp-url: {0}")]
    Endpoint(#[from] EndpointError),
    /// A deadline that nothing can meet.
    #[error("--{0} is 0; give at least 1ms")]
    Timeout(&'static str),
    /// A heartbeat that AMQP cannot express.
    #[error("--heartbeat is {0:?}; give 1 to 65535 seconds")]
    Heartbeat(Duration),
}

impl TryFrom<Args> for Config {
    type Error = ConfigError;

    fn try_from(args: Args) -> Result<Self, ConfigError> {
        let producers = range("producer", args.first_producer, args.last_producer)?;
        let consumers = range("consumer", args.first_consumer, args.last_consumer)?;
        let count = (producers.end() - producers.start()).saturating_add(1);
        if count > PRODUCERS_MAX {
            return Err(ConfigError::TooMany(count));
        }
        if !(1..=u64::from(u16::MAX)).contains(&args.heartbeat.as_secs()) {
            return Err(ConfigError::Heartbeat(args.heartbeat));
        }
        let timeouts = [
            ("confirm-timeout", Some(args.confirm_timeout)),
            ("connect-timeout", Some(args.connect_timeout)),
            ("give-up", args.give_up),
        ];
        for (name, value) in timeouts {
            if value.is_some_and(|value| value < TIMEOUT_MIN) {
                return Err(ConfigError::Timeout(name));
            }
        }
        Ok(Self {
            endpoints: parse_list(&args.amqp_url, DEFAULT_USER)?,
            connection: ConnectionOptions {
                name: format!("producers {}-{}", producers.start(), producers.end()),
                heartbeat: args.heartbeat,
                timeout: args.connect_timeout,
            },
            publisher: PublisherOptions {
                window: usize::from(args.window),
                confirm_timeout: args.confirm_timeout,
                open_timeout: args.connect_timeout,
                give_up: args.give_up,
            },
            producers,
            consumers,
            interval: Some(args.interval).filter(|interval| !interval.is_zero()),
            persistent: args.persistent,
            count: args.count,
            duration: args.duration,
            size: args.size.and_then(|size| usize::try_from(size).ok()),
            drain_timeout: args.drain_timeout,
        })
    }
}

impl Config {
    /// `consumer101 to consumer103`, as log lines name the consumers.
    pub(crate) fn consumers_text(&self) -> String {
        format!("{} to {}", consumer_id(*self.consumers.start()), consumer_id(*self.consumers.end()))
    }
}

fn range(what: &'static str, first: u64, last: u64) -> Result<RangeInclusive<u64>, ConfigError> {
    if first > last { Err(ConfigError::Range { what, first, last }) } else { Ok(first..=last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(arguments: &str) -> Result<Config, ConfigError> {
        let arguments = std::iter::once("producers").chain(arguments.split(' '));
        service::cli::try_parse_from::<Args, _>("PRODUCERS_TEST", arguments).unwrap().try_into()
    }

    #[test]
    fn four_numbers_are_enough() {
        let config = config("201 202 101 103").unwrap();
        assert_eq!((config.producers.clone(), config.consumers.clone()), (201..=202, 101..=103));
        assert_eq!(config.interval, Some(Duration::from_secs(3)));
        assert_eq!((config.count, config.duration, config.size, config.persistent), (None, None, None, false));
        assert_eq!(config.consumers_text(), "consumer101 to consumer103");
    }

    #[test]
    fn nothing_is_given_up_unless_asked_for() {
        assert_eq!(config("1 1 1 1").unwrap().publisher.give_up, None);
        assert_eq!(config("1 1 1 1 --give-up 2m").unwrap().publisher.give_up, Some(Duration::from_secs(120)));
    }

    #[test]
    fn an_interval_of_zero_is_a_load_run() {
        assert_eq!(config("1 1 1 1 --interval 0").unwrap().interval, None);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let check = |arguments: &str, expected: &str| {
            assert_eq!(config(arguments).unwrap_err().to_string(), expected);
        };
        check("2 1 1 1", "first producer 2 is greater than last producer 1; give the smaller number first");
        check("1 1 3 1", "first consumer 3 is greater than last consumer 1; give the smaller number first");
        check("1 10001 1 1", "10001 producers; run at most 10000 in one process");
        check("0 18446744073709551615 1 1", "18446744073709551615 producers; run at most 10000 in one process");
        check("1 1 1 1 --confirm-timeout 0", "--confirm-timeout is 0; give at least 1ms");
        check("1 1 1 1 --give-up 0", "--give-up is 0; give at least 1ms");
        check("1 1 1 1 --heartbeat 0.5", "--heartbeat is 500ms; give 1 to 65535 seconds");
    }

    #[test]
    fn a_broker_url_is_refused_without_its_password() {
        let error = config("1 1 1 1 --amqp-url http://u:secret@h").unwrap_err().to_string();
        assert!(error.starts_with("--amqp-url: ") && !error.contains("secret"), "{error}");
    }
}
