//! The files of this repository.

use std::path::{Path, PathBuf};

/// `path` seen from the top of the repository.
pub(crate) fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The text of a file.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of the crates that are programs.
pub(crate) fn programs() -> Vec<String> {
    let crates = std::fs::read_dir(at("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<_> = crates
        .filter(|path| path.join("src/main.rs").exists())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert!(!names.is_empty(), "crates/ holds no program");
    names
}

/// The lines `key = value` of `rabbitmq.conf`.
pub(crate) fn broker_settings() -> Vec<(String, String)> {
    read("rabbitmq.conf")
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|line| line.split_once(" = ").unwrap_or_else(|| panic!("rabbitmq.conf: {line}")))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}
