//! What each upgrade pays at the door, admitted or not.

use std::{
    hint::black_box,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use criterion::{Criterion, Throughput};
use protocol::token::{DEVELOPMENT_KEY, Minter, TokenError, Verifier};
use secrecy::SecretString;

const TTL: Duration = Duration::from_secs(3600);

pub(crate) fn bench(criterion: &mut Criterion) {
    let verifier = Verifier::hs256(&SecretString::from(DEVELOPMENT_KEY), None, None).expect("the key is not empty");
    let good = mint(DEVELOPMENT_KEY);
    let foreign = mint("another key");
    // As long as a good one and of its alphabet, but its header decodes to no JSON.
    let garbage: String = good.chars().map(|c| if c == '.' { '.' } else { 'A' }).collect();

    assert!(verifier.verify(&good).is_ok());
    assert_eq!(verifier.verify(&foreign), Err(TokenError::Signature));
    assert!(matches!(verifier.verify_at(&good, after_expiry()), Err(TokenError::Expired { .. })));
    assert!(matches!(verifier.verify(&garbage), Err(TokenError::Header | TokenError::Malformed)));

    let mut group = criterion.benchmark_group("token check");
    group.throughput(Throughput::Elements(1));
    group.bench_function("good", |b| b.iter(|| verifier.verify(black_box(&good))));
    group.bench_function("wrong key", |b| b.iter(|| verifier.verify(black_box(&foreign))));
    // `verify` is this with the system clock, which is read here too.
    group.bench_function("expired", |b| b.iter(|| verifier.verify_at(black_box(&good), after_expiry())));
    group.bench_function("garbage", |b| b.iter(|| verifier.verify(black_box(&garbage))));
    group.finish();
}

fn mint(key: &str) -> String {
    let minter = Minter::hs256(&SecretString::from(key)).expect("the key is not empty");
    minter.mint("consumer101", None, TTL).expect("the consumer is not empty")
}

/// Unix seconds at which a token minted in this run has expired, leeway included.
fn after_expiry() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()) + 2 * TTL.as_secs()
}
