//! Mappings that a program undoes: all that a call of cuMemUnmap covers, or none.

use super::ResourceTable;
use super::links::{LinkPosition, ResourceLinks, chain_of};
use super::resource::{DriverResource, ResourceClass};

/// Mappings that were taken out of their chains while the driver is asked to undo them: the index
/// of the first one plus one.
#[derive(Debug, Default)]
pub(crate) struct PendingUnmap(u32);

impl ResourceTable {
    /// Takes every mapping that begins in a range out of its chain, before the driver is asked to
    /// undo them: another thread may map there as soon as the driver has.
    /// [`ResourceTable::finish_unmap`] or [`ResourceTable::cancel_unmap`] must follow. It needs no
    /// memory, however many there are.
    pub(crate) fn begin_unmap(&self, at: u64, bytes: u64) -> PendingUnmap {
        /// The smallest page size, by which the search steps over memory that the table does not
        /// know.
        const PAGE: u64 = 1 << 16;
        /// With more steps than this, looking at every entry is cheaper.
        const STEPS: u32 = 1 << 14;
        let held = self.lock();
        let inner = held.inner();
        let mut list = PendingUnmap::default();
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

    /// Removes the mappings: the driver has undone them. Calls `each` for each of them.
    pub(crate) fn finish_unmap(
        &self,
        mut list: PendingUnmap,
        mut each: impl FnMut(DriverResource),
    ) {
        while list.0 != 0 {
            let held = self.lock();
            let inner = held.inner();
            let at = list.0;
            let free = inner.free;
            let link = &mut inner.links[at as usize - 1];
            list.0 = link.next;
            link.next = free;
            link.class = ResourceClass::Empty;
            let resource = link.entry.resource;
            inner.free = at;
            drop(held);
            each(resource);
        }
    }

    /// Restores the mappings: the driver has refused to undo them.
    pub(crate) fn cancel_unmap(&self, mut list: PendingUnmap) {
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
    /// Moves a mapping into the list of those that are being undone; returns its size.
    fn set_aside(&mut self, found: LinkPosition, list: &mut PendingUnmap) -> u64 {
        let link = self.unchain(found);
        link.class = ResourceClass::Unmapping;
        link.next = list.0;
        list.0 = found.at;
        match link.entry.resource {
            DriverResource::Mapping { bytes, .. } => bytes,
            _ => 0,
        }
    }
}
