//! The file that is committed: where and when, and what came out.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use crate::{
    CollectError,
    machine::{Machine, answer},
};

/// Where, when and of what a run was.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) machine: Machine,
    /// UTC, RFC 3339.
    pub(crate) date: String,
    /// As `rustc --version` says it.
    pub(crate) rustc: String,
    /// The commit that was checked out, in full; absent outside a git checkout.
    pub(crate) commit: Option<String>,
    /// A tracked file differed from that commit.
    pub(crate) modified: bool,
    /// Few and short samples: good to see that everything runs, and for nothing else.
    pub(crate) quick: bool,
}

/// One run of all benchmarks of Criterion.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    #[serde(flatten)]
    pub(crate) about: About,
    pub(crate) benchmarks: Vec<Benchmark>,
}

/// What came out of one benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Benchmark {
    pub(crate) name: String,
    /// Of one iteration.
    pub(crate) mean_ns: f64,
    /// Between the samples' means of one iteration.
    pub(crate) std_dev_ns: f64,
    pub(crate) throughput: Throughput,
}

/// What one iteration handles, and what a second of iterations at the mean time does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Throughput {
    pub(crate) unit: Unit,
    pub(crate) per_iteration: u64,
    pub(crate) per_second: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    Elements,
    Bytes,
}

impl About {
    /// This moment, this machine and the checkout in the working directory.
    pub(crate) fn here_and_now(quick: bool) -> Self {
        Self {
            machine: Machine::this(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            rustc: answer("rustc", &["--version"]).unwrap_or_else(|| "unknown".into()),
            commit: answer("git", &["rev-parse", "HEAD"]),
            modified: answer("git", &["status", "--porcelain", "--untracked-files=no"]).is_some(),
            quick,
        }
    }

    /// Writes `DATE-MACHINE/name` below `runs` and returns its path. An earlier one of the same day is replaced.
    pub(crate) fn write_below(&self, runs: &Path, name: &str, run: &impl Serialize) -> Result<PathBuf, CollectError> {
        let day = self.date.split('T').next().unwrap_or_default();
        let directory = runs.join(format!("{day}-{}", self.machine.slug()));
        let file = directory.join(name);
        let mut text = serde_json::to_string_pretty(run).map_err(|source| format_error(&file, source))?;
        text.push('\n');
        fs::create_dir_all(&directory).map_err(|source| file_error(&directory, source))?;
        fs::write(&file, text).map_err(|source| file_error(&file, source))?;
        Ok(file)
    }
}

impl Run {
    /// These results, as of this moment and this machine.
    pub(crate) fn here_and_now(benchmarks: Vec<Benchmark>, quick: bool) -> Self {
        Self { about: About::here_and_now(quick), benchmarks }
    }

    pub(crate) fn read(file: &Path) -> Result<Self, CollectError> {
        read_json(file)
    }

    /// Writes `DATE-MACHINE/criterion.json` below `runs`, as [`About::write_below`] does.
    pub(crate) fn write_below(&self, runs: &Path) -> Result<PathBuf, CollectError> {
        self.about.write_below(runs, "criterion.json", self)
    }
}

pub(crate) fn read_json<T: for<'de> Deserialize<'de>>(file: &Path) -> Result<T, CollectError> {
    let text = fs::read_to_string(file).map_err(|source| file_error(file, source))?;
    serde_json::from_str(&text).map_err(|source| format_error(file, source))
}

pub(crate) fn file_error(path: &Path, source: std::io::Error) -> CollectError {
    CollectError::File { path: path.display().to_string(), source }
}

fn format_error(path: &Path, source: serde_json::Error) -> CollectError {
    CollectError::Format { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_back_as_it_was_written() {
        let throughput = Throughput { unit: Unit::Bytes, per_iteration: 130, per_second: 1.3e9 };
        let benchmark = Benchmark { name: "frame encode/x".into(), mean_ns: 100.5, std_dev_ns: 0.25, throughput };
        let run = Run::here_and_now(vec![benchmark], true);
        let directory = tempfile::tempdir().unwrap();
        let file = run.write_below(directory.path()).unwrap();
        assert_eq!(Run::read(&file).unwrap(), run);
        let name = file.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(name, format!("{}-{}", &run.about.date[..10], run.about.machine.slug()));
    }

    #[test]
    fn a_file_of_another_kind_is_named_in_the_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("other.json");
        fs::write(&file, "{}").unwrap();
        let error = Run::read(&file).unwrap_err().to_string();
        assert!(error.contains("other.json") && error.contains("benchmarks"), "{error}");
    }
}
