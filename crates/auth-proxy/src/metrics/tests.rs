use std::{
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use broker::{subscription::Tag, vitals::LinkVitals};
use bytes::Bytes;
use protocol::close::CloseCode;
use tokio::time::Instant;

use super::*;
use crate::{end::End, roster::Member};

/// Of a gateway with a broker of which this is known.
pub(crate) fn metrics() -> Arc<Metrics> {
    Metrics::new(Box::new(|| Vitals {
        lanes: 3,
        open_tags: 40,
        lane_rebuilds: 2,
        control_listening: true,
        control_ignored: 5,
        unreadable: 6,
        links: vec![
            link("deliveries", true, Duration::from_millis(1_500)),
            link("declarations", false, Duration::from_secs(2)),
        ],
    }))
}

fn link(purpose: &'static str, up: bool, outages: Duration) -> LinkVitals {
    LinkVitals { purpose, up, blocked: !up, reconnects: 1, outages }
}

pub(crate) fn member(name: &str, dialect: Dialect) -> Member {
    Member { name: name.to_owned(), peer: SocketAddr::from(([127, 0, 0, 1], 1)), dialect, window: 16 }
}

fn delivery(redelivered: bool) -> broker::subscription::Delivery {
    broker::subscription::Delivery {
        tag: Tag::detached(1),
        redelivered,
        body: Bytes::new(),
        properties: Default::default(),
    }
}

/// The value of a series: the rest of the line that begins with its name and labels.
fn value(page: &str, series: &str) -> String {
    let lines: Vec<_> = page.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' ')).collect();
    let [value] = lines[..] else { panic!("{series} is there {} times:\n{page}", lines.len()) };
    value.to_owned()
}

fn check(page: &str, expected: &[(&str, &str)]) {
    for (series, expected) in expected {
        assert_eq!(value(page, series), *expected, "{series}");
    }
}

#[test]
fn a_series_is_there_before_its_first_count() {
    let page = metrics().prometheus_text().unwrap();
    for refusal in Refusal::ALL {
        check(&page, &[(&format!("auth_proxy_upgrades_total{{result=\"{}\"}}", refusal.label()), "0")]);
    }
    for code in CloseCode::ALL.iter().filter(|code| code.code() > 1001) {
        check(&page, &[(&format!("auth_proxy_closes_total{{code=\"{}\"}}", code.label()), "0")]);
    }
    let expected = [
        ("auth_proxy_sessions{dialect=\"v1\"}", "0"),
        ("auth_proxy_messages_rejected_total{cause=\"too_large\"}", "0"),
        ("auth_proxy_messages_requeued_total{cause=\"session_end\"}", "0"),
        ("auth_proxy_delivery_to_ack_seconds_bucket{dialect=\"raw\",le=\"+Inf\"}", "0"),
        ("auth_proxy_send_to_delivery_seconds_count", "0"),
    ];
    check(&page, &expected);
}

#[test]
fn the_broker_s_side_is_looked_up_for_each_page() {
    let expected = [
        ("auth_proxy_lanes", "3"),
        ("auth_proxy_open_tags", "40"),
        ("auth_proxy_lane_rebuilds_total", "2"),
        ("auth_proxy_control_listening", "1"),
        ("auth_proxy_control_messages_ignored_total", "5"),
        ("auth_proxy_amqp_frames_unreadable_total", "6"),
        ("auth_proxy_amqp_connection_up{purpose=\"deliveries\"}", "1"),
        ("auth_proxy_amqp_connection_up{purpose=\"declarations\"}", "0"),
        ("auth_proxy_amqp_connection_blocked{purpose=\"declarations\"}", "1"),
        ("auth_proxy_amqp_reconnects_total{purpose=\"declarations\"}", "1"),
        ("auth_proxy_amqp_outage_seconds_total{purpose=\"deliveries\"}", "1.5"),
    ];
    check(&metrics().prometheus_text().unwrap(), &expected);
    check(&metrics().open_metrics().unwrap(), &expected);
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_has_the_names_that_every_program_has() {
    let page = metrics().prometheus_text().unwrap();
    let names = ["process_start_time_seconds", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"];
    for name in names {
        assert!(value(&page, name).parse::<f64>().unwrap() > 0.0, "{name}");
    }
}

#[test]
fn a_session_is_counted_from_its_begin_to_its_end() {
    let metrics = metrics();
    let mut raw = Meter::new(&metrics, member("a", Dialect::Raw));
    let v1 = Meter::new(&metrics, member("b", Dialect::V1));
    assert_eq!((metrics.sessions(Dialect::Raw), metrics.sessions(Dialect::V1)), (1, 1));
    raw.ends(&End::NoPong);
    drop(raw);
    drop(v1);
    assert_eq!((metrics.sessions(Dialect::Raw), metrics.sessions(Dialect::V1)), (0, 0));
    let page = metrics.prometheus_text().unwrap();
    let expected =
        [("auth_proxy_closes_total{code=\"no_pong\"}", "1"), ("auth_proxy_closes_total{code=\"cut_off\"}", "1")];
    check(&page, &expected);
    assert_eq!((metrics.totals().closed, metrics.totals().cut_off), (2, 1));
}

#[tokio::test]
async fn a_session_whose_task_panics_is_not_taken_for_one_that_was_cut_off() {
    let metrics = metrics();
    let meter = Meter::new(&metrics, member("a", Dialect::V1));
    let mut task = tokio::task::JoinSet::new();
    task.spawn(async move {
        let _meter = meter;
        tokio::task::yield_now().await;
        panic!("as the test wants it");
    });
    assert!(task.join_next().await.unwrap().unwrap_err().is_panic());
    let totals = metrics.totals();
    assert_eq!((totals.closed, totals.cut_off, metrics.sessions(Dialect::V1)), (1, 0, 0));
    check(&metrics.prometheus_text().unwrap(), &[("auth_proxy_closes_total{code=\"panicked\"}", "1")]);
}

#[test]
fn messages_are_counted_in_totals_and_pages_alike() {
    let metrics = metrics();
    let meter = Meter::new(&metrics, member("a", Dialect::V1));
    meter.arrived(&delivery(true));
    meter.arrived(&delivery(false));
    meter.delivered(2, 1_000);
    let now = Instant::now();
    meter.acked([now, now], 1, now + Duration::from_millis(20));
    meter.rejected(Rejection::Client, 1);
    meter.requeued(Requeue::SessionEnd, 3);
    let totals = metrics.totals();
    assert_eq!((totals.delivered, totals.delivered_bytes, totals.acked), (2, 1_000, 1));
    assert_eq!((totals.rejected, totals.requeued, totals.redelivered), (1, 3, 1));
    assert_eq!(totals.delivery_to_ack.map(|snapshot| snapshot.count()), [0, 2], "in v1 alone");
    let expected = [
        ("auth_proxy_messages_delivered_total", "2"),
        ("auth_proxy_messages_delivered_bytes_total", "1000"),
        ("auth_proxy_messages_acked_total", "1"),
        ("auth_proxy_messages_redelivered_total", "1"),
        ("auth_proxy_messages_rejected_total{cause=\"client\"}", "1"),
        ("auth_proxy_messages_requeued_total{cause=\"session_end\"}", "3"),
        ("auth_proxy_delivery_to_ack_seconds_sum{dialect=\"v1\"}", "0.04"),
    ];
    check(&metrics.prometheus_text().unwrap(), &expected);
}

const DAY_MICROS: u64 = 24 * 60 * 60 * 1_000_000;

#[test]
fn a_time_that_cannot_be_is_counted_apart() {
    let metrics = metrics();
    let meter = Meter::new(&metrics, member("a", Dialect::Raw));
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap();
    let (waited, ahead, old) = (now - DAY_MICROS + 60_000_000, now + 60_000_000, now - DAY_MICROS - 1);
    let (milliseconds, seconds) = (now / 1_000, now / 1_000_000);
    for sent_at in [now - 2_000_000, waited, ahead, old, milliseconds, seconds, 0] {
        meter.sent_at(Some(sent_at));
    }
    let totals = metrics.totals();
    assert_eq!((totals.send_to_delivery.count(), totals.sent_ahead, totals.sent_long_ago), (2, 1, 4));
    assert!((2_000_000..=DAY_MICROS).contains(&totals.send_to_delivery.sum_micros), "{totals:?}");
    let expected = [
        ("auth_proxy_messages_sent_at_not_believed_total{cause=\"ahead\"}", "1"),
        ("auth_proxy_messages_sent_at_not_believed_total{cause=\"long_ago\"}", "4"),
    ];
    check(&metrics.prometheus_text().unwrap(), &expected);
}

#[test]
fn open_metrics_ends_with_its_mark() {
    assert!(metrics().open_metrics().unwrap().ends_with("# EOF\n"));
    assert!(!metrics().prometheus_text().unwrap().contains("# EOF"));
}
