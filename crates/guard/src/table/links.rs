//! The storage of the table: links in chains, one chain for each hash value.

use super::resource::{ResourceClass, ResourceEntry};

/// Fewer in unit tests, which fill the table.
pub(super) const ENTRIES: usize = if cfg!(test) { 1 << 16 } else { 1 << 20 };
const CHAINS: usize = ENTRIES / 16;

/// An entry and the next link of its chain, or the next free link: its index plus one, and 0 for
/// the end.
#[derive(Clone, Copy)]
pub(super) struct ResourceLink {
    pub(super) entry: ResourceEntry,
    pub(super) next: u32,
    pub(super) class: ResourceClass,
}
const _: () = assert!(size_of::<ResourceLink>() == 48, "three lines of the cache for four links");

/// Where an entry is, and the link before it in its chain: their indices plus one, and 0 for none,
/// as in a [`ResourceLink`]. Valid for as long as the lock is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkPosition {
    pub(super) at: u32,
    before: u32,
}

#[repr(C)]
pub(super) struct ResourceLinks {
    /// The first free link.
    pub(super) free: u32,
    /// How many links were ever used; those after them are free too.
    pub(super) used: u32,
    pub(super) links: [ResourceLink; ENTRIES],
    pub(super) chains: [u32; CHAINS],
}

impl ResourceLinks {
    #[inline(always)]
    pub(super) fn find(&self, class: ResourceClass, key: u64) -> Option<LinkPosition> {
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

    pub(super) fn entry(&mut self, class: ResourceClass, key: u64) -> Option<&mut ResourceEntry> {
        let found = self.find(class, key)?;
        Some(&mut self.links[found.at as usize - 1].entry)
    }

    #[inline(always)]
    pub(super) fn add(&mut self, entry: ResourceEntry) -> bool {
        let class = entry.resource.class();
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
        self.links[place as usize - 1] = ResourceLink { entry, next: *chain, class };
        *chain = place;
        true
    }

    /// Takes a link out of its chain. It is then in no list.
    #[inline(always)]
    pub(super) fn unchain(
        &mut self,
        LinkPosition { at, before }: LinkPosition,
    ) -> &mut ResourceLink {
        let ResourceLink { entry, next, class } = self.links[at as usize - 1];
        match before {
            0 => self.chains[chain_of(class, entry.key)] = next,
            before => self.links[before as usize - 1].next = next,
        }
        &mut self.links[at as usize - 1]
    }

    #[inline(always)]
    pub(super) fn remove(&mut self, found: LinkPosition) -> ResourceEntry {
        let free = self.free;
        let link = self.unchain(found);
        link.class = ResourceClass::Empty;
        link.next = free;
        let entry = link.entry;
        self.free = found.at;
        entry
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &ResourceLink> {
        let used = self.links.iter().take(self.used as usize);
        used.filter(|link| link.class != ResourceClass::Empty)
    }
}

fn hash(class: ResourceClass, key: u64) -> u64 {
    (key ^ ((class as u64) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(super) fn chain_of(class: ResourceClass, key: u64) -> usize {
    (hash(class, key) >> 40) as usize % CHAINS
}
