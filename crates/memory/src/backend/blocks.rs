//! The live blocks of a device, and what they add up to.
//!
//! A driver that hands out buffers and counts nothing (OpenCL checks only the size of a
//! single one; HIP knows what is free, not what is ours) needs the same accounts as any
//! other: which blocks are live, which generation of an address they are, and a total that
//! is reserved from a [`Budget`] before the driver is asked. They are written once, here; a
//! backend brings the driver's calls, and [`memory_from_blocks`] gives it the rest of
//! [`Memory`](crate::Memory).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::budget::Budget;
use crate::memory::{Address, Block, DeviceInfo, MemoryId, Request, refusal};
use crate::stats::{Counters, MemoryStats, StatFigures};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// Blocks of `B`, a handle that is cheap to copy and frees nothing by itself.
#[derive(Debug)]
pub(super) struct DeviceBlocks<B> {
    id: MemoryId,
    name: String,
    budget: Budget,
    /// The largest single block.
    largest: Bytes,
    /// What the driver takes for a block is a multiple of this.
    step: Bytes,
    alignment: u64,
    table: Mutex<BlockTable<B>>,
    counters: Counters,
}

#[derive(Debug)]
struct BlockTable<B> {
    /// Base address → block.
    live: BTreeMap<u64, LiveBlock<B>>,
    figures: StatFigures,
    /// The most that was handed out: unlike the budget's, without what a driver refused.
    peak: u64,
    generation: u64,
    /// The next made-up address.
    next: u64,
}

#[derive(Debug, Clone)]
struct LiveBlock<B> {
    buffer: B,
    size: u64,
    taken: u64,
    generation: u64,
}

impl<B: Clone> DeviceBlocks<B> {
    pub(super) fn new(info: &DeviceInfo, largest: Bytes) -> DeviceBlocks<B> {
        DeviceBlocks::with_step(info, largest, info.granularity)
    }

    /// The same, with a step of the caller's; a step of one byte counts blocks as asked for.
    pub(super) fn with_step(info: &DeviceInfo, largest: Bytes, step: Bytes) -> DeviceBlocks<B> {
        let table = BlockTable {
            live: BTreeMap::new(),
            figures: StatFigures::default(),
            peak: 0,
            generation: 0,
            // Nothing lies at 0.
            next: 1 << 40,
        };
        DeviceBlocks {
            id: MemoryId::next(),
            name: info.name.clone(),
            budget: Budget::new(info.total),
            largest: largest.min(info.total),
            step: step.max(Bytes(1)),
            alignment: info.alignment,
            table: Mutex::new(table),
            counters: Counters::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, BlockTable<B>> {
        // Nothing in here panics between two changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn owns(&self, block: &Block) -> bool {
        block.owner() == self.id
    }

    pub(super) fn stats(&self) -> MemoryStats {
        let peak = Bytes(self.table().peak);
        self.counters.snapshot().stats(peak)
    }

    /// Hands out a block that the driver makes: a buffer of this many bytes and, where the
    /// driver has addresses, where it lies. `None` of the driver is *full now*.
    pub(super) fn allocate(
        &self,
        request: Request,
        make: impl FnOnce(Bytes) -> Result<Option<(B, Option<u64>)>>,
    ) -> Result<Block> {
        let size = request.size;
        if size > self.largest {
            return Err(refusal(&self.name, size, Bytes::ZERO, self.largest));
        }
        let taken = self.taken(size);
        let full = |free| refusal(&self.name, size, free, self.largest);
        self.budget.reserve(taken).map_err(full)?;
        let made = make(taken).inspect_err(|_| self.budget.credit(taken))?;
        let (buffer, address) = made.ok_or_else(|| {
            self.budget.credit(taken);
            full(self.budget.free().min(size))
        })?;
        let mut table = self.table();
        let base = address.unwrap_or_else(|| table.address(taken, self.alignment));
        table.generation += 1;
        let generation = table.generation;
        let entry = LiveBlock { buffer, size: size.get(), taken: taken.get(), generation };
        table.count(&entry, true);
        table.live.insert(base, entry);
        self.counters.publish(&table.figures);
        let address = Address { buffer: base, offset: 0 };
        Ok(Block::new(self.id, base, generation, size, address))
    }

    /// What the driver takes for a block of this size.
    fn taken(&self, size: Bytes) -> Bytes {
        if self.step == Bytes(1) {
            return size;
        }
        let rounded = size.max(Bytes(1)).round_up(self.step.get());
        rounded.min(self.budget.limit().max(size))
    }

    /// Takes a block back: the driver frees it first, then its room is credited. Where the
    /// driver refuses, the block stays.
    pub(super) fn release(&self, block: Block, free: impl FnOnce(&B) -> Result<()>) -> Result<()> {
        let entry = self.strike(&block)?;
        if let Err(error) = free(&entry.buffer) {
            self.table().live.insert(block.key(), entry);
            return Err(error);
        }
        let mut table = self.table();
        table.count(&entry, false);
        self.counters.publish(&table.figures);
        drop(table);
        // Last: what is counted as held is never more than what is reserved.
        let taken = Bytes(entry.taken);
        drop(entry);
        self.budget.credit(taken);
        Ok(())
    }

    fn strike(&self, block: &Block) -> Result<LiveBlock<B>> {
        let mut table = self.table();
        if !self.owns(block) {
            return Err(Error::ForeignBlock { memory: self.name.clone() });
        }
        let known = table.live.get(&block.key()).is_some_and(|entry| {
            (entry.size, entry.generation) == (block.size().get(), block.generation())
        });
        let freed = || Error::AlreadyFreed { memory: self.name.clone(), id: block.key() };
        if !known {
            return Err(freed());
        }
        table.live.remove(&block.key()).ok_or_else(freed)
    }

    /// The buffer that holds this many bytes from an address on, and where in it they lie.
    pub(super) fn find(&self, at: Address, len: usize) -> Result<(B, usize)> {
        let (start, end) = (at.pointer(), at.pointer().checked_add(len as u64));
        let table = self.table();
        let inside = table.live.range(..=start).next_back().filter(|(base, entry)| {
            // A block of nothing has nothing inside.
            end.is_some_and(|end| end <= *base + entry.size)
        });
        inside.map(|(base, entry)| (entry.buffer.clone(), (start - base) as usize)).ok_or_else(
            || Error::Device {
                call: "access to device memory",
                why: format!("{start:#x}, {len} bytes, is not inside a live block"),
            },
        )
    }

    /// Everything that is still live, for a device that goes.
    pub(super) fn drain(&mut self) -> Vec<B> {
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut table.live).into_values().map(|entry| entry.buffer).collect()
    }
}

impl<B> BlockTable<B> {
    /// An address of our own making, for drivers that have handles only: no two blocks of
    /// the device's life share one.
    fn address(&mut self, taken: Bytes, alignment: u64) -> u64 {
        let base = self.next;
        let next = Bytes(base).saturating_add(taken).saturating_add(Bytes(1));
        self.next = next.round_up(alignment.max(4096)).get();
        base
    }

    fn count(&mut self, entry: &LiveBlock<B>, came: bool) {
        let figures = &mut self.figures;
        if came {
            figures.held += entry.taken;
            figures.live += entry.size;
            figures.taken += entry.taken;
            figures.blocks += 1;
            figures.misses += 1;
            self.peak = self.peak.max(figures.held);
        } else {
            figures.held -= entry.taken;
            figures.live -= entry.size;
            figures.taken -= entry.taken;
            figures.blocks -= 1;
        }
    }
}

/// The methods of [`Memory`](crate::Memory) that a device with the fields `info` and
/// `blocks` answers from them; `allocate` and `release` are the device's own.
macro_rules! memory_from_blocks {
    () => {
        fn name(&self) -> &str {
            &self.info.name
        }

        fn device(&self) -> &dyn Device {
            self
        }

        fn owns(&self, block: &Block) -> bool {
            self.blocks.owns(block)
        }

        fn stats(&self) -> MemoryStats {
            self.blocks.stats()
        }

        fn capacity(&self) -> Bytes {
            self.info.total
        }
    };
}
pub(super) use memory_from_blocks;
