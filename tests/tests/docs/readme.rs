//! README.md and CHANGELOG.md: commands that can be typed, paths and tests that exist, numbers of the code.

use std::time::Duration;

use clap::Parser;
use regex::Regex;

use crate::markdown::{code_lines, code_spans, rows, section};
use crate::repository::{at, broker_settings, programs, read};
use crate::sources::tests;

const GUARANTEES: &str = "## Guarantees";

#[test]
fn each_guarantee_names_tests_that_exist() {
    let readme = read("README.md");
    let guarantees = rows(section(&readme, GUARANTEES).expect("the README has guarantees"));
    assert!(!guarantees.is_empty(), "{GUARANTEES:?} has no table");
    let known = tests();
    for row in guarantees {
        let named = code_spans(row.last().unwrap());
        assert!(!named.is_empty(), "this guarantee names no test in its last column: {}", row[0]);
        for name in named {
            assert!(known.contains(name), "{name} is no test of this workspace: {}", row[0]);
        }
    }
}

#[test]
fn the_commands_can_be_typed() {
    let readme = read("README.md");
    let commands = cargo_runs(&readme);
    for contract in ["producers 201 202 101 103", "auth-proxy", "consumers 101 103 2"] {
        assert!(commands.iter().any(|command| command == contract), "the README lacks: cargo run --bin {contract}");
    }
    for command in commands.iter().chain(&cargo_runs(&read("docker-compose.yml"))) {
        let words: Vec<&str> = command.split_whitespace().filter(|word| *word != "--").collect();
        let parsed = match words[0] {
            "producers" => parses::<producers::Args>(producers::args::ENV_PREFIX, &words),
            "auth-proxy" => parses::<auth_proxy::args::Args>(auth_proxy::args::ENV_PREFIX, &words),
            "consumers" => parses::<consumers::Args>(consumers::args::ENV_PREFIX, &words),
            other => panic!("there is no program {other}"),
        };
        parsed.unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

/// What follows `cargo run --bin` on a line of its own, of a comment included.
fn cargo_runs(text: &str) -> Vec<String> {
    let run = Regex::new(r"(?m)^[#\s]*(?:\w+=\S+ )*cargo run (?:--release )?--bin ([^#\n]+)").unwrap();
    let found: Vec<_> = run.captures_iter(text).map(|found| found[1].trim().to_owned()).collect();
    assert!(!found.is_empty(), "no `cargo run --bin`");
    found
}

fn parses<A: Parser>(prefix: &str, words: &[&str]) -> Result<(), String> {
    service::cli::try_parse_from::<A, _>(prefix, words).map(drop).map_err(|error| service::cli::usage_line(&error))
}

#[test]
fn paths_that_documents_name_exist() {
    let path = Regex::new(r"^\.?/?((?:crates|tests|benches|scripts|docs|\.ci)/[\w./-]*[\w-])").unwrap();
    let file = Regex::new(r"^\w[\w.-]*\.(?:md|json|conf|yml|toml)$").unwrap();
    let link = Regex::new(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)").unwrap();
    for document in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        let text = read(document);
        let code = code_spans(&text).into_iter().chain(code_lines(&text));
        let words = code.flat_map(str::split_whitespace);
        let named: Vec<&str> = words
            .filter_map(|word| path.captures(word).and_then(|found| found.get(1)).or_else(|| file.find(word)))
            .map(|found| found.as_str())
            .chain(link.captures_iter(&text).filter_map(|found| found.get(1)).map(|found| found.as_str()))
            .collect();
        for name in named {
            assert!(at(name).exists(), "{document} names {name}, which does not exist");
        }
    }
}

#[test]
fn links_within_the_readme_lead_to_a_heading() {
    let readme = read("README.md");
    let anchor = |heading: &str| {
        let kept =
            heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
        kept.replace(' ', "-")
    };
    let headings: Vec<String> =
        Regex::new(r"(?m)^#+ (.+)$").unwrap().captures_iter(&readme).map(|found| anchor(&found[1])).collect();
    for found in Regex::new(r"\]\(#([^)]+)\)").unwrap().captures_iter(&readme) {
        assert!(headings.iter().any(|heading| heading == &found[1]), "no heading for #{}", &found[1]);
    }
}

#[test]
fn the_numbers_are_those_of_the_code() {
    let readme = read("README.md");
    let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    let kib = |bytes: usize| format!("{} KiB", bytes / 1024);
    let s = |time: Duration| format!("{} s", time.as_secs());
    let expected = [
        format!("at most {} open tags", thousands(u64::from(broker::pool::OPEN_TAGS_MAX))),
        format!("leeway of {}", s(protocol::token::LEEWAY)),
        format!("request head of more than {}", kib(auth_proxy::head::HEAD_BYTES_MAX)),
        format!("more than {} header lines", auth_proxy::head::HEADERS_MAX),
        format!("above {} go out in fragments", kib(protocol::frame::FRAGMENT_BYTES)),
        format!("`SO_SNDBUF` is set to {}", kib(usize::try_from(auth_proxy::accept::SEND_BUFFER_BYTES).unwrap())),
        format!("backlog of {}", thousands(u64::from(auth_proxy::accept::BACKLOG))),
        format!("{} bytes of a queue name", protocol::names::AMQP_NAME_BYTES_MAX),
        format!("public development key is `{}`", protocol::token::DEVELOPMENT_KEY),
    ];
    for text in expected {
        assert!(readme.contains(&text), "the README does not say: {text}");
    }
}

/// 2,048
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

#[test]
fn every_setting_of_the_broker_is_explained() {
    let readme = read("README.md");
    let spans = code_spans(&readme);
    for (key, _) in broker_settings() {
        assert!(spans.iter().any(|span| span.starts_with(&key)), "the README does not name {key} of rabbitmq.conf");
    }
}

#[test]
fn every_program_has_a_section() {
    let readme = read("README.md");
    for program in programs() {
        assert!(section(&readme, &format!("### {program}")).is_some(), "the README has no section ### {program}");
    }
}

#[test]
fn the_changelog_knows_the_present_version() {
    let version = env!("CARGO_PKG_VERSION");
    let heading = format!("\n## [{version}]");
    assert!(read("CHANGELOG.md").contains(&heading), "CHANGELOG.md has no section for {version}");
}
