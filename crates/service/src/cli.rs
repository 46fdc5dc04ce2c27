//! The command line: options, the environment variables behind them, and bad usage in one line.
//!
//! A program states its options once, as long flags. Each flag gets an environment variable, the flag
//! in capitals after the program's prefix, so that nothing in a user's environment (`WINDOW`, `URL`,
//! `COUNT`) sets one by accident. A flag that states its own variable (`AMQP_URL`) keeps it.

use std::ffi::OsString;
use std::time::Duration;

use clap::ArgAction;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// How a program ends on bad usage or configuration; nothing has been opened by then.
pub const EXIT_USAGE: i32 = 2;

/// The longest duration an option takes: ten years, so that adding it to a clock never overflows.
const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Reads the program's arguments and environment.
///
/// On bad usage one line goes to stderr and the process exits with [`EXIT_USAGE`]; `--help` and
/// `--version` print and exit with 0.
pub fn parse<A: clap::Parser>(prefix: &str) -> A {
    try_parse_from(prefix, std::env::args_os()).unwrap_or_else(|error| exit_with(&error))
}

/// As [`parse`], with the arguments given (the first one is the program's name) and nothing printed.
///
/// # Errors
/// What clap says; [`usage_line`] makes it one line.
pub fn try_parse_from<A, I>(prefix: &str, arguments: I) -> Result<A, clap::Error>
where
    A: clap::Parser,
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    let mut command = with_environment(A::command(), prefix);
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    A::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// What is wrong and what to do, in one line without the program's name.
pub fn usage_line(error: &clap::Error) -> String {
    let rendered = error.render().to_string();
    // clap's first paragraph says what is wrong (a missing argument's name stands on a line of its
    // own there); tips, the usage and "try --help" follow.
    let what = rendered
        .split("\n\n")
        .next()
        .unwrap_or_default()
        .trim()
        .trim_start_matches("error: ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    match suggestion(error) {
        Some(name) => format!("{what}; did you mean {name}? (see --help)"),
        None => format!("{what} (see --help)"),
    }
}

/// A usage error that a program finds after clap has read the arguments, in the same one line.
pub fn usage_error(message: impl std::fmt::Display) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, message)
}

/// Prints `error` as [`parse`] does and ends the process; for `main` alone.
pub fn exit_with(error: &clap::Error) -> ! {
    if error.use_stderr() {
        eprintln!("{}: {}", program_name(), usage_line(error));
        std::process::exit(EXIT_USAGE);
    }
    // A closed stdout (`producers --help | head -1`) is no reason to fail.
    let _ = error.print();
    std::process::exit(0);
}

/// Value parser: a plain number is seconds (`3`, `0`, `0.5`), else a number with a unit (`250ms`, `2m`, `1h 30m`).
///
/// # Errors
/// A sentence for the user when it is neither, or longer than ten years.
pub fn duration(text: &str) -> Result<Duration, String> {
    let parsed = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    };
    match parsed {
        Some(duration) if duration <= DURATION_MAX => Ok(duration),
        Some(_) => Err("longer than ten years".to_owned()),
        None => Err("expected seconds (3, 0.5) or a number with a unit (250ms, 2m)".to_owned()),
    }
}

/// How the log lines look; flattened into each program's options.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LogArgs {
    /// How log lines look. What is logged: RUST_LOG (default info), for example RUST_LOG=debug,lapin=warn
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
}

/// One log line's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Timestamp, level, message, fields
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

fn with_environment(command: clap::Command, prefix: &str) -> clap::Command {
    command
        .mut_args(|argument| {
            let automatic = matches!(
                argument.get_action(),
                ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
            );
            let argument = match argument.get_long() {
                Some(long) if !automatic && argument.get_env().is_none() => {
                    let name = variable_name(prefix, long);
                    argument.env(name)
                }
                _ => argument,
            };
            // A value in the environment may be a secret, and --help ends up in bug reports.
            argument.hide_env_values(true)
        })
        .version(env!("CARGO_PKG_VERSION"))
}

fn variable_name(prefix: &str, long: &str) -> String {
    let prefix = prefix.trim_end_matches('_');
    format!("{prefix}_{long}").replace('-', "_").to_uppercase()
}

fn suggestion(error: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    kinds.iter().find_map(|kind| match error.get(*kind)? {
        ContextValue::String(name) => Some(name.clone()),
        ContextValue::Strings(names) => names.first().cloned(),
        _ => None,
    })
}

fn program_name() -> String {
    std::env::args_os()
        .next()
        .map(std::path::PathBuf::from)
        .and_then(|path| path.file_stem().map(|name| name.to_string_lossy().into_owned()))
        .unwrap_or_else(|| env!("CARGO_PKG_NAME").to_owned())
}

#[cfg(test)]
mod tests;
