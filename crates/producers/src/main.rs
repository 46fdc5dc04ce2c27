//! Publishes numbered messages to consumers: reads the arguments and runs the library.

use std::process::ExitCode;

use anyhow::Context as _;
use producers::{Args, Config, args::ENV_PREFIX, run};
use service::{cli, program, telemetry};

fn main() -> anyhow::Result<ExitCode> {
    let args: Args = cli::parse(ENV_PREFIX);
    let log = args.log.clone();
    let config = Config::try_from(args).unwrap_or_else(|error| cli::exit_with(&cli::usage_error(error)));
    telemetry::init(&log);
    let totals = program::run(async |shutdown| run(config, shutdown).await).context("cannot start the runtime")??;
    Ok(if totals.is_all_confirmed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
