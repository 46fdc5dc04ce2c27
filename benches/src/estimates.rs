//! What Criterion left in its directory: for each benchmark `…/new/benchmark.json` and `…/new/estimates.json`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    CollectError,
    run::{Benchmark, Throughput, Unit, file_error, read_json},
};

/// Of `benchmark.json`, what is needed here.
#[derive(Deserialize)]
struct Described {
    full_id: String,
    throughput: Handled,
}

/// Criterion's own form, `{"Bytes": 130}`. Every benchmark here says one of the two.
#[derive(Clone, Copy, Deserialize)]
enum Handled {
    Bytes(u64),
    Elements(u64),
}

/// Of `estimates.json`, what is needed here; nanoseconds per iteration.
#[derive(Deserialize)]
struct Estimates {
    mean: Estimate,
    std_dev: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
}

/// All results below `directory`: groups by name, and within one the small before the large.
pub(crate) fn read_all(directory: &Path) -> Result<Vec<Benchmark>, CollectError> {
    let mut results = Vec::new();
    find_results(directory, &mut results)?;
    let mut benchmarks = results.iter().map(|result| read(result)).collect::<Result<Vec<_>, _>>()?;
    if benchmarks.is_empty() {
        return Err(CollectError::Nothing { path: directory.display().to_string() });
    }
    benchmarks.sort_by(|a, b| order(a).cmp(&order(b)));
    Ok(benchmarks)
}

/// Labels of sizes do not sort by themselves: 1 MiB, 1 KiB, 130 B.
fn order(benchmark: &Benchmark) -> (Option<&str>, Option<&str>, u64, &str) {
    let mut parts = benchmark.name.split('/');
    let (group, function, value) = (parts.next(), parts.next(), parts.next());
    (group, value.and(function), benchmark.throughput.per_iteration, &benchmark.name)
}

fn find_results(directory: &Path, results: &mut Vec<PathBuf>) -> Result<(), CollectError> {
    for entry in fs::read_dir(directory).map_err(|source| file_error(directory, source))? {
        let entry = entry.map_err(|source| file_error(directory, source))?;
        if !entry.file_type().map_err(|source| file_error(directory, source))?.is_dir() {
            continue;
        }
        let path = entry.path();
        if entry.file_name() == "new" && path.join("benchmark.json").exists() {
            results.push(path);
        } else {
            find_results(&path, results)?;
        }
    }
    Ok(())
}

fn read(result: &Path) -> Result<Benchmark, CollectError> {
    let described: Described = read_json(&result.join("benchmark.json"))?;
    let estimates: Estimates = read_json(&result.join("estimates.json"))?;
    let (unit, per_iteration) = match described.throughput {
        Handled::Bytes(bytes) => (Unit::Bytes, bytes),
        Handled::Elements(elements) => (Unit::Elements, elements),
    };
    let mean_ns = estimates.mean.point_estimate;
    let per_second = per_iteration as f64 / mean_ns * 1e9;
    Ok(Benchmark {
        name: described.full_id,
        mean_ns,
        std_dev_ns: estimates.std_dev.point_estimate,
        throughput: Throughput { unit, per_iteration, per_second },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leave(directory: &Path, id: &str, throughput: &str, mean_ns: f64) {
        let result = directory.join(id).join("new");
        fs::create_dir_all(&result).unwrap();
        let described = format!(r#"{{"group_id":"x","full_id":"{id}","throughput":{throughput},"title":"x"}}"#);
        fs::write(result.join("benchmark.json"), described).unwrap();
        let estimates = format!(
            r#"{{"mean":{{"point_estimate":{mean_ns},"standard_error":1.0}},"slope":null,"std_dev":{{"point_estimate":2.5}}}}"#
        );
        fs::write(result.join("estimates.json"), estimates).unwrap();
    }

    #[test]
    fn results_are_found_and_small_comes_before_large() {
        let directory = tempfile::tempdir().unwrap();
        leave(directory.path(), "frame/text/1 MiB", r#"{"Bytes":1048576}"#, 1e6);
        leave(directory.path(), "frame/text/130 B", r#"{"Bytes":130}"#, 100.0);
        leave(directory.path(), "frame/binary/1 MiB", r#"{"Bytes":1048576}"#, 1e6);
        leave(directory.path(), "a/z", r#"{"Elements":1}"#, 50.0);
        leave(directory.path(), "a/y", r#"{"Elements":16}"#, 50.0);
        let found = read_all(directory.path()).unwrap();
        let names: Vec<_> = found.iter().map(|benchmark| benchmark.name.as_str()).collect();
        assert_eq!(names, ["a/z", "a/y", "frame/binary/1 MiB", "frame/text/130 B", "frame/text/1 MiB"]);
        let expected = Benchmark {
            name: "frame/text/130 B".into(),
            mean_ns: 100.0,
            std_dev_ns: 2.5,
            throughput: Throughput { unit: Unit::Bytes, per_iteration: 130, per_second: 1.3e9 },
        };
        assert_eq!(found[3], expected);
    }

    #[test]
    fn no_result_is_an_error_and_so_is_half_a_one() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(read_all(directory.path()), Err(CollectError::Nothing { .. })));
        leave(directory.path(), "a/b", r#"{"Elements":1}"#, 50.0);
        fs::remove_file(directory.path().join("a/b/new/estimates.json")).unwrap();
        assert!(matches!(read_all(directory.path()), Err(CollectError::File { .. })));
        assert!(matches!(read_all(&directory.path().join("absent")), Err(CollectError::File { .. })));
    }
}
