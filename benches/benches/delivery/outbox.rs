//! A session's bookkeeping between its mailbox and its socket: take what waits, feed its frames, flush once.

use std::{array, hint::black_box};

use auth_proxy::outbox::{Dialect, Outbox};
use broker::{
    properties::Properties,
    subscription::{Delivery, Tag},
};
use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, measurement::WallTime};

use crate::bodies;
use tokio::time::Instant;

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("outbox");
    group.throughput(Throughput::Elements(1));
    bench_batch::<1>(&mut group, "130 B, 1 per flush", &bodies::hello(130));
    group.throughput(Throughput::Elements(16));
    bench_batch::<16>(&mut group, "130 B, 16 per flush", &bodies::hello(130));
    group.throughput(Throughput::Bytes(1 << 20));
    bench_batch::<1>(&mut group, "1 MiB", &bodies::hello(1 << 20));
    group.finish();
}

type Group<'a> = criterion::BenchmarkGroup<'a, WallTime>;

/// One outbox for all iterations, as a session has it. The batch is an array, so that no heap is measured but its own.
fn bench_batch<const DELIVERIES: usize>(group: &mut Group<'_>, name: &str, body: &Bytes) {
    let mut outbox = Outbox::new(Dialect::Raw);
    let batch = || {
        array::from_fn::<_, DELIVERIES, _>(|i| Delivery {
            tag: Tag::detached(i as u64 + 1),
            redelivered: false,
            body: body.clone(),
            properties: Properties::default(),
        })
    };
    assert_eq!(forward(&mut outbox, batch()), DELIVERIES, "{name}: all settle with the one flush");
    group.bench_function(name, |b| {
        b.iter_batched(batch, |deliveries| forward(&mut outbox, deliveries), BatchSize::SmallInput);
    });
}

/// Returns how many deliveries settled.
fn forward<const DELIVERIES: usize>(outbox: &mut Outbox, deliveries: [Delivery; DELIVERIES]) -> usize {
    for delivery in deliveries {
        // The session looks at the clock for each, too.
        outbox.push(delivery, Instant::now());
    }
    while let Some(frame) = outbox.next_frame() {
        black_box(frame);
    }
    black_box(outbox.flushed(Instant::now())).len()
}
