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
//!
//! A hole that is still mapped from earlier is filled by letting the handle there leave the free
//! place that it backs now: no call to the device.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::arena::{Arena, ArenaState};
use super::heap::{PieceId, PieceState};
use super::region::{Extent, LooseExtents, MapPlan, SpareExtent};
use super::tag::UseTags;
use super::{Growth, Pool};
use crate::config::Packing;
use crate::memory::{Handle, Memory, Stream};
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

/// How many mappings are kept for each handle, on average. They cost the driver page tables.
const KEPT: u64 = 8;

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

    /// The page behind the last one in a region.
    pub(super) fn end(&self, arena: u32, region: u32) -> u64 {
        let at = |page| PagePlace { arena, region, page };
        let last = self.places.range(at(0)..=at(u64::MAX)).next_back();
        last.map_or(0, |(place, kept)| place.page + kept.extent.pages)
    }

    /// How many pages of a hole are mapped to handles that are free, and how many mappings are in
    /// the way of others.
    pub(super) fn found_in(
        &self,
        region: (u32, u32),
        hole: Range<u64>,
        free: &[Handle],
    ) -> (u64, u64) {
        let (mut found, mut lost) = (0, 0);
        for (place, kept) in self.on(region, hole.clone()) {
            let end = place.page + kept.extent.pages;
            let inside = place.page >= hole.start && end <= hole.end;
            if inside && free.binary_search(&kept.extent.handle).is_ok() {
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

/// Where each handle is to go: a place where it is mapped, or none.
pub(super) type Destinations = BTreeMap<Handle, Option<PagePlace>>;

/// Memory on its way to where it is mapped already.
pub(super) struct Recalled {
    to: PagePlace,
    extent: Extent,
    users: UseTags,
}

impl Pool {
    /// Fills holes of a plan with free memory that is still mapped there.
    pub(super) fn recall(
        &self,
        growth: &mut Growth,
        home: &Arena,
        (piece, stream, share): (PieceId, Stream, bool),
        plan: &mut MapPlan,
    ) -> Result<()> {
        let mut wanted = Destinations::new();
        for hole in &plan.holes {
            for (place, kept) in growth.kept.on((home.number, plan.region), hole.clone()) {
                if place.page >= hole.start && place.page + kept.extent.pages <= hole.end {
                    wanted.entry(kept.extent.handle).or_insert(Some(place));
                }
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let mut found = Vec::new();
        let mut result = self.leave_spare(growth, &wanted, Some(stream), &mut found);
        for arena in self.shared_arenas().filter(|arena| share || arena.number == home.number) {
            if result.is_ok() {
                result = self.leave(growth, arena, &wanted, Some(stream), &mut found);
            }
        }
        self.counts.found.fetch_add(found.len() as u64, Ordering::Relaxed);
        self.note_moved(growth);
        let mut inner = home.lock();
        for Recalled { to, extent, users } in found {
            growth.kept.remove(to);
            // The first and the last page may reach into what lies free beside the place.
            inner.heap.add_users_beside(piece, &users);
            if let Some(region) = inner.region_mut(to.region) {
                region.extents.insert(to.page, extent);
            }
            inner.figures.held += extent.pages * self.page;
        }
        if let Some(region) = inner.region_mut(plan.region) {
            plan.renew(region);
        }
        home.publish(&mut inner);
        result
    }

    /// The handles that could be taken from where they are, in order; tight packing does not ask
    /// for them.
    pub(super) fn free_handles(&self, growth: &Growth) -> Vec<Handle> {
        if self.config.packing == Packing::Tight {
            return Vec::new();
        }
        let mut free: Vec<_> = growth.spare.iter().map(|spare| spare.extent.handle).collect();
        if growth.kept.len() > 0 {
            for arena in self.shared_arenas() {
                let inner = arena.lock();
                for (_, node) in inner.heap.free_pieces() {
                    let whole =
                        inner.region(node).into_iter().flat_map(|region| region.whole(node));
                    free.extend(whole.map(|(_, extent)| extent.handle));
                }
            }
        }
        free.sort_unstable();
        free
    }

    /// Orders a stream behind the users of memory, if one wants it; whether that is done.
    fn is_ordered(&self, stream: Option<Stream>, users: &UseTags) -> Result<bool> {
        stream.map_or(Ok(true), |stream| self.order.put_behind(self.device(), stream, users))
    }

    /// Takes spare memory that is wanted somewhere.
    pub(super) fn leave_spare(
        &self,
        growth: &mut Growth,
        wanted: &Destinations,
        stream: Option<Stream>,
        found: &mut Vec<Recalled>,
    ) -> Result<()> {
        let mut result = Ok(());
        growth.spare.retain(|SpareExtent { extent, users }| {
            let Some(Some(to)) = wanted.get(&extent.handle) else { return true };
            let ordered = self.is_ordered(stream, users);
            if !matches!(ordered, Ok(true)) {
                result = std::mem::replace(&mut result, Ok(())).and(ordered.map(drop));
                return true;
            }
            self.counts.spare.fetch_sub(extent.pages * self.page, Ordering::Release);
            found.push(Recalled { to: *to, extent: *extent, users: users.clone() });
            false
        });
        result
    }

    /// Takes free memory of an arena that is wanted elsewhere, and keeps its mappings. The stream
    /// that wants it is ordered behind its users.
    pub(super) fn leave(
        &self,
        growth: &mut Growth,
        arena: &Arena,
        wanted: &Destinations,
        stream: Option<Stream>,
        found: &mut Vec<Recalled>,
    ) -> Result<()> {
        let mut inner = arena.lock();
        let mut result = Ok(());
        for piece in inner.free_among(wanted) {
            let node = inner.heap.node(piece).clone();
            let ordered = self.is_ordered(stream, &node.tags);
            if node.state != PieceState::Free || !matches!(ordered, Ok(true)) {
                result = result.and(ordered.map(drop));
                continue;
            }
            inner.heap.unsettle(piece);
            let mut left = 0;
            if let Some(region) = inner.region_mut(node.region) {
                let leaving: Vec<_> = region.whole(&node).collect();
                for (page, extent) in leaving {
                    let Some(to) = wanted.get(&extent.handle) else { continue };
                    region.extents.remove(&page);
                    left += extent.pages * region.page;
                    let place = PagePlace { arena: arena.number, region: node.region, page };
                    let users = node.tags.clone();
                    growth.kept.insert(place, extent, region.address(page), users.clone());
                    match *to {
                        Some(to) => found.push(Recalled { to, extent, users }),
                        None => self.keep_used(growth, SpareExtent { extent, users }),
                    }
                }
            }
            inner.figures.held -= left;
            inner.settle(piece);
        }
        arena.publish(&mut inner);
        result
    }

    /// Unmaps a mapping that was kept, once nobody uses it.
    fn unmap_kept(&self, growth: &mut Growth, place: PagePlace) -> Result<()> {
        let Some(kept) = growth.kept.get(place) else { return Ok(()) };
        self.order.await_all(self.device(), &kept.users)?;
        self.mapping()?.unmap(kept.address, Bytes(kept.extent.pages * self.page))?;
        growth.kept.remove(place);
        Ok(())
    }

    /// Makes room for what is to be mapped: nothing is kept on these pages, and not too much
    /// elsewhere.
    pub(super) fn clear_kept(&self, growth: &mut Growth, arena: u32, plan: &MapPlan) -> Result<()> {
        let laid = || plan.laid.iter().map(|(page, extent)| *page..page + extent.pages);
        let first = laid().map(|pages| pages.start).min().unwrap_or(0);
        let end = laid().map(|pages| pages.end).max().unwrap_or(0);
        let kept = growth.kept.on((arena, plan.region), first..end).filter(|(place, kept)| {
            let end = place.page + kept.extent.pages;
            laid().any(|pages| pages.start < end && place.page < pages.end)
        });
        let places: Vec<_> = kept.map(|(place, _)| place).collect();
        for place in places {
            self.unmap_kept(growth, place)?;
        }
        while growth.kept.len() > self.handles() * KEPT
            && let Some(oldest) = growth.kept.oldest()
        {
            self.unmap_kept(growth, oldest)?;
        }
        Ok(())
    }

    /// Gives memory back to the device that is in no place, and all mappings that are kept of it.
    pub(super) fn destroy(&self, growth: &mut Growth, extent: Extent) -> Result<()> {
        for place in growth.kept.of(extent.handle).to_vec() {
            self.unmap_kept(growth, place)?;
        }
        self.leave_spans(growth, extent.handle)?;
        let bytes = extent.pages * self.page;
        self.mapping()?.destroy(extent.handle, Bytes(bytes))?;
        self.count_returned(bytes);
        Ok(())
    }

    /// How many handles are held.
    pub(super) fn handles(&self) -> u64 {
        let taken = self.counts.taken.load(Ordering::Relaxed);
        taken.saturating_sub(self.counts.returned.load(Ordering::Relaxed))
    }

    /// Unmaps all that is kept; goes on past failures, of which the first is returned.
    pub(super) fn unmap_all_kept(&self, growth: &mut Growth) -> Result<()> {
        let mut result = Ok(());
        for place in growth.kept.places() {
            result = result.and(self.unmap_kept(growth, place));
        }
        result
    }

    /// Puts memory behind free places where it is mapped.
    pub(super) fn arrive(&self, growth: &mut Growth, mut found: Vec<Recalled>) {
        found.sort_unstable_by_key(|recalled| recalled.to);
        for recalled in &found {
            growth.kept.remove(recalled.to);
        }
        for arena in self.shared_arenas() {
            let start = found.partition_point(|recalled| recalled.to.arena < arena.number);
            let end = found.partition_point(|recalled| recalled.to.arena <= arena.number);
            if start == end {
                continue;
            }
            let mut inner = arena.lock();
            inner.put_back(&found[start..end], self.page);
            inner.settle_all();
            arena.publish(&mut inner);
        }
    }

    /// Lets spare memory go back to where it was left last, where that is still mapped.
    pub(super) fn settle_spare(&self, growth: &mut Growth) {
        let mut back = Vec::new();
        let Growth { spare, kept, .. } = growth;
        spare.retain_mut(|SpareExtent { extent, users }| {
            let Some(to) = kept.of(extent.handle).last() else { return true };
            self.counts.spare.fetch_sub(extent.pages * self.page, Ordering::Release);
            let users = std::mem::replace(users, UseTags::NONE);
            back.push(Recalled { to: *to, extent: *extent, users });
            false
        });
        if !back.is_empty() {
            self.arrive(growth, back);
            self.note_moved(growth);
        }
    }

    /// Lets memory that was gathered and not used go back to where it was left last; what is
    /// mapped nowhere is kept for the next request. All work that used it is over.
    pub(super) fn put_away(&self, growth: &mut Growth, hand: LooseExtents) {
        let (mut back, mut rest) = (Vec::new(), LooseExtents::new(hand.thrifty));
        for extent in hand.into_extents() {
            match growth.kept.of(extent.handle).last() {
                Some(to) => back.push(Recalled { to: *to, extent, users: UseTags::NONE }),
                None => rest.add(extent),
            }
        }
        self.arrive(growth, back);
        self.keep(growth, rest);
    }
}

impl ArenaState {
    /// Free pieces with memory that is wanted elsewhere.
    fn free_among(&self, wanted: &Destinations) -> Vec<PieceId> {
        let pieces = self.heap.free_pieces().filter(|(_, node)| {
            let mut whole = self.region(node).into_iter().flat_map(|region| region.whole(node));
            whole.any(|(_, extent)| wanted.contains_key(&extent.handle))
        });
        pieces.map(|(piece, _)| piece).collect()
    }

    /// Puts memory behind free places where it is mapped; whoever takes those waits for its users.
    fn put_back(&mut self, found: &[Recalled], page: u64) {
        let mut users = Vec::new();
        for (piece, node) in self.heap.free_pieces() {
            let at = |bytes| (node.region, bytes);
            let place = |recalled: &Recalled| (recalled.to.region, recalled.to.page * page);
            let end = |recalled: &Recalled| {
                (recalled.to.region, (recalled.to.page + recalled.extent.pages) * page)
            };
            let first = found.partition_point(|recalled| end(recalled) <= at(node.offset));
            let here = found[first..].iter().take_while(|r| place(r) < at(node.offset + node.size));
            users.extend(here.map(|recalled| (piece, recalled.users.clone())));
        }
        for (piece, users) in users {
            self.heap.add_users(piece, &users);
        }
        for Recalled { to, extent, .. } in found {
            if let Some(region) = self.region_mut(to.region) {
                region.extents.insert(to.page, *extent);
                self.figures.held += extent.pages * page;
            }
        }
    }
}
