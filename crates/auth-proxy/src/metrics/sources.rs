//! What is looked up when somebody asks: the broker's side and the process.

use std::fmt;

use broker::vitals::Vitals;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

use super::{labels::ByPurpose, process};

/// Where the broker's vitals come from.
pub(crate) type VitalsSource = Box<dyn Fn() -> Vitals + Send + Sync>;

/// Lanes and connections.
pub(super) struct Broker(pub(super) std::sync::Arc<VitalsSource>);

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Broker")
    }
}

impl Collector for Broker {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let vitals = (self.0)();
        let mut gauge = |name: &str, help: &str, value: u64| {
            let value = ConstGauge::new(value);
            value.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge("lanes", "Shared AMQP channels that carry deliveries, or will once their connection is back.", {
            vitals.lanes as u64
        })?;
        let help = "Deliveries of all lanes that the broker holds until they are acked or handed back.";
        gauge("open_tags", help, vitals.open_tags)?;
        let help = "Whether other proxies are listened to: 1 or 0. At 0, with the connection for control up, the log says \
                    why; no mailbox is taken over from another proxy then.";
        gauge("control_listening", help, u64::from(vitals.control_listening))?;
        let mut counter = |name: &str, help: &str, value: u64| {
            let value = ConstCounter::new(value);
            value.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
        };
        counter("lane_rebuilds", "How often a lane got another channel.", vitals.lane_rebuilds)?;
        let help = "Messages on exchange.control that no proxy of this kind said; they are ignored.";
        counter("control_messages_ignored", help, vitals.control_ignored)?;
        let help = "AMQP frames with properties of a message that cannot be read; the message arrives without them.";
        counter("amqp_frames_unreadable", help, vitals.unreadable)?;
        links(&vitals, encoder)
    }
}

fn links(vitals: &Vitals, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
    let links = || vitals.links.iter().map(|link| (ByPurpose { purpose: link.purpose }, link));

    let help = "Whether this connection to the broker is there: 1 or 0.";
    let mut up = encoder.encode_descriptor("amqp_connection_up", help, None, MetricType::Gauge)?;
    for (labels, link) in links() {
        ConstGauge::new(u64::from(link.up)).encode(up.encode_family(&labels)?)?;
    }
    let help = "Whether the broker blocks publishing on this connection because of an alarm: 1 or 0.";
    let mut blocked = encoder.encode_descriptor("amqp_connection_blocked", help, None, MetricType::Gauge)?;
    for (labels, link) in links() {
        ConstGauge::new(u64::from(link.blocked)).encode(blocked.encode_family(&labels)?)?;
    }
    let help = "How often there was another connection after the first.";
    let mut reconnects = encoder.encode_descriptor("amqp_reconnects", help, None, MetricType::Counter)?;
    for (labels, link) in links() {
        ConstCounter::new(link.reconnects).encode(reconnects.encode_family(&labels)?)?;
    }
    let help = "How long this connection was not there, in all; an outage that lasts is counted up to now.";
    let mut outages = encoder.encode_descriptor("amqp_outage", help, Some(&Unit::Seconds), MetricType::Counter)?;
    for (labels, link) in links() {
        ConstCounter::new(link.outages.as_secs_f64()).encode(outages.encode_family(&labels)?)?;
    }
    Ok(())
}

/// The names of these are the same for every program that Prometheus looks at.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let process = process::look();
        let help = "When the process started, in unix seconds.";
        let started = encoder.encode_descriptor("process_start_time", help, Some(&Unit::Seconds), MetricType::Gauge)?;
        ConstGauge::new(process.started.as_secs_f64()).encode(started)?;
        let mut known = |name: &str, help: &str, unit: Option<&Unit>, value: Option<u64>| match value {
            Some(value) => {
                ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?)
            }
            None => Ok(()),
        };
        known("process_resident_memory", "Memory that is in RAM.", Some(&Unit::Bytes), process.resident_bytes)?;
        known("process_open_fds", "Open files and sockets.", None, process.open_descriptors)?;
        known("process_max_fds", "The limit on open files and sockets.", None, process.descriptor_limit)
    }
}
