//! CUDA beyond what every memory promises: a driver that is missing, old or failing, kinds
//! of memory, contexts, sharing, compiled code, graphs, and work in flight.
//!
//! Every test runs on the pretend driver, and unchanged on the real one where there is one,
//! behind a front with the same knobs: what is seen only on a pretence is not shown.
//! `PLIMSOLL_REQUIRE=cuda` makes it a failure that there is none. What a driver that runs
//! everything at once cannot show is in `flight`, for real devices alone.
// The pretend driver keeps physical memory in files that only Linux has.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    unsafe_code,
    reason = "a test fails by panicking, and launches compiled code"
)]

mod code;
mod device;
mod driver;
#[path = "../fake/mod.rs"]
#[expect(dead_code, reason = "other tests ask for other drivers")]
mod fake;
mod flight;
mod front;
