//! Log lines on stdout.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

use crate::cli::{LogArgs, LogFormat};

/// What is logged unless `RUST_LOG` says otherwise. lapin tells at error level what it also returns as an error (each
/// lost connection, each probe that finds no queue), and at warn level each returned message with its whole body: the
/// programs say the former in their own words, and count the latter.
const DEFAULT_FILTER: &str = "info,lapin=off";

/// Starts logging for the whole process. A second call changes nothing, so tests may call it too.
///
/// An entry of `RUST_LOG` that cannot be read is reported on stderr and left out.
pub fn init(arguments: &LogArgs) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(std::env::var("RUST_LOG").ok().as_deref()))
        .with_target(false)
        // A closed stdout would otherwise bring a line on stderr for each line that is lost.
        .log_internal_errors(false)
        .with_ansi(std::io::stdout().is_terminal());
    let result = match arguments.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    // The only error is a subscriber that is already there.
    let _ = result;
}

fn filter(wanted: Option<&str>) -> EnvFilter {
    let wanted = wanted.filter(|text| !text.trim().is_empty());
    let filter = EnvFilter::new("");
    entries(DEFAULT_FILTER).chain(wanted.into_iter().flat_map(entries)).fold(filter, EnvFilter::add_directive)
}

fn entries(text: &str) -> impl Iterator<Item = Directive> + '_ {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).filter_map(|entry| {
        entry.parse().inspect_err(|error| eprintln!("RUST_LOG: `{entry}` is left out: {error}")).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[track_caller]
    fn check(wanted: Option<&str>, expected: &[&str]) {
        let shown = filter(wanted).to_string();
        let mut directives: Vec<_> = shown.split(',').collect();
        directives.sort_unstable();
        assert_eq!(directives, expected);
    }

    #[test]
    fn lapin_is_silent_unless_asked_for() {
        check(None, &["info", "lapin=off"]);
        check(Some(" "), &["info", "lapin=off"]);
        check(Some("debug"), &["debug", "lapin=off"]);
        check(Some("lapin=warn"), &["info", "lapin=warn"]);
        check(Some("producers=trace,nonsense=loud"), &["info", "lapin=off", "producers=trace"]);
    }
}
