//! One connect over a list of endpoints.

use std::time::Duration;

use lapin::{Connection, ConnectionProperties, ErrorKind};
use rand::seq::SliceRandom;
use tokio::time::timeout;

use crate::{
    endpoint::Endpoint,
    screen::{self, Unreadable},
};

/// For one of several endpoints: one that is silent (switched off, or behind a firewall that drops) may not cost the time
/// that a slow broker gets. After an outage every link may meet it before the one that answers, and all sessions have to be
/// back long before their mailboxes expire.
const ONE_OF_SEVERAL_TIMEOUT: Duration = Duration::from_secs(5);

/// How a connection introduces itself and how long it may take.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Shown by the broker in its list of connections.
    pub name: String,
    /// A silent peer is given up after twice this long. The server's own default is 60 s, that is 120 s until noticed.
    pub heartbeat: Duration,
    /// For TCP, login and the opening of the vhost together. Of several endpoints each gets 5 s at most.
    pub timeout: Duration,
}

/// Why no endpoint could be connected.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing answered there, or it went away while connecting.
    #[error("cannot reach {endpoint}: {reason}")]
    Unreachable {
        /// The last endpoint tried, without its password.
        endpoint: String,
        /// What the operating system or the client library says.
        reason: String,
    },
    /// There is nowhere to connect to.
    #[error("no broker URL is configured")]
    NoEndpoint,
    /// The broker refused the user or the vhost.
    #[error("{endpoint} refuses the login: {reason}; check user, password and the permissions on the vhost")]
    Refused {
        /// The last endpoint tried, without its password.
        endpoint: String,
        /// What the broker says.
        reason: String,
    },
}

impl ConnectError {
    /// Whether trying again may help without anybody changing a configuration. Refusals are also worth a retry, but a
    /// slow one: a broker that is starting refuses logins until its definitions are loaded.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}

/// Connects to the first endpoint that accepts, each tried once, from a random start so that many clients spread over
/// the nodes of a cluster. What a producer wrote into a message cannot end the connection (see [`screen`]); `unreadable`
/// counts what would have.
///
/// # Errors
/// That of the first endpoint in the list, whatever the order of the tries, so that the same trouble reads the same each
/// time; a refused login goes before, since it is the one that needs a person.
///
/// # Cancel safety
/// Dropping the future drops the half-open connection; nothing is left behind.
pub async fn connect(
    endpoints: &[Endpoint],
    options: &ConnectionOptions,
    unreadable: &Unreadable,
) -> Result<Connection, ConnectError> {
    let mut order: Vec<(usize, &Endpoint)> = endpoints.iter().enumerate().collect();
    order.shuffle(&mut rand::rng());
    let mut failures = Vec::new();
    let patience = if endpoints.len() > 1 { options.timeout.min(ONE_OF_SEVERAL_TIMEOUT) } else { options.timeout };
    for (place, endpoint) in order {
        match connect_one(endpoint, options, unreadable, patience).await {
            Ok(connection) => return Ok(connection),
            Err(error) => failures.push((error.is_transient(), place, error)),
        }
    }
    let first = failures.into_iter().min_by_key(|(transient, place, _)| (*transient, *place));
    Err(first.map_or(ConnectError::NoEndpoint, |(_, _, error)| error))
}

async fn connect_one(
    endpoint: &Endpoint,
    options: &ConnectionOptions,
    unreadable: &Unreadable,
    patience: Duration,
) -> Result<Connection, ConnectError> {
    let heartbeat_s = u16::try_from(options.heartbeat.as_secs()).unwrap_or(u16::MAX).max(1);
    let properties = ConnectionProperties::default().with_connection_name(options.name.clone().into());
    let attempt = screen::connect(endpoint.to_uri(heartbeat_s), properties, &options.name, unreadable);
    match timeout(patience, Box::pin(attempt)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(classify(endpoint, &error)),
        Err(_) => Err(ConnectError::Unreachable {
            endpoint: endpoint.to_string(),
            reason: format!("no answer within {patience:?}"),
        }),
    }
}

fn classify(endpoint: &Endpoint, error: &lapin::Error) -> ConnectError {
    let (endpoint_text, reason) = (endpoint.to_string(), error.to_string());
    match error.kind() {
        // The broker names the cause: ACCESS_REFUSED (user, password), NOT_ALLOWED (vhost).
        ErrorKind::ProtocolError(_) | ErrorKind::AuthProviderError(_) => {
            ConnectError::Refused { endpoint: endpoint_text, reason }
        }
        _ => ConnectError::Unreachable { endpoint: endpoint_text, reason },
    }
}
