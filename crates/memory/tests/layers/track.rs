use std::sync::Arc;
use std::thread;
use std::time::Duration;

use plimsoll_memory::{
    AllocationTracker, BufferId, BufferLocation, BufferMetadata, Bytes, Fallback, Memory, Pool,
    Request, Stream, Tracked,
};

use crate::{everything, host, sim};

#[test]
fn lists_what_is_live_with_tags_and_places() {
    let fallback = Fallback::new(sim(4), host(64));
    let memory = Tracked::new(Arc::new(fallback)).with_backtraces(true);
    let small = memory.allocate(Request::new(Bytes::mib(1)).tagged("small")).unwrap();
    let large = memory.allocate(Request::new(Bytes::mib(8)).tagged("large")).unwrap();
    let plain = memory.allocate(Request::new(5u64)).unwrap();
    let listed: Vec<_> = memory
        .live()
        .into_iter()
        .map(|buffer| (buffer.bytes, buffer.location, buffer.tag.unwrap_or_default().into_owned()))
        .collect();
    assert_eq!(
        listed,
        [
            (Bytes::mib(8), BufferLocation::Cpu, "large".to_string()),
            (Bytes::mib(1), BufferLocation::Gpu, "small".to_string()),
            (Bytes(5), BufferLocation::Gpu, String::new()),
        ]
    );
    let trace = memory.live()[0].backtrace.as_ref().unwrap().to_string();
    assert!(trace.contains("lists_what_is_live"), "{trace}");
    assert_eq!(memory.tracker().find_old_allocations(Duration::ZERO).len(), 3);
    for block in [small, large, plain] {
        memory.release(block, Stream::DEFAULT).unwrap();
        assert!(memory.release(block, Stream::DEFAULT).is_err());
    }
    assert_eq!((memory.tracker().count(), memory.tracker().total_bytes()), (0, Bytes::ZERO));
}

/// Under a pool, by page and by block: the pool gives everything back in the end.
#[test]
fn a_pool_gives_everything_back() {
    let devices: [Arc<dyn Memory>; 2] = [sim(64), host(64)];
    for device in devices {
        let below = Arc::new(Tracked::new(device));
        let pool = Pool::new(below.clone(), everything()).unwrap();
        let kept = pool.allocate(Request::new(Bytes::mib(10))).unwrap();
        let gone = pool.allocate(Request::new(Bytes::mib(6))).unwrap();
        pool.release(gone, Stream::DEFAULT).unwrap();
        let held = pool.stats().total_allocated_bytes;
        assert_eq!(below.tracker().total_bytes(), held);
        pool.clear().unwrap();
        assert_eq!(below.tracker().total_bytes(), Bytes::mib(10));
        assert_eq!(kept.size(), Bytes::mib(10));
        drop(pool);
        assert!(below.live().is_empty());
    }
}

#[test]
fn many_threads_share_a_tracker() {
    let tracker = AllocationTracker::new();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for number in 0..500 {
                    let id = BufferId::new();
                    tracker.track(BufferMetadata::new(id, 8, 2, BufferLocation::Gpu));
                    if number % 2 == 0 {
                        assert_eq!(tracker.untrack(id).map(|buffer| buffer.id), Some(id));
                    }
                }
            });
        }
    });
    assert_eq!((tracker.count(), tracker.total_bytes()), (2000, Bytes(16_000)));
}
