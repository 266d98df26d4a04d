//! What every memory promises, tested once and instantiated in one line for each stack.
//!
//! `subject` says what a stack is to the suite, `promises` are the promises, and this file
//! is the list of stacks that keep them. Each promise gets a stack of its own.
//!
//! Hardware that is absent is said to be skipped; `PLIMSOLL_REQUIRE=opencl,cuda` turns
//! that into a failure.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

#[path = "../fake/mod.rs"]
mod fake;
mod hammer;
mod promises;
mod subject;

use std::sync::Arc;

use plimsoll_memory::backend::BackendKind;
use plimsoll_memory::{Bytes, Fallback, Limit, Memory, Packing, PressureWatch, Tracked};
use subject::{
    Subject, cuda, cuda_without_mapping, fake_cuda, fake_cuda_without_mapping, fake_rocm, host,
    opencl, pool, rocm, sim, sim_without_mapping,
};

/// Puts a stack through every promise.
fn check(name: &str, make: impl Fn() -> Subject) {
    for (promise, keep) in promises::ALL {
        println!("{name}: {promise}");
        let subject = make();
        keep(&subject, &make);
        subject.assert_no_faults();
    }
}

macro_rules! conforms {
    ($($name:ident: $make:expr;)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name), || $make);
        }
    )*};
}

/// The same, where the machine has a device of that kind.
macro_rules! conforms_where_there_is {
    ($($kind:ident, $name:ident: $make:expr;)*) => {$(
        #[test]
        fn $name() {
            if subject::is_here(BackendKind::$kind) {
                check(stringify!($name), || $make);
            }
        }
    )*};
}

fn limit(upstream: Subject, limit: Bytes) -> Subject {
    upstream.under(|upstream| Limit::new(upstream, limit))
}

fn tracked(upstream: Subject) -> Subject {
    upstream.under(Tracked::new)
}

fn watched(upstream: Subject) -> Subject {
    upstream.under(|upstream| PressureWatch::new(upstream, |_| {}))
}

/// A callback that trims what it watches, whenever a level is crossed.
fn trimmed(upstream: Subject) -> Subject {
    upstream.under(|upstream| {
        PressureWatch::new(upstream, |change| {
            change.memory.trim().unwrap();
        })
    })
}

fn fallback(first: Subject, second: Subject) -> Subject {
    let largest = first.largest.max(second.largest);
    let sim = first.sim.or(second.sim);
    let memory: Arc<dyn Memory> = Arc::new(Fallback::new(first.memory, second.memory));
    Subject { memory, largest, sim }
}

const QUICK: Packing = Packing::Quick;
const TIGHT: Packing = Packing::Tight;
const LINE: Bytes = Bytes::mib(24);

conforms! {
    host_alone: host(64);
    sim_alone: sim(64);
    sim_that_cannot_map: sim_without_mapping(64);
    pool_on_host: pool(host(64), QUICK);
    pool_on_sim_quick: pool(sim(64), QUICK);
    pool_on_sim_tight: pool(sim(64), TIGHT);
    pool_on_large_sim_quick: pool(sim(900), QUICK);
    pool_on_sim_without_mapping: pool(sim_without_mapping(64), QUICK);
    tight_pool_on_sim_without_mapping: pool(sim_without_mapping(64), TIGHT);
    pool_on_an_odd_share: subject::odd_pool(sim(64));
    pool_on_an_odd_share_without_mapping: subject::odd_pool(sim_without_mapping(64));
    limit_on_host: limit(host(64), LINE);
    limit_on_sim: limit(sim(64), LINE);
    limit_above_what_there_is: limit(sim(64), Bytes::gib(4));
    limit_over_pool: limit(pool(sim(64), QUICK), LINE);
    limit_over_tight_pool: limit(pool(sim(64), TIGHT), LINE);
    limit_over_pool_on_host: limit(pool(host(64), QUICK), LINE);
    pool_over_limit: pool(limit(sim(64), LINE), QUICK);
    tight_pool_over_limit: pool(limit(sim(64), LINE), TIGHT);
    pool_over_odd_limit: pool(limit(sim(64), Bytes(LINE.0 + 12_345)), QUICK);
    pool_over_limit_without_mapping: pool(limit(sim_without_mapping(64), LINE), QUICK);
    pool_over_odd_limit_without_mapping:
        pool(limit(sim_without_mapping(64), Bytes(LINE.0 + 12_345)), QUICK);
    tracker_on_host: tracked(host(64));
    tracker_over_pool: tracked(pool(sim(64), QUICK));
    pool_over_tracker: pool(tracked(sim(64)), QUICK);
    pool_over_tracker_without_mapping: pool(tracked(sim_without_mapping(64)), QUICK);
    pressure_on_host: watched(host(64));
    pool_over_pressure: pool(watched(sim(64)), TIGHT);
    pressure_over_limit_over_pool: watched(limit(pool(sim(64), QUICK), LINE));
    pressure_that_trims_over_pool: trimmed(pool(sim(64), QUICK));
    pressure_that_trims_over_pool_without_mapping: trimmed(pool(sim_without_mapping(64), QUICK));
    fallback_from_pool_to_host: fallback(pool(sim(16), QUICK), host(64));
    fallback_from_host_to_pool: fallback(host(16), pool(host(32), QUICK));
    fallback_from_large_to_small: fallback(pool(sim(64), TIGHT), host(8));
    tracker_over_fallback: tracked(fallback(pool(sim(16), QUICK), host(64)));
    fake_cuda_alone: fake_cuda(64);
    pool_on_fake_cuda_quick: pool(fake_cuda(64), QUICK);
    pool_on_fake_cuda_tight: pool(fake_cuda(64), TIGHT);
    pool_on_fake_cuda_without_mapping: pool(fake_cuda_without_mapping(64), QUICK);
    pool_over_limit_on_fake_cuda: pool(limit(fake_cuda(64), LINE), QUICK);
    fallback_from_fake_cuda_to_host: fallback(pool(fake_cuda(16), QUICK), host(64));
    fake_rocm_alone: fake_rocm(64);
    pool_on_fake_rocm: pool(fake_rocm(64), QUICK);
    tight_pool_on_fake_rocm: pool(fake_rocm(64), TIGHT);
    pool_over_limit_on_fake_rocm: pool(limit(fake_rocm(64), LINE), QUICK);
    pool_over_pool: pool(pool(sim_without_mapping(64), QUICK), QUICK);
    all_layers_over_pool: tracked(watched(limit(pool(sim(64), QUICK), LINE)));
    all_layers_under_pool: pool(tracked(watched(limit(sim(64), LINE))), QUICK);
    all_layers_above_and_below:
        tracked(watched(limit(fallback(
            pool(limit(tracked(sim(64)), LINE), QUICK),
            limit(host(64), LINE)), Bytes::mib(40))));
}

conforms_where_there_is! {
    Cuda, cuda_alone: cuda(64);
    Cuda, cuda_that_may_not_map: cuda_without_mapping(64);
    Cuda, pool_on_cuda_quick: pool(cuda(64), QUICK);
    Cuda, pool_on_cuda_tight: pool(cuda(64), TIGHT);
    Cuda, pool_on_large_cuda_quick: pool(cuda(900), QUICK);
    Cuda, pool_on_cuda_without_mapping: pool(cuda_without_mapping(64), QUICK);
    Cuda, pool_over_limit_on_cuda: pool(limit(cuda(64), LINE), QUICK);
    Cuda, fallback_from_cuda_to_host: fallback(pool(cuda(16), QUICK), host(64));
    Cuda, all_layers_on_cuda: tracked(watched(limit(pool(cuda(64), QUICK), LINE)));
    Rocm, rocm_alone: rocm(64);
    Rocm, pool_on_rocm: pool(rocm(64), QUICK);
    Rocm, pool_over_limit_on_rocm: pool(limit(rocm(64), LINE), QUICK);
    OpenCl, opencl_alone: opencl(64);
    OpenCl, pool_on_opencl: pool(opencl(64), QUICK);
    OpenCl, tight_pool_on_opencl: pool(opencl(64), TIGHT);
    OpenCl, pool_over_limit_on_opencl: pool(limit(opencl(64), LINE), QUICK);
    OpenCl, fallback_from_opencl_to_host: fallback(pool(opencl(16), QUICK), host(64));
}

#[cfg(target_os = "macos")]
conforms_where_there_is! {
    Metal, metal_alone: subject::metal(64);
    Metal, pool_on_metal: pool(subject::metal(64), QUICK);
    Metal, pool_over_limit_on_metal: pool(limit(subject::metal(64), LINE), QUICK);
}
