//! The gateway: checks a token on the WebSocket upgrade and forwards one mailbox.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use auth_proxy::accept;
use auth_proxy::args::{Args, ENV_PREFIX};
use auth_proxy::config::Config;
use service::shutdown::{Shutdown, on_signals};
use service::telemetry;
use service::{cli, descriptors};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

fn main() -> ExitCode {
    let args: Args = cli::parse(ENV_PREFIX);
    let log = args.log.clone();
    let config = match Config::from_args(args) {
        Ok(config) => config,
        Err(error) => cli::exit_with(&cli::usage_error(error)),
    };
    telemetry::init(&log);
    // A socket each; what is short is seen by the accept loop, which then pauses and says so.
    descriptors::raise(u64::MAX);
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("auth-proxy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn serve(config: Config) -> anyhow::Result<()> {
    let listener = accept::bind(config.listen).with_context(|| format!("cannot listen on {}", config.listen))?;
    let shutdown = Shutdown::new();
    let mut watch = Box::pin(on_signals(shutdown.clone()));
    // The handlers stand before anybody learns the port: of 200 SIGTERMs right after the line, 43 met no handler yet.
    let _pending = futures::poll!(&mut watch);
    let mut signals = JoinSet::new();
    signals.spawn(watch);
    say_where(&listener).context("cannot write to stdout")?;
    auth_proxy::run(config, listener, shutdown).await?;
    Ok(())
}

fn say_where(listener: &TcpListener) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening on {}", listener.local_addr()?)?;
    stdout.flush()
}
