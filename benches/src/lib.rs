//! Keeps the results of a benchmark run: Criterion's estimates become one JSON file, and that becomes a table. So do the
//! samples of the benchmark with stalled clients.
//!
//! - `run`: the file: where and when, and what came out.
//! - `machine`: which machine this is, without its name.
//! - `estimates`: what Criterion left in its directory.
//! - `table`: a run as Markdown.
//! - [`stalled`]: the file and the table of a run with stalled clients.
//! - [`histogram`]: its latencies, and [`cpu`]: its CPU time.

pub mod cpu;
mod estimates;
pub mod histogram;
mod machine;
mod run;
pub mod stalled;
mod table;

use std::{io, path::Path};

use run::Run;

/// What can go wrong between the files.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{path} is not what it should be: {source}")]
    Format {
        /// The file.
        path: String,
        /// Where it differs.
        source: serde_json::Error,
    },
    /// Criterion left nothing there.
    #[error("{path} holds no result of a benchmark")]
    Nothing {
        /// The directory.
        path: String,
    },
}

/// Makes Criterion's results below `criterion` one file below `runs`, and returns its table.
pub fn keep(criterion: &Path, runs: &Path, quick: bool) -> Result<String, CollectError> {
    let run = Run::here_and_now(estimates::read_all(criterion)?, quick);
    let file = run.write_below(runs)?;
    eprintln!("written: {}", file.display());
    Ok(table::render(&run))
}

/// The table of a file that was kept, of either kind: their names tell which.
pub fn table_of(file: &Path) -> Result<String, CollectError> {
    if file.file_name().is_some_and(|name| name == stalled::FILE) {
        return stalled::table_of(file);
    }
    Ok(table::render(&Run::read(file)?))
}
