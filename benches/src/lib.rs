//! Benchmarks of the path of a delivery: everything is under `benches/`.
