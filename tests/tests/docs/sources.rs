//! What the sources of the workspace hold, by name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::repository::at;

/// The names of all test functions.
pub(crate) fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for directory in ["crates", "tests", "benches"] {
        for file in sources(&at(directory)) {
            names.extend(tests_in(&std::fs::read_to_string(&file).unwrap()));
        }
    }
    names
}

/// Whether `text` defines a function of this name, or `Type::method` of a type that it names.
pub(crate) fn defines(text: &str, function: &str) -> bool {
    let (types, name) = match function.rsplit_once("::") {
        Some((types, name)) => (Some(types), name),
        None => (None, function),
    };
    let is_there = |pattern: String| Regex::new(&pattern).unwrap().is_match(text);
    is_there(format!(r"\bfn {name}\b"))
        && types.is_none_or(|types| is_there(format!(r"\b(struct|enum|trait|impl[^;{{]*) {types}\b")))
}

fn tests_in(text: &str) -> BTreeSet<String> {
    let function = Regex::new(r"^\s*(?:pub(?:\([a-z]+\))? )?(?:async )?fn (\w+)").unwrap();
    let mut names = BTreeSet::new();
    let mut marked = false;
    for line in text.lines() {
        let start = line.trim_start();
        if start.starts_with("#[test]") || start.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some(found) = function.captures(line) {
            if marked {
                names.insert(found[1].to_owned());
            }
            marked = false;
        }
    }
    names
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn a_test_is_a_function_with_the_attribute() {
    let text = "#[test]\nfn one() {}\nfn helper() {}\n  #[tokio::test(start_paused = true)]\n  async fn two() {}\n";
    assert_eq!(tests_in(text), BTreeSet::from(["one".to_owned(), "two".to_owned()]));
}

#[test]
fn a_function_is_looked_for_by_its_whole_name() {
    let text = "impl<S> Lane<S> {\n    pub async fn attach(&self) {}\n}\n";
    assert!(defines(text, "attach") && defines(text, "Lane::attach"));
    assert!(!defines(text, "atta") && !defines(text, "Pool::attach"));
}
