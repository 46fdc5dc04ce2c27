//! The gateway: checks a token on the WebSocket upgrade and forwards one mailbox.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context as _;
use auth_proxy::args::{Args, ENV_PREFIX};
use auth_proxy::config::Config;
use auth_proxy::{Listeners, accept};
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
    let clients = listener(config.listen, "--listen")?;
    let admin = config.admin_listen.map(|address| listener(address, "--admin-listen")).transpose()?;
    let listeners = Listeners { clients, admin };
    say_where(&listeners).context("cannot write to stdout")?;
    auth_proxy::run(config, listeners, shutdown).await?;
    Ok(())
}

fn listener(address: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    accept::bind(address)
        .with_context(|| format!("cannot listen on {address}; free the port or choose another {option}"))
}

/// Whoever has read the line of the clients' port knows the other one.
fn say_where(listeners: &Listeners) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    if let Some(admin) = &listeners.admin {
        writeln!(stdout, "admin on {}", admin.local_addr()?)?;
    }
    writeln!(stdout, "listening on {}", listeners.clients.local_addr()?)?;
    stdout.flush()
}
