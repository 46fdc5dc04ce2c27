//! The tables of the README that the code writes: options, refusals, close codes, counts.

use std::fmt::Write as _;

use auth_proxy::end::End;
use auth_proxy::refusal::Refusal;
use clap::{Arg, ArgAction, Parser};
use protocol::close::{CloseCode, RetryWindow};
use regex::Regex;

use crate::repository::{at, read};

/// Rewrites what differs instead of failing, as the crate `expect-test` does.
const UPDATE: &str = "UPDATE_EXPECT";

#[test]
fn the_tables_of_the_readme_are_what_the_code_says() {
    let before = read("README.md");
    let mut after = before.clone();
    let mut stale = Vec::new();
    for (name, table) in tables() {
        let (start, end) = (format!("<!-- table: {name} -->\n"), "<!-- end of table -->".to_owned());
        let head = after.find(&start).unwrap_or_else(|| panic!("README.md has no line {start:?}")) + start.len();
        let length = after[head..].find(&end).unwrap_or_else(|| panic!("table {name:?} of README.md has no end"));
        if after[head..head + length] != table {
            stale.push(name);
            after.replace_range(head..head + length, &table);
        }
    }
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(at("README.md"), after).unwrap();
    } else {
        assert!(stale.is_empty(), "{UPDATE}=1 cargo test -p e2e --test docs: README.md is behind in {stale:?}");
    }
}

fn tables() -> [(&'static str, String); 8] {
    [
        ("options of producers", options::<producers::Args>(producers::args::ENV_PREFIX)),
        ("options of auth-proxy", options::<auth_proxy::args::Args>(auth_proxy::args::ENV_PREFIX)),
        ("options of consumers", options::<consumers::Args>(consumers::args::ENV_PREFIX)),
        ("refusals", refusals()),
        ("close codes", close_codes()),
        ("counts", counts()),
        ("benchmarks", benchmarks("criterion.json")),
        ("stalled clients", benchmarks("stalled.json")),
    ]
}

/// The families of a page of `/metrics`, with the values of short labels.
fn counts() -> String {
    let page = auth_proxy::metrics::first_page().unwrap();
    let described = Regex::new(r"(?m)^# HELP (\S+) (.*)\n# TYPE \S+ (\S+)$").unwrap();
    let mut table = "| name | type | labels | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for family in described.captures_iter(&page) {
        let (name, help, kind) = (&family[1], family[2].trim_end_matches('.'), &family[3]);
        writeln!(table, "| `{name}` | {kind} | {} | {} |", labels(&page, name), escaped(help)).unwrap();
    }
    table
}

/// What a family is split by, with the values where there are few.
fn labels(page: &str, family: &str) -> String {
    let label = Regex::new(r#"(\w+)="([^"]*)""#).unwrap();
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let series = page.lines().filter(|line| {
        [&format!("{family}{{"), &format!("{family}_count{{")].iter().any(|start| line.starts_with(*start))
    });
    for pair in series.flat_map(|line| label.captures_iter(line)).filter(|pair| &pair[1] != "le") {
        let (name, value) = (pair[1].to_owned(), format!("`{}`", &pair[2]));
        match found.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(value),
            None => found.push((name, vec![value])),
        }
    }
    let told = found.iter_mut().map(|(name, values)| {
        values.sort();
        values.dedup();
        if values.len() > 4 { format!("`{name}`") } else { format!("`{name}`: {}", values.join(", ")) }
    });
    told.collect::<Vec<_>>().join("; ")
}

/// That of the newest run that was kept: their directories begin with the date.
fn benchmarks(name: &str) -> String {
    let runs = std::fs::read_dir(at("benches/runs")).unwrap().map(|entry| entry.unwrap().path().join(name));
    let newest = runs.filter(|file| file.is_file()).max().expect("a run of scripts/bench");
    bench::table_of(&newest).unwrap()
}

fn options<A: Parser>(prefix: &str) -> String {
    let help = help::<A>(prefix);
    let command = A::command();
    let mut table = "| option | variable | default | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for argument in command.get_arguments() {
        if matches!(argument.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::Version) {
            continue;
        }
        let (meaning, without) = meaning(argument);
        let default = default(argument).or(without).unwrap_or_else(|| "–".to_owned());
        let (option, variable) = match argument.get_long() {
            Some(long) => (long_option(argument, long), variable(&help, long)),
            None => (format!("`{}`", argument.to_string().trim_start_matches("...")), "–".to_owned()),
        };
        writeln!(table, "| {option} | {variable} | {default} | {meaning} |").unwrap();
    }
    table
}

/// As the program prints it, the variables included, which are given to the options on the way.
fn help<A: Parser>(prefix: &str) -> String {
    let printed = service::cli::try_parse_from::<A, _>(prefix, ["program", "--help"]);
    printed.err().expect("help is what clap calls an error").render().to_string()
}

fn long_option(argument: &Arg, long: &str) -> String {
    let takes_value = argument.get_action().takes_values();
    let value = argument.get_value_names().filter(|_| takes_value).and_then(<[_]>::first);
    value.map_or(format!("`--{long}`"), |name| format!("`--{long} <{name}>`"))
}

/// The variable in the part of the help that is about this option.
fn variable(help: &str, long: &str) -> String {
    let part_start = Regex::new(&format!(r"(?m)^ +(-\w, )?--{long}( |$)")).unwrap();
    let start = part_start.find(help).unwrap_or_else(|| panic!("--help has no --{long}")).end();
    let next = Regex::new(r"(?m)^ +(-\w, )?--\w").unwrap();
    let part = &help[start..];
    let part = &part[..next.find(part).map_or(part.len(), |found| found.start())];
    let variable = Regex::new(r"\[env: (\w+)\]").unwrap();
    let found = variable.captures(part).unwrap_or_else(|| panic!("--help names no variable for --{long}"));
    format!("`{}`", &found[1])
}

fn default(argument: &Arg) -> Option<String> {
    if matches!(argument.get_action(), ArgAction::SetTrue) {
        return Some("off".to_owned());
    }
    let values: Vec<_> = argument.get_default_values().iter().map(|value| value.to_str().unwrap()).collect();
    (!values.is_empty()).then(|| format!("`{}`", values.join(",")))
}

/// What the help says in short, and a default that only its words tell.
fn meaning(argument: &Arg) -> (String, Option<String>) {
    let help = argument.get_help().unwrap_or_else(|| panic!("{argument} has no help")).to_string();
    let default = Regex::new(r" \[default: ([^\]]+)\]$").unwrap();
    let without = default.captures(&help).map(|found| found[1].to_owned());
    (escaped(&default.replace(&help, "")), without)
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "\\<")
}

fn refusals() -> String {
    let mut table = "| status | name | headers | the answer says |\n| --- | --- | --- | --- |\n".to_owned();
    for refusal in Refusal::ALL {
        let answer = String::from_utf8(refusal.answer_to(None)).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let usual = ["Content-Type", "Content-Length", "Cache-Control", "Connection"];
        let is_special = |line: &&str| !usual.iter().any(|name| line.starts_with(name));
        let special: Vec<_> = head.lines().skip(1).filter(is_special).map(|line| format!("`{line}`")).collect();
        let (status, label, headers) = (refusal.status(), refusal.label(), special.join(", "));
        writeln!(table, "| {status} | `{label}` | {headers} | {} |", escaped(body.trim_end())).unwrap();
    }
    table
}

fn close_codes() -> String {
    let sent = sent_today();
    let mut table =
        "| code | name | meaning | the client should | sent today |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for code in CloseCode::ALL {
        let (number, label, meaning, advice) = (code.code(), code.label(), code.meaning(), code.advice());
        let sent = if sent.contains(code) { "yes" } else { "–" };
        writeln!(table, "| {number} | `{label}` | {meaning} | {advice} | {sent} |").unwrap();
    }
    table
}

/// The codes of every way in which a session ends.
fn sent_today() -> Vec<CloseCode> {
    let text = String::new;
    let protocol = |code| End::Protocol(code, text());
    let ends = [
        End::Closed(None),
        End::Gone(text()),
        End::Expired,
        End::Replaced,
        End::Draining(RetryWindow { min_ms: 0, max_ms: 0 }),
        End::DoesNotRead,
        End::NoAck,
        End::BrokerUnavailable,
        End::ContractBroken(text()),
        End::NoPong,
        End::MailboxLost(text()),
        protocol(CloseCode::Protocol),
        protocol(CloseCode::NotUtf8),
        protocol(CloseCode::TooBig),
        protocol(CloseCode::Internal),
    ];
    for end in &ends {
        // Whoever adds a way to end finds this list.
        match end {
            End::Closed(_) | End::Gone(_) | End::Expired | End::Replaced | End::Draining(_) => {}
            End::DoesNotRead | End::NoPong | End::NoAck | End::BrokerUnavailable => {}
            End::ContractBroken(_) | End::MailboxLost(_) | End::Protocol(..) => {}
        }
    }
    ends.iter().filter_map(End::close_code).collect()
}
