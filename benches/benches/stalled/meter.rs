//! CPU time of all that takes part, and of what does not.

use std::time::Instant;

use bench::cpu::Cpu;
use bench::histogram::Histogram;
use bench::stalled::Phase;

/// Whose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    pub(crate) broker: u32,
    pub(crate) proxy: u32,
}

/// At one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    at: Instant,
    received: u64,
    broker: Cpu,
    proxy: Cpu,
    clients: Cpu,
    all: Cpu,
}

impl Meter {
    /// Now, with what has been received so far.
    pub(crate) fn read(self, received: u64) -> Reading {
        let of = |pid| Cpu::of(pid).expect("broker, proxy and this process run");
        Reading {
            at: Instant::now(),
            received,
            broker: of(self.broker),
            proxy: of(self.proxy),
            clients: of(std::process::id()),
            all: Cpu::of_all().expect("Linux counts CPU time"),
        }
    }
}

/// What happened between two readings.
pub(crate) fn between(from: &Reading, to: &Reading, latencies: &Histogram) -> Phase {
    let seconds = to.at.duration_since(from.at).as_secs_f64();
    let received = to.received - from.received;
    assert!(received > 0 && latencies.total() > 0, "nothing arrived");
    let (broker, proxy, clients) = (to.broker - from.broker, to.proxy - from.proxy, to.clients - from.clients);
    let a_message = |cpu: Cpu| cpu.total() * 1e6 / received as f64;
    let others = (to.all - from.all).user - broker.user - proxy.user - clients.user;
    Phase {
        received,
        per_second: received as f64 / seconds,
        p50_us: latencies.per_mille(500),
        p99_us: latencies.per_mille(990),
        max_us: latencies.longest(),
        broker_us: a_message(broker),
        proxy_us: a_message(proxy),
        clients_us: a_message(clients),
        // The kernel rounds each count to its ticks.
        others_cores: (others / seconds).max(0.0),
    }
}
