//! What was meant: complete and checked before a socket opens.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use protocol::names::{Address, DEFAULT_CLIENT, NameError, consumer_id};
use protocol::token::{DEVELOPMENT_KEY, Minter, TokenError};
use secrecy::SecretString;
use url::Url;

use crate::args::{Args, Protocol};
use crate::behaviour::{Behaviour, Behaviours};

/// More sockets than one machine carries, and few enough that counting them cannot overflow.
const INSTANCES_MAX: u64 = 1_000_000;

/// Bad configuration: what is wrong and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// `last` is below `first`.
    #[error("the last consumer {last} is below the first {first}; give the lower number first")]
    Backwards {
        /// As typed.
        first: u64,
        /// As typed.
        last: u64,
    },
    /// More than a machine carries.
    #[error("{consumers} consumers with {instances} instances each are too many; {INSTANCES_MAX} instances at most")]
    TooMany {
        /// Consumers asked for.
        consumers: u128,
        /// Instances of each.
        instances: u64,
    },
    /// A `--url` that cannot be used.
    #[error("--url {url:?}: {problem}")]
    Url {
        /// As typed.
        url: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// Raw has no acks.
    #[error("{option} is about acks, which raw does not have; leave it out or give --protocol v1")]
    OnlyV1 {
        /// The option.
        option: &'static str,
    },
    /// The shares are more than everyone.
    #[error("the shares of --stall, --no-ack and --slow are more than 100 % together; give smaller ones")]
    Shares,
    /// No mailbox could have that name.
    #[error("--client-id: {0}; use a shorter one")]
    Name(#[from] NameError),
    /// Two secrets.
    #[error("--jwt-secret (JWT_SECRET) and --jwt-secret-file (JWT_SECRET_FILE) are both given; give one of them")]
    TwoSecrets,
    /// The secret's file cannot be read.
    #[error("--jwt-secret-file {}: {error}; give a file with the secret as text", path.display())]
    SecretFile {
        /// As typed.
        path: PathBuf,
        /// What the operating system says.
        error: std::io::Error,
    },
    /// The secret makes no tokens.
    #[error("--jwt-secret: {0}")]
    Token(#[from] TokenError),
}

/// A proxy to connect to.
#[derive(Clone, Debug)]
pub struct Target {
    /// Host name or address, as `TcpStream::connect` takes it.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The URL without an instance.
    pub url: Url,
}

impl Target {
    /// Reads a `ws://` URL.
    ///
    /// # Errors
    /// A [`ConfigError::Url`] that says why it cannot be used.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let problem = |problem: &str| ConfigError::Url { url: text.to_owned(), problem: problem.to_owned() };
        let url = Url::parse(text).map_err(|error| problem(&format!("{error}; give ws://HOST:PORT")))?;
        match url.scheme() {
            "ws" => {}
            "wss" => return Err(problem("TLS is not built in; give the ws:// address behind the TLS endpoint")),
            _ => return Err(problem("not a WebSocket address; give ws://HOST:PORT")),
        }
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(problem("user, password and fragment mean nothing here; leave them out"));
        }
        if url.query_pairs().any(|(name, _)| matches!(&*name, "instance" | "window" | "resume")) {
            return Err(problem("instance, window (--window) and resume are added to it; leave them out"));
        }
        let host = match url.host() {
            Some(url::Host::Domain(name)) => name.to_owned(),
            Some(url::Host::Ipv4(address)) => address.to_string(),
            Some(url::Host::Ipv6(address)) => address.to_string(),
            None => return Err(problem("no host; give ws://HOST:PORT")),
        };
        let port = url.port_or_known_default().ok_or_else(|| problem("no port; give ws://HOST:PORT"))?;
        Ok(Self { host, port, url })
    }

    /// The URL of one instance.
    #[must_use]
    pub fn url_of(&self, instance: u64, window: Option<u16>, resume: bool) -> Url {
        let mut url = self.url.clone();
        let mut query = url.query_pairs_mut();
        query.append_pair("instance", &instance.to_string());
        if let Some(window) = window {
            query.append_pair("window", &window.to_string());
        }
        if resume {
            query.append_pair("resume", "true");
        }
        drop(query);
        url
    }
}

/// Everything [`run`](crate::run) needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Numbers of the consumers.
    pub consumers: RangeInclusive<u64>,
    /// Instances of each, from 1.
    pub instances: u64,
    /// Where to connect, in turn. Not empty.
    pub targets: Vec<Target>,
    /// Makes a token for each connection.
    pub minter: Minter,
    /// Whether `minter` uses the public development key.
    pub development_key: bool,
    /// `client_id` of the tokens.
    pub client: Option<String>,
    /// Life of a token.
    pub token_ttl: Duration,
    /// The dialect.
    pub protocol: Protocol,
    /// The window to ask for.
    pub window: Option<u16>,
    /// Who behaves badly.
    pub behaviours: Behaviours,
    /// Connects in progress at a time.
    pub connect_concurrency: usize,
    /// For the TCP connection.
    pub connect_timeout: Duration,
    /// For the answer to the upgrade.
    pub upgrade_timeout: Duration,
    /// For a goodbye.
    pub close_timeout: Duration,
    /// For an answer in v1.
    pub answer_timeout: Duration,
    /// Silence that ends a raw connection and makes a v1 one ask; `None` never does.
    pub idle_timeout: Option<Duration>,
    /// The longest pause before a reconnect.
    pub backoff_cap: Duration,
    /// When to stop by itself.
    pub duration: Option<Duration>,
    /// How long a message waits for the instances that do not have it yet.
    pub flush_after: Duration,
}

impl Config {
    /// Checks what was typed; reads the secret's file.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn new(args: Args) -> Result<Self, ConfigError> {
        let consumers = consumers(&args)?;
        let targets = args.url.iter().map(|url| Target::parse(url)).collect::<Result<Vec<_>, _>>()?;
        longest_address(&args).queue()?;
        let behaviours = behaviours(&args)?;
        let development_key = args.jwt_secret.is_none() && args.jwt_secret_file.is_none();
        let minter = Minter::hs256(&secret(args.jwt_secret, args.jwt_secret_file)?)?;
        Ok(Self {
            consumers,
            instances: args.instances,
            targets,
            minter,
            development_key,
            client: args.client_id,
            token_ttl: args.token_ttl,
            protocol: args.protocol,
            window: args.window,
            behaviours,
            connect_concurrency: usize::try_from(args.connect_concurrency).unwrap_or(usize::MAX),
            connect_timeout: args.connect_timeout,
            upgrade_timeout: args.upgrade_timeout,
            close_timeout: args.close_timeout,
            answer_timeout: args.answer_timeout,
            idle_timeout: Some(args.idle_timeout).filter(|time| !time.is_zero()),
            backoff_cap: args.backoff_cap,
            duration: args.duration,
            flush_after: args.flush_after,
        })
    }

    /// How many instances there are in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        (self.consumers.end() - self.consumers.start()).saturating_add(1).saturating_mul(self.instances)
    }

    /// Who behaves badly on purpose, in a line for each way.
    #[must_use]
    pub fn misbehaving(&self) -> Vec<String> {
        let name = |index: u64| {
            let (consumer, instance) = (index / self.instances.max(1), index % self.instances.max(1));
            Address {
                client: self.client.clone().unwrap_or_else(|| DEFAULT_CLIENT.to_owned()),
                consumer: consumer_id(self.consumers.start().saturating_add(consumer)),
                instance: (instance + 1).to_string(),
            }
            .log_name()
            .to_string()
        };
        self.behaviours.lines(self.total(), name)
    }

    /// `(consumer101 to consumer103)*2`, as log lines name them.
    #[must_use]
    pub fn who(&self) -> String {
        let (first, last) = (consumer_id(*self.consumers.start()), consumer_id(*self.consumers.end()));
        format!("({first} to {last})*{}", self.instances)
    }
}

fn consumers(args: &Args) -> Result<RangeInclusive<u64>, ConfigError> {
    let &Args { first, last, instances, .. } = args;
    if last < first {
        return Err(ConfigError::Backwards { first, last });
    }
    let consumers = u128::from(last - first) + 1;
    if consumers.saturating_mul(u128::from(instances)) > u128::from(INSTANCES_MAX) {
        return Err(ConfigError::TooMany { consumers, instances });
    }
    Ok(first..=last)
}

fn behaviours(args: &Args) -> Result<Behaviours, ConfigError> {
    let raw = args.protocol == Protocol::Raw;
    if let Some((option, _)) =
        [("--slow", args.slow.is_some()), ("--no-ack", args.no_ack)].into_iter().find(|(_, given)| *given && raw)
    {
        return Err(ConfigError::OnlyV1 { option });
    }
    let stall = args.stall.then_some((Behaviour::Stall, args.stall_share));
    let no_ack = args.no_ack.then_some((Behaviour::NoAck, args.no_ack_share));
    let slow = args.slow.map(|time| (Behaviour::Slow(time), args.slow_share));
    Behaviours::new([stall, no_ack, slow].into_iter().flatten().collect()).ok_or(ConfigError::Shares)
}

/// Its queue has the longest name; when it fits, all do.
fn longest_address(args: &Args) -> Address {
    Address {
        client: args.client_id.clone().unwrap_or_else(|| DEFAULT_CLIENT.to_owned()),
        consumer: consumer_id(args.last),
        instance: args.instances.to_string(),
    }
}

fn secret(text: Option<String>, file: Option<PathBuf>) -> Result<SecretString, ConfigError> {
    match (text, file) {
        (Some(_), Some(_)) => Err(ConfigError::TwoSecrets),
        (Some(text), None) => Ok(SecretString::from(text)),
        (None, Some(path)) => match std::fs::read_to_string(&path) {
            Ok(text) => Ok(SecretString::from(text.trim_end_matches(['\r', '\n']).to_owned())),
            Err(error) => Err(ConfigError::SecretFile { path, error }),
        },
        (None, None) => Ok(SecretString::from(DEVELOPMENT_KEY)),
    }
}

#[cfg(test)]
mod tests;
