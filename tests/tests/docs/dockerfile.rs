//! The Dockerfile: what it builds is what there is, what it runs is small and no root.

use regex::Regex;
use serde_json::json;

use crate::compose::service;
use crate::repository::{programs, read};

/// Instruction and rest of each line, continued lines joined.
fn instructions() -> Vec<(String, String)> {
    let text = read("Dockerfile").replace("\\\n", " ");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').unwrap()).map(|(word, rest)| (word.to_owned(), rest.to_owned())).collect()
}

fn all(word: &str) -> Vec<String> {
    instructions().into_iter().filter(|(instruction, _)| instruction == word).map(|(_, rest)| rest).collect()
}

fn only(word: &str) -> String {
    let found = all(word);
    assert_eq!(found.len(), 1, "{word}: {found:?}");
    found[0].clone()
}

#[test]
fn every_program_is_built_and_copied() {
    let [tools, build] = <[String; 2]>::try_from(all("RUN")).unwrap();
    assert!(tools.starts_with("apt-get update && apt-get install -y --no-install-recommends make "), "{tools}");
    assert!(build.starts_with("cargo build --release --locked "), "{build}");
    let copies = all("COPY");
    let copied = copies.last().unwrap();
    let built = Regex::new(r"--package (\S+)").unwrap();
    let taken = Regex::new(r"/src/target/release/(\S+)").unwrap();
    let names = |pattern: &Regex, text: &str| {
        let mut names: Vec<_> = pattern.captures_iter(text).map(|found| found[1].to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&built, &build), programs());
    assert_eq!(names(&taken, copied), programs());
    assert!(copied.starts_with("--from=build ") && copied.ends_with(" /usr/local/bin/"), "{copied}");
}

#[test]
fn the_last_stage_is_small_and_has_the_libraries_of_the_first() {
    let stages = all("FROM");
    let [build, run] = &stages[..] else { panic!("{stages:?}") };
    let image = Regex::new(r"^rust:(\d+)\.(\d+)-slim-(\w+) AS build$").unwrap().captures(build).expect("a rust image");
    assert_eq!(*run, format!("debian:{}-slim", &image[3]));
    let wanted = read("Cargo.toml");
    let wanted = Regex::new(r#"(?m)^rust-version = "(\d+)\.(\d+)"$"#).unwrap().captures(&wanted).unwrap();
    let version = |major: &str, minor: &str| (major.parse::<u32>().unwrap(), minor.parse::<u32>().unwrap());
    assert!(version(&image[1], &image[2]) >= version(&wanted[1], &wanted[2]), "{build} is older than rust-version");
}

#[test]
fn it_runs_as_nobody_in_particular() {
    let user = only("USER");
    let numbers: Vec<u32> = user.split(':').map(|number| number.parse().expect("a number")).collect();
    assert!(numbers.iter().all(|number| *number > 0), "{user}");
}

#[test]
fn the_compose_file_runs_what_it_runs() {
    let proxy = service("auth-proxy");
    assert_eq!(json!(serde_json::from_str::<Vec<String>>(&only("CMD")).unwrap()), proxy["command"]);
    let port = only("EXPOSE");
    assert!(proxy["ports"][0].as_str().unwrap().ends_with(&format!(":{port}")));
    assert!(proxy["environment"]["AUTH_PROXY_LISTEN"].as_str().unwrap().ends_with(&format!(":{port}")));
}

#[test]
fn the_build_gets_the_whole_workspace() {
    let ignore = read(".dockerignore");
    let members = Regex::new(r"(?m)^members = \[(.+)\]$").unwrap();
    let manifest = read("Cargo.toml");
    let members = members.captures(&manifest).unwrap()[1].to_owned();
    let members = members.split(',').map(|member| member.trim().trim_matches('"').trim_end_matches("/*"));
    for wanted in members.chain(["Cargo.toml", "Cargo.lock"]) {
        assert!(ignore.lines().any(|line| line == format!("!{wanted}")), ".dockerignore keeps {wanted} out");
    }
}
