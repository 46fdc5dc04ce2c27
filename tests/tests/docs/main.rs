//! Documents and deployment files against the code. None of this needs a broker.
//!
//! The tables of the README that the code can write are written by it:
//! `UPDATE_EXPECT=1 cargo test -p e2e --test docs` puts them right.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of it is test code"
)]

mod architecture; // the map of the code names what exists
mod compose; // docker-compose.yml against the definitions, the programs and this directory
mod definitions; // users, permissions and limits of the broker
mod dockerfile; // what is built and what runs
mod markdown; // sections and tables
mod readme; // commands, numbers, guarantees
mod repository; // the files
mod sources; // tests and functions by name
mod tables; // the generated ones
