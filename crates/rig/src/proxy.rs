//! The proxy in the test's own process.

use std::net::SocketAddr;
use std::time::Duration;

use auth_proxy::accept;
use auth_proxy::args::{Args, ENV_PREFIX};
use auth_proxy::config::Config;
use auth_proxy::summary::Summary;
use auth_proxy::{Listeners, RunError};
use service::cli;
use service::shutdown::Shutdown;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::admin::Admin;
use crate::tokens::SECRET;
use crate::vhost::Vhost;
use crate::wait::within;

/// Longer than any drain that a test asks for.
const STOP: Duration = Duration::from_secs(60);

/// `auth_proxy::run` in a task, on a free port. It is cut off when dropped.
pub struct Proxy {
    address: SocketAddr,
    admin: SocketAddr,
    shutdown: Shutdown,
    run: JoinSet<Result<Summary, RunError>>,
}

impl Proxy {
    /// Starts it at this vhost, with these further arguments: `&["--window", "4"]`.
    ///
    /// # Panics
    /// The arguments are wrong.
    pub fn start(vhost: &Vhost, arguments: &[&str]) -> Proxy {
        Proxy::at(&vhost.amqp_url("auth-proxy"), arguments)
    }

    /// Starts it at a broker URL: that of a relay, or one where nobody is.
    ///
    /// # Panics
    /// The arguments are wrong.
    pub fn at(amqp_url: &str, arguments: &[&str]) -> Proxy {
        let mut words = vec!["auth-proxy", "--listen", "127.0.0.1:0", "--amqp-url", amqp_url];
        if !arguments.iter().any(|word| word.starts_with("--jwt-secret")) {
            words.extend_from_slice(&["--jwt-secret", SECRET]);
        }
        if !arguments.contains(&"--admin-listen") {
            words.extend_from_slice(&["--admin-listen", "127.0.0.1:0"]);
        }
        words.extend_from_slice(arguments);
        let args: Args = cli::try_parse_from(ENV_PREFIX, words).unwrap_or_else(|e| panic!("{}", cli::usage_line(&e)));
        let config = Config::from_args(args).unwrap_or_else(|error| panic!("{error}"));
        let bind = |address| accept::bind(address).expect("a free port");
        let listeners = Listeners { clients: bind(config.listen), admin: config.admin_listen.map(bind) };
        let at = |listener: &TcpListener| listener.local_addr().expect("a bound listener has an address");
        let (address, admin) =
            (at(&listeners.clients), listeners.admin.as_ref().map(at).expect("it is among the words"));
        let shutdown = Shutdown::new();
        let mut run = JoinSet::new();
        run.spawn(auth_proxy::run(config, listeners, shutdown.clone()));
        Proxy { address, admin, shutdown, run }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Its operator's port.
    pub fn admin(&self) -> Admin {
        Admin::at(self.admin)
    }

    /// `ws://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Asks it to end, as SIGTERM does.
    pub fn drain(&self) {
        self.shutdown.begin();
    }

    /// Does not let it finish, as a second SIGTERM.
    pub fn force(&self) {
        self.shutdown.force();
    }

    /// Asks it to end and waits for that.
    ///
    /// # Panics
    /// It does not end within a minute, or not well.
    pub async fn stop(mut self) -> Summary {
        self.drain();
        self.ended().await
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// As [`stop`](Self::stop).
    pub async fn ended(&mut self) -> Summary {
        let ended = within(STOP, "the end of the proxy", self.run.join_next()).await;
        ended.expect("it ends once").expect("it does not panic").unwrap_or_else(|error| panic!("the proxy: {error}"))
    }
}
