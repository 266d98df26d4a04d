use std::time::Duration;

use plimsoll_memory::backend::sim::SimCall;
use plimsoll_memory::{Bytes, Device, Error, Memory, Packing, Pool, Request, Stream};

use crate::{everything, sim};

/// A stream that could not be ordered behind the last users of a place must not get that
/// place later without being ordered.
#[test]
fn a_failed_request_forgets_no_user() {
    let device = sim(64);
    let pool = Pool::new(device.clone(), everything().with_packing(Packing::Tight)).unwrap();
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let first = pool.allocate(Request::new(Bytes::mib(4)).on(a)).unwrap();
    device.launch(a, Duration::from_secs(1), &[(first.address(), first.size())]);
    pool.release(first, a).unwrap();

    device.sabotage(Some(Box::new(|call| {
        (call == SimCall::Record).then(|| Error::Device { call: "record", why: "told to".into() })
    })));
    assert!(pool.allocate(Request::new(Bytes::mib(6)).on(b)).is_err());
    assert_eq!(pool.stats().in_use_bytes, Bytes::ZERO);
    device.sabotage(None);

    for mib in [4, 4, 2] {
        let block = pool.allocate(Request::new(Bytes::mib(mib)).on(b)).unwrap();
        device.launch(b, Duration::from_secs(1), &[(block.address(), block.size())]);
    }
    assert_eq!(device.faults(), Vec::<String>::new());
}

/// What a pool says it can hand out, it can.
#[test]
fn a_budget_is_what_can_be_had() {
    for (mib, fraction) in [(64, 0.9), (64, 0.333), (1000, 0.77), (3, 0.5)] {
        let pool = Pool::new(sim(mib), everything().with_gpu_memory_fraction(fraction)).unwrap();
        assert!(pool.capacity() <= Bytes::mib(mib).fraction(fraction));
        let all = pool.allocate(Request::new(pool.capacity()));
        if pool.capacity() > Bytes::ZERO {
            pool.release(all.unwrap(), Stream::DEFAULT).unwrap();
        } else {
            assert!(all.is_err() && !pool.allocate(Request::new(1u64)).unwrap_err().is_full_now());
        }
    }
}
