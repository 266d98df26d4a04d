//! Peaks are counted, and what is unknown is shown so.

use std::thread;

use super::*;
use crate::backend::host::Host;
use crate::backend::sim::{Sim, SimCall, SimConfig};
use crate::config::MemoryConfig;
use crate::pressure::MemoryPressure;
use crate::stack::pool::Pool;
use plimsoll_machine::error::Error;

fn sim(total: Bytes) -> Arc<Sim> {
    Arc::new(Sim::new(SimConfig::default().with_total(total)))
}

fn profiler(device: &Arc<Sim>) -> MemoryProfiler {
    let pool = Pool::new(Arc::clone(device) as Arc<dyn Memory>, MemoryConfig::new()).unwrap();
    MemoryProfiler::new(Arc::new(pool))
}

#[test]
fn a_peak_between_two_pictures_is_seen() {
    let memory = profiler(&sim(Bytes::gib(8)));
    let before = memory.capture("before");
    let short = memory.allocate(Request::new(Bytes::mib(100))).unwrap();
    memory.release(short, Stream::DEFAULT).unwrap();
    let after = memory.capture("after");
    assert_eq!((before.allocated, after.allocated), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!((before.peak, after.peak), (Bytes::ZERO, Bytes::mib(100)));
    assert!(after.reserved >= Bytes::mib(100), "the pool keeps it");
    assert!(after.elapsed >= before.elapsed);
    memory.reset_peak_memory();
    assert_eq!(memory.get_peak_memory(), Bytes::ZERO);
}

#[test]
fn a_peak_begins_with_what_the_pool_holds_already() {
    let config = MemoryConfig::new();
    let pool = Arc::new(Pool::new(sim(Bytes::gib(8)) as Arc<dyn Memory>, config).unwrap());
    let before = pool.allocate(Request::new(Bytes::mib(100))).unwrap();
    let memory = MemoryProfiler::new(Arc::clone(&pool) as Arc<dyn Memory>);
    assert_eq!(memory.get_peak_memory(), Bytes::mib(100));
    let more = memory.allocate(Request::new(Bytes::mib(50))).unwrap();
    assert_eq!(memory.capture("both").peak, Bytes::mib(150));
    memory.release(before, Stream::DEFAULT).unwrap();
    memory.reset_peak_memory();
    assert_eq!(memory.get_peak_memory(), Bytes::mib(50));
    memory.release(more, Stream::DEFAULT).unwrap();
}

#[test]
fn refusals_and_wrong_returns_do_not_count() {
    let device = sim(Bytes::gib(1));
    let memory = profiler(&device);
    assert!(memory.allocate(Request::new(Bytes::gib(2))).is_err());
    let block = memory.allocate(Request::new(Bytes::mib(1))).unwrap();
    memory.release(block, Stream::DEFAULT).unwrap();
    assert!(memory.release(block, Stream::DEFAULT).is_err());
    let again = memory.allocate(Request::new(Bytes::mib(1))).unwrap();
    memory.release(again, Stream::DEFAULT).unwrap();
    assert_eq!(memory.get_peak_memory(), Bytes::mib(1));
}

#[test]
fn threads_are_counted_together() {
    let memory = MemoryProfiler::new(Arc::new(Host::with_total(Bytes::mib(64))));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let block = memory.allocate(Request::new(64u64)).unwrap();
                    memory.release(block, Stream::DEFAULT).unwrap();
                }
            });
        }
    });
    let peak = memory.get_peak_memory();
    assert!(peak >= Bytes(64) && peak <= Bytes(4 * 64), "{peak}");
    memory.reset_peak_memory();
    assert_eq!(memory.get_peak_memory(), Bytes::ZERO);
}

#[test]
fn the_summary_has_the_documents_form() {
    let memory = profiler(&sim(Bytes::gib(8)));
    let baseline = memory.capture("Baseline");
    let _grid = memory.allocate(Request::new(Bytes::gib(2))).unwrap();
    let after = memory.capture("After voxelization");
    let text = MemoryProfiler::print_summary(&[baseline, after.clone(), after]);
    assert!(text.starts_with("Baseline:\n  Allocated:   0 B\n"), "{text}");
    assert!(text.contains("  Free:        8.00 GiB\n  Utilisation: 0.0 %\n"), "{text}");
    assert!(text.ends_with("Peak memory: 2.00 GiB (by \"After voxelization\")\n"), "{text}");
    assert_eq!(MemoryProfiler::print_summary(&[]), "");
}

#[test]
fn what_the_device_does_not_say_is_a_dash() {
    let device = sim(Bytes::gib(1));
    let memory = profiler(&device);
    device.sabotage(Some(Box::new(|call| {
        (call == SimCall::Info).then(|| Error::Device { call: "info", why: "not here".into() })
    })));
    let snapshot = memory.capture("now");
    assert_eq!((snapshot.free, snapshot.utilisation()), (None, None));
    assert!(snapshot.to_string().contains("Free:        –"), "{snapshot}");
    let report = generate_memory_report(&memory);
    assert_eq!((report.used(), report.pressure), (None, MemoryPressure::Low));
    assert!(report.to_string().contains("Used memory:    –"), "{report}");
    assert!(get_free_memory(&memory).is_err());
}

#[test]
fn advice_goes_by_pressure() {
    let device = sim(Bytes::gib(10));
    let config = MemoryConfig::new().with_limit(Bytes::gib(4));
    let pool = Pool::new(Arc::clone(&device) as Arc<dyn Memory>, config).unwrap();
    let advice = || generate_memory_report(&pool).recommendations.join("; ");
    assert!(advice().contains("healthy"), "{}", advice());
    let most = pool.allocate(Request::new(Bytes::mib(3500))).unwrap();
    assert!(advice().contains("3.42 GiB of 4.00 GiB is in use: return"), "{}", advice());
    let _rest = pool.allocate(Request::new(Bytes::mib(500))).unwrap();
    assert!(advice().contains("may be refused"), "{}", advice());
    pool.release(most, Stream::DEFAULT).unwrap();
    let _others = device.allocate(Request::new(Bytes::gib(5))).unwrap();
    let report = generate_memory_report(&pool);
    assert_eq!(report.pressure, MemoryPressure::High);
    assert!(report.recommendations[0].contains("trim()"), "{report}");
    assert!(report.recommendations[1].contains("others hold 5.00 GiB"), "{report}");
    // The pool may hand out 4 GiB less what is live, and it holds most of that already.
    assert_eq!(get_free_memory(&pool), Ok(Bytes::gib(4) - Bytes::mib(500)));
}

/// What fills the device is the pool's own memory, which nobody uses.
#[test]
fn advice_on_a_pool_that_holds_more_than_it_needs_is_to_trim_it() {
    let config = MemoryConfig::new().with_min_free_bytes(0);
    let pool = Pool::new(sim(Bytes::gib(4)), config).unwrap();
    let most = pool.allocate(Request::new(Bytes::gib(3))).unwrap();
    let _little = pool.allocate(Request::new(Bytes::mib(3))).unwrap();
    pool.release(most, Stream::DEFAULT).unwrap();
    let advice = generate_memory_report(&pool).recommendations.join("; ");
    assert!(advice.contains("is reserved and not in use: trim()"), "{advice}");
    assert!(!advice.contains("others"), "{advice}");
}

#[test]
fn real_devices_are_sampled_and_counted() {
    let report = generate_memory_report(&Host::with_total(Bytes::gib(1)));
    assert_eq!(report.device_obtained, Obtained::Sampled);
    assert_eq!(report.memory_obtained, Obtained::Counted);
    assert_eq!((report.backend, report.capacity), ("cpu", Bytes::gib(1)));
}
