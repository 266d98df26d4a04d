//! Mappings that are kept when memory moves away.
//!
//! A handle may be mapped at several addresses at once. The pool uses its memory through one of
//! them at a time, but leaves it mapped where it was, so that a program that repeats itself finds
//! it there again without a call to the device.
//!
//! CUDA calls this virtual aliasing: what one address of a handle wrote is seen through another
//! once the writing kernel or copy is over, and a kernel may not use two of them. Whoever gets
//! memory through a new address is ordered behind all who used it through others, as it is
//! behind the last users of any block.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::region::Extent;
use super::tag::UseTags;
use crate::memory::Handle;

/// Where a handle is, or was, mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PagePlace {
    pub(super) arena: u32,
    pub(super) region: u32,
    /// The first page in the region.
    pub(super) page: u64,
}

/// A mapping that memory was left behind at.
#[derive(Debug)]
pub(super) struct KeptMapping {
    pub(super) extent: Extent,
    pub(super) address: u64,
    /// Who has used the memory through this address.
    pub(super) users: UseTags,
    age: u64,
}

/// All mappings that memory has moved away from.
#[derive(Debug, Default)]
pub(super) struct KeptMappings {
    places: BTreeMap<PagePlace, KeptMapping>,
    handles: BTreeMap<Handle, Vec<PagePlace>>,
    ages: BTreeMap<u64, PagePlace>,
    next: u64,
}

impl KeptMappings {
    pub(super) fn len(&self) -> u64 {
        self.places.len() as u64
    }

    pub(super) fn get(&self, place: PagePlace) -> Option<&KeptMapping> {
        self.places.get(&place)
    }

    pub(super) fn insert(
        &mut self,
        place: PagePlace,
        extent: Extent,
        address: u64,
        users: UseTags,
    ) {
        let age = self.next;
        self.next += 1;
        self.ages.insert(age, place);
        self.handles.entry(extent.handle).or_default().push(place);
        self.places.insert(place, KeptMapping { extent, address, users, age });
    }

    pub(super) fn remove(&mut self, place: PagePlace) -> Option<KeptMapping> {
        let kept = self.places.remove(&place)?;
        self.ages.remove(&kept.age);
        if let Some(places) = self.handles.get_mut(&kept.extent.handle) {
            places.retain(|other| *other != place);
            if places.is_empty() {
                self.handles.remove(&kept.extent.handle);
            }
        }
        Some(kept)
    }

    /// Those that lie on some of these pages, in order.
    pub(super) fn on(
        &self,
        (arena, region): (u32, u32),
        pages: Range<u64>,
    ) -> impl Iterator<Item = (PagePlace, &KeptMapping)> {
        let at = |page| PagePlace { arena, region, page };
        let before = self.places.range(at(0)..at(pages.start)).next_back();
        let before = before.filter(|(place, kept)| place.page + kept.extent.pages > pages.start);
        let inside = self.places.range(at(pages.start)..at(pages.end.max(pages.start)));
        before.into_iter().chain(inside).map(|(place, kept)| (*place, kept))
    }

    /// How many pages of a hole are mapped to handles that are free, and how many mappings are in
    /// the way of others.
    pub(super) fn found_in(
        &self,
        region: (u32, u32),
        hole: Range<u64>,
        free: &BTreeSet<Handle>,
    ) -> (u64, u64) {
        let (mut found, mut lost) = (0, 0);
        for (place, kept) in self.on(region, hole.clone()) {
            let end = place.page + kept.extent.pages;
            let inside = place.page >= hole.start && end <= hole.end;
            if inside && free.contains(&kept.extent.handle) {
                found += kept.extent.pages;
            } else {
                lost += 1;
            }
        }
        (found, lost)
    }

    /// Where this handle was left behind.
    pub(super) fn of(&self, handle: Handle) -> &[PagePlace] {
        self.handles.get(&handle).map_or(&[], Vec::as_slice)
    }

    /// The one that was left first.
    pub(super) fn oldest(&self) -> Option<PagePlace> {
        self.ages.first_key_value().map(|(_, place)| *place)
    }

    pub(super) fn places(&self) -> Vec<PagePlace> {
        self.places.keys().copied().collect()
    }
}
