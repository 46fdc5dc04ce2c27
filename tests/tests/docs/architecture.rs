//! ARCHITECTURE.md: the walk through the code and the invariants name what exists.

use regex::Regex;

use crate::markdown::section;
use crate::repository::{at, read};
use crate::sources::{defines, tests};

const LIFE: &str = "## Life of a delivery";
const INVARIANTS: &str = "## Invariants";
/// More would be no invariants but a wish list.
const INVARIANTS_MAX: usize = 10;

#[test]
fn each_step_in_the_life_of_a_delivery_names_functions_that_exist() {
    let item = Regex::new(r"`([\w./-]+\.rs)::([\w:]+)`").unwrap();
    for step in numbered(LIFE) {
        let named: Vec<_> = item.captures_iter(&step).collect();
        assert!(!named.is_empty(), "this step names no `path/to/file.rs::function`: {step}");
        for found in named {
            let (path, function) = (&found[1], &found[2]);
            assert!(at(path).is_file(), "{LIFE:?} names {path}, which does not exist");
            assert!(defines(&read(path), function), "{LIFE:?} names {path}::{function}, which does not exist");
        }
    }
}

#[test]
fn each_invariant_names_tests_that_exist() {
    // In parentheses that begin with a name: (`a_test` and its siblings).
    let group = Regex::new(r"\(`[^()]*\)").unwrap();
    let name = Regex::new(r"`(\w+)`").unwrap();
    let known = tests();
    let invariants = numbered(INVARIANTS);
    assert!(invariants.len() <= INVARIANTS_MAX, "{} invariants, at most {INVARIANTS_MAX} wanted", invariants.len());
    for invariant in invariants {
        let groups = group.find_iter(&invariant).map(|found| found.as_str());
        let named: Vec<_> =
            groups.flat_map(|group| name.captures_iter(group)).map(|found| found[1].to_owned()).collect();
        assert!(!named.is_empty(), "this invariant names no (`test`): {invariant}");
        for name in named {
            assert!(known.contains(&name), "{name} is no test of this workspace: {invariant}");
        }
    }
}

/// Crates of `crates/` and what none of them may name among its dependencies.
const NEVER: [(&str, &[&str]); 6] = [
    ("protocol", &["tokio", "tokio-tungstenite", "tokio-util", "lapin", "broker", "service"]),
    ("broker", &["tokio-tungstenite", "auth-proxy"]),
    ("service", &["lapin", "tokio-tungstenite", "broker", "protocol"]),
    ("auth-proxy", &["lapin"]),
    ("producers", &["lapin", "tokio-tungstenite"]),
    ("consumers", &["lapin", "broker", "auth-proxy"]),
];

#[test]
fn crates_depend_only_on_what_they_may() {
    for (name, never) in NEVER {
        let manifest = read(&format!("crates/{name}/Cargo.toml"));
        let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap();
        let named: Vec<&str> = dependencies.lines().filter_map(|line| line.split(['.', ' ', '=']).next()).collect();
        assert!(named.contains(&"thiserror") || named.contains(&"anyhow"), "{name}: {named:?}");
        // What tests are made of is in no program.
        for forbidden in never.iter().chain(&["rig"]) {
            assert!(!named.contains(forbidden), "{name} depends on {forbidden}");
        }
    }
}

/// The items of a section that is a numbered list, each up to the next.
fn numbered(heading: &str) -> Vec<String> {
    let text = read("ARCHITECTURE.md");
    let list = section(&text, heading).unwrap_or_else(|| panic!("ARCHITECTURE.md has no section {heading:?}"));
    let items: Vec<_> = Regex::new(r"(?m)^\d+\. ").unwrap().split(list).skip(1).map(str::to_owned).collect();
    assert!(items.len() > 1, "{heading:?} is no numbered list");
    items
}
