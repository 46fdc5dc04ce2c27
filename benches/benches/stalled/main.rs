//! What clients that never read cost the others: `scripts/bench stalled` runs it, on a private RabbitMQ and one proxy.
//!
//! In the order of a measurement:
//!
//! - `args`: how many, how long.
//! - `clients`: sessions that read and ack at once, and among them some that never do.
//! - `load`: messages to those who read, at a fixed rate, or as fast as they arrive.
//! - `score`: what arrived, and when.
//! - `lanes`: what the broker holds unacked, lane by lane.
//! - `meter`: CPU time.
//! - `sample`: one share of stalled clients, measured once.

#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to measure")]

mod args;
mod clients;
mod lanes;
mod load;
mod meter;
mod sample;
mod score;

use std::env;
use std::process::ExitCode;

use bench::stalled::Sample;
use clap::Parser as _;
use rig::Node;

use args::Args;
use sample::{Place, sample};

/// Sockets beside those of the sessions.
const DESCRIPTORS_BESIDE: u64 = 256;
/// Cores that other work may take before the numbers are worth nothing.
const OTHERS_MAX: f64 = 0.1;

fn main() -> ExitCode {
    // Cargo says it to every benchmark.
    let args = Args::parse_from(env::args_os().filter(|arg| arg != "--bench"));
    // The proxy inherits the limit.
    let wanted = args.sessions + DESCRIPTORS_BESIDE;
    let limit = service::descriptors::raise(wanted).map_or(0, |limit| limit.soft);
    assert!(limit >= wanted, "{wanted} open files are needed, and the limit is {limit}: see `ulimit -Hn`");
    let ended = service::program::run(async |shutdown| {
        tokio::select! {
            () = run(&args) => ExitCode::SUCCESS,
            // Broker and proxy end with what was dropped here.
            () = shutdown.begun() => ExitCode::FAILURE,
        }
    });
    ended.expect("threads and an event queue")
}

async fn run(args: &Args) {
    let place = Place::on(Node::private().await);
    // The first of all would pay for what is cold: the broker's code and tables, the caches of the machine.
    eprintln!("warming up");
    let _ = sample(&args.warm_up(), &place, 0, 0.0).await;
    let mut samples = Vec::new();
    for round in 1..=args.rounds {
        for percent in &args.shares {
            let sample = sample(args, &place, round, *percent).await;
            eprintln!("round {round} of {}: {}", args.rounds, sample::told(&sample));
            samples.push(sample);
        }
    }
    warn_if_busy(&samples);
    let table =
        bench::stalled::keep(args.settings(), samples, &args.runs, args.quick).expect("the results can be kept");
    print!("{table}");
}

fn warn_if_busy(samples: &[Sample]) {
    let busy = |sample: &&Sample| sample.fixed_rate.others_cores.max(sample.full_speed.others_cores) > OTHERS_MAX;
    let busy = samples.iter().filter(busy).count();
    if busy > 0 {
        eprintln!("something else took more than {OTHERS_MAX} cores in {busy} of {}: do not keep these", samples.len());
    }
}
