//! Such a run as Markdown: nobody stalled in absolute numbers, the shares as multiples of that, round by round.

use super::{Run, Sample};
use crate::table::{TIMES, about, grouped, scaled};

/// One row: what it is, where it stands, and how it is written.
struct Row {
    name: String,
    value: fn(&Sample) -> f64,
    written: fn(f64) -> String,
}

pub(super) fn render(run: &Run) -> String {
    let shares = shares(&run.samples);
    let mut lines = vec![about(&run.about), String::new(), settings(run), String::new()];
    let heads = shares.iter().map(|share| format!("{share} % stalled |"));
    lines.push(format!("| | {}", heads.collect::<Vec<_>>().join(" ")));
    lines.push(format!("| --- |{}", " ---: |".repeat(shares.len())));
    lines.push(counted("Stalled sessions", &shares, run, |sample| sample.stalled));
    lines.push(counted("Their unacked messages on the lane with most", &shares, run, |sample| sample.open_tags));
    for row in rows(run) {
        let cells = shares.iter().map(|share| format!(" {} |", cell(&row, *share, &shares, &run.samples)));
        lines.push(format!("| {} |{}", row.name, cells.collect::<String>()));
    }
    lines.join("\n") + "\n"
}

fn settings(run: &Run) -> String {
    let settings = &run.settings;
    let most = |value: fn(&Sample) -> f64| run.samples.iter().map(value).fold(0.0, f64::max);
    let lanes = run.samples.iter().map(|sample| sample.lanes).max().unwrap_or_default();
    let others = most(|sample| sample.fixed_rate.others_cores.max(sample.full_speed.others_cores));
    format!(
        "{} v1 sessions on {lanes} lanes, window {}, bodies of {} B; {} s at a fixed rate, and as long at full speed, with \
         {} messages under way. Medians of {} rounds (smallest to largest); multiples are of the same round without stalled \
         clients. Something else took {others:.2} cores at most.",
        grouped(settings.sessions),
        settings.window,
        settings.body_bytes,
        settings.seconds,
        grouped(settings.in_flight),
        settings.rounds,
    )
}

fn rows(run: &Run) -> Vec<Row> {
    let time = |us: f64| scaled(us * 1e3, &TIMES);
    let count = |count: f64| grouped(whole(count));
    let fixed = format!("{} messages/s", grouped(run.settings.rate));
    let full = "Full speed".to_owned();
    let row = |phase: &str, name: &str, value, written| Row { name: format!("{phase}: {name}"), value, written };
    vec![
        row(&fixed, "latency, median", |sample| sample.fixed_rate.p50_us as f64, time),
        row(&fixed, "latency, 99 %", |sample| sample.fixed_rate.p99_us as f64, time),
        row(&fixed, "latency, longest", |sample| sample.fixed_rate.max_us as f64, time),
        row(&fixed, "CPU of the broker a message", |sample| sample.fixed_rate.broker_us, time),
        row(&fixed, "CPU of the proxy a message", |sample| sample.fixed_rate.proxy_us, time),
        row(&full, "messages/s", |sample| sample.full_speed.per_second, count),
        row(&full, "CPU of the broker a message", |sample| sample.full_speed.broker_us, time),
        row(&full, "CPU of the proxy a message", |sample| sample.full_speed.proxy_us, time),
    ]
}

/// The smallest share first; the others are multiples of it.
fn shares(samples: &[Sample]) -> Vec<f64> {
    let mut shares: Vec<f64> = samples.iter().map(|sample| sample.percent).collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    shares
}

fn counted(name: &str, shares: &[f64], run: &Run, value: fn(&Sample) -> u64) -> String {
    let most = |share: &f64| of(*share, &run.samples).map(value).max().unwrap_or_default();
    let cells = shares.iter().map(|share| format!(" {} |", grouped(most(share))));
    format!("| {name} |{}", cells.collect::<String>())
}

fn cell(row: &Row, share: f64, shares: &[f64], samples: &[Sample]) -> String {
    let values: Vec<f64> = of(share, samples).map(row.value).collect();
    let Some((middle, least, most)) = spread(&values) else { return "–".to_owned() };
    let written = (row.written)(middle);
    let first = shares.first().copied().unwrap_or(share);
    if share.total_cmp(&first).is_eq() {
        return format!("{written} ({} to {})", (row.written)(least), (row.written)(most));
    }
    let multiples: Vec<f64> = of(share, samples)
        .filter_map(|sample| {
            let base = of(first, samples).find(|base| base.round == sample.round)?;
            Some((row.value)(sample) / (row.value)(base))
        })
        .collect();
    let multiples = spread(&multiples);
    multiples
        .map_or(written.clone(), |(middle, least, most)| format!("{written}, × {middle:.2} ({least:.2} to {most:.2})"))
}

fn of(share: f64, samples: &[Sample]) -> impl Iterator<Item = &Sample> {
    samples.iter().filter(move |sample| sample.percent.total_cmp(&share).is_eq())
}

/// Median, smallest and largest.
fn spread(values: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, most) = (*sorted.first()?, *sorted.last()?);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some((f64::midpoint(lower, upper), least, most))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is positive, and below 2^53")]
fn whole(count: f64) -> u64 {
    count.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        machine::Machine,
        run::{About, read_json},
        stalled::{FILE, Phase, Settings},
    };

    fn sample(round: u64, percent: f64, per_second: f64, p50_us: u64) -> Sample {
        let phase = Phase {
            received: 20_000,
            per_second,
            p50_us,
            p99_us: 2 * p50_us,
            max_us: 10 * p50_us,
            broker_us: 1e6 / per_second,
            proxy_us: 50.0,
            clients_us: 50.0,
            others_cores: 0.02,
        };
        let stalled = whole(percent * 20.0);
        let (fixed_rate, full_speed) = (phase.clone(), phase);
        Sample { round, percent, stalled, lanes: 16, open_tags: 2 * stalled, fixed_rate, full_speed }
    }

    fn run() -> Run {
        let machine = Machine { cpu: "AMD EPYC".into(), cores: 2, os: "Debian x86_64".into() };
        let (date, rustc) = ("2026-01-02T03:04:05Z".into(), "rustc 1.95.0".into());
        Run {
            about: About { machine, date, rustc, commit: None, modified: false, quick: false },
            settings: Settings {
                sessions: 2000,
                window: 16,
                rounds: 2,
                seconds: 10.0,
                rate: 2000,
                in_flight: 1000,
                body_bytes: 130,
                stalled_body_bytes: 16_384,
                backlog: 16,
            },
            // A fast and a slow round: the multiples are of the same round.
            samples: vec![
                sample(1, 0.0, 10_000.0, 1000),
                sample(1, 10.0, 9_000.0, 1200),
                sample(2, 0.0, 5_000.0, 2000),
                sample(2, 10.0, 4_000.0, 2200),
            ],
        }
    }

    #[test]
    fn a_run_is_a_table_of_multiples() {
        let expected = "\
AMD EPYC, 2 cores, Debian x86_64; rustc 1.95.0; 2026-01-02.

2,000 v1 sessions on 16 lanes, window 16, bodies of 130 B; 10 s at a fixed rate, and as long at full speed, with 1,000 \
messages under way. Medians of 2 rounds (smallest to largest); multiples are of the same round without stalled clients. \
Something else took 0.02 cores at most.

| | 0 % stalled | 10 % stalled |
| --- | ---: | ---: |
| Stalled sessions | 0 | 200 |
| Their unacked messages on the lane with most | 0 | 400 |
| 2,000 messages/s: latency, median | 1.50 ms (1.00 ms to 2.00 ms) | 1.70 ms, × 1.15 (1.10 to 1.20) |
| 2,000 messages/s: latency, 99 % | 3.00 ms (2.00 ms to 4.00 ms) | 3.40 ms, × 1.15 (1.10 to 1.20) |
| 2,000 messages/s: latency, longest | 15.0 ms (10.0 ms to 20.0 ms) | 17.0 ms, × 1.15 (1.10 to 1.20) |
| 2,000 messages/s: CPU of the broker a message | 150 µs (100 µs to 200 µs) | 181 µs, × 1.18 (1.11 to 1.25) |
| 2,000 messages/s: CPU of the proxy a message | 50.0 µs (50.0 µs to 50.0 µs) | 50.0 µs, × 1.00 (1.00 to 1.00) |
| Full speed: messages/s | 7,500 (5,000 to 10,000) | 6,500, × 0.85 (0.80 to 0.90) |
| Full speed: CPU of the broker a message | 150 µs (100 µs to 200 µs) | 181 µs, × 1.18 (1.11 to 1.25) |
| Full speed: CPU of the proxy a message | 50.0 µs (50.0 µs to 50.0 µs) | 50.0 µs, × 1.00 (1.00 to 1.00) |
";
        assert_eq!(render(&run()), expected);
    }

    #[test]
    fn a_run_is_read_back_as_it_was_written() {
        let (run, directory) = (run(), tempfile::tempdir().unwrap());
        let file = run.about.write_below(directory.path(), FILE, &run).unwrap();
        assert_eq!(read_json::<Run>(&file).unwrap(), run);
        assert_eq!(crate::table_of(&file).unwrap(), render(&run));
    }

    #[test]
    fn the_middle_of_an_even_number_lies_between() {
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((2.5, 1.0, 4.0)));
    }
}
