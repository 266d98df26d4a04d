use std::sync::Arc;
use std::time::Duration;

use plimsoll_memory::backend::sim::SimCall;
use plimsoll_memory::{
    Bytes, Device, Error, Fallback, Memory, MemoryConfig, MemoryPressure, Pool, Request,
};

use crate::{everything, host, sim};

#[test]
fn is_off_when_the_configuration_says_so() {
    let off = MemoryConfig::new().with_cpu_fallback(false);
    let second = host(64);
    let memory = Fallback::new(sim(4), second.clone()).with_config(&off);
    assert_eq!(memory.capacity(), Bytes::mib(4));
    let error = memory.allocate(Request::new(Bytes::mib(8))).unwrap_err();
    assert!(matches!(error, Error::NeverFits { .. }), "{error}");
    let _all = memory.allocate(Request::new(Bytes::mib(4))).unwrap();
    assert!(memory.allocate(Request::new(Bytes::mib(4))).unwrap_err().is_full_now());
    assert_eq!((memory.stats().cpu_fallbacks, second.stats().pool_misses), (0, 0));
}

#[test]
fn only_a_lack_of_memory_goes_elsewhere() {
    let device = sim(4);
    device.sabotage(Some(Box::new(|call| {
        (call == SimCall::Allocate).then(|| Error::Device { call: "allocate", why: "lost".into() })
    })));
    let memory = Fallback::new(device, host(64));
    let error = memory.allocate(Request::new(1u64)).unwrap_err();
    assert!(matches!(error, Error::Device { .. }), "{error}");
    assert_eq!(memory.stats().cpu_fallbacks, 0);
}

/// Full now if either may serve it later; never only if neither ever can.
#[test]
fn refusals_speak_for_both() {
    let memory = Fallback::new(sim(4), host(8));
    let error = memory.allocate(Request::new(Bytes::mib(10))).unwrap_err();
    assert!(
        matches!(&error, Error::NeverFits { capacity, .. } if *capacity == Bytes::mib(8)),
        "{error}"
    );
    let _away = memory.allocate(Request::new(Bytes::mib(6))).unwrap();
    assert!(memory.allocate(Request::new(Bytes::mib(6))).unwrap_err().is_full_now());
    let _home = memory.allocate(Request::new(Bytes::mib(4))).unwrap();
    assert!(memory.allocate(Request::new(Bytes::mib(3))).unwrap_err().is_full_now());
    assert_eq!(memory.pressure(), MemoryPressure::Critical);
    assert_eq!(memory.stats().peak_bytes, Bytes::mib(10));
}

/// A stream of the device may still be copying from a block on the host: it goes back
/// only when that is done.
#[test]
fn the_host_waits_for_the_device() {
    let device = sim(4);
    let memory = Fallback::new(device.clone(), host(8));
    let away = memory.allocate(Request::new(Bytes::mib(6))).unwrap();
    let stream = device.new_stream().unwrap();
    device.launch(stream, Duration::from_secs(5), &[]);
    let event = device.record(stream).unwrap();
    assert!(!device.is_done(event).unwrap());
    memory.release(away, stream).unwrap();
    assert!(device.is_done(event).unwrap());
}

/// Two pools on one device know the same streams: nobody waits.
#[test]
fn one_device_needs_no_waiting() {
    let device = sim(64);
    let pools = [8, 16].map(|mib| {
        let config = everything().with_limit(Bytes::mib(mib));
        Arc::new(Pool::new(device.clone(), config).unwrap())
    });
    let [first, second] = pools;
    let memory = Fallback::new(first, second);
    let stream = device.new_stream().unwrap();
    let block = memory.allocate(Request::new(Bytes::mib(12)).on(stream)).unwrap();
    device.launch(stream, Duration::from_secs(5), &[(block.address(), block.size())]);
    memory.release(block, stream).unwrap();
    assert_eq!(device.calls(SimCall::Synchronize), 0);
    let again = memory.allocate(Request::new(Bytes::mib(12)).on(stream)).unwrap();
    device.launch(stream, Duration::from_secs(5), &[(again.address(), again.size())]);
    assert_eq!(device.faults(), Vec::<String>::new());
}
