//! One share of stalled clients, measured once: a vhost, a proxy and sessions of its own.

use std::fs;

use bench::stalled::{Phase, Sample};
use rig::{Node, PATIENCE, ProxyProcess, Vhost, wait_until};
use tokio::time::sleep;

use crate::args::{Args, BACKLOG, STALLED_BODY_BYTES, WINDOW};
use crate::clients::Clients;
use crate::lanes::until_full;
use crate::load::{Load, Pace};
use crate::meter::{Meter, between};
use crate::score::Score;

/// Whoever stalls is cut after 30 s by default; here it stays for the whole measurement. Acks may wait 25 minutes at most.
const PATIENT: [&str; 6] = ["--ack-timeout", "25m", "--pong-timeout", "1h", "--write-timeout", "1h"];
/// The part of a phase that goes before what is measured.
const WARM_UP: u32 = 5;

/// The broker for all of a run.
pub(crate) struct Place {
    node: Node,
    broker: u32,
}

impl Place {
    pub(crate) fn on(node: Node) -> Place {
        let facts = fs::read_to_string(node.dir().join("env")).expect("the node has its facts in a file");
        let pid = facts.lines().find_map(|line| line.strip_prefix("pid=")).and_then(|pid| pid.parse().ok());
        Place { node, broker: pid.expect("the broker is a process of this machine, in no container") }
    }
}

pub(crate) async fn sample(args: &Args, place: &Place, round: u64, percent: f64) -> Sample {
    let vhost = Vhost::new(&place.node).await;
    let window = WINDOW.to_string();
    let options: Vec<&str> = ["--window", &window].into_iter().chain(PATIENT).collect();
    let mut proxy = ProxyProcess::start(&vhost, &options, &[("RUST_LOG", "warn")]).await;
    let score = Score::default();
    let stalled = share(args.sessions, percent);
    let mut clients = Clients::connect(proxy.addr(), args.sessions, stalled, &score).await;
    let mut load = Load::new(&vhost, clients.healthy.clone(), score.clone());
    load.fill(&clients.stalled, WINDOW + BACKLOG, STALLED_BODY_BYTES).await;
    let lanes = until_full(&vhost, &clients.stalled).await;
    let meter = Meter { broker: place.broker, proxy: proxy.program().pid() };
    let fixed_rate = phase(args, meter, &mut load, &score, Pace::Rate(args.rate)).await;
    let full_speed = phase(args, meter, &mut load, &score, Pace::Full).await;
    clients.check();
    assert_eq!(until_full(&vhost, &clients.stalled).await, lanes, "the stalled sessions are as they were");
    Sample { round, percent, stalled, lanes: lanes.count, open_tags: lanes.open_tags, fixed_rate, full_speed }
}

async fn phase(args: &Args, meter: Meter, load: &mut Load, score: &Score, pace: Pace) -> Phase {
    let time = async {
        sleep(args.seconds / WARM_UP).await;
        score.count();
        let from = meter.read(score.received());
        sleep(args.seconds).await;
        let to = meter.read(score.received());
        score.count_no_more();
        (from, to)
    };
    let (from, to) = tokio::select! {
        readings = time => readings,
        never = load.run(pace) => match never {},
    };
    load.settle().await;
    let all = "all that was published has arrived";
    let sent = load.sent();
    wait_until(PATIENCE, all, async || score.received(), |received| *received == sent).await;
    between(&from, &to, &score.latencies())
}

/// So many of `sessions`, at least one if the share is not 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a number of sessions")]
fn share(sessions: u64, percent: f64) -> u64 {
    (sessions as f64 * percent / 100.0).ceil().min((sessions - 1) as f64) as u64
}

/// In a line, for who waits.
pub(crate) fn told(sample: &Sample) -> String {
    let Sample { percent, stalled, lanes, open_tags, fixed_rate, full_speed, .. } = sample;
    let line = |phase: &Phase| {
        let Phase { per_second, p50_us, p99_us, max_us, broker_us, proxy_us, clients_us, others_cores, .. } = phase;
        format!(
            "{per_second:.0}/s, {p50_us}/{p99_us}/{max_us} µs, CPU {broker_us:.0} + {proxy_us:.0} + {clients_us:.0} µs, \
             others {others_cores:.2} cores"
        )
    };
    format!(
        "{percent} % ({stalled}) stalled, {lanes} lanes, at most {open_tags} open tags; {}; {}",
        line(fixed_rate),
        line(full_speed)
    )
}
