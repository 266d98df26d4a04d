//! Addresses, physical memory, and the bytes in it.
//!
//! Bytes live in physical memory, not at addresses: what was written through one
//! mapping is read through the next one of the same page, and a page that was mapped to
//! the wrong place shows in the contents. Only chunks that were written take room.

use std::collections::BTreeMap;

use crate::budget::Budget;
use crate::memory::{Block, Handle};
use crate::stats::MemoryStats;
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

use super::SimConfig;
use super::work::SimUse;

/// Granule of stored contents.
const CHUNK: u64 = 4096;
/// Plain blocks lie here; ranges for mappings above.
const BLOCKS: u64 = 1 << 32;
const RANGES: u64 = 1 << 46;

#[derive(Debug, Clone, Copy)]
struct Backing {
    size: u64,
    /// The piece of physical memory, and where in the device's own numbering it begins.
    handle: Handle,
}

#[derive(Debug)]
struct SimBlock {
    asked: u64,
    generation: u64,
}

#[derive(Debug)]
pub(super) struct SimSpace {
    budget: Budget,
    page: u64,
    next_block: u64,
    next_range: u64,
    next_handle: u64,
    /// Handles with their size, and how often they are mapped.
    handles: BTreeMap<Handle, (u64, u64)>,
    can_alias: bool,
    ranges: BTreeMap<u64, u64>,
    /// Address → what backs it.
    mapped: BTreeMap<u64, Backing>,
    plain: BTreeMap<u64, SimBlock>,
    contents: BTreeMap<(Handle, u64), Box<[u8]>>,
    asked: u64,
    taken: u64,
    allocations: u64,
}

fn fault(call: &'static str, why: String) -> Error {
    Error::Device { call, why }
}

impl SimSpace {
    pub(super) fn new(config: &SimConfig) -> SimSpace {
        SimSpace {
            budget: Budget::new(config.total),
            page: config.page.0,
            next_block: BLOCKS,
            next_range: RANGES,
            next_handle: 1,
            handles: BTreeMap::new(),
            can_alias: config.can_alias,
            ranges: BTreeMap::new(),
            mapped: BTreeMap::new(),
            plain: BTreeMap::new(),
            contents: BTreeMap::new(),
            asked: 0,
            taken: 0,
            allocations: 0,
        }
    }

    /// What nobody holds.
    pub(super) fn free_bytes(&self) -> Bytes {
        self.budget.free()
    }

    pub(super) fn stats(&self) -> MemoryStats {
        let used = self.budget.reserved();
        MemoryStats {
            total_allocated_bytes: used,
            in_use_bytes: Bytes(self.asked) + used.saturating_sub(Bytes(self.taken)),
            peak_bytes: self.budget.peak(),
            pool_misses: self.allocations,
            active_buffers: self.plain.len() as u64,
            ..MemoryStats::default()
        }
    }

    fn take(&mut self, size: u64) -> Option<Handle> {
        self.budget.reserve(Bytes(size)).ok()?;
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        Some(handle)
    }

    pub(super) fn allocate(&mut self, asked: u64, held: u64) -> Option<(u64, u64)> {
        let handle = self.take(held)?;
        let base = self.next_block;
        // A gap after every block, so that nobody can lean on neighbours.
        self.next_block += held.next_multiple_of(CHUNK) + CHUNK;
        self.allocations += 1;
        let generation = self.allocations;
        self.mapped.insert(base, Backing { size: held, handle });
        self.plain.insert(base, SimBlock { asked, generation });
        self.asked += asked;
        self.taken += held;
        Some((base, generation))
    }

    pub(super) fn is_live(&self, block: &Block) -> bool {
        self.plain.get(&block.key()).is_some_and(|plain| {
            plain.generation == block.generation() && plain.asked == block.size().0
        })
    }

    pub(super) fn free(&mut self, base: u64) {
        if let (Some(block), Some(backing)) = (self.plain.remove(&base), self.mapped.remove(&base))
        {
            self.asked -= block.asked;
            self.taken -= backing.size;
            self.budget.credit(Bytes(backing.size));
            self.erase(backing.handle);
        }
    }

    fn erase(&mut self, handle: Handle) {
        let gone: Vec<_> =
            self.contents.range((handle, 0)..(Handle(handle.0 + 1), 0)).map(|(k, _)| *k).collect();
        for key in gone {
            self.contents.remove(&key);
        }
    }

    pub(super) fn reserve(&mut self, size: u64) -> Result<u64> {
        if size == 0 || !size.is_multiple_of(self.page) {
            return Err(fault("reserve", format!("{size} is not a multiple of {}", self.page)));
        }
        let base = self.next_range;
        self.next_range = base
            .checked_add(size)
            .and_then(|end| end.checked_add(self.page))
            .ok_or_else(|| fault("reserve", "no addresses left".to_string()))?;
        self.ranges.insert(base, size);
        Ok(base)
    }

    pub(super) fn unreserve(&mut self, base: u64, size: u64) -> Result<()> {
        if self.ranges.get(&base) != Some(&size) {
            return Err(fault("unreserve", format!("no range of {size} at {base:#x}")));
        }
        if self.mapped.range(base..base + size).next().is_some() {
            return Err(fault("unreserve", format!("{base:#x} still has memory mapped")));
        }
        self.ranges.remove(&base);
        Ok(())
    }

    pub(super) fn create(&mut self, size: u64) -> Result<Option<Handle>> {
        if size == 0 || !size.is_multiple_of(self.page) {
            return Err(fault("create", format!("{size} is not a multiple of {}", self.page)));
        }
        Ok(self.take(size).inspect(|handle| {
            self.handles.insert(*handle, (size, 0));
        }))
    }

    pub(super) fn destroy(&mut self, handle: Handle, size: u64) -> Result<()> {
        match self.handles.get(&handle) {
            Some(&(real, 0)) if real == size => {
                self.handles.remove(&handle);
                self.budget.credit(Bytes(size));
                self.erase(handle);
                Ok(())
            }
            state => Err(fault("destroy", format!("{handle:?} of {size}: {state:?}"))),
        }
    }

    pub(super) fn map(&mut self, address: u64, handle: Handle, size: u64) -> Result<()> {
        let inside = self.ranges.range(..=address).next_back();
        if inside.is_none_or(|(base, len)| address + size > base + len) {
            return Err(fault("map", format!("{address:#x} is not in a reserved range")));
        }
        let before = self.mapped.range(..address + size).next_back();
        if before.is_some_and(|(at, backing)| at + backing.size > address) {
            return Err(fault("map", format!("{address:#x} has memory mapped already")));
        }
        match self.handles.get_mut(&handle) {
            Some((real, times)) if *real == size && (*times == 0 || self.can_alias) => *times += 1,
            state => return Err(fault("map", format!("{handle:?} of {size}: {state:?}"))),
        }
        self.mapped.insert(address, Backing { size, handle });
        Ok(())
    }

    pub(super) fn unmap(&mut self, address: u64, size: u64) -> Result<()> {
        match self.mapped.get(&address) {
            Some(backing) if backing.size == size && !self.plain.contains_key(&address) => {
                if let Some((_, times)) = self.handles.get_mut(&backing.handle) {
                    *times -= 1;
                }
                self.mapped.remove(&address);
                Ok(())
            }
            _ => Err(fault("unmap", format!("nothing of {size} is mapped at {address:#x}"))),
        }
    }

    /// The physical memory behind a range, as far as there is any.
    pub(super) fn uses(&self, address: u64, size: u64) -> Vec<SimUse> {
        let end = address + size;
        let first = self.mapped.range(..=address).next_back().map_or(address, |(base, _)| *base);
        let behind = self.mapped.range(first..end).filter_map(|(base, backing)| {
            let (from, to) = (address.max(*base), end.min(base + backing.size));
            let inside = from.saturating_sub(*base)..to.saturating_sub(*base);
            (from < to).then_some(SimUse { from, to, handle: backing.handle, inside })
        });
        behind.collect()
    }

    /// Whether every byte of the range has memory behind it.
    pub(super) fn is_backed(&self, address: u64, size: u64) -> bool {
        let mut at = address;
        while at < address + size {
            match self.mapped.range(..=at).next_back() {
                Some((base, backing)) if at < base + backing.size => at = base + backing.size,
                _ => return false,
            }
        }
        true
    }

    /// Calls `visit` for each stretch of the range that lies in one stored chunk.
    fn walk(
        &mut self,
        address: u64,
        len: u64,
        mut visit: impl FnMut(&mut BTreeMap<(Handle, u64), Box<[u8]>>, (Handle, u64), usize, usize),
    ) -> Result<()> {
        if !self.is_backed(address, len) {
            return Err(fault("access", format!("{len} bytes at {address:#x} are not mapped")));
        }
        let mut at = address;
        while at < address + len {
            let Some((base, backing)) = self.mapped.range(..=at).next_back() else { break };
            let inside = at - base;
            let (chunk, offset) = (inside / CHUNK, inside % CHUNK);
            let end = (address + len).min(base + backing.size).min(at + (CHUNK - offset));
            visit(
                &mut self.contents,
                (backing.handle, chunk),
                offset as usize,
                (end - at) as usize,
            );
            at = end;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        self.walk(address, bytes.len() as u64, |contents, key, offset, len| {
            let (now, later) = rest.split_at(len);
            let chunk = contents.entry(key).or_insert_with(|| vec![0; CHUNK as usize].into());
            chunk[offset..offset + len].copy_from_slice(now);
            rest = later;
        })
    }

    pub(super) fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let mut done = 0;
        self.walk(address, bytes.len() as u64, |contents, key, offset, len| {
            let now = &mut bytes[done..done + len];
            match contents.get(&key) {
                Some(chunk) => now.copy_from_slice(&chunk[offset..offset + len]),
                None => now.fill(0),
            }
            done += len;
        })
    }
}
