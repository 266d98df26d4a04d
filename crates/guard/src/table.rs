//! What this process has allocated: a hash of handles to sizes, in memory of its own.
//!
//! Sixty-four stripes with a lock each, so that threads seldom meet; within a stripe, open
//! addressing with deletion by moving back, so that no graves pile up. The memory comes from
//! the kernel and becomes real page by page, so a program that allocates little costs little.
//! It is never shared: a process that is killed holding a lock leaves nobody waiting.

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
    pub(crate) tag: u8,
    /// As the program asked for it.
    pub(crate) bytes: u64,
    /// What is charged for it.
    pub(crate) charge: u64,
    pub(crate) extra: u64,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.class == Class::Empty
    }

    fn is(&self, class: Class, key: u64) -> bool {
        self.key == key && self.class == class
    }
}

const STRIPES: usize = 64;
const PLACES: usize = 1 << 14;

struct Stripe {
    lock: AtomicU32,
    count: UnsafeCell<usize>,
    places: UnsafeCell<[Entry; PLACES]>,
}

/// All that this process holds.
pub(crate) struct Table {
    stripes: [Stripe; STRIPES],
}

// SAFETY: what is in the cells is touched only by the holder of the stripe's lock.
unsafe impl Sync for Table {}

/// The stripe's lock, held.
struct Held<'a> {
    stripe: &'a Stripe,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.stripe.lock.store(0, Release);
    }
}

impl Stripe {
    fn hold(&self) -> Held<'_> {
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
        Held { stripe: self }
    }
}

impl Held<'_> {
    #[expect(clippy::mut_from_ref, reason = "the lock is what makes it exclusive")]
    fn places(&self) -> &mut [Entry; PLACES] {
        // SAFETY: the lock is held for as long as `self` lives, and each method of this
        // type uses the reference only until it returns.
        unsafe { &mut *self.stripe.places.get() }
    }

    #[expect(clippy::mut_from_ref, reason = "the lock is what makes it exclusive")]
    fn count(&self) -> &mut usize {
        // SAFETY: as above.
        unsafe { &mut *self.stripe.count.get() }
    }

    fn find(&self, class: Class, key: u64, hash: usize) -> Option<usize> {
        let places = self.places();
        let mut at = hash;
        while !places[at].is_empty() {
            if places[at].is(class, key) {
                return Some(at);
            }
            at = (at + 1) % PLACES;
        }
        None
    }

    /// Empties a place and closes the gap: later entries of the run move back.
    fn clear(&self, mut hole: usize) {
        let places = self.places();
        let mut at = hole;
        loop {
            at = (at + 1) % PLACES;
            let entry = places[at];
            if entry.is_empty() {
                break;
            }
            let home = place_of(entry.class, entry.key);
            // It may move if its home is not between the hole and where it stands.
            if (at.wrapping_sub(home) % PLACES) >= (at.wrapping_sub(hole) % PLACES) {
                places[hole] = entry;
                hole = at;
            }
        }
        places[hole].class = Class::Empty;
        *self.count() -= 1;
    }
}

fn hash(class: Class, key: u64) -> u64 {
    (key ^ ((class as u64) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn place_of(class: Class, key: u64) -> usize {
    (hash(class, key) >> 32) as usize % PLACES
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
        // zeros are unlocked stripes of no entries, whose places are `Class::Empty`.
        Some(unsafe { &*at.cast::<Table>() })
    }

    fn stripe(&self, class: Class, key: u64) -> Held<'_> {
        self.stripes[(hash(class, key) >> 58) as usize % STRIPES].hold()
    }

    /// Keeps an entry, in place of an older one with the same key: the driver hands out
    /// nothing twice, so that one went a way that we did not see. `None` where there was
    /// none, and the entry itself where there is no room.
    #[inline]
    pub(crate) fn put(&self, entry: Entry) -> Result<Option<Entry>, Entry> {
        let held = self.stripe(entry.class, entry.key);
        let places = held.places();
        let mut at = place_of(entry.class, entry.key);
        loop {
            let place = &mut places[at];
            if place.is(entry.class, entry.key) {
                return Ok(Some(core::mem::replace(place, entry)));
            }
            if place.is_empty() {
                // A few places stay empty: every search ends at one.
                if *held.count() + 64 >= PLACES {
                    return Err(entry);
                }
                *place = entry;
                *held.count() += 1;
                return Ok(None);
            }
            at = (at + 1) % PLACES;
        }
    }

    /// Takes an entry out.
    #[inline]
    pub(crate) fn take(&self, class: Class, key: u64) -> Option<Entry> {
        let held = self.stripe(class, key);
        let at = held.find(class, key, place_of(class, key))?;
        let entry = held.places()[at];
        held.clear(at);
        Some(entry)
    }

    /// A copy of an entry.
    pub(crate) fn get(&self, class: Class, key: u64) -> Option<Entry> {
        let held = self.stripe(class, key);
        let at = held.find(class, key, place_of(class, key))?;
        Some(held.places()[at])
    }

    /// Changes an entry under its lock, and returns it as it was.
    pub(crate) fn change(
        &self,
        class: Class,
        key: u64,
        change: impl FnOnce(&mut Entry),
    ) -> Option<Entry> {
        let held = self.stripe(class, key);
        let at = held.find(class, key, place_of(class, key))?;
        let entry = &mut held.places()[at];
        let before = *entry;
        change(entry);
        Some(before)
    }

    /// Takes out, one after the other, all entries that `wanted` chooses.
    pub(crate) fn drain(&self, wanted: impl Fn(&Entry) -> bool, mut each: impl FnMut(Entry)) {
        for stripe in &self.stripes {
            loop {
                let held = stripe.hold();
                if *held.count() == 0 {
                    break;
                }
                let chosen = |entry: &Entry| !entry.is_empty() && wanted(entry);
                let Some(at) = held.places().iter().position(chosen) else { break };
                let entry = held.places()[at];
                held.clear(at);
                drop(held);
                each(entry);
            }
        }
    }

    /// Copies of all entries that `wanted` chooses.
    pub(crate) fn each(&self, wanted: impl Fn(&Entry) -> bool, mut each: impl FnMut(Entry)) {
        for stripe in &self.stripes {
            let held = stripe.hold();
            if *held.count() > 0 {
                let all = held.places().iter().filter(|entry| !entry.is_empty());
                all.filter(|entry| wanted(entry)).for_each(|entry| each(*entry));
            }
        }
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
        let keys: Vec<u64> = (0..200_000u64).map(|n| 0x7f00_0000_0000 + n * 512).collect();
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
        let fits = (0..2_000_000u64).take_while(|n| table.put(entry(n * 4096 + 1, 1)).is_ok());
        assert!(fits.count() > 500_000);
        assert!(table.take(Class::Pointer, 1).is_some());
        assert!(table.get(Class::Pointer, 12).is_none());
    }
}
