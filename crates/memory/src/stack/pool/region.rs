//! An address range that pieces are cut from, and what is behind it: where something is
//! missing, what is gathered to fill it, and which place of an arena needs the least.

use std::collections::BTreeMap;
use std::ops::Range;

use super::arena::ArenaState;
use super::heap::{PieceId, PieceNode};
use super::tag::UseTags;
use crate::memory::{Address, Block, Handle};

/// Physical memory of one handle, as it was taken from the device: this many pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) handle: Handle,
    pub(super) pages: u64,
}

/// Memory that is in no place, and who may still use it through a mapping that was kept.
#[derive(Debug)]
pub(super) struct SpareExtent {
    pub(super) extent: Extent,
    pub(super) users: UseTags,
}

/// An address range: extents that come and go, or one plain block.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) base: Address,
    pub(super) size: u64,
    /// Bytes a page; 0 for a plain block.
    pub(super) page: u64,
    /// What is behind it, by the number of the first page.
    pub(super) extents: BTreeMap<u64, Extent>,
    /// The plain block that it is.
    pub(super) block: Option<Block>,
}

impl Region {
    /// Addresses without memory behind them yet.
    pub(super) fn of_pages(base: u64, size: u64, page: u64) -> Region {
        let base = Address { buffer: base, offset: 0 };
        Region { base, size, page, extents: BTreeMap::new(), block: None }
    }

    /// A plain block.
    pub(super) fn of_block(block: Block, size: u64) -> Region {
        let base = block.address();
        Region { base, size, page: 0, extents: BTreeMap::new(), block: Some(block) }
    }

    /// The address of a page.
    pub(super) fn address(&self, page: u64) -> u64 {
        self.base.pointer() + page * self.page
    }

    /// The pages that `[from, to)` lies on.
    fn touched(&self, from: u64, to: u64) -> Range<u64> {
        from / self.page..to.div_ceil(self.page)
    }

    /// The pages that extents cover, as far as these pages reach, in order.
    fn covered(&self, pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let before = self.extents.range(..=pages.start).next_back().map(|(first, _)| *first);
        let from = before.unwrap_or(pages.start).min(pages.end);
        self.extents.range(from..pages.end).filter_map(move |(first, extent)| {
            let inside = pages.start.max(*first)..pages.end.min(first + extent.pages);
            (!inside.is_empty()).then_some(inside)
        })
    }

    /// The extents behind these bytes: how many bytes lie before each, and what of it they are.
    pub(super) fn parts(
        &self,
        bytes: Range<u64>,
    ) -> impl Iterator<Item = (u64, Extent, Range<u64>)> {
        let page = self.page.max(1);
        let first = bytes.start / page;
        let before = self.extents.range(..=first).next_back().map_or(first, |(first, _)| *first);
        self.extents.range(before..bytes.end.div_ceil(page)).filter_map(move |(first, extent)| {
            let (base, end) = (first * page, (first + extent.pages) * page);
            let (from, to) = (bytes.start.max(base), bytes.end.min(end));
            (from < to).then(|| (base, *extent, from - base..to - base))
        })
    }

    /// Which of the pages that `[from, to)` lies on have nothing behind them, in order.
    pub(super) fn holes(&self, from: u64, to: u64) -> impl Iterator<Item = Range<u64>> {
        let touched = self.touched(from, to);
        let (mut at, end) = (touched.start, touched.end..touched.end);
        let holes = self.covered(touched).chain([end]).map(move |there| {
            let hole = at..there.start;
            at = there.end;
            hole
        });
        holes.filter(|hole| !hole.is_empty())
    }

    /// Whether there is memory behind the page of this byte.
    pub(super) fn is_mapped(&self, byte: u64) -> bool {
        let page = byte / self.page.max(1);
        self.block.is_some() || self.covered(page..page + 1).next().is_some()
    }

    /// How many pages from this one on have nothing behind them.
    pub(super) fn gap(&self, page: u64) -> u64 {
        let end = self.size / self.page;
        self.covered(page..end).next().map_or(end, |pages| pages.start) - page.min(end)
    }

    /// How many pages before this one have nothing behind them.
    fn lead(&self, page: u64) -> u64 {
        let before = self.extents.range(..page).next_back();
        page - before.map_or(0, |(first, extent)| (first + extent.pages).min(page))
    }

    /// What lies wholly inside a free piece: nothing else is on its pages.
    pub(super) fn whole(&self, node: &PieceNode) -> impl DoubleEndedIterator<Item = (u64, Extent)> {
        let page = self.page.max(1);
        let (first, end) = (node.offset.div_ceil(page), (node.offset + node.size) / page);
        self.extents
            .range(first..end.max(first))
            .map(|(number, extent)| (*number, *extent))
            .filter(move |(number, extent)| number + extent.pages <= end)
    }

    /// Whether the front of a piece is mapped, and how far that goes.
    pub(super) fn stretch(&self, node: &PieceNode) -> (bool, u64) {
        if self.block.is_some() {
            return (true, node.size);
        }
        let end = node.offset + node.size;
        let touched = self.touched(node.offset, end);
        let (start, mut reach) = (touched.start, touched.start);
        for there in self.covered(touched) {
            if there.start > reach {
                if reach == start {
                    return (false, there.start * self.page - node.offset);
                }
                break;
            }
            reach = there.end;
        }
        if reach == start {
            return (false, node.size);
        }
        (true, (reach * self.page).min(end) - node.offset)
    }
}

/// Extents that are mapped nowhere, on their way to a place.
pub(super) struct LooseExtents {
    extents: Vec<Extent>,
    pages: u64,
    pub(super) moved: u64,
    /// Whether free extents are moved before new ones are taken.
    pub(super) thrifty: bool,
}

/// What is to be mapped at a place, and what is still missing there.
pub(super) struct MapPlan {
    /// Extents by the page that each will begin at.
    pub(super) laid: Vec<(u64, Extent)>,
    /// Runs of pages that nothing has been found for.
    pub(super) holes: Vec<Range<u64>>,
    /// The page after the place, and how many from there on have nothing behind them.
    pub(super) end: u64,
    pub(super) gap: u64,
    /// The first page of the place, and how many before it have nothing behind them.
    start: u64,
    lead: u64,
    /// The place: its region, and where it lies there.
    pub(super) region: u32,
    bytes: Range<u64>,
}

impl LooseExtents {
    /// Nothing yet.
    pub(super) fn new(thrifty: bool) -> LooseExtents {
        LooseExtents { extents: Vec::new(), pages: 0, moved: 0, thrifty }
    }

    pub(super) fn add(&mut self, extent: Extent) {
        self.pages += extent.pages;
        self.extents.push(extent);
    }

    pub(super) fn pop(&mut self) -> Option<Extent> {
        let last = self.extents.len().checked_sub(1)?;
        Some(self.take(last))
    }

    fn take(&mut self, index: usize) -> Extent {
        let extent = self.extents.remove(index);
        self.pages -= extent.pages;
        extent
    }

    /// All of them.
    pub(super) fn into_extents(self) -> Vec<Extent> {
        self.extents
    }

    pub(super) fn pages(&self) -> u64 {
        self.pages
    }
}

impl MapPlan {
    /// For what is missing at a place.
    pub(super) fn new((number, region): (u32, &Region), bytes: Range<u64>) -> MapPlan {
        let end = bytes.end.div_ceil(region.page);
        let start = bytes.start / region.page;
        let holes = region.holes(bytes.start, bytes.end).collect();
        let (gap, lead) = (region.gap(end), region.lead(start));
        MapPlan { laid: Vec::new(), holes, end, gap, start, lead, region: number, bytes }
    }

    /// The same when memory has come to the place.
    pub(super) fn renew(&mut self, region: &Region) {
        *self = MapPlan::new((self.region, region), self.bytes.clone());
    }

    pub(super) fn missing(&self) -> u64 {
        self.holes.iter().map(|hole| hole.end - hole.start).sum()
    }

    /// Fills holes with what is in hand, the largest first; what fits nowhere stays there.
    pub(super) fn lay(&mut self, hand: &mut LooseExtents) {
        hand.extents.sort_unstable_by_key(|extent| extent.pages);
        for hole in &mut self.holes {
            while let Some(fit) =
                hand.extents.iter().rposition(|extent| extent.pages <= hole.end - hole.start)
            {
                let extent = hand.take(fit);
                self.laid.push((hole.start, extent));
                hole.start += extent.pages;
                if hole.is_empty() {
                    break;
                }
            }
        }
        self.holes.retain(|hole| !hole.is_empty());
        self.lay_beyond(hand);
    }

    /// Fills the holes at the ends of the place with what is larger than they are, where nothing
    /// is behind the addresses beyond: it need not go back to the device for smaller ones.
    fn lay_beyond(&mut self, hand: &mut LooseExtents) {
        for hole in &mut self.holes {
            let pages = hole.end - hole.start;
            let right = if hole.end == self.end { self.gap } else { 0 };
            let left = if hole.start == self.start { self.lead } else { 0 };
            let most = pages + right.max(left);
            let fits = |extent: &Extent| (pages..=most).contains(&extent.pages);
            let Some(fit) = hand.extents.iter().position(fits) else { continue };
            let extent = hand.take(fit);
            let more = extent.pages - pages;
            if more <= right {
                self.gap -= more;
                self.laid.push((hole.start, extent));
            } else {
                self.lead -= more;
                self.laid.push((hole.start - more, extent));
            }
            hole.start = hole.end;
        }
        self.holes.retain(|hole| !hole.is_empty());
    }
}

/// A place for a request, and what must be mapped there.
pub(super) struct FreePlace {
    /// A free piece of the run that it lies in.
    pub(super) piece: PieceId,
    /// Where it begins in the region.
    pub(super) from: u64,
    /// Pages that must be mapped, and something for each mapping that is in the way.
    pub(super) missing: u64,
}

impl ArenaState {
    /// Where to put a request: tight packing wants the smallest piece that holds it,
    /// quick packing the place that needs the least to be mapped. `kept` says how many pages of
    /// a hole need not be, and how many pages the mappings that are in the way there count as.
    pub(super) fn search(
        &self,
        size: u64,
        kept: impl Fn(u32, Range<u64>) -> (u64, u64),
    ) -> Option<FreePlace> {
        // None where more would be missing than this.
        let place = |piece: PieceId, from: u64, most: u64| {
            let node = self.heap.node(piece);
            let mut missing = 0;
            for hole in self.region(node)?.holes(from, from + size) {
                let (found, lost) = kept(node.region, hole.clone());
                missing += hole.end - hole.start - found + lost;
                if missing > most {
                    return None;
                }
            }
            Some(FreePlace { piece, from, missing })
        };
        if self.heap.goes_by_length() {
            let piece = self.heap.best_fit(size, usize::MAX, |_| true)?;
            return place(piece, self.heap.node(piece).offset, u64::MAX);
        }
        // Of equals the one at the lowest address: numbers of pieces are an accident.
        let cost = |place: &FreePlace| {
            let node = self.heap.node(place.piece);
            (place.missing, node.size, node.region, place.from)
        };
        // From the start of each piece, and up to its end, as far as the run reaches.
        let mut best: Option<FreePlace> = None;
        for first in self.heap.first_of_runs() {
            let run = self.heap.run(first);
            for (piece, node) in self.heap.run_from(first) {
                let left = Some(node.offset).filter(|from| from + size <= run.end);
                let end = node.offset + node.size;
                let right = end.checked_sub(size).filter(|from| *from >= run.start);
                for from in [left, right].into_iter().flatten() {
                    let most = best.as_ref().map_or(u64::MAX, |best| best.missing);
                    let Some(place) = place(piece, from, most) else { continue };
                    if best.as_ref().is_none_or(|best| cost(&place) < cost(best)) {
                        best = Some(place);
                    }
                }
            }
        }
        best
    }

    /// Where new memory goes that is to lie free: behind all that is mapped. `kept` is the page behind
    /// the last mapping that was kept in a region.
    pub(super) fn fresh_place(&self, size: u64, kept: impl Fn(u32) -> u64) -> Option<FreePlace> {
        (0..self.regions.len() as u32).rev().find_map(|number| {
            let region = self.regions[number as usize].as_ref()?;
            let last = region.extents.last_key_value().map_or(0, |(page, one)| page + one.pages);
            let from = last.max(kept(number)) * region.page;
            let piece = self.heap.free_piece_at(number, from..from + size)?;
            Some(FreePlace { piece, from, missing: size / region.page.max(1) })
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_what_no_extent_covers() {
        let mut region = Region::of_pages(0, 100, 10);
        let holes = |region: &Region, from, to| -> Vec<(u64, u64)> {
            region.holes(from, to).map(|hole| (hole.start, hole.end)).collect()
        };
        assert_eq!((holes(&region, 5, 95), region.gap(3)), (vec![(0, 10)], 7));
        for (first, pages) in [(1, 2), (3, 1), (6, 2)] {
            region.extents.insert(first, Extent { handle: Handle(first), pages });
        }
        assert_eq!(holes(&region, 0, 100), [(0, 1), (4, 6), (8, 10)]);
        assert_eq!(holes(&region, 25, 75), [(4, 6)], "an extent begins before the range");
        assert_eq!(holes(&region, 20, 40), []);
        assert_eq!([0, 1, 4, 5, 8, 10].map(|page| region.gap(page)), [1, 0, 2, 1, 2, 0]);
        assert_eq!([0, 1, 4, 5, 6, 10].map(|page| region.lead(page)), [0, 1, 0, 1, 2, 2]);
    }
}
