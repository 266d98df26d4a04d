//! Where a request goes that nothing mapped can serve.
//!
//! Quick packing has two sizes of pages. A small pool would waste much of a large page,
//! so an arena begins with a short range of the device's smallest ones; a large pool
//! would spend its time mapping those, so once it has grown, everything new is mapped in
//! large ones.

use std::sync::atomic::Ordering;

use super::arena::{Arena, Found, Inner};
use super::heap::{Key, NONE, Piece};
use super::moving::Hand;
use super::region::Region;
use super::{Growth, Pool};
use crate::error::{Error, Result};
use crate::memory::{Mapping, Memory, Request};
use crate::units::Bytes;

/// An arena's address range: this many times the budget, so that it hardly ever fills.
const RANGE: u64 = 8;
/// The range of small pages: addresses for this many, which cost nothing.
const SMALL_RANGE: u64 = 1024;
/// A pool that holds more than this many small pages maps no more of them.
const SMALL_POOL: u64 = 128;

/// Quick pages are this many of the device's smallest: see `docs/results`.
const QUICK_PAGES: u64 = 8;
/// A page is never larger than this share of the budget.
const PAGES_AT_LEAST: u64 = 64;
/// What is left over of the budget by whole pages is no more than this share, if it can be.
const LEFT_OVER: u64 = 2048;

/// The page of a quick pool: as large as it may be, but rather a little smaller than a size
/// of which the budget is no multiple, as what is left over could not be used.
pub(super) fn quick_page(budget: u64, small: u64) -> u64 {
    let most = (budget / PAGES_AT_LEAST / small).clamp(1, QUICK_PAGES);
    let left_over = |pages: &u64| budget % (pages * small);
    let good = |pages: &u64| left_over(pages) <= budget / LEFT_OVER;
    let candidates = || (most.div_ceil(2)..=most).rev();
    let best = candidates().find(good).or_else(|| candidates().min_by_key(left_over));
    best.unwrap_or(1) * small
}

/// A place for a request, and what must be mapped there.
struct Place {
    /// A free piece of the run that it lies in.
    piece: Piece,
    /// Where it begins in the region.
    from: u64,
    /// Pages that must be mapped, and their size.
    missing: u64,
    page: u64,
}

impl Pool {
    pub(super) fn mapping(&self) -> Result<&dyn Mapping> {
        self.upstream.mapping().ok_or_else(|| Error::Unavailable {
            what: "mapping physical memory".to_string(),
            why: format!("{} has stopped offering it", self.upstream.name()),
        })
    }

    /// Serves a request by mapping pages: first those that lie free, then new ones.
    pub(super) fn take_mapping(
        &self,
        growth: &mut Growth,
        home: &Arena,
        request: Request,
        size: u64,
        share: bool,
    ) -> Result<Found> {
        let (found, missing, page) = self.claim(home, request, size)?;
        let mut hand = Hand::of(page);
        if !share {
            hand = hand.prefer_new();
        }
        let held = self.counts.held.load(Ordering::Relaxed);
        let mapped = self
            .gather(growth, &mut hand, missing, request.size)
            .and_then(|()| self.map_all(home, found.piece, &mut hand));
        let mut inner = home.lock();
        inner.settle_around(found.piece);
        // What was gathered and not used is kept for the next request.
        self.keep(growth, hand);
        if let Err(error) = mapped {
            inner.undo(found.piece);
            home.publish(&mut inner);
            // A refusal must not cost memory: what was taken for it goes back.
            self.destroy_spare(growth, held)?;
            return Err(error);
        }
        inner.count(found.piece, request.size.0);
        inner.figures.misses += 1;
        home.publish(&mut inner);
        Ok(found)
    }

    /// Finds a place and makes it live before its pages are there, so that nobody else
    /// gets it meanwhile and no page of it is taken for free. It is counted when they are,
    /// so that what others publish meanwhile never has more taken than held.
    fn claim(&self, home: &Arena, request: Request, size: u64) -> Result<(Found, u64, u64)> {
        let mut inner = home.lock();
        let place = self.find_place(&mut inner, size)?;
        let (piece, sides) = inner.heap.carve(place.piece, place.from, place.from + size);
        let tags = inner.heap.node(piece).tags.clone();
        inner.heap.make_live(piece);
        for side in sides.into_iter().filter(|side| *side != NONE) {
            inner.settle(side);
        }
        let behind = self.order.put_behind(self.device(), request.stream, &tags);
        if !matches!(behind, Ok(true)) {
            // Free again, with its last users: nothing is ordered behind them.
            inner.undo(piece);
            behind?;
            return Err(Error::Capturing { what: "taking memory that a captured stream has used" });
        }
        let found = inner.own(piece, request.size.0, self.order.tag(request.stream));
        Ok((found, place.missing, place.page))
    }

    /// Where to put a request: tight packing wants the smallest piece that holds it,
    /// quick packing the place that needs the least to be mapped.
    fn find_place(&self, inner: &mut Inner, size: u64) -> Result<Place> {
        // A range of small pages may be added and be too short; then one of large ones.
        for _ in 0..2 {
            if let Some(place) = self.search(inner, size) {
                return Ok(place);
            }
            self.add_range(inner)?;
        }
        self.search(inner, size).ok_or_else(|| self.refusal(Bytes(size)))
    }

    /// The smallest pages that are mapped now: large ones, once the pool has grown.
    pub(super) fn page_for_new(&self) -> u64 {
        let small = self.counts.held.load(Ordering::Relaxed) <= SMALL_POOL * self.small_page;
        if small { self.small_page } else { self.page }
    }

    fn search(&self, inner: &Inner, size: u64) -> Option<Place> {
        let place = |piece: Piece, from: u64| {
            let region = inner.region(inner.heap.node(piece))?;
            let missing = region.missing(from, from + size);
            Some(Place { piece, from, missing, page: region.page })
        };
        if inner.heap.key() == Key::Length {
            let piece = inner.heap.best_fit(size, usize::MAX, |_| true)?;
            return place(piece, inner.heap.node(piece).offset);
        }
        let smallest = self.page_for_new();
        let cost = |place: &Place| {
            let length = inner.heap.node(place.piece).size;
            (place.missing * place.page, place.missing, length)
        };
        // From the start of each piece, and up to its end, as far as the run reaches.
        let mut best: Option<Place> = None;
        for (piece, node) in inner.heap.free_pieces() {
            if inner.region(node).is_none_or(|region| region.page < smallest) {
                continue;
            }
            let run = inner.heap.run(piece);
            let left = Some(node.offset).filter(|from| from + size <= run.end);
            let end = node.offset + node.size;
            let right = end.checked_sub(size).filter(|from| *from >= run.start);
            for place in [left, right].into_iter().flatten().filter_map(|from| place(piece, from)) {
                if best.as_ref().is_none_or(|best| cost(&place) < cost(best)) {
                    best = Some(place);
                }
            }
        }
        best
    }

    fn add_range(&self, inner: &mut Inner) -> Result<()> {
        let begins = inner.regions.is_empty() && self.page_for_new() < self.page;
        let (size, page) = if begins {
            (Bytes(SMALL_RANGE * self.small_page), self.small_page)
        } else {
            (Bytes(self.budget.saturating_mul(RANGE).0.next_multiple_of(self.page)), self.page)
        };
        let base = self.mapping()?.reserve(size)?;
        inner.add_region(Region::of_pages(base, size.0, page), 0);
        Ok(())
    }

    /// Gives an address range back with all that is mapped there.
    pub(super) fn dismantle_range(&self, growth: &mut Growth, region: &mut Region) -> Result<()> {
        let mapping = self.mapping()?;
        let mut hand = Hand::of(region.page);
        let mut result = Ok(());
        for (number, place) in region.pages.iter_mut().enumerate().take(region.top) {
            let Some(handle) = *place else { continue };
            let address = region.base.pointer() + number as u64 * region.page;
            let unmapped = mapping.unmap(address, Bytes(region.page));
            if unmapped.is_ok() {
                *place = None;
                hand.add(handle, region.page);
            }
            result = result.and(unmapped);
        }
        self.keep(growth, hand);
        result?;
        mapping.unreserve(region.base.pointer(), Bytes(region.size))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_quick_page_leaves_little_of_the_budget_over() {
        const SMALL: u64 = 2 << 20;
        let pages = |budget: Bytes| quick_page(budget.0, SMALL) / SMALL;
        assert_eq!(pages(Bytes::gib(139)), QUICK_PAGES);
        assert_eq!(pages(Bytes(Bytes::gib(139).0 + 12_345)), QUICK_PAGES, "too little to matter");
        assert_eq!(pages(Bytes::mib(64)), 1);
        for mib in (64..20_000).step_by(2) {
            let budget = Bytes::mib(mib);
            let page = quick_page(budget.0, SMALL);
            assert!(page.is_multiple_of(SMALL) && (SMALL..=QUICK_PAGES * SMALL).contains(&page));
            assert!(page <= (budget.0 / PAGES_AT_LEAST).max(SMALL), "{budget}: {page}");
            let left_over = budget.0 % page;
            assert!(left_over <= (budget.0 / LEFT_OVER).max(3 * SMALL), "{budget}: {left_over}");
        }
    }
}
