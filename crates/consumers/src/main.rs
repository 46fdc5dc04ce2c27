//! Connects instances by the thousand and says what arrived and what is missing.

use std::process::ExitCode;

use anyhow::Context as _;
use consumers::{Args, Config, Totals, args::ENV_PREFIX};
use service::shutdown::{Shutdown, on_signals};
use service::{cli, telemetry};
use tokio::task::JoinSet;

fn main() -> anyhow::Result<ExitCode> {
    let args: Args = cli::parse(ENV_PREFIX);
    let log = args.log.clone();
    let config = Config::new(args).unwrap_or_else(|error| cli::exit_with(&cli::usage_error(error)));
    telemetry::init(&log);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    let totals = runtime.block_on(run(config));
    // Not dropped: that would wait for a name lookup that hangs in a thread of its own.
    runtime.shutdown_background();
    Ok(if totals?.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn run(config: Config) -> anyhow::Result<Totals> {
    let shutdown = Shutdown::new();
    let mut signals = JoinSet::new();
    signals.spawn(on_signals(shutdown.clone()));
    Ok(consumers::run(config, shutdown).await?)
}
