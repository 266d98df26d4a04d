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

use crate::lock::{ThreadLock, ThreadLockGuard};
use crate::log::GuardMemoryKind;
use crate::sys;

/// What a key is: handles of different kinds may be the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ResourceClass {
    /// No key: what fresh memory, all zeros, reads as.
    Empty = 0,
    Pointer,
    Array,
    Host,
    Physical,
    Handle,
    Mapping,
    /// A mapping that is being undone: it is in no chain, and cannot be found.
    Unmapping,
    Pool,
    Graph,
    GraphMemory,
    Context,
    Module,
}

/// What is held under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum DriverResource {
    /// Nothing: what fresh memory, all zeros, reads as.
    Empty = 0,
    /// Memory that the driver has handed out.
    Block {
        class: BlockClass,
        kind: GuardMemoryKind,
        device: u8,
        tag: BlockTag,
        /// As the program asked for it.
        bytes: u64,
        /// What is charged for it: nothing for what is inside a pool.
        charge: u64,
        /// The context in which it lives.
        context: u64,
    },
    /// Physical memory, by a number of our own. It lives while handles or mappings hold it.
    Physical { device: u8, tag: BlockTag, bytes: u64, holders: u64 },
    /// A handle to physical memory, which must be released so often.
    Handle { memory: u64, releases: u64 },
    /// A mapping of physical memory, by its address.
    Mapping { memory: u64, bytes: u64 },
    /// A memory pool and what it has reserved; `None` for one that is not ours to count.
    Pool { device: u8, reserved: Option<u64> },
    /// An executable graph whose allocation nodes ask for so much.
    Graph { wanted: u64 },
    /// What a device keeps for all graphs, by the device's place.
    GraphMemory { reserved: u64 },
    /// A context, and what the driver took for it.
    Context { device: u8, charge: u64 },
    /// A module or library, and what the driver took for it.
    Module { device: u8, charge: u64 },
}

/// By what a block is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BlockClass {
    /// Its address on the device.
    Pointer = ResourceClass::Pointer as u8,
    /// An array or a mipmapped array.
    Array = ResourceClass::Array as u8,
    /// Its address on the host, where the device shares the host's memory.
    Host = ResourceClass::Host as u8,
}

impl BlockClass {
    pub(crate) fn resource_class(self) -> ResourceClass {
        match self {
            BlockClass::Pointer => ResourceClass::Pointer,
            BlockClass::Array => ResourceClass::Array,
            BlockClass::Host => ResourceClass::Host,
        }
    }
}

/// The tag of the thread that asked, if this process counts by tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockTag(u8);

impl BlockTag {
    /// This process does not count by tags.
    pub(crate) const NONE: BlockTag = BlockTag(0);
    const COUNTED: u8 = 0x80;

    pub(crate) fn counted(number: u8) -> BlockTag {
        BlockTag(number | BlockTag::COUNTED)
    }

    /// The number by which it is counted.
    #[inline(always)]
    pub(crate) fn number(self) -> Option<u8> {
        (self.0 & BlockTag::COUNTED != 0).then_some(self.0 & !BlockTag::COUNTED)
    }
}

/// Memory that was handed out, as it is noted and given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CountedMemory {
    pub(crate) kind: GuardMemoryKind,
    pub(crate) device: u8,
    pub(crate) tag: BlockTag,
    pub(crate) bytes: u64,
    pub(crate) charge: u64,
}

impl CountedMemory {
    /// What its tag is charged with: what the driver takes for it, or as much of its pool.
    #[inline(always)]
    pub(crate) fn share(&self) -> u64 {
        if self.charge > 0 { self.charge } else { self.bytes }
    }
}

impl DriverResource {
    #[inline(always)]
    pub(crate) fn class(&self) -> ResourceClass {
        match self {
            DriverResource::Empty => ResourceClass::Empty,
            DriverResource::Block { class, .. } => class.resource_class(),
            DriverResource::Physical { .. } => ResourceClass::Physical,
            DriverResource::Handle { .. } => ResourceClass::Handle,
            DriverResource::Mapping { .. } => ResourceClass::Mapping,
            DriverResource::Pool { .. } => ResourceClass::Pool,
            DriverResource::Graph { .. } => ResourceClass::Graph,
            DriverResource::GraphMemory { .. } => ResourceClass::GraphMemory,
            DriverResource::Context { .. } => ResourceClass::Context,
            DriverResource::Module { .. } => ResourceClass::Module,
        }
    }

    /// The memory that it is, if it is some that was handed out.
    #[inline(always)]
    pub(crate) fn memory(&self) -> Option<CountedMemory> {
        match *self {
            DriverResource::Block { kind, device, tag, bytes, charge, .. } => {
                Some(CountedMemory { kind, device, tag, bytes, charge })
            }
            DriverResource::Physical { device, tag, bytes, .. } => Some(CountedMemory {
                kind: GuardMemoryKind::Physical,
                device,
                tag,
                bytes,
                charge: bytes,
            }),
            _ => None,
        }
    }
}

/// One thing that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResourceEntry {
    pub(crate) key: u64,
    pub(crate) thing: DriverResource,
}

/// Fewer where a test fills them up.
const ENTRIES: usize = if cfg!(test) { 1 << 16 } else { 1 << 20 };
const CHAINS: usize = ENTRIES / 16;

/// An entry and the next of its chain, or the next that is free: one more than its place, and
/// 0 for the end.
#[derive(Clone, Copy)]
struct Link {
    entry: ResourceEntry,
    next: u32,
    class: ResourceClass,
}
const _: () = assert!(size_of::<Link>() == 48, "three lines of the cache for four links");

/// Where an entry is and the link before it in its chain: one more than their places, and 0 for
/// none, as in a [`Link`]. Good for as long as the lock is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkPosition {
    at: u32,
    before: u32,
}

/// All that this process holds. In this order: where little is held, lock, free and first link
/// are in one line of the processor's cache.
#[repr(C, align(64))]
pub(crate) struct ResourceTable {
    lock: ThreadLock,
    inner: UnsafeCell<ResourceLinks>,
}

#[repr(C)]
struct ResourceLinks {
    /// The first free link.
    free: u32,
    /// Links that were ever used; those behind are free too.
    used: u32,
    links: [Link; ENTRIES],
    chains: [u32; CHAINS],
}

impl ResourceLinks {
    #[inline(always)]
    fn find(&self, class: ResourceClass, key: u64) -> Option<LinkPosition> {
        let (mut at, mut before) = (self.chains[chain_of(class, key)], 0);
        while at != 0 {
            let link = &self.links[at as usize - 1];
            if link.entry.key == key && link.class == class {
                return Some(LinkPosition { at, before });
            }
            (at, before) = (link.next, at);
        }
        None
    }

    fn entry(&mut self, class: ResourceClass, key: u64) -> Option<&mut ResourceEntry> {
        let found = self.find(class, key)?;
        Some(&mut self.links[found.at as usize - 1].entry)
    }

    #[inline(always)]
    fn add(&mut self, entry: ResourceEntry) -> bool {
        let class = entry.thing.class();
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
        let chain = &mut self.chains[chain_of(class, entry.key)];
        self.links[place as usize - 1] = Link { entry, next: *chain, class };
        *chain = place;
        true
    }

    /// Takes a link out of its chain. It is nobody's then.
    #[inline(always)]
    fn unchain(&mut self, LinkPosition { at, before }: LinkPosition) -> &mut Link {
        let Link { entry, next, class } = self.links[at as usize - 1];
        match before {
            0 => self.chains[chain_of(class, entry.key)] = next,
            before => self.links[before as usize - 1].next = next,
        }
        &mut self.links[at as usize - 1]
    }

    #[inline(always)]
    fn remove(&mut self, found: LinkPosition) -> ResourceEntry {
        let free = self.free;
        let link = self.unchain(found);
        link.class = ResourceClass::Empty;
        link.next = free;
        let entry = link.entry;
        self.free = found.at;
        entry
    }

    fn all(&self) -> impl Iterator<Item = &Link> {
        let used = self.links.iter().take(self.used as usize);
        used.filter(|link| link.class != ResourceClass::Empty)
    }
}

// SAFETY: what is in the cell is touched only by the holder of the lock.
unsafe impl Sync for ResourceTable {}

/// The lock, held.
pub(crate) struct LockedTable<'a> {
    table: &'a ResourceTable,
    _lock: ThreadLockGuard<'a>,
}

/// Mappings that were taken out of their chains while the driver is asked to undo them: the first
/// of a list, one more than its place.
#[derive(Debug, Default)]
pub(crate) struct Unmapping(u32);

impl LockedTable<'_> {
    #[expect(clippy::mut_from_ref, reason = "the lock is what makes it exclusive")]
    fn inner(&self) -> &mut ResourceLinks {
        // SAFETY: the lock is held for as long as `self` lives, and every user of it takes
        // one such reference at a time.
        unsafe { &mut *self.table.inner.get() }
    }

    /// Looks for an entry.
    #[inline(always)]
    pub(crate) fn find(&self, class: ResourceClass, key: u64) -> Option<LinkPosition> {
        self.inner().find(class, key)
    }

    /// Adds an entry that is not there; whether there was room.
    #[inline(always)]
    pub(crate) fn add(&self, entry: ResourceEntry) -> bool {
        self.inner().add(entry)
    }

    /// Takes out what was found.
    #[inline(always)]
    pub(crate) fn remove(&self, found: LinkPosition) -> ResourceEntry {
        self.inner().remove(found)
    }
}

fn hash(class: ResourceClass, key: u64) -> u64 {
    (key ^ ((class as u64) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn chain_of(class: ResourceClass, key: u64) -> usize {
    (hash(class, key) >> 40) as usize % CHAINS
}

impl ResourceTable {
    /// An empty table; nothing where the kernel has no room.
    pub(crate) fn new() -> Option<&'static ResourceTable> {
        let at = sys::map_anonymous(size_of::<ResourceTable>(), sys::MAP_NORESERVE);
        if at.is_null() {
            return None;
        }
        // SAFETY: the mapping is zeroed, large enough, aligned to a page and never unmapped;
        // zeros are an open lock, empty chains and links that were never used, whose
        // class is `ResourceClass::Empty`.
        Some(unsafe { &*at.cast::<ResourceTable>() })
    }

    /// Brings near what who holds the lock will need first for an entry.
    #[inline(always)]
    pub(crate) fn prefetch(&self, class: ResourceClass, key: u64) {
        sys::prefetch_for_write(self);
        // SAFETY: the place lies in the table; nothing is read.
        sys::prefetch_for_write(unsafe {
            &raw const (*self.inner.get()).chains[chain_of(class, key)]
        });
    }

    /// The right to look at it, and to note what happens.
    #[inline(always)]
    pub(crate) fn lock(&self) -> LockedTable<'_> {
        LockedTable { _lock: self.lock.lock(), table: self }
    }

    /// Keeps an entry, in place of an older one with the same key: the driver hands out
    /// nothing twice, so that one went a way that we did not see. `None` where there was
    /// none, and the entry itself where there is no room.
    pub(crate) fn put(&self, entry: ResourceEntry) -> Result<Option<ResourceEntry>, ResourceEntry> {
        let held = self.lock();
        let old = held.find(entry.thing.class(), entry.key).map(|found| held.remove(found));
        if held.add(entry) { Ok(old) } else { Err(entry) }
    }

    /// Takes an entry out.
    pub(crate) fn take(&self, class: ResourceClass, key: u64) -> Option<ResourceEntry> {
        let held = self.lock();
        held.find(class, key).map(|found| held.remove(found))
    }

    /// A copy of an entry.
    pub(crate) fn get(&self, class: ResourceClass, key: u64) -> Option<ResourceEntry> {
        self.lock().inner().entry(class, key).copied()
    }

    /// Changes an entry under its lock, and returns what it was.
    pub(crate) fn change(
        &self,
        class: ResourceClass,
        key: u64,
        change: impl FnOnce(&mut DriverResource),
    ) -> Option<DriverResource> {
        let held = self.lock();
        let entry = held.inner().entry(class, key)?;
        let before = entry.thing;
        change(&mut entry.thing);
        Some(before)
    }

    /// Takes out, one after the other, all entries that `wanted` chooses.
    pub(crate) fn drain(
        &self,
        wanted: impl Fn(&ResourceEntry) -> bool,
        mut each: impl FnMut(ResourceEntry),
    ) {
        let mut from = 0;
        loop {
            let held = self.lock();
            let links = held.inner().links.iter().take(held.inner().used as usize).skip(from);
            let in_chain = |link: &Link| {
                !matches!(link.class, ResourceClass::Empty | ResourceClass::Unmapping)
            };
            let mut links = links.enumerate().filter(|(_, link)| in_chain(link));
            let chosen = links.find(|(_, link)| wanted(&link.entry));
            let chosen = chosen.map(|(steps, link)| (steps, link.class, link.entry.key));
            drop(held);
            let Some((steps, class, key)) = chosen else { break };
            from += steps + 1;
            // Somebody else may have taken it meanwhile.
            if let Some(entry) = self.take(class, key) {
                each(entry);
            }
        }
    }

    /// Goes through all entries until `each` has found what it looks for.
    pub(crate) fn search<T>(&self, each: impl FnMut(&ResourceEntry) -> Option<T>) -> Option<T> {
        let held = self.lock();
        held.inner().all().map(|link| &link.entry).find_map(each)
    }

    /// Takes every mapping that begins in a range out of its chain, before the driver is asked to
    /// undo them: another thread may map there as soon as it has. [`ResourceTable::unmapped`] or
    /// [`ResourceTable::still_mapped`] must follow. However many there are, no memory is needed for it.
    pub(crate) fn unmapping(&self, at: u64, bytes: u64) -> Unmapping {
        /// The smallest page that there is, by which foreign mappings are stepped over.
        const PAGE: u64 = 1 << 16;
        /// So many steps cost more than to look at all that is held.
        const STEPS: u32 = 1 << 14;
        let held = self.lock();
        let inner = held.inner();
        let mut list = Unmapping::default();
        let (mut step, end, mut foreign) = (at, at.saturating_add(bytes), 0);
        while step < end && foreign < STEPS {
            if let Some(found) = inner.find(ResourceClass::Mapping, step) {
                let size = inner.set_aside(found, &mut list);
                step = step.saturating_add(size.max(1));
            } else {
                step = step.saturating_add(PAGE);
                foreign += 1;
            }
        }
        if step < end {
            for place in 0..inner.used as usize {
                let link = inner.links[place];
                if link.class == ResourceClass::Mapping && (step..end).contains(&link.entry.key) {
                    let found = inner.find(ResourceClass::Mapping, link.entry.key);
                    found.map(|found| inner.set_aside(found, &mut list));
                }
            }
        }
        list
    }

    /// The driver has undone the mappings: each of them is gone.
    pub(crate) fn unmapped(&self, mut list: Unmapping, mut each: impl FnMut(DriverResource)) {
        while list.0 != 0 {
            let held = self.lock();
            let inner = held.inner();
            let at = list.0;
            let free = inner.free;
            let link = &mut inner.links[at as usize - 1];
            list.0 = link.next;
            link.next = free;
            link.class = ResourceClass::Empty;
            let thing = link.entry.thing;
            inner.free = at;
            drop(held);
            each(thing);
        }
    }

    /// The driver has refused to undo the mappings: all are as before.
    pub(crate) fn still_mapped(&self, mut list: Unmapping) {
        let held = self.lock();
        let inner = held.inner();
        while list.0 != 0 {
            let at = list.0;
            let chain = chain_of(ResourceClass::Mapping, inner.links[at as usize - 1].entry.key);
            let link = &mut inner.links[at as usize - 1];
            list.0 = link.next;
            link.next = inner.chains[chain];
            link.class = ResourceClass::Mapping;
            inner.chains[chain] = at;
        }
    }
}

impl ResourceLinks {
    /// Puts a mapping into the list of those that are being undone; how large it is.
    fn set_aside(&mut self, found: LinkPosition, list: &mut Unmapping) -> u64 {
        let link = self.unchain(found);
        link.class = ResourceClass::Unmapping;
        link.next = list.0;
        list.0 = found.at;
        match link.entry.thing {
            DriverResource::Mapping { bytes, .. } => bytes,
            _ => 0,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn entry(key: u64, bytes: u64) -> ResourceEntry {
        let (class, kind, tag) = (BlockClass::Pointer, GuardMemoryKind::Linear, BlockTag::NONE);
        let block =
            DriverResource::Block { class, kind, device: 0, tag, bytes, charge: bytes, context: 1 };
        ResourceEntry { key, thing: block }
    }

    fn bytes(entry: Option<ResourceEntry>) -> Option<u64> {
        entry.and_then(|entry| entry.thing.memory()).map(|memory| memory.bytes)
    }

    #[test]
    fn zeros_are_an_empty_table() {
        assert_eq!(ResourceClass::Empty as u8, 0);
        let table = ResourceTable::new().unwrap();
        assert!(table.take(ResourceClass::Pointer, 7).is_none());
        assert!(table.lock().inner().links[5].entry.thing == DriverResource::Empty);
    }

    #[test]
    fn what_was_put_is_taken_once() {
        let table = ResourceTable::new().unwrap();
        assert!(table.put(entry(5, 100)).unwrap().is_none());
        assert_eq!(bytes(table.put(entry(5, 200)).unwrap()), Some(100));
        assert_eq!(bytes(table.get(ResourceClass::Pointer, 5)), Some(200));
        assert!(table.take(ResourceClass::Array, 5).is_none());
        assert_eq!(bytes(table.take(ResourceClass::Pointer, 5)), Some(200));
        assert!(table.take(ResourceClass::Pointer, 5).is_none());
    }

    #[test]
    fn mappings_are_undone_all_or_none_however_many() {
        const PAGE: u64 = 2 << 20;
        let table = ResourceTable::new().unwrap();
        let at = |n: u64| 0x5000_0000_0000 + n * PAGE;
        for n in 0..500 {
            let thing = DriverResource::Mapping { memory: n, bytes: PAGE };
            table.put(ResourceEntry { key: at(n), thing }).unwrap();
        }
        let count =
            || (0..500).filter(|n| table.get(ResourceClass::Mapping, at(*n)).is_some()).count();
        // From before the first, where nothing is mapped, to the middle of the last but one.
        for (from, bytes) in
            [(at(0) - PAGE, 500 * PAGE), (at(0) - (1 << 40), (1 << 40) + 499 * PAGE)]
        {
            let list = table.unmapping(from, bytes);
            assert_eq!(count(), 1);
            table.still_mapped(list);
            assert_eq!(count(), 500);
        }
        let list = table.unmapping(at(10), 400 * PAGE);
        // Another thread maps where the driver is done, before it is noted.
        let thing = DriverResource::Mapping { memory: 1000, bytes: PAGE };
        table.put(ResourceEntry { key: at(10), thing }).unwrap();
        let mut gone = Vec::new();
        table.unmapped(list, |thing| match thing {
            DriverResource::Mapping { memory, .. } => gone.push(memory),
            other => panic!("{other:?}"),
        });
        gone.sort_unstable();
        assert_eq!(gone, (10..410).collect::<Vec<_>>());
        assert_eq!(count(), 101);
        assert_eq!(table.get(ResourceClass::Mapping, at(10)).unwrap().thing, thing);
    }

    #[test]
    fn nothing_is_lost_when_runs_are_closed() {
        let table = ResourceTable::new().unwrap();
        let keys: Vec<u64> = (0..40_000u64).map(|n| 0x7f00_0000_0000 + n * 512).collect();
        for &key in &keys {
            table.put(entry(key, key)).unwrap();
        }
        for &key in keys.iter().step_by(3) {
            assert_eq!(bytes(table.take(ResourceClass::Pointer, key)), Some(key));
        }
        for (n, &key) in keys.iter().enumerate() {
            assert_eq!(table.get(ResourceClass::Pointer, key).is_some(), n % 3 != 0, "{n}");
        }
        let mut left = 0;
        table.drain(|_| true, |_| left += 1);
        assert_eq!(left, keys.len() - keys.len().div_ceil(3));
    }

    #[test]
    fn a_full_table_refuses_and_still_finds() {
        let table = ResourceTable::new().unwrap();
        let fits = (0..200_000u64).take_while(|n| table.put(entry(n * 4096 + 1, 1)).is_ok());
        assert!(fits.count() > 50_000);
        assert!(table.take(ResourceClass::Pointer, 1).is_some());
        assert!(table.get(ResourceClass::Pointer, 12).is_none());
    }
}
