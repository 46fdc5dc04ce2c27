//! Keeps the results of a benchmark run, or shows those that were kept.

use std::{
    env,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use bench::{keep, table_of};

const USAGE: &str = "\
usage: collect CRITERION_DIR RUNS_DIR [--quick]   write RUNS_DIR/DATE-MACHINE/criterion.json and print its table
       collect --table FILE                       print the table of such a file (see scripts/bench)";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let table = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--table", file] => table_of(Path::new(file)),
        [criterion, runs] => keep(Path::new(criterion), Path::new(runs), false),
        [criterion, runs, "--quick"] => keep(Path::new(criterion), Path::new(runs), true),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let shown = table
        .map_err(|error| error.to_string())
        .and_then(|table| write!(io::stdout(), "{table}").map_err(|error| error.to_string()));
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
