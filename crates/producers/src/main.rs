//! Publishes numbered messages to consumers: reads the arguments and runs the library.

use std::process::ExitCode;

use anyhow::Context as _;
use producers::{Args, Config, run};
use service::shutdown::{Shutdown, on_signals};
use service::{cli, telemetry};
use tokio::task::JoinSet;

fn main() -> anyhow::Result<ExitCode> {
    let args: Args = cli::parse("PRODUCERS");
    let log = args.log.clone();
    let config = match Config::try_from(args) {
        Ok(config) => config,
        Err(error) => cli::exit_with(&cli::usage_error(error)),
    };
    telemetry::init(&log);
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let totals = runtime.block_on(async {
        let shutdown = Shutdown::new();
        let mut signals = JoinSet::new();
        signals.spawn(on_signals(shutdown.clone()));
        run(config, shutdown).await
    });
    // Neither dropped, since that waits for a name lookup that hangs, nor shut down: a lookup that is cancelled makes a
    // thread of lapin's panic on stderr.
    std::mem::forget(runtime);
    Ok(if totals?.is_all_confirmed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
