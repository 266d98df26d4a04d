//! What this process has allocated: a hash table from addresses and handles to driver resources, in
//! memory of its own.
//!
//! There is one lock. It is held for a few dozen nanoseconds, while the driver, which every
//! operation calls as well, admits one thread at a time for many hundreds. Its holder may also log
//! the event ([`crate::log`]). So an operation is in the table and in the event log, in the same
//! order for all threads, for the cost of one locked instruction.
//!
//! Links of the chains are reused last freed first: a program that allocates and frees stays in the
//! same few cache lines, however many addresses it goes through. The memory comes from the kernel
//! page by page as it is used, so a program that allocates little costs little. It is never shared:
//! a process that is killed while it holds the lock leaves no other process waiting.

#![expect(unsafe_code, reason = "its memory comes straight from the kernel")]

mod links;
mod resource;
#[cfg(all(test, not(loom)))]
mod tests;
mod unmap;

use core::cell::UnsafeCell;

pub(crate) use links::LinkPosition;
use links::{ResourceLink, ResourceLinks, chain_of};
pub(crate) use resource::{
    BlockClass, BlockTag, CountedMemory, DriverResource, ResourceClass, ResourceEntry,
};

use crate::lock::{ThreadLock, ThreadLockGuard};
use crate::sys;

/// All resources of this process. In this order: in a small program the lock, the first free link
/// and the first links are in one cache line.
#[repr(C, align(64))]
pub(crate) struct ResourceTable {
    lock: ThreadLock,
    inner: UnsafeCell<ResourceLinks>,
}

// SAFETY: only the holder of the lock accesses the content of the cell.
unsafe impl Sync for ResourceTable {}

/// The table with its lock held.
pub(crate) struct LockedTable<'a> {
    table: &'a ResourceTable,
    _lock: ThreadLockGuard<'a>,
}

impl LockedTable<'_> {
    #[expect(clippy::mut_from_ref, reason = "the lock is what makes it exclusive")]
    fn inner(&self) -> &mut ResourceLinks {
        // SAFETY: the lock is held for as long as `self` lives, and each method takes one such
        // reference at a time.
        unsafe { &mut *self.table.inner.get() }
    }

    /// Looks for an entry.
    #[inline(always)]
    pub(crate) fn find(&self, class: ResourceClass, key: u64) -> Option<LinkPosition> {
        self.inner().find(class, key)
    }

    /// Adds an entry that is not in the table; returns whether there was room.
    #[inline(always)]
    pub(crate) fn add(&self, entry: ResourceEntry) -> bool {
        self.inner().add(entry)
    }

    /// Removes the entry that was found.
    #[inline(always)]
    pub(crate) fn remove(&self, found: LinkPosition) -> ResourceEntry {
        self.inner().remove(found)
    }
}

impl ResourceTable {
    /// An empty table; `None` where the kernel has no room.
    pub(crate) fn new() -> Option<&'static ResourceTable> {
        let at = sys::map_anonymous(size_of::<ResourceTable>(), sys::MAP_NORESERVE);
        if at.is_null() {
            return None;
        }
        // SAFETY: the mapping is zeroed, large enough, aligned to a page and never unmapped; zeros
        // are an open lock, empty chains and links that were never used, whose class is
        // `ResourceClass::Empty`.
        Some(unsafe { &*at.cast::<ResourceTable>() })
    }

    /// Prefetches what the holder of the lock will need first for an entry.
    #[inline(always)]
    pub(crate) fn prefetch(&self, class: ResourceClass, key: u64) {
        sys::prefetch_for_write(self);
        // SAFETY: the address lies in the table; nothing is read.
        sys::prefetch_for_write(unsafe {
            &raw const (*self.inner.get()).chains[chain_of(class, key)]
        });
    }

    /// Locks the table, for access and for logging events.
    #[inline(always)]
    pub(crate) fn lock(&self) -> LockedTable<'_> {
        LockedTable { _lock: self.lock.lock(), table: self }
    }

    /// Records an entry and returns an older one with the same key. The driver returns no key
    /// twice, so the older one was freed in a way that the guard does not see. `Err` with the entry
    /// itself where there is no room.
    pub(crate) fn put(&self, entry: ResourceEntry) -> Result<Option<ResourceEntry>, ResourceEntry> {
        let held = self.lock();
        let old = held.find(entry.resource.class(), entry.key).map(|found| held.remove(found));
        if held.add(entry) { Ok(old) } else { Err(entry) }
    }

    /// Removes an entry.
    pub(crate) fn take(&self, class: ResourceClass, key: u64) -> Option<ResourceEntry> {
        let held = self.lock();
        held.find(class, key).map(|found| held.remove(found))
    }

    /// A copy of an entry.
    pub(crate) fn get(&self, class: ResourceClass, key: u64) -> Option<ResourceEntry> {
        self.lock().inner().entry(class, key).copied()
    }

    /// Changes an entry under the lock, and returns what it was.
    pub(crate) fn change(
        &self,
        class: ResourceClass,
        key: u64,
        change: impl FnOnce(&mut DriverResource),
    ) -> Option<DriverResource> {
        let held = self.lock();
        let entry = held.inner().entry(class, key)?;
        let before = entry.resource;
        change(&mut entry.resource);
        Some(before)
    }

    /// Removes all entries that `wanted` chooses, one after the other.
    pub(crate) fn drain(
        &self,
        wanted: impl Fn(&ResourceEntry) -> bool,
        mut each: impl FnMut(ResourceEntry),
    ) {
        let mut from = 0;
        loop {
            let held = self.lock();
            let links = held.inner().links.iter().take(held.inner().used as usize).skip(from);
            let in_chain = |link: &ResourceLink| {
                !matches!(link.class, ResourceClass::Empty | ResourceClass::Unmapping)
            };
            let mut links = links.enumerate().filter(|(_, link)| in_chain(link));
            let chosen = links.find(|(_, link)| wanted(&link.entry));
            let chosen = chosen.map(|(steps, link)| (steps, link.class, link.entry.key));
            drop(held);
            let Some((steps, class, key)) = chosen else { break };
            from += steps + 1;
            // Another thread may have removed it meanwhile.
            if let Some(entry) = self.take(class, key) {
                each(entry);
            }
        }
    }

    /// Goes through all entries until `each` returns a value.
    pub(crate) fn search<T>(&self, each: impl FnMut(&ResourceEntry) -> Option<T>) -> Option<T> {
        let held = self.lock();
        held.inner().all().map(|link| &link.entry).find_map(each)
    }
}
