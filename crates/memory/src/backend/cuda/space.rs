//! What of the device is out: blocks, address ranges, physical memory, and where it is
//! mapped.
//!
//! The driver would believe a wrong number; this table does not. A change that needs the
//! driver is made in two steps, so that the lock is not held while the driver works: what
//! goes is taken out of the table first and put back if the driver fails, what comes is
//! counted first and entered when it is there.

use std::collections::BTreeMap;

use crate::budget::Budget;
use crate::memory::{Block, Handle};
use crate::stats::MemoryStats;
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// A plain block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain {
    asked: u64,
    /// Counted for it.
    pub(super) taken: u64,
    generation: u64,
}

/// Everything that is out when the device goes.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) mapped: Vec<(u64, u64)>,
    pub(super) handles: Vec<u64>,
    pub(super) ranges: Vec<(u64, u64)>,
    pub(super) blocks: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct Space {
    /// Taken from the device.
    budget: Budget,
    /// Of plain blocks: what was asked for and what is counted.
    asked: u64,
    taken: u64,
    allocations: u64,
    blocks: BTreeMap<u64, Plain>,
    ranges: BTreeMap<u64, u64>,
    /// Handles with their size, and how often they are mapped.
    handles: BTreeMap<u64, (u64, u64)>,
    /// Address → size and handle.
    mapped: BTreeMap<u64, (u64, u64)>,
}

fn wrong(call: &'static str, why: String) -> Error {
    Error::Device { call, why }
}

impl Space {
    pub(super) fn new(total: Bytes) -> Space {
        Space {
            budget: Budget::new(total),
            asked: 0,
            taken: 0,
            allocations: 0,
            blocks: BTreeMap::new(),
            ranges: BTreeMap::new(),
            handles: BTreeMap::new(),
            mapped: BTreeMap::new(),
        }
    }

    pub(super) fn left(&self) -> Bytes {
        self.budget.free()
    }

    /// Counts bytes that are about to be taken; the error is what is left.
    pub(super) fn claim(&self, bytes: u64) -> Result<(), Bytes> {
        self.budget.reserve(Bytes(bytes))
    }

    pub(super) fn unclaim(&self, bytes: u64) {
        self.budget.credit(Bytes(bytes));
    }

    pub(super) fn add_block(&mut self, base: u64, asked: u64, taken: u64) -> u64 {
        self.allocations += 1;
        let generation = self.allocations;
        self.put_block(base, Plain { asked, taken, generation });
        generation
    }

    pub(super) fn put_block(&mut self, base: u64, plain: Plain) {
        self.asked += plain.asked;
        self.taken += plain.taken;
        self.blocks.insert(base, plain);
    }

    /// Takes a block out of the table; nothing if it is not live. It stays counted.
    pub(super) fn take_block(&mut self, block: &Block) -> Option<Plain> {
        let plain = *self.blocks.get(&block.key())?;
        if plain.generation != block.generation() || plain.asked != block.size().0 {
            return None;
        }
        self.blocks.remove(&block.key());
        self.asked -= plain.asked;
        self.taken -= plain.taken;
        Some(plain)
    }

    pub(super) fn stats(&self) -> MemoryStats {
        let held = self.budget.reserved();
        MemoryStats {
            total_allocated_bytes: held,
            in_use_bytes: Bytes(self.asked) + held.saturating_sub(Bytes(self.taken)),
            peak_bytes: self.budget.peak(),
            pool_misses: self.allocations,
            active_buffers: self.blocks.len() as u64,
            ..MemoryStats::default()
        }
    }

    pub(super) fn add_range(&mut self, base: u64, size: u64) {
        self.ranges.insert(base, size);
    }

    /// Takes a range out of the table.
    pub(super) fn take_range(&mut self, base: u64, size: u64) -> Result<()> {
        if self.ranges.get(&base) != Some(&size) {
            return Err(wrong("unreserve", format!("no range of {size} at {base:#x}")));
        }
        if self.mapped.range(base..base.saturating_add(size)).next().is_some() {
            return Err(wrong("unreserve", format!("{base:#x} still has memory mapped")));
        }
        self.ranges.remove(&base);
        Ok(())
    }

    pub(super) fn add_handle(&mut self, handle: u64, size: u64) {
        self.handles.insert(handle, (size, 0));
    }

    /// The size of a live handle.
    pub(super) fn handle_size(&self, handle: Handle) -> Result<u64> {
        let known = self.handles.get(&handle.0).map(|(size, _)| *size);
        known.ok_or_else(|| wrong("handle", format!("{handle:?} is not live on this device")))
    }

    /// Takes a handle out of the table that is mapped nowhere. It stays counted.
    pub(super) fn take_handle(&mut self, handle: Handle, size: u64) -> Result<()> {
        match self.handles.get(&handle.0) {
            Some(&(real, 0)) if real == size => {
                self.handles.remove(&handle.0);
                Ok(())
            }
            state => Err(wrong("destroy", format!("{handle:?} of {size}: {state:?}"))),
        }
    }

    /// Enters a mapping that is about to be made.
    pub(super) fn add_mapping(&mut self, address: u64, handle: Handle, size: u64) -> Result<()> {
        let end = address.checked_add(size).ok_or_else(|| {
            wrong("map", format!("{size} at {address:#x} is past the last address"))
        })?;
        let inside = self.ranges.range(..=address).next_back();
        if inside.is_none_or(|(base, length)| end > base + length) {
            return Err(wrong("map", format!("{address:#x} is not in a reserved range")));
        }
        let before = self.mapped.range(..end).next_back();
        if before.is_some_and(|(at, (size, _))| at + size > address) {
            return Err(wrong("map", format!("{address:#x} has memory mapped already")));
        }
        match self.handles.get_mut(&handle.0) {
            Some((real, times)) if *real == size => *times += 1,
            state => return Err(wrong("map", format!("{handle:?} of {size}: {state:?}"))),
        }
        self.mapped.insert(address, (size, handle.0));
        Ok(())
    }

    /// Takes a mapping out of the table; its handle may be mapped again.
    pub(super) fn take_mapping(&mut self, address: u64, size: u64) -> Result<Handle> {
        match self.mapped.get(&address) {
            Some(&(real, handle)) if real == size => {
                self.mapped.remove(&address);
                if let Some((_, times)) = self.handles.get_mut(&handle) {
                    *times -= 1;
                }
                Ok(Handle(handle))
            }
            _ => Err(wrong("unmap", format!("nothing of {size} is mapped at {address:#x}"))),
        }
    }

    /// Refuses a range that has not memory behind all of it.
    pub(super) fn check(&self, address: u64, length: u64) -> Result<()> {
        let backed = address.checked_add(length).is_some_and(|end| {
            let block = self.blocks.range(..=address).next_back();
            block.is_some_and(|(base, plain)| end <= base + plain.taken)
                || self.is_mapped(address, end)
        });
        if backed {
            return Ok(());
        }
        Err(wrong(
            "access",
            format!("{length} bytes at {address:#x} are not memory of this device"),
        ))
    }

    fn is_mapped(&self, from: u64, to: u64) -> bool {
        let mut at = from;
        // An empty range still has a place.
        while at < to.max(from + 1) {
            match self.mapped.range(..=at).next_back() {
                Some((base, (size, _))) if at < base + size => at = base + size,
                _ => return false,
            }
        }
        true
    }

    /// What is mapped behind a range: address, size and handle of each piece, in order.
    pub(super) fn behind(&self, address: u64, length: u64) -> Vec<(u64, u64, Handle)> {
        let end = address.saturating_add(length);
        let first = self.mapped.range(..=address).next_back().map_or(address, |(base, _)| *base);
        let inside = self.mapped.range(first..end);
        inside.map(|(base, (size, handle))| (*base, *size, Handle(*handle))).collect()
    }

    /// Empties the table.
    pub(super) fn dismantle(&mut self) -> Left {
        self.budget.credit(Bytes::MAX);
        Left {
            mapped: std::mem::take(&mut self.mapped)
                .into_iter()
                .map(|(a, (s, _))| (a, s))
                .collect(),
            handles: std::mem::take(&mut self.handles).into_keys().collect(),
            ranges: std::mem::take(&mut self.ranges).into_iter().collect(),
            blocks: std::mem::take(&mut self.blocks).into_keys().collect(),
        }
    }
}
