//! A run as Markdown, for the README.

use std::fmt::Write;

use crate::run::{About, Run, Throughput, Unit};

pub(crate) const TIMES: [(&str, f64); 4] = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
const COUNTS: [(&str, f64); 4] = [("", 1.0), ("thousand", 1e3), ("million", 1e6), ("billion", 1e9)];
const KIB: f64 = 1024.0;
const BYTES: [(&str, f64); 5] =
    [("B", 1.0), ("KiB", KIB), ("MiB", KIB * KIB), ("GiB", KIB * KIB * KIB), ("TiB", KIB * KIB * KIB * KIB)];

/// One line about the run, then a row for each benchmark.
pub(crate) fn render(run: &Run) -> String {
    let mut lines = vec![
        about(&run.about),
        String::new(),
        "| Benchmark | One iteration | Time, mean ± standard deviation | Throughput |".into(),
        "| --- | ---: | ---: | ---: |".into(),
    ];
    lines.extend(run.benchmarks.iter().map(|benchmark| {
        format!(
            "| {} | {} | {} ± {} | {} |",
            benchmark.name.replace('/', ": ").replace('|', "\\|"),
            iteration(&benchmark.throughput),
            scaled(benchmark.mean_ns, &TIMES),
            scaled(benchmark.std_dev_ns, &TIMES),
            rate(&benchmark.throughput),
        )
    }));
    lines.join("\n") + "\n"
}

pub(crate) fn about(run: &About) -> String {
    let machine = &run.machine;
    let cores = if machine.cores == 1 { "core" } else { "cores" };
    let day = run.date.split('T').next().unwrap_or_default();
    let mut about = format!("{}, {} {cores}, {}; {}; {day}", machine.cpu, machine.cores, machine.os, run.rustc);
    if let Some(commit) = &run.commit {
        let short: String = commit.chars().take(10).collect();
        let modified = if run.modified { " with changes" } else { "" };
        let _ = write!(about, "; commit {short}{modified}");
    }
    about.push_str(if run.quick { ". A quick run: not for comparison." } else { "." });
    about
}

fn iteration(throughput: &Throughput) -> String {
    let count = throughput.per_iteration;
    match (throughput.unit, count) {
        (Unit::Elements, 1) => "1 element".into(),
        (Unit::Elements, _) => format!("{} elements", grouped(count)),
        (Unit::Bytes, _) => format!("{} bytes", grouped(count)),
    }
}

fn rate(throughput: &Throughput) -> String {
    match throughput.unit {
        Unit::Elements => format!("{}/s", scaled(throughput.per_second, &COUNTS)),
        Unit::Bytes => format!("{}/s", scaled(throughput.per_second, &BYTES)),
    }
}

/// Three significant digits in the largest unit that leaves at least 1, as a reader compares them.
pub(crate) fn scaled(value: f64, units: &[(&str, f64)]) -> String {
    let fits = |&&(_, size): &&(&str, f64)| value >= size;
    let (unit, size) = units.iter().rev().find(fits).or(units.first()).copied().unwrap_or(("", 1.0));
    let scaled = value / size;
    let digits = match scaled {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{scaled:.digits$} {unit}").trim_end().to_owned()
}

/// 10000 as 10,000.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{machine::Machine, run::Benchmark};

    fn benchmark(name: &str, mean_ns: f64, unit: Unit, per_iteration: u64, per_second: f64) -> Benchmark {
        let throughput = Throughput { unit, per_iteration, per_second };
        Benchmark { name: name.into(), mean_ns, std_dev_ns: mean_ns / 50.0, throughput }
    }

    #[test]
    fn a_run_is_a_table() {
        let about = About {
            machine: Machine { cpu: "AMD EPYC".into(), cores: 2, os: "Debian x86_64".into() },
            date: "2026-01-02T03:04:05Z".into(),
            rustc: "rustc 1.95.0".into(),
            commit: Some("0123456789abcdef".into()),
            modified: false,
            quick: false,
        };
        let run = Run {
            about,
            benchmarks: vec![
                benchmark("token check/good", 2_104.4, Unit::Elements, 1, 475_194.8),
                benchmark("frame encode/text/1 KiB", 52.0, Unit::Bytes, 1024, 1.97e10),
                benchmark("ledger settle/in order", 123_456.0, Unit::Elements, 10_000, 8.1e7),
            ],
        };
        let expected = "\
AMD EPYC, 2 cores, Debian x86_64; rustc 1.95.0; 2026-01-02; commit 0123456789.

| Benchmark | One iteration | Time, mean ± standard deviation | Throughput |
| --- | ---: | ---: | ---: |
| token check: good | 1 element | 2.10 µs ± 42.1 ns | 475 thousand/s |
| frame encode: text: 1 KiB | 1,024 bytes | 52.0 ns ± 1.04 ns | 18.3 GiB/s |
| ledger settle: in order | 10,000 elements | 123 µs ± 2.47 µs | 81.0 million/s |
";
        assert_eq!(render(&run), expected);
    }

    #[test]
    fn what_devalues_the_numbers_is_said() {
        let machine = Machine { cpu: "x".into(), cores: 1, os: "y".into() };
        let (date, rustc) = ("2026-01-02T03:04:05Z".into(), "rustc 1".into());
        let commit = Some("abc".into());
        let run = About { machine, date, rustc, commit, modified: true, quick: true };
        assert_eq!(
            about(&run),
            "x, 1 core, y; rustc 1; 2026-01-02; commit abc with changes. A quick run: not for comparison."
        );
    }

    #[test]
    fn three_digits_whatever_the_size() {
        let times = [0.0, 0.123, 9.999e2, 1e3, 1.5e12];
        assert_eq!(times.map(|ns| scaled(ns, &TIMES)), ["0.00 ns", "0.12 ns", "1000 ns", "1.00 µs", "1500 s"]);
        assert_eq!([999, 1000, 1_048_576].map(grouped), ["999", "1,000", "1,048,576"]);
    }
}
