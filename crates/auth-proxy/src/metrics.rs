//! What the gateway counts: one `Metrics` for each, read by `/metrics`, `/stats` and the last line of a run.
//!
//! - `labels`: what counts are split by; closed lists.
//! - `histogram`: how long things took.
//! - `meter`: the counts of one session.
//! - `sources`, `process`: what is looked up when somebody asks.

mod histogram;
mod labels;
mod meter;
mod process;
mod sources;

use std::{fmt, sync::Arc};

use broker::vitals::Vitals;
use prometheus_client::{
    encoding::{EncodeLabelSet, prometheus_text, text},
    metrics::{TypedMetric, counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

pub(crate) use histogram::{BOUNDS_MICROS, BUCKETS, Histogram, Snapshot};
pub(crate) use labels::{Close, Disbelief, Rejection, Requeue, UpgradeResult, dialect_label};
pub(crate) use meter::Meter;
pub(crate) use process::look as look_at_process;
pub(crate) use sources::VitalsSource;

use crate::{outbox::Dialect, refusal::Refusal, roster::Roster};
use labels::{ByCode, ByDialect, ByResult, WhyNotBelieved, WhyRejected, WhyRequeued};

/// What the names begin with; those of the process do not.
const PREFIX: &str = "auth_proxy";

/// All dialects, in the order of their label.
pub(crate) const DIALECTS: [Dialect; 2] = [Dialect::Raw, Dialect::V1];

/// The counts of one gateway.
pub(crate) struct Metrics {
    registry: Registry,
    vitals: Arc<VitalsSource>,
    /// Who is connected.
    pub(crate) roster: Roster,
    /// What became of connections.
    pub(crate) upgrades: Upgrades,
    sessions: PerDialect<Gauge>,
    closes: Family<ByCode, Counter>,
    delivered: Counter,
    delivered_bytes: Counter,
    acked: Counter,
    redelivered: Counter,
    requeued: Family<WhyRequeued, Counter>,
    rejected: Family<WhyRejected, Counter>,
    not_believed: Family<WhyNotBelieved, Counter>,
    send_to_delivery: Histogram,
    delivery_to_ack: PerDialect<Histogram>,
}

/// Connections by what became of them. Clones count into the same.
#[derive(Clone, Debug)]
pub struct Upgrades(Family<ByResult, Counter>);

/// One of each, found without a lock.
struct PerDialect<M> {
    raw: M,
    v1: M,
}

/// Everything that only grows, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    pub(crate) closed: u64,
    /// Among those that closed.
    pub(crate) cut_off: u64,
    pub(crate) delivered: u64,
    pub(crate) delivered_bytes: u64,
    pub(crate) acked: u64,
    pub(crate) requeued: u64,
    pub(crate) rejected: u64,
    pub(crate) redelivered: u64,
    pub(crate) sent_ahead: u64,
    pub(crate) sent_long_ago: u64,
    pub(crate) send_to_delivery: Snapshot,
    /// In the order of [`DIALECTS`].
    pub(crate) delivery_to_ack: [Snapshot; DIALECTS.len()],
}

impl Metrics {
    /// Nothing is counted yet; every series is there, at 0.
    pub(crate) fn new(vitals: VitalsSource) -> Arc<Self> {
        let vitals = Arc::new(vitals);
        process::look();
        let mut registry = Registry::default();
        let ours = registry.sub_registry_with_prefix(PREFIX);
        let sessions = Family::<ByDialect, Gauge>::default();
        let delivery_to_ack = Family::<ByDialect, Histogram>::default();
        let metrics = Self {
            vitals: vitals.clone(),
            roster: Roster::default(),
            upgrades: Upgrades::default(),
            sessions: PerDialect::of(&sessions),
            closes: with_all(Close::all().map(|code| ByCode { code })),
            delivered: Counter::default(),
            delivered_bytes: Counter::default(),
            acked: Counter::default(),
            redelivered: Counter::default(),
            requeued: with_all(Requeue::ALL.map(|cause| WhyRequeued { cause })),
            rejected: with_all(Rejection::ALL.map(|cause| WhyRejected { cause })),
            not_believed: with_all(Disbelief::ALL.map(|cause| WhyNotBelieved { cause })),
            send_to_delivery: Histogram::default(),
            delivery_to_ack: PerDialect::of(&delivery_to_ack),
            registry: Registry::default(),
        };
        ours.register("sessions", "Open sessions", sessions);
        let help = "Connections of clients by what became of them: accepted (answered with 101), gone, or refused";
        ours.register("upgrades", help, metrics.upgrades.0.clone());
        let help = "Ended sessions by close code; client: it closed itself, gone: the connection broke, cut_off: nothing \
                    had ended it at the drain timeout or the second signal, panicked: an error of the proxy, which is in its log";
        ours.register("closes", help, metrics.closes.clone());
        metrics.register_messages(ours);
        let help = "From x-sent-at of a message to its arrival here; messages without it, or with one that is not \
                    believed, are not in here";
        ours.register_with_unit("send_to_delivery", help, Unit::Seconds, metrics.send_to_delivery.clone());
        let help = "From the arrival of a message here to its ack: of the client in v1, the flush to its socket in raw";
        ours.register_with_unit("delivery_to_ack", help, Unit::Seconds, delivery_to_ack);
        ours.register_collector(Box::new(sources::Broker(vitals)));
        registry.register_collector(Box::new(sources::Process));
        Arc::new(Self { registry, ..metrics })
    }

    fn register_messages(&self, registry: &mut Registry) {
        registry.register("messages_delivered", "Messages written to a client in full", self.delivered.clone());
        registry.register("messages_acked", "Messages acked to RabbitMQ", self.acked.clone());
        let help =
            "Messages handed back to their mailbox: by a nack of the client, or not acked at the end of a session";
        registry.register("messages_requeued", help, self.requeued.clone());
        let help = "Messages dropped, or dead-lettered where the policy says so: too large, or by a nack of the client";
        registry.register("messages_rejected", help, self.rejected.clone());
        let help = "Messages that arrived from RabbitMQ flagged as delivered before";
        registry.register("messages_redelivered", help, self.redelivered.clone());
        let help = "Messages whose x-sent-at is not believed; ahead: of the clock of this machine, long_ago: by more than a \
                    day, as it is when it is not in microseconds";
        registry.register("messages_sent_at_not_believed", help, self.not_believed.clone());
        let help = "Bodies of the messages written to clients in full";
        registry.register_with_unit("messages_delivered", help, Unit::Bytes, self.delivered_bytes.clone());
    }

    /// How it stands with the broker.
    pub(crate) fn vitals(&self) -> Vitals {
        (self.vitals)()
    }

    /// Open sessions of a dialect.
    pub(crate) fn sessions(&self, dialect: Dialect) -> i64 {
        self.sessions.get(dialect).get()
    }

    /// The counters at this moment.
    pub(crate) fn totals(&self) -> Totals {
        let closed = |code| count(&self.closes, &ByCode { code });
        let not_believed = |cause| count(&self.not_believed, &WhyNotBelieved { cause });
        Totals {
            accepted: self.upgrades.count(UpgradeResult::Accepted),
            refused: self.upgrades.refused_in_all(),
            closed: Close::all().map(closed).sum(),
            cut_off: closed(Close::CutOff),
            delivered: self.delivered.get(),
            delivered_bytes: self.delivered_bytes.get(),
            acked: self.acked.get(),
            requeued: Requeue::ALL.iter().map(|cause| count(&self.requeued, &WhyRequeued { cause: *cause })).sum(),
            rejected: Rejection::ALL.iter().map(|cause| count(&self.rejected, &WhyRejected { cause: *cause })).sum(),
            redelivered: self.redelivered.get(),
            sent_ahead: not_believed(Disbelief::Ahead),
            sent_long_ago: not_believed(Disbelief::LongAgo),
            send_to_delivery: self.send_to_delivery.snapshot(),
            delivery_to_ack: DIALECTS.map(|dialect| self.delivery_to_ack.get(dialect).snapshot()),
        }
    }

    /// Everything in OpenMetrics 1.0.
    pub(crate) fn open_metrics(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.registry)?;
        Ok(page)
    }

    /// Everything in Prometheus' own older format, 0.0.4.
    pub(crate) fn prometheus_text(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        prometheus_text::encode(&mut page, &self.registry)?;
        Ok(page)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("totals", &self.totals()).finish_non_exhaustive()
    }
}

impl Default for Upgrades {
    fn default() -> Self {
        Self(with_all(UpgradeResult::all().map(|result| ByResult { result })))
    }
}

impl Upgrades {
    /// Answered with 101.
    pub(crate) fn accepted(&self) {
        self.add(UpgradeResult::Accepted);
    }

    /// The client left before its answer.
    pub(crate) fn gone(&self) {
        self.add(UpgradeResult::Gone);
    }

    /// Answered with something else.
    pub fn refused(&self, refusal: Refusal) {
        self.add(UpgradeResult::Refused(refusal));
    }

    /// How often connections were refused for this reason.
    pub fn refusals(&self, refusal: Refusal) -> u64 {
        self.count(UpgradeResult::Refused(refusal))
    }

    fn add(&self, result: UpgradeResult) {
        self.0.get_or_create(&ByResult { result }).inc();
    }

    fn count(&self, result: UpgradeResult) -> u64 {
        count(&self.0, &ByResult { result })
    }

    /// Whatever became no session.
    fn refused_in_all(&self) -> u64 {
        UpgradeResult::all().filter(|result| *result != UpgradeResult::Accepted).map(|result| self.count(result)).sum()
    }
}

impl<M: Clone + Default + TypedMetric> PerDialect<M> {
    fn of(family: &Family<ByDialect, M>) -> Self {
        let of = |dialect| family.get_or_create_owned(&ByDialect { dialect });
        Self { raw: of(Dialect::Raw), v1: of(Dialect::V1) }
    }

    fn get(&self, dialect: Dialect) -> &M {
        match dialect {
            Dialect::Raw => &self.raw,
            Dialect::V1 => &self.v1,
        }
    }
}

/// A series that appears with its first count hides that one from a rate; so all are there from the start.
fn with_all<L>(labels: impl IntoIterator<Item = L>) -> Family<L, Counter>
where
    L: EncodeLabelSet + Clone + Eq + std::hash::Hash,
{
    let family = Family::default();
    labels.into_iter().for_each(|labels| drop(family.get_or_create(&labels)));
    family
}

fn count<L: Clone + Eq + std::hash::Hash>(family: &Family<L, Counter>, labels: &L) -> u64 {
    family.get(labels).map_or(0, |counter| counter.get())
}

/// What `/metrics` of a gateway that has just started answers to who does not ask for OpenMetrics.
///
/// # Errors
/// A metric does not encode.
pub fn first_page() -> Result<String, fmt::Error> {
    let link = |purpose| broker::vitals::LinkVitals {
        purpose,
        up: false,
        blocked: false,
        reconnects: 0,
        outages: std::time::Duration::ZERO,
    };
    let links = ["deliveries", "declarations", "control"].map(link).to_vec();
    let vitals = Vitals { links, ..Vitals::default() };
    Metrics::new(Box::new(move || vitals.clone())).prometheus_text()
}

#[cfg(test)]
pub(crate) mod tests;
