//! That a fallback is said, once each time it begins. In a program of its own: whether anybody
//! listens to a message is remembered for the whole process, by whichever thread comes first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_memory::backend::host::Host;
use plimsoll_memory::backend::sim::{Sim, SimConfig};
use plimsoll_memory::{Bytes, Fallback, Memory, Request, Stream};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Counts warnings.
struct Warnings(Arc<AtomicU64>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn warns_once_each_time_it_begins() {
    let warnings = Arc::new(AtomicU64::new(0));
    let device = Arc::new(Sim::new(SimConfig::default().with_total(Bytes::mib(4))));
    let memory = Fallback::new(device, Arc::new(Host::with_total(Bytes::mib(64))));
    tracing::subscriber::with_default(Warnings(Arc::clone(&warnings)), || {
        for round in 1..=3 {
            let blocks: Vec<_> =
                (0..10).map(|_| memory.allocate(Request::new(Bytes::mib(1))).unwrap()).collect();
            assert_eq!(warnings.load(Ordering::Relaxed), round);
            assert_eq!(memory.stats().cpu_fallbacks, 6 * round);
            for block in blocks {
                memory.release(block, Stream::DEFAULT).unwrap();
            }
        }
    });
    assert_eq!(memory.crossings(), 3);
}
