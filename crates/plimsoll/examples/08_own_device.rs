//! Lesson 8: a device of your own.
//!
//! Two traits make a backend. `Memory` hands blocks out and takes them back; `Device` adds
//! streams, events and bytes. Leave policy out: pools, limits and profiles come on top,
//! and work with yours as with ours. This one is a toy: a megabyte in a `Vec`, first fit.
#![expect(clippy::print_stdout, reason = "a lesson shows what happens")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll::{
    Address, Block, Bytes, Device, DeviceInfo, Error, Event, Memory, MemoryConfig, MemoryId,
    MemoryStats, Pool, Request, Result, Stream,
};

#[derive(Debug)]
struct Toy {
    id: MemoryId,
    info: DeviceInfo,
    inner: Mutex<Inner>,
    streams: AtomicU16,
}

#[derive(Debug)]
struct Inner {
    bytes: Vec<u8>,
    /// Live blocks: offset → (size, generation).
    live: BTreeMap<u64, (u64, u64)>,
    generation: u64,
    peak: u64,
}

impl Toy {
    fn new(total: Bytes) -> Toy {
        let bytes = vec![0; total.get() as usize];
        let inner = Inner { bytes, live: BTreeMap::new(), generation: 0, peak: 0 };
        Toy {
            id: MemoryId::next(),
            info: DeviceInfo::new("a megabyte in a Vec", "toy", total),
            inner: Mutex::new(inner),
            streams: AtomicU16::new(1),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The range of the vector that an address means; outside of it is an error, not a panic.
    fn range(inner: &Inner, at: Address, len: usize) -> Result<std::ops::Range<usize>> {
        let start = usize::try_from(at.offset).ok();
        start
            .and_then(|start| Some(start..start.checked_add(len)?))
            .filter(|range| range.end <= inner.bytes.len())
            .ok_or(Error::Device { call: "toy access", why: format!("{at:?} is outside") })
    }
}

impl Inner {
    fn held(&self) -> u64 {
        self.live.values().map(|(size, _)| size).sum()
    }

    /// The first gap that is large enough.
    fn gap(&self, size: u64) -> Option<u64> {
        let mut start = 0u64;
        for (offset, (taken, _)) in &self.live {
            if offset - start >= size {
                break;
            }
            start = (offset + taken).next_multiple_of(256);
        }
        (start.checked_add(size)? <= self.bytes.len() as u64).then_some(start)
    }
}

impl Memory for Toy {
    fn name(&self) -> &str {
        &self.info.name
    }

    fn device(&self) -> &dyn Device {
        self
    }

    fn owns(&self, block: &Block) -> bool {
        block.owner() == self.id
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        let inner = &mut *self.inner();
        let (memory, requested) = (self.info.name.clone(), request.size);
        // Never fits and full now are told apart: only the second is worth a retry.
        if requested > self.info.total {
            return Err(Error::NeverFits { memory, requested, capacity: self.info.total });
        }
        let size = requested.get().max(1);
        let Some(offset) = inner.gap(size) else {
            let available = self.info.total - Bytes(inner.held());
            return Err(Error::OutOfMemory { memory, requested, available });
        };
        inner.generation += 1;
        inner.live.insert(offset, (size, inner.generation));
        inner.peak = inner.peak.max(inner.held());
        let address = Address { buffer: 0, offset };
        Ok(Block::new(self.id, offset, inner.generation, requested, address))
    }

    fn release(&self, block: Block, _stream: Stream) -> Result<()> {
        let mut inner = self.inner();
        if !self.owns(&block) {
            return Err(Error::ForeignBlock { memory: self.info.name.clone() });
        }
        // The generation tells a live block from one that was returned before.
        match inner.live.get(&block.key()) {
            Some((_, generation)) if *generation == block.generation() => {
                inner.live.remove(&block.key());
                Ok(())
            }
            _ => Err(Error::AlreadyFreed { memory: self.info.name.clone(), id: block.key() }),
        }
    }

    fn stats(&self) -> MemoryStats {
        let inner = self.inner();
        let mut stats = MemoryStats::default();
        stats.total_allocated_bytes = Bytes(inner.held());
        stats.in_use_bytes = Bytes(inner.held());
        stats.peak_bytes = Bytes(inner.peak);
        stats.active_buffers = inner.live.len() as u64;
        stats
    }

    fn capacity(&self) -> Bytes {
        self.info.total
    }
    // No `mapping`: pools take plain blocks then.
}

/// Work is done when the call returns, so every event has passed as soon as it exists.
impl Device for Toy {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_memory(&self) -> Result<Bytes> {
        Ok(self.info.total - Bytes(self.inner().held()))
    }

    fn new_stream(&self) -> Result<Stream> {
        Ok(Stream(self.streams.fetch_add(1, Ordering::Relaxed)))
    }

    fn record(&self, _stream: Stream) -> Result<Event> {
        Ok(Event(0))
    }

    fn is_done(&self, _event: Event) -> Result<bool> {
        Ok(true)
    }

    fn wait(&self, _stream: Stream, _event: Event) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self, _event: Event) -> Result<()> {
        Ok(())
    }

    fn forget(&self, _event: Event) -> Result<()> {
        Ok(())
    }

    fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        let mut inner = self.inner();
        let range = Toy::range(&inner, to, bytes.len())?;
        inner.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        let inner = self.inner();
        let range = Toy::range(&inner, from, bytes.len())?;
        bytes.copy_from_slice(&inner.bytes[range]);
        Ok(())
    }
}

fn main() -> Result<()> {
    let config = MemoryConfig::new().with_min_free_bytes(0);
    let pool = Pool::new(Arc::new(Toy::new(Bytes::mib(1))), config)?;
    let block = pool.allocate(Request::new(Bytes::kib(100)))?;
    pool.device().write(block.address(), b"hello")?;
    let mut back = [0; 5];
    pool.device().read(block.address(), &mut back)?;
    assert_eq!(&back, b"hello");
    println!("{}: {} live of {}", pool.name(), pool.stats().in_use_bytes, pool.capacity());
    pool.release(block, Stream::DEFAULT)?;
    assert!(pool.release(block, Stream::DEFAULT).is_err());
    assert!(pool.allocate(Request::new(Bytes::mib(2))).is_err());
    Ok(())
}
