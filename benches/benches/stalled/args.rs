//! How many, how long.

use std::path::PathBuf;
use std::time::Duration;

use bench::stalled::Settings;
use clap::Parser;

/// The default of the proxy.
pub(crate) const WINDOW: u64 = 16;
/// Under way at full speed: enough to keep broker, proxy and clients busy, and far from the limit of any mailbox.
pub(crate) const IN_FLIGHT: u64 = 1000;
/// A short text, as producers send it.
pub(crate) const BODY_BYTES: usize = 130;
/// Sixteen of them are four times the proxy's send buffer, and the client's receive buffer is small.
pub(crate) const STALLED_BODY_BYTES: usize = 16 * 1024;
/// Behind the window of a stalled client.
pub(crate) const BACKLOG: u64 = 16;
/// Of the run that is thrown away.
const WARM_UP: Duration = Duration::from_secs(3);

/// What clients that never read cost the others, measured on a private RabbitMQ and the built auth-proxy
///
/// For each share of stalled clients in turn, and so several times: connects all clients, fills window and mailbox of the
/// stalled ones, then publishes to the others, first at a fixed rate, then as fast as messages arrive. Linux only.
#[derive(Clone, Debug, Parser)]
#[command(name = "stalled", max_term_width = 100)]
pub(crate) struct Args {
    /// Clients, stalled ones included; at most 16,000
    #[arg(long, value_name = "N", default_value = "2000", value_parser = clap::value_parser!(u64).range(10..=16_000))]
    pub(crate) sessions: u64,
    /// Shares of stalled clients in percent, below 100, comma separated; 0 is what the others are compared with
    #[arg(long, value_name = "PERCENT", default_value = "0,1,10", value_delimiter = ',', value_parser = percent)]
    pub(crate) shares: Vec<f64>,
    /// How often each share is measured
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) rounds: u64,
    /// How long each of the two phases is measured, after a fifth of that to warm up
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// Messages a second at the fixed rate; well below full speed, or they pile up
    #[arg(long, value_name = "N", default_value = "2000", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) rate: u64,
    /// Where DATE-MACHINE/stalled.json is written; cargo runs a benchmark in the directory of its package
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/runs"))]
    pub(crate) runs: PathBuf,
    /// Mark the results as not for comparison
    #[arg(long)]
    pub(crate) quick: bool,
}

impl Args {
    /// The same in short.
    pub(crate) fn warm_up(&self) -> Args {
        Args { seconds: self.seconds.min(WARM_UP), ..self.clone() }
    }

    /// For the file.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            sessions: self.sessions,
            window: WINDOW,
            rounds: self.rounds,
            seconds: self.seconds.as_secs_f64(),
            rate: self.rate,
            in_flight: IN_FLIGHT,
            body_bytes: BODY_BYTES as u64,
            stalled_body_bytes: STALLED_BODY_BYTES as u64,
            backlog: BACKLOG,
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok().filter(|percent| (0.0..100.0).contains(percent));
    percent.ok_or_else(|| "expected a percentage below 100".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let time = service::cli::duration(text)?;
    // The periods after which a stalled session is cut are longer than all of a measurement at these.
    let good = (Duration::from_secs(1)..=Duration::from_secs(300)).contains(&time);
    if good { Ok(time) } else { Err("expected one second to five minutes".to_owned()) }
}
