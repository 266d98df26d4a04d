//! The live blocks of a device, and what they add up to.
//!
//! A driver that hands out buffers and counts nothing (OpenCL checks only the size of a
//! single one; HIP knows what is free, not what is ours) needs the same book-keeping as
//! any other: which blocks are live, which generation of a place they are, and a total
//! that is reserved *before* the driver is asked, so that two threads cannot both take the
//! last bytes. It is written once, here; a backend brings the calls.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::{Address, Block, DeviceInfo, MemoryId, Request, refusal};
use crate::stats::{Counters, Figures, MemoryStats};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// Blocks of `B`, a handle that is cheap to copy and frees nothing by itself.
#[derive(Debug)]
pub(super) struct Ledger<B> {
    id: MemoryId,
    name: String,
    total: Bytes,
    /// The largest single block.
    largest: Bytes,
    step: Bytes,
    alignment: u64,
    book: Mutex<Book<B>>,
    counters: Counters,
}

#[derive(Debug)]
struct Book<B> {
    /// Base address → block.
    live: BTreeMap<u64, Entry<B>>,
    figures: Figures,
    /// Asked of the driver just now, and not yet handed out.
    pending: u64,
    peak: u64,
    generation: u64,
    /// The next made-up address.
    next: u64,
}

#[derive(Debug, Clone)]
struct Entry<B> {
    buffer: B,
    size: u64,
    taken: u64,
    generation: u64,
}

impl<B: Clone> Ledger<B> {
    pub(super) fn new(info: &DeviceInfo, largest: Bytes) -> Ledger<B> {
        let book = Book {
            live: BTreeMap::new(),
            figures: Figures::default(),
            pending: 0,
            peak: 0,
            generation: 0,
            // Nothing lies at 0.
            next: 1 << 40,
        };
        Ledger {
            id: MemoryId::next(),
            name: info.name.clone(),
            total: info.total,
            largest: largest.min(info.total),
            step: info.granularity,
            alignment: info.alignment,
            book: Mutex::new(book),
            counters: Counters::default(),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book<B>> {
        // Nothing in here panics between two changes that belong together.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn owns(&self, block: &Block) -> bool {
        block.owner() == self.id
    }

    pub(super) fn stats(&self) -> MemoryStats {
        let peak = Bytes(self.book().peak);
        self.counters.snapshot().stats(peak)
    }

    /// Hands out a block that the driver makes: a buffer of so many bytes and, where the
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
        let taken = size.max(Bytes(1)).round_up(self.step.get().max(1)).min(self.total.max(size));
        self.reserve(size, taken)?;
        let made = make(taken);
        let mut book = self.book();
        book.pending -= taken.get();
        let (buffer, address) = match made {
            Ok(Some(made)) => made,
            Ok(None) => {
                let left = self.total.saturating_sub(Bytes(book.figures.held + book.pending));
                return Err(refusal(&self.name, size, left.min(size), self.largest));
            }
            Err(error) => return Err(error),
        };
        let base = address.unwrap_or_else(|| book.address(taken, self.alignment));
        book.generation += 1;
        let generation = book.generation;
        let entry = Entry { buffer, size: size.get(), taken: taken.get(), generation };
        book.count(&entry, true);
        book.live.insert(base, entry);
        self.counters.publish(&book.figures);
        let address = Address { buffer: base, offset: 0 };
        Ok(Block::new(self.id, base, generation, size, address))
    }

    fn reserve(&self, size: Bytes, taken: Bytes) -> Result<()> {
        let mut book = self.book();
        let left = self.total.saturating_sub(Bytes(book.figures.held + book.pending));
        if taken > left {
            return Err(refusal(&self.name, size, left, self.largest));
        }
        book.pending += taken.get();
        Ok(())
    }

    /// Takes a block back: the driver frees it first, then its room is credited. Where the
    /// driver refuses, the block stays.
    pub(super) fn release(&self, block: Block, free: impl FnOnce(&B) -> Result<()>) -> Result<()> {
        let entry = self.strike(&block)?;
        if let Err(error) = free(&entry.buffer) {
            self.book().live.insert(block.key(), entry);
            return Err(error);
        }
        let mut book = self.book();
        book.count(&entry, false);
        self.counters.publish(&book.figures);
        Ok(())
    }

    fn strike(&self, block: &Block) -> Result<Entry<B>> {
        let mut book = self.book();
        if !self.owns(block) {
            return Err(Error::ForeignBlock { memory: self.name.clone() });
        }
        let known = book.live.get(&block.key()).is_some_and(|entry| {
            (entry.size, entry.generation) == (block.size().get(), block.generation())
        });
        let freed = || Error::AlreadyFreed { memory: self.name.clone(), id: block.key() };
        if !known {
            return Err(freed());
        }
        book.live.remove(&block.key()).ok_or_else(freed)
    }

    /// The buffer that holds so many bytes from an address on, and where in it they lie.
    pub(super) fn find(&self, at: Address, len: usize) -> Result<(B, usize)> {
        let (start, end) = (at.pointer(), at.pointer().checked_add(len as u64));
        let book = self.book();
        let inside = book.live.range(..=start).next_back().filter(|(base, entry)| {
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
        let book = self.book.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut book.live).into_values().map(|entry| entry.buffer).collect()
    }
}

impl<B> Book<B> {
    /// An address of our own making, for drivers that have handles only: no two blocks of
    /// the device's life share one.
    fn address(&mut self, taken: Bytes, alignment: u64) -> u64 {
        let base = self.next;
        let next = Bytes(base).saturating_add(taken).saturating_add(Bytes(1));
        self.next = next.round_up(alignment.max(4096)).get();
        base
    }

    fn count(&mut self, entry: &Entry<B>, came: bool) {
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
