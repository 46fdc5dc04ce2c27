//! A body becomes frames: one look through it for the choice between text and binary, then fragments without a copy.

use std::{hint::black_box, str::from_utf8};

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use protocol::frame::Fragments;

use crate::bodies;

const SIZES: [(&str, usize); 4] = [("130 B", 130), ("1 KiB", 1 << 10), ("16 KiB", 16 << 10), ("1 MiB", 1 << 20)];

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frame encode");
    for (label, size) in SIZES {
        let kinds = [
            ("text, ASCII", bodies::hello(size), true),
            ("text, Cyrillic", bodies::cyrillic(size), true),
            ("binary", bodies::random(size), false),
        ];
        group.throughput(Throughput::Bytes(size as u64));
        for (kind, body, is_text) in kinds {
            assert_eq!((body.len(), from_utf8(&body).is_ok()), (size, is_text), "{kind}, {label}");
            group.bench_function(BenchmarkId::new(kind, label), |b| {
                b.iter_batched(|| body.clone(), encode, BatchSize::SmallInput);
            });
        }
    }
    group.finish();
}

fn encode(body: Bytes) {
    let mut fragments = Fragments::new(body);
    while let Some(frame) = fragments.next_frame() {
        black_box(frame);
    }
}
