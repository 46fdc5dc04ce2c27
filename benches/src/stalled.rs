//! What clients that never read cost the others: the file of such a run. `benches/stalled` measures it.

mod table;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{
    CollectError,
    run::{About, read_json},
};

/// The name of such files.
pub(crate) const FILE: &str = "stalled.json";

/// One run: shares of stalled clients in turn, and that several times.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    #[serde(flatten)]
    about: About,
    settings: Settings,
    samples: Vec<Sample>,
}

/// What was the same for all of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Sessions, stalled ones included.
    pub sessions: u64,
    /// Messages that a session may hold unacked.
    pub window: u64,
    /// How often each share was measured.
    pub rounds: u64,
    /// How long each of the two phases was measured, in seconds, after a warm-up.
    pub seconds: f64,
    /// Messages a second of the phase with a fixed rate.
    pub rate: u64,
    /// Messages that are under way in the phase without one.
    pub in_flight: u64,
    /// Bytes of a message to a client that reads.
    pub body_bytes: u64,
    /// Bytes of a message to a stalled one: its window is more than its socket takes.
    pub stalled_body_bytes: u64,
    /// Messages that wait in the mailbox of a stalled one, behind its window.
    pub backlog: u64,
}

/// One share of stalled clients, measured once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// 1, 2, …
    pub round: u64,
    /// The share that was asked for, in percent.
    pub percent: f64,
    /// So many sessions are stalled.
    pub stalled: u64,
    /// Lanes that carry sessions.
    pub lanes: u64,
    /// Unacked messages of stalled sessions on the lane that has most of them: for that long the broker looks at each
    /// ack there.
    pub open_tags: u64,
    /// Messages come at a fixed rate.
    pub fixed_rate: Phase,
    /// A message is published for each that arrived.
    pub full_speed: Phase,
}

/// What was seen while messages went to those who read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Messages that arrived.
    pub received: u64,
    /// The same a second.
    pub per_second: f64,
    /// Half of the messages took at most so many µs from being sent to being read.
    pub p50_us: u64,
    /// 99 % took at most so many.
    pub p99_us: u64,
    /// None took longer.
    pub max_us: u64,
    /// CPU of the broker, µs a message.
    pub broker_us: f64,
    /// CPU of the proxy, µs a message.
    pub proxy_us: f64,
    /// CPU of clients and publishers together, µs a message.
    pub clients_us: f64,
    /// Cores that were busy outside the kernel with something else, or were another machine's: noise.
    pub others_cores: f64,
}

/// Writes a run of this moment to `DATE-MACHINE/stalled.json` below `runs` and returns its table.
///
/// # Errors
/// The file cannot be written.
pub fn keep(settings: Settings, samples: Vec<Sample>, runs: &Path, quick: bool) -> Result<String, CollectError> {
    let run = Run { about: About::here_and_now(quick), settings, samples };
    let file = run.about.write_below(runs, FILE, &run)?;
    eprintln!("written: {}", file.display());
    Ok(table::render(&run))
}

/// The table of a file that was kept.
pub(crate) fn table_of(file: &Path) -> Result<String, CollectError> {
    Ok(table::render(&read_json(file)?))
}
