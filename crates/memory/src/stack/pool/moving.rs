//! Physical memory, moved to where it is needed.
//!
//! A driver charges by the handle and hardly by the byte, so quick packing takes handles as
//! large as the hole that they fill, and tight packing the smallest, which fit anywhere.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::arena::{Arena, Inner};
use super::heap::{Piece, State};
use super::region::{Extent, Region};
use super::{Growth, Pool};
use crate::memory::Memory;
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

/// Nanoseconds that moving an extent costs.
const MOVED: u64 = 50_000;
/// Quick packing may hold this share more than was ever live before it moves memory.
const SLACK: u64 = 16;
/// No more than this share of what may still be taken is taken ahead of need.
const LAST: u64 = 16;

/// Extents that are mapped nowhere, on their way to a place.
pub(super) struct Hand {
    extents: Vec<Extent>,
    moved: u64,
    /// Whether free extents are moved before new ones are taken.
    thrifty: bool,
}

/// What is to be mapped at a place, and what is still missing there.
pub(super) struct Plan {
    /// Extents by the page that each will begin at.
    laid: Vec<(u64, Extent)>,
    /// Runs of pages that nothing has been found for.
    holes: Vec<Range<u64>>,
    /// The page after the place, and how many from there on have nothing behind them.
    end: u64,
    gap: u64,
}

impl Hand {
    /// Nothing yet.
    pub(super) fn new(thrifty: bool) -> Hand {
        Hand { extents: Vec::new(), moved: 0, thrifty }
    }

    /// Nanoseconds that the extents which were moved have cost, as measured on a device.
    fn cost(&self) -> u64 {
        self.moved * MOVED
    }

    pub(super) fn add(&mut self, extent: Extent) {
        self.extents.push(extent);
    }

    fn pages(&self) -> u64 {
        self.extents.iter().map(|extent| extent.pages).sum()
    }
}

impl Plan {
    /// For what is missing at a place.
    pub(super) fn new(region: &Region, from: u64, to: u64) -> Plan {
        let end = to.div_ceil(region.page);
        Plan { laid: Vec::new(), holes: region.holes(from, to), end, gap: region.gap(end) }
    }

    fn missing(&self) -> u64 {
        self.holes.iter().map(|hole| hole.end - hole.start).sum()
    }

    /// Fills holes with what is in hand, the largest first; what fits nowhere stays there.
    fn lay(&mut self, hand: &mut Hand) {
        hand.extents.sort_unstable_by_key(|extent| extent.pages);
        for hole in &mut self.holes {
            while let Some(fit) =
                hand.extents.iter().rposition(|extent| extent.pages <= hole.end - hole.start)
            {
                let extent = hand.extents.remove(fit);
                self.laid.push((hole.start, extent));
                hole.start += extent.pages;
                if hole.is_empty() {
                    break;
                }
            }
        }
        self.holes.retain(|hole| !hole.is_empty());
    }
}

impl Pool {
    /// Finds memory for a plan: spare, free elsewhere, and new, in that order. What is not
    /// used, or all of it after a failure, is left in the hand.
    pub(super) fn gather(
        &self,
        growth: &mut Growth,
        hand: &mut Hand,
        plan: &mut Plan,
        asked: Bytes,
    ) -> Result<()> {
        let gathered = self.find_memory(growth, hand, plan);
        if gathered.is_ok() && plan.missing() == 0 {
            return Ok(());
        }
        hand.extents.extend(plan.laid.drain(..).map(|(_, extent)| extent));
        gathered.and(Err(self.refusal(asked)))
    }

    fn find_memory(&self, growth: &mut Growth, hand: &mut Hand, plan: &mut Plan) -> Result<()> {
        while hand.pages() < plan.missing() {
            let Some(extent) = growth.spare.pop() else { break };
            self.counts.spare.fetch_sub(extent.pages * self.page, Ordering::Release);
            hand.add(extent);
        }
        let thrifty = hand.thrifty && !self.may_grow(growth, plan.missing());
        if thrifty {
            self.collect(growth, hand, plan.missing())?;
            if hand.pages() < plan.missing() {
                self.await_briefly(growth)?;
                self.collect(growth, hand, plan.missing())?;
            }
        }
        self.exchange(growth, hand, plan)?;
        if !thrifty && plan.missing() > 0 {
            self.collect(growth, hand, plan.missing())?;
            self.exchange(growth, hand, plan)?;
        }
        if plan.missing() > 0 {
            // Full: now it is worth waiting for work that still holds free memory.
            self.await_free(growth)?;
            self.collect(growth, hand, plan.missing())?;
            self.exchange(growth, hand, plan)?;
        }
        Ok(())
    }

    /// Whether so many pages may be taken from the device though memory lies free: what is
    /// held beyond what was ever live is so little that it saves more than it costs.
    fn may_grow(&self, growth: &mut Growth, pages: u64) -> bool {
        let more = pages * self.page;
        let live: u64 = self.shared_arenas().map(|arena| arena.figures().taken).sum();
        growth.most_live = growth.most_live.max(live + more);
        let line = growth.most_live + growth.most_live / SLACK;
        self.most > 1 && self.counts.held.load(Ordering::Relaxed) + more <= line
    }

    /// Lays what is in hand, gives back what does not fit, and takes as much as is missing
    /// then, or as may be had.
    fn exchange(&self, growth: &mut Growth, hand: &mut Hand, plan: &mut Plan) -> Result<()> {
        plan.lay(hand);
        if plan.missing() == 0 {
            return Ok(());
        }
        let mapping = self.mapping()?;
        while let Some(extent) = hand.extents.pop() {
            if let Err(error) = mapping.destroy(extent.handle, Bytes(extent.pages * self.page)) {
                hand.extents.push(extent);
                return Err(error);
            }
            self.count_returned(extent.pages * self.page);
        }
        let mut room = self.room(growth, plan.missing() * self.page)? / self.page;
        let (fewest, mut most) = self.handle_pages();
        while let Some(hole) = plan.holes.first_mut() {
            let wanted = hole.end - hole.start;
            let gap = if hole.end == plan.end { plan.gap } else { 0 };
            // Whoever comes next will want some, too; but the last of it is not guessed at.
            let more = fewest.saturating_sub(wanted).min(gap).min(room / LAST);
            let pages = (wanted + more).min(most);
            if pages > room {
                break;
            }
            match mapping.create(Bytes(pages * self.page)) {
                Ok(handle) => {
                    plan.laid.push((hole.start, Extent { handle, pages }));
                    hole.start += pages;
                }
                // There may be less in one piece than there is.
                Err(error) if error.is_out_of_memory() && pages > 1 => {
                    most = pages / 2;
                    continue;
                }
                Err(error) if error.is_out_of_memory() => break,
                Err(error) => return Err(error),
            }
            self.count_held(pages * self.page);
            room -= pages;
            plan.holes.retain(|hole| !hole.is_empty());
        }
        Ok(())
    }

    /// Unmaps extents that lie wholly free until there is enough: in the longest stretches
    /// first, and larger ones than are needed only if nothing else is left.
    fn collect(&self, growth: &Growth, hand: &mut Hand, pages: u64) -> Result<()> {
        if hand.pages() >= pages {
            return Ok(());
        }
        let private = self.retired_arenas(growth);
        let arenas: Vec<&Arena> =
            self.shared_arenas().chain(private.iter().map(AsRef::as_ref)).collect();
        let mut stretches = Vec::new();
        for (index, arena) in arenas.iter().enumerate() {
            let inner = arena.lock();
            stretches.extend(inner.heap.free_pieces().filter_map(|(piece, node)| {
                let whole = inner.region(node)?.whole(node).map(|(_, extent)| extent.pages).sum();
                (whole > 0).then_some((whole, index, piece))
            }));
        }
        stretches.sort_unstable_by_key(|(whole, ..): &(u64, _, _)| std::cmp::Reverse(*whole));
        for fitting in [true, false] {
            for (_, index, piece) in &stretches {
                if hand.pages() >= pages {
                    return Ok(());
                }
                let mut inner = arenas[*index].lock();
                let unmapped = self.unmap_free(&mut inner, *piece, hand, pages, fitting);
                arenas[*index].publish(&mut inner);
                unmapped?;
            }
        }
        Ok(())
    }

    /// Unmaps extents of a free piece, from its end, until there is enough.
    fn unmap_free(
        &self,
        inner: &mut Inner,
        piece: Piece,
        hand: &mut Hand,
        pages: u64,
        fitting: bool,
    ) -> Result<()> {
        let mapping = self.mapping()?;
        let Some(node) = inner.heap.get(piece).cloned() else { return Ok(()) };
        // The arena was unlocked meanwhile: the piece may be gone, live or another one.
        if node.state != State::Free || !self.order.is_over(self.device(), &node.tags)? {
            return Ok(());
        }
        inner.heap.unsettle(piece);
        let mut result = Ok(());
        let mut unmapped = 0;
        if let Some(region) = inner.region_mut(node.region) {
            let whole: Vec<_> = region.whole(&node).rev().collect();
            for (number, extent) in whole {
                let needed = pages.saturating_sub(hand.pages());
                if needed == 0 || result.is_err() {
                    break;
                }
                if fitting && extent.pages > needed {
                    continue;
                }
                let bytes = extent.pages * region.page;
                result = mapping.unmap(region.address(number), Bytes(bytes));
                if result.is_ok() {
                    region.extents.remove(&number);
                    unmapped += bytes;
                    hand.add(extent);
                    hand.moved += 1;
                }
            }
        }
        inner.figures.held -= unmapped;
        inner.settle(piece);
        result
    }

    /// Maps what was laid behind a piece; after a failure the rest is back in the hand.
    pub(super) fn map_all(
        &self,
        home: &Arena,
        piece: Piece,
        hand: &mut Hand,
        plan: Plan,
    ) -> Result<()> {
        let mapping = self.mapping()?;
        let mut inner = home.lock();
        let number = inner.heap.node(piece).region;
        let (mut mapped, mut extents) = (0, 0);
        let mut result = Ok(());
        if let Some(region) = inner.region_mut(number) {
            for (number, extent) in plan.laid {
                let bytes = extent.pages * region.page;
                if result.is_ok() {
                    result = mapping.map(region.address(number), extent.handle, Bytes(bytes));
                }
                if result.is_err() {
                    hand.add(extent);
                    continue;
                }
                region.extents.insert(number, extent);
                mapped += bytes;
                extents += 1;
            }
        }
        inner.figures.held += mapped;
        inner.shared += hand.cost();
        self.counts.remapped.fetch_add(hand.moved.min(extents), Ordering::Relaxed);
        result
    }

    /// Keeps memory for the next request.
    pub(super) fn keep(&self, growth: &mut Growth, hand: Hand) {
        self.counts.spare.fetch_add(hand.pages() * self.page, Ordering::Release);
        growth.spare.extend(hand.extents);
    }

    /// Gives back everything that lies wholly free.
    pub(super) fn return_pages(&self, growth: &mut Growth) -> Result<()> {
        let mut hand = Hand::new(true);
        let collected = self.collect(growth, &mut hand, u64::MAX);
        self.keep(growth, hand);
        collected?;
        self.destroy_spare(growth, 0)
    }

    /// Gives spare memory back until no more than so much is held.
    pub(super) fn destroy_spare(&self, growth: &mut Growth, held: u64) -> Result<()> {
        while self.counts.held.load(Ordering::Relaxed) > held {
            let Some(extent) = growth.spare.pop() else { break };
            let bytes = extent.pages * self.page;
            if let Err(error) = self.mapping()?.destroy(extent.handle, Bytes(bytes)) {
                growth.spare.push(extent);
                return Err(error);
            }
            self.counts.spare.fetch_sub(bytes, Ordering::Release);
            self.count_returned(bytes);
        }
        Ok(())
    }
}
