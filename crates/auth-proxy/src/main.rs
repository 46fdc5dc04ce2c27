//! The gateway: checks a token on the WebSocket upgrade and forwards one mailbox.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context as _;
use auth_proxy::accept;
use auth_proxy::args::{Args, ENV_PREFIX};
use auth_proxy::config::Config;
use service::shutdown::Shutdown;
use service::{cli, descriptors, program, telemetry};
use tokio::net::TcpListener;

/// Gives memory back after large bodies.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args: Args = cli::parse(ENV_PREFIX);
    let log = args.log.clone();
    let config = Config::from_args(args).unwrap_or_else(|error| cli::exit_with(&cli::usage_error(error)));
    telemetry::init(&log);
    // A socket each; what is short is seen by the accept loop, which then pauses and says so.
    descriptors::raise(u64::MAX);
    // Gives freed memory back also while nothing is going on.
    let _ = tikv_jemalloc_ctl::background_thread::write(true);
    match program::run(async |shutdown| serve(config, shutdown).await).context("cannot start the runtime").flatten() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("auth-proxy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    let listener = accept::bind(config.listen)
        .with_context(|| format!("cannot listen on {}; free the port or choose another --listen", config.listen))?;
    say_where(&listener).context("cannot write to stdout")?;
    auth_proxy::run(config, listener, shutdown).await?;
    Ok(())
}

fn say_where(listener: &TcpListener) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening on {}", listener.local_addr()?)?;
    stdout.flush()
}
