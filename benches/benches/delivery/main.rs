//! The path of a delivery, in the parts that need no socket and no broker: `scripts/bench` runs them.
//!
//! In the order in which a client and its messages meet them.

#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to measure")]

mod bodies;
mod frame;
mod ledger;
mod outbox;
mod token;

use criterion::Criterion;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    token::bench(&mut criterion);
    outbox::bench(&mut criterion);
    frame::bench(&mut criterion);
    ledger::bench(&mut criterion);
    criterion.final_summary();
}
