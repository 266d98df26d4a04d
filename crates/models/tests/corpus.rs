//! The pool on made-up programs: the same whatever the device's pace, and however long it runs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use plimsoll_memory::backend::sim::{Sim, SimConfig};
use plimsoll_memory::memory::Stream;
use plimsoll_memory::{Block, Bytes, MemoryConfig, Packing, Pool};
use plimsoll_models::trace::replay::TraceReplay;
use plimsoll_models::trace::{Trace, TraceOp, corpus};

/// How fast a device is: how long events take to be over, and the work on a block.
#[derive(Debug, Clone, Copy)]
struct Pace {
    lag: Duration,
    work: Option<Duration>,
}

/// What a pool did: handles taken, returned and moved, and the peak, after each pass.
type Course = Vec<(u64, u64, u64, Bytes)>;

fn course(trace: &Trace, packing: Packing, pace: Pace, passes: u32) -> Course {
    let config = SimConfig::default().with_total(Bytes::gib(141)).with_event_lag(pace.lag);
    let sim = Arc::new(Sim::new(config));
    let config = MemoryConfig::new()
        .with_gpu_memory_fraction(1.0)
        .with_min_free_bytes(0)
        .with_tracking(false)
        .with_packing(packing);
    let pool = Pool::new(sim.clone(), config).unwrap();
    let device = sim.clone();
    let mut replay = TraceReplay::new(&pool, trace).unwrap();
    if let Some(length) = pace.work {
        replay = replay.with_work(Box::new(move |block: &Block, stream: Stream| {
            device.launch(stream, length, &[(block.address(), block.size())]);
            Ok(())
        }));
    }
    let mut course = Vec::new();
    for _ in 0..passes {
        let peak = replay.pass().unwrap().peak_reserved;
        let did = pool.activity();
        course.push((did.taken_from_device, did.returned_to_device, did.remapped_handles, peak));
    }
    assert_eq!(sim.faults(), Vec::<String>::new());
    course
}

/// The first events of a program.
fn opening(seed: u64, events: usize) -> Trace {
    let whole = corpus::trace(seed).unwrap();
    let mut builder = Trace::builder();
    for event in whole.events().iter().take(events) {
        let (id, stream) = (u64::from(event.id), u64::from(event.stream));
        let added = match event.op {
            TraceOp::Allocate => builder.allocate(id, Bytes(event.size), stream, event.time_us),
            TraceOp::Free => builder.free(id, stream, event.time_us),
        };
        added.unwrap();
    }
    builder.finish()
}

#[test]
fn decisions_depend_on_the_trace_and_not_on_the_pace_of_the_device() {
    let idle = Pace { lag: Duration::ZERO, work: None };
    // As on a GPU: no event is over when it is asked after at once.
    let gpu = Pace { lag: Duration::from_micros(8), work: None };
    let mut moved = 0;
    for seed in 0..12 {
        let trace = opening(seed, 4000);
        for packing in [Packing::Quick, Packing::Tight] {
            let expected = course(&trace, packing, idle, 3);
            assert_eq!(course(&trace, packing, gpu, 3), expected, "seed {seed}, {packing:?}");
            moved += expected[2].2;
        }
    }
    assert!(moved > 200, "only {moved} handles were moved: nothing was decided");
}

#[test]
fn work_in_flight_changes_no_decision() {
    let idle = Pace { lag: Duration::ZERO, work: None };
    let busy = Pace { lag: Duration::from_micros(8), work: Some(Duration::from_micros(500)) };
    // Every launch is compared with the work in flight, so this is slow.
    for seed in [1, 4, 9] {
        let trace = opening(seed, 1000);
        for packing in [Packing::Quick, Packing::Tight] {
            let expected = course(&trace, packing, idle, 2);
            assert_eq!(course(&trace, packing, busy, 2), expected, "seed {seed}, {packing:?}");
        }
    }
}

#[test]
fn what_is_held_does_not_grow_with_the_number_of_passes() {
    let idle = Pace { lag: Duration::ZERO, work: None };
    for seed in [11, 22] {
        let trace = opening(seed, 6000);
        let peaks: Vec<f64> = course(&trace, Packing::Quick, idle, 16)
            .iter()
            .map(|(.., peak)| peak.as_gib() / trace.peak_live().as_gib())
            .collect();
        let (early, late) = (peaks[3], peaks[15]);
        assert!(late <= early + 0.04, "seed {seed}: {early:.3} after 4 passes, {late:.3} after 16");
    }
}

#[test]
fn small_pools_do_not_pay_for_large_handles() {
    let idle = Pace { lag: Duration::ZERO, work: None };
    let mut small = 0;
    for seed in 0..60 {
        let trace = opening(seed, 3000);
        let live = trace.peak_live();
        if trace.streams().len() > 1 || live > Bytes::mib(128) {
            continue;
        }
        let peak = course(&trace, Packing::Quick, idle, 3)[2].3;
        let most = Bytes((live.get() as f64 * 1.08) as u64) + Bytes::mib(8);
        assert!(peak <= most, "seed {seed}: {peak} for {live}");
        small += 1;
    }
    assert!(small >= 5, "only {small} small pools");
}

/// How many of these programs make the pool reserve more than this.
fn over(packing: Packing, passes: u32, most: impl Fn(Bytes) -> Bytes) -> Vec<u64> {
    let idle = Pace { lag: Duration::ZERO, work: None };
    let over = (0..60).filter(|seed| {
        let trace = corpus::trace(*seed).unwrap();
        let peak = course(&trace, packing, idle, passes).last().unwrap().3;
        peak > most(trace.peak_live())
    });
    over.collect()
}

#[test]
fn hardly_any_program_makes_the_pool_reserve_much_more_than_is_live() {
    let part = |live: Bytes, share: u64| Bytes(live.get() / share);
    let quick = over(Packing::Quick, 4, |live| live + part(live, 20) + Bytes::mib(8));
    assert!(quick.len() <= 3, "quick packing: seeds {quick:?}");
    let tight = over(Packing::Tight, 1, |live| live + part(live, 50).max(Bytes::mib(6)));
    assert!(tight.len() <= 9, "tight packing: seeds {tight:?}");
}
