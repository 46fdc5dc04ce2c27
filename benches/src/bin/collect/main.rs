//! Keeps the results of a benchmark run: Criterion's estimates become one JSON file, and that becomes a table.
//!
//! - `run`: the file: where and when, and what came out.
//! - `machine`: which machine this is, without its name.
//! - `estimates`: what Criterion left in its directory.
//! - `table`: a run as Markdown.

mod estimates;
mod machine;
mod run;
mod table;

use std::{
    env,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use run::Run;

const USAGE: &str = "\
usage: collect CRITERION_DIR RUNS_DIR [--quick]   write RUNS_DIR/DATE-MACHINE/criterion.json and print its table
       collect --table FILE                       print the table of such a file (see scripts/bench)";

/// What can go wrong between the files.
#[derive(Debug, thiserror::Error)]
enum CollectError {
    #[error("{USAGE}")]
    Usage,
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    #[error("{path} is not what it should be: {source}")]
    Format { path: String, source: serde_json::Error },
    #[error("{path} holds no result of a benchmark")]
    Nothing { path: String },
    #[error("{0}")]
    Output(#[from] io::Error),
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match collect(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(if matches!(error, CollectError::Usage) { 2 } else { 1 })
        }
    }
}

fn collect(args: &[&str]) -> Result<(), CollectError> {
    let run = match args {
        ["--table", file] => Run::read(Path::new(file))?,
        [criterion, runs] => keep(criterion, runs, false)?,
        [criterion, runs, "--quick"] => keep(criterion, runs, true)?,
        _ => return Err(CollectError::Usage),
    };
    write!(io::stdout(), "{}", table::render(&run))?;
    Ok(())
}

fn keep(criterion: &str, runs: &str, quick: bool) -> Result<Run, CollectError> {
    let run = Run::here_and_now(estimates::read_all(Path::new(criterion))?, quick);
    let file = run.write_below(Path::new(runs))?;
    eprintln!("written: {}", file.display());
    Ok(run)
}
