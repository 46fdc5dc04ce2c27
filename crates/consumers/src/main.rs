//! Connects instances by the thousand and says what arrived and what is missing.

use std::process::ExitCode;

use anyhow::Context as _;
use consumers::{Args, Config, args::ENV_PREFIX, run};
use service::{cli, program, telemetry};

fn main() -> anyhow::Result<ExitCode> {
    let args: Args = cli::parse(ENV_PREFIX);
    let log = args.log.clone();
    let config = Config::new(args).unwrap_or_else(|error| cli::exit_with(&cli::usage_error(error)));
    telemetry::init(&log);
    let totals = program::run(async |shutdown| run(config, shutdown).await).context("cannot start the runtime")??;
    Ok(if totals.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
