//! The counts as a table for people. Its layout may change; programs read `/metrics`.

use std::{
    fmt::{self, Write as _},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use broker::vitals::Vitals;
use tokio::time::Instant;

use super::{
    Admin,
    rates::{SPAN_MAX, per_second},
};
use crate::{
    metrics::{BOUNDS_MICROS, BUCKETS, DIALECTS, Snapshot, Totals, dialect_label, look_at_process},
    roster::Sight,
};

/// How many of the slowest sessions are shown.
const SLOWEST_MAX: usize = 20;
/// The spans that rates are told for.
const SPANS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(10), SPAN_MAX];

/// The whole page.
pub(super) fn table(admin: &Admin, now: Instant) -> String {
    let mut page = String::new();
    let totals = admin.metrics.totals();
    let written = head(&mut page, admin)
        .and_then(|()| counts(&mut page, admin, &totals, now))
        .and_then(|()| latencies(&mut page, admin, &totals, now))
        .and_then(|()| slowest(&mut page, &admin.metrics.roster.slowest(SLOWEST_MAX)));
    debug_assert!(written.is_ok(), "a String takes everything");
    page
}

fn head(page: &mut String, admin: &Admin) -> fmt::Result {
    let process = look_at_process();
    let uptime = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(process.started);
    let known = |value: Option<u64>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
    let memory = process.resident_bytes.map_or_else(|| "?".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    writeln!(
        page,
        "AuthProxy {}   up {}   memory {memory}   descriptors {} of {}",
        admin.proxy_id,
        duration(uptime),
        known(process.open_descriptors),
        known(process.descriptor_limit),
    )?;
    let reasons = admin.readiness.reasons();
    if reasons.is_empty() {
        writeln!(page, "ready")?;
    }
    for reason in reasons {
        writeln!(page, "NOT READY   {reason}")?;
    }
    let sessions = DIALECTS.map(|dialect| (dialect_label(dialect), admin.metrics.sessions(dialect)));
    let sessions: Vec<_> = sessions.iter().map(|(label, open)| format!("{label} {open}")).collect();
    writeln!(page, "\nsessions      {}", sessions.join("   "))?;
    let vitals = admin.metrics.vitals();
    writeln!(
        page,
        "lanes         {}   open tags {}   rebuilt {}",
        vitals.lanes, vitals.open_tags, vitals.lane_rebuilds
    )?;
    broker(page, &vitals)
}

fn broker(page: &mut String, vitals: &Vitals) -> fmt::Result {
    for link in &vitals.links {
        let state = match (link.up, link.blocked) {
            (false, _) => "DOWN",
            (true, true) => "up, BLOCKED by an alarm",
            (true, false) => "up",
        };
        let outages = duration(link.outages);
        writeln!(page, "{:<13} {state}   reconnects {}   away for {outages}", link.purpose, link.reconnects)?;
    }
    let listening = if vitals.control_listening { "listening" } else { "NOT LISTENING: no takeover from one" };
    writeln!(page, "other proxies {listening}   ignored {}", vitals.control_ignored)?;
    writeln!(page, "frames        unreadable {}", vitals.unreadable)
}

/// A row: its name and its number.
type Counted = (&'static str, fn(&Totals) -> u64);

/// What is counted, in the order of the table.
const COUNTED: [Counted; 12] = [
    ("upgraded", |totals| totals.accepted),
    ("refused", |totals| totals.refused),
    ("closed", |totals| totals.closed),
    ("  cut off", |totals| totals.cut_off),
    ("delivered", |totals| totals.delivered),
    ("  bytes", |totals| totals.delivered_bytes),
    ("acked", |totals| totals.acked),
    ("requeued", |totals| totals.requeued),
    ("rejected", |totals| totals.rejected),
    ("redelivered", |totals| totals.redelivered),
    ("sent ahead", |totals| totals.sent_ahead),
    ("sent long ago", |totals| totals.sent_long_ago),
];

fn counts(page: &mut String, admin: &Admin, totals: &Totals, now: Instant) -> fmt::Result {
    write!(page, "\n{:<14}", "per second")?;
    SPANS.iter().try_for_each(|span| write!(page, "{:>14}", format!("last {} s", span.as_secs())))?;
    writeln!(page, "{:>18}", "in all")?;
    for (name, of) in COUNTED {
        write!(page, "{name:<14}")?;
        for span in SPANS {
            let before = admin.rates.before(now, span);
            let rate = before.and_then(|note| {
                let more = of(totals).saturating_sub(of(&note.totals));
                per_second(more, now.saturating_duration_since(note.at))
            });
            match rate {
                Some(rate) => write!(page, "{rate:>14.1}")?,
                None => write!(page, "{:>14}", "-")?,
            }
        }
        writeln!(page, "{:>18}", of(totals))?;
    }
    Ok(())
}

fn latencies(page: &mut String, admin: &Admin, totals: &Totals, now: Instant) -> fmt::Result {
    let before = admin.rates.before(now, SPAN_MAX).map(|note| note.totals).unwrap_or_default();
    let mut columns = vec![("send to here".to_owned(), totals.send_to_delivery.since(&before.send_to_delivery))];
    for ((dialect, after), before) in DIALECTS.iter().zip(&totals.delivery_to_ack).zip(&before.delivery_to_ack) {
        columns.push((format!("here to ack, {}", dialect_label(*dialect)), after.since(before)));
    }
    write!(page, "\n{:<14}", "last 60 s")?;
    columns.iter().try_for_each(|(title, _)| write!(page, "{title:>20}"))?;
    writeln!(page)?;
    row(page, "messages", &columns, |snapshot| snapshot.count().to_string())?;
    row(page, "mean", &columns, |snapshot| {
        snapshot
            .sum_micros
            .checked_div(snapshot.count())
            .map_or("-".to_owned(), |mean| duration(Duration::from_micros(mean)))
    })?;
    for at in 0..BUCKETS {
        let bound = BOUNDS_MICROS.get(at).map(|micros| duration(Duration::from_micros(*micros)));
        let title = bound.map_or_else(|| "longer".to_owned(), |bound| format!("<= {bound}"));
        row(page, &title, &columns, |snapshot| share(snapshot, at))?;
    }
    Ok(())
}

fn row(
    page: &mut String,
    title: &str,
    columns: &[(String, Snapshot)],
    cell: impl Fn(&Snapshot) -> String,
) -> fmt::Result {
    write!(page, "{title:<14}")?;
    columns.iter().try_for_each(|(_, snapshot)| write!(page, "{:>20}", cell(snapshot)))?;
    writeln!(page)
}

/// The part of all that is in this bucket or an earlier one; for the last bucket, the part that is in it.
#[expect(clippy::cast_precision_loss, reason = "a percentage is for people")]
fn share(snapshot: &Snapshot, at: usize) -> String {
    let (count, is_last) = (snapshot.count(), at + 1 == BUCKETS);
    let so_far = if is_last { snapshot.buckets.last().copied() } else { snapshot.cumulative().get(at).copied() };
    match so_far {
        Some(so_far) if count > 0 => format!("{:.1} %", 100.0 * so_far as f64 / count as f64),
        _ => "-".to_owned(),
    }
}

fn slowest(page: &mut String, sights: &[Sight]) -> fmt::Result {
    writeln!(page, "\nslowest sessions, at most {SLOWEST_MAX}, by the age of their oldest message that is not acked")?;
    if sights.is_empty() {
        return writeln!(page, "none: everything is acked");
    }
    writeln!(
        page,
        "{:>10} {:>13} {:>10} {:>10} {:>10} {:>10}  {:<4} {:<21} name",
        "oldest", "unacked", "last ack", "delivered", "acked", "connected", "", "from"
    )?;
    for sight in sights {
        let member = &sight.member;
        writeln!(
            page,
            "{:>10} {:>13} {:>10} {:>10} {:>10} {:>10}  {:<4} {:<21} {}",
            sight.oldest.map_or_else(|| "-".to_owned(), duration),
            format!("{} of {}", sight.unacked, member.window),
            sight.ack_latency.map_or_else(|| "-".to_owned(), duration),
            sight.delivered,
            sight.acked,
            duration(sight.age),
            dialect_label(member.dialect),
            member.peer.to_string(),
            member.name,
        )?;
    }
    Ok(())
}

/// Short and to two or three digits: `0.5 ms`, `25 ms`, `1.5 s`, `12 min`, `3.2 h`.
fn duration(time: Duration) -> String {
    let (value, unit) = match time.as_secs_f64() {
        seconds if seconds < 1.0 => (seconds * 1e3, "ms"),
        seconds if seconds < 120.0 => (seconds, "s"),
        seconds if seconds < 7_200.0 => (seconds / 60.0, "min"),
        seconds => (seconds / 3_600.0, "h"),
    };
    let digits = usize::from(value < 10.0 && (value * 10.0).round() % 10.0 != 0.0);
    format!("{value:.digits$} {unit}")
}
