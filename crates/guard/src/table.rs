//! What this process has allocated: a hash of handles to sizes, in memory of its own.
//!
//! One lock: it is held for a few dozen nanoseconds, and the driver, which every operation
//! calls as well, lets one thread in at a time for many hundreds. Who holds it may also note
//! what happened ([`crate::log`]), so that an operation is in the table and in the list, in the
//! same order for all threads, for the price of one locked instruction.
//!
//! Chains of entries that are used again last freed first: a program that allocates and frees
//! stays in the same few lines of the processor's cache, however many addresses it goes
//! through. The memory comes from the kernel and becomes real page by page, so a program that
//! allocates little costs little. It is never shared: a process that is killed holding the lock
//! leaves nobody waiting.

#![expect(unsafe_code, reason = "its memory comes straight from the kernel")]

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sys;

/// What a key is: handles of different kinds may be the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    /// No key: what fresh memory, all zeros, reads as.
    Empty = 0,
    /// A device pointer.
    Pointer,
    /// An array or a mipmapped array.
    Array,
    /// A handle to physical memory; `extra` is the number of its [`Class::Physical`].
    Handle,
    /// A mapping, by its address; `extra` as above.
    Mapping,
    /// Physical memory, by a number of our own; `extra` counts handles and mappings.
    Physical,
    /// A memory pool; `charge` is what it has reserved.
    Pool,
    /// An executable graph; `bytes` is what its allocation nodes ask for.
    Graph,
    /// A context; `charge` is what the driver took for it.
    Context,
    /// A module or library; `charge` as above.
    Module,
}

/// One thing that is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) class: Class,
    pub(crate) kind: u8,
    pub(crate) device: u8,
    /// The tag of the thread that asked, and [`Entry::TAGGED`] if it is counted by it.
    pub(crate) tag: u8,
    /// As the program asked for it.
    pub(crate) bytes: u64,
    /// What is charged for it.
    pub(crate) charge: u64,
    pub(crate) extra: u64,
}

impl Entry {
    pub(crate) const TAGGED: u8 = 0x80;

    /// What its tag is charged with: what the driver takes for it, or as much of its pool.
    pub(crate) fn share(&self) -> u64 {
        if self.charge > 0 { self.charge } else { self.bytes }
    }
}

/// Fewer where a test fills them up.
const ENTRIES: usize = if cfg!(test) { 1 << 16 } else { 1 << 20 };
const CHAINS: usize = ENTRIES / 16;

/// An entry and the next of its chain, or the next that is free: one more than its place, and
/// 0 for the end.
#[derive(Clone, Copy)]
struct Link {
    entry: Entry,
    next: u32,
}

/// Where an entry is and the link before it in its chain: one more than their places, and 0 for
/// none, as in a [`Link`]. Good for as long as the lock is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    at: u32,
    before: u32,
}

/// All that this process holds. In this order: where little is held, lock, free and first link
/// are in one line of the processor's cache.
#[repr(C, align(64))]
pub(crate) struct Table {
    lock: AtomicU32,
    inner: UnsafeCell<Inner>,
}

#[repr(C)]
struct Inner {
    /// The first free link.
    free: u32,
    /// Links that were ever used; those behind are free too.
    used: u32,
    links: [Link; ENTRIES],
    chains: [u32; CHAINS],
}

impl Inner {
    #[inline(always)]
    fn find(&self, class: Class, key: u64) -> Option<Found> {
        let (mut at, mut before) = (self.chains[chain_of(class, key)], 0);
        while at != 0 {
            let link = &self.links[at as usize - 1];
            if link.entry.key == key && link.entry.class == class {
                return Some(Found { at, before });
            }
            (at, before) = (link.next, at);
        }
        None
    }

    fn entry(&mut self, class: Class, key: u64) -> Option<&mut Entry> {
        let found = self.find(class, key)?;
        Some(&mut self.links[found.at as usize - 1].entry)
    }

    #[inline(always)]
    fn add(&mut self, entry: Entry) -> bool {
        let place = match self.free {
            0 if self.used as usize == ENTRIES => return false,
            0 => {
                self.used += 1;
                self.used
            }
            free => {
                self.free = self.links[free as usize - 1].next;
                free
            }
        };
        let chain = &mut self.chains[chain_of(entry.class, entry.key)];
        self.links[place as usize - 1] = Link { entry, next: *chain };
        *chain = place;
        true
    }

    #[inline(always)]
    fn remove(&mut self, Found { at, before }: Found) -> Entry {
        let Link { entry, next } = self.links[at as usize - 1];
        match before {
            0 => self.chains[chain_of(entry.class, entry.key)] = next,
            before => self.links[before as usize - 1].next = next,
        }
        let link = &mut self.links[at as usize - 1];
        link.entry.class = Class::Empty;
        link.next = self.free;
        self.free = at;
        entry
    }

    fn all(&self) -> impl Iterator<Item = &Entry> {
        let used = self.links.iter().take(self.used as usize).map(|link| &link.entry);
        used.filter(|entry| entry.class != Class::Empty)
    }
}

// SAFETY: what is in the cell is touched only by the holder of the lock.
unsafe impl Sync for Table {}

/// The lock, held.
pub(crate) struct Held<'a> {
    table: &'a Table,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.table.lock.store(0, Release);
    }
}

impl Held<'_> {
    #[expect(clippy::mut_from_ref, reason = "the lock is what makes it exclusive")]
    fn inner(&self) -> &mut Inner {
        // SAFETY: the lock is held for as long as `self` lives, and every user of it takes
        // one such reference at a time.
        unsafe { &mut *self.table.inner.get() }
    }

    /// Looks for an entry.
    #[inline(always)]
    pub(crate) fn find(&self, class: Class, key: u64) -> Option<Found> {
        self.inner().find(class, key)
    }

    /// Adds an entry that is not there; whether there was room.
    #[inline(always)]
    pub(crate) fn add(&self, entry: Entry) -> bool {
        self.inner().add(entry)
    }

    /// Takes out what was found.
    #[inline(always)]
    pub(crate) fn remove(&self, found: Found) -> Entry {
        self.inner().remove(found)
    }
}

fn hash(class: Class, key: u64) -> u64 {
    (key ^ ((class as u64) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn chain_of(class: Class, key: u64) -> usize {
    (hash(class, key) >> 40) as usize % CHAINS
}

impl Table {
    /// An empty table; nothing where the kernel has no room.
    pub(crate) fn new() -> Option<&'static Table> {
        let access = sys::PROT_READ | sys::PROT_WRITE;
        let kind = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
        let size = size_of::<Table>();
        // SAFETY: a new mapping touches nothing that exists.
        let at = unsafe { sys::mmap(core::ptr::null_mut(), size, access, kind, -1, 0) };
        if at as isize == -1 {
            return None;
        }
        // SAFETY: the mapping is zeroed, large enough, aligned to a page and never unmapped;
        // zeros are an open lock, empty chains and links that were never used, whose
        // class is `Class::Empty`.
        Some(unsafe { &*at.cast::<Table>() })
    }

    /// Brings near what who holds the lock will need first for an entry.
    #[inline(always)]
    pub(crate) fn near(&self, class: Class, key: u64) {
        sys::near(self);
        // SAFETY: the place lies in the table; nothing is read.
        sys::near(unsafe { &raw const (*self.inner.get()).chains[chain_of(class, key)] });
    }

    /// The right to look at it, and to note what happens.
    #[inline(always)]
    pub(crate) fn hold(&self) -> Held<'_> {
        if self.lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            self.wait();
        }
        Held { table: self }
    }

    #[cold]
    fn wait(&self) {
        let mut tries = 0u32;
        while self.lock.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
            tries += 1;
            if tries.is_multiple_of(64) {
                // SAFETY: takes and changes nothing.
                unsafe { sys::sched_yield() };
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// Keeps an entry, in place of an older one with the same key: the driver hands out
    /// nothing twice, so that one went a way that we did not see. `None` where there was
    /// none, and the entry itself where there is no room.
    pub(crate) fn put(&self, entry: Entry) -> Result<Option<Entry>, Entry> {
        let held = self.hold();
        let old = held.find(entry.class, entry.key).map(|found| held.remove(found));
        if held.add(entry) { Ok(old) } else { Err(entry) }
    }

    /// Takes an entry out.
    pub(crate) fn take(&self, class: Class, key: u64) -> Option<Entry> {
        let held = self.hold();
        held.find(class, key).map(|found| held.remove(found))
    }

    /// A copy of an entry.
    pub(crate) fn get(&self, class: Class, key: u64) -> Option<Entry> {
        self.hold().inner().entry(class, key).copied()
    }

    /// Changes an entry under its lock, and returns it as it was.
    pub(crate) fn change(
        &self,
        class: Class,
        key: u64,
        change: impl FnOnce(&mut Entry),
    ) -> Option<Entry> {
        let held = self.hold();
        let entry = held.inner().entry(class, key)?;
        let before = *entry;
        change(entry);
        Some(before)
    }

    /// Takes out, one after the other, all entries that `wanted` chooses.
    pub(crate) fn drain(&self, wanted: impl Fn(&Entry) -> bool, mut each: impl FnMut(Entry)) {
        let mut from = 0;
        loop {
            let held = self.hold();
            let links = held.inner().links.iter().take(held.inner().used as usize).skip(from);
            let mut links = links.enumerate().filter(|(_, link)| link.entry.class != Class::Empty);
            let chosen = links.find(|(_, link)| wanted(&link.entry));
            let chosen = chosen.map(|(steps, link)| (steps, link.entry));
            drop(held);
            let Some((steps, entry)) = chosen else { break };
            from += steps + 1;
            // Somebody else may have taken it meanwhile.
            if let Some(entry) = self.take(entry.class, entry.key) {
                each(entry);
            }
        }
    }

    /// Copies of all entries that `wanted` chooses.
    pub(crate) fn each(&self, wanted: impl Fn(&Entry) -> bool, mut each: impl FnMut(Entry)) {
        let held = self.hold();
        held.inner().all().filter(|entry| wanted(entry)).for_each(|entry| each(*entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: u64, bytes: u64) -> Entry {
        let class = Class::Pointer;
        Entry { key, class, kind: 0, device: 0, tag: 0, bytes, charge: bytes, extra: 0 }
    }

    #[test]
    fn zeros_are_an_empty_table() {
        assert_eq!(Class::Empty as u8, 0);
        assert!(Table::new().unwrap().take(Class::Pointer, 7).is_none());
    }

    #[test]
    fn what_was_put_is_taken_once() {
        let table = Table::new().unwrap();
        assert!(table.put(entry(5, 100)).unwrap().is_none());
        assert_eq!(table.put(entry(5, 200)).unwrap().unwrap().bytes, 100);
        assert_eq!(table.get(Class::Pointer, 5).unwrap().bytes, 200);
        assert!(table.take(Class::Array, 5).is_none());
        assert_eq!(table.take(Class::Pointer, 5).unwrap().bytes, 200);
        assert!(table.take(Class::Pointer, 5).is_none());
    }

    #[test]
    fn nothing_is_lost_when_runs_are_closed() {
        let table = Table::new().unwrap();
        let keys: Vec<u64> = (0..40_000u64).map(|n| 0x7f00_0000_0000 + n * 512).collect();
        for &key in &keys {
            table.put(entry(key, key)).unwrap();
        }
        for &key in keys.iter().step_by(3) {
            assert_eq!(table.take(Class::Pointer, key).unwrap().bytes, key);
        }
        for (n, &key) in keys.iter().enumerate() {
            assert_eq!(table.get(Class::Pointer, key).is_some(), n % 3 != 0, "{n}");
        }
        let mut left = 0;
        table.drain(|_| true, |_| left += 1);
        assert_eq!(left, keys.len() - keys.len().div_ceil(3));
    }

    #[test]
    fn a_full_table_refuses_and_still_finds() {
        let table = Table::new().unwrap();
        let fits = (0..200_000u64).take_while(|n| table.put(entry(n * 4096 + 1, 1)).is_ok());
        assert!(fits.count() > 50_000);
        assert!(table.take(Class::Pointer, 1).is_some());
        assert!(table.get(Class::Pointer, 12).is_none());
    }
}
