//! Where a request goes that nothing mapped can serve.
//!
//! Addresses are plentiful: a range is reserved once, and memory is put behind the places of
//! it that are needed. Quick packing takes that memory in one handle where it can, as large
//! as what is missing, and a little more as the pool grows, so that small requests do not
//! each ask the device; tight packing takes the device's smallest handles, and no more.

use std::sync::atomic::Ordering;

use super::arena::{Arena, Found, Inner};
use super::heap::{Key, NONE, Piece};
use super::moving::{Hand, Plan};
use super::region::Region;
use super::{Growth, Pool};
use crate::config::Packing;
use crate::memory::{Mapping, Memory, Request};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// An arena's address range: this many times the budget, so that it hardly ever fills.
const RANGE: u64 = 8;
/// Quick packing takes handles of up to this many pages: for more, the cost is not known.
const MOST_PAGES: u64 = 32;
/// A handle is no larger than this share of the budget, as what is live in a part of one
/// keeps all of it.
const BUDGET_SHARE: u64 = 128;
/// Nor, but for small ones, than this share of what is held already.
const HELD_SHARE: u64 = 64;
/// And these are the small ones.
const SMALL_PAGES: u64 = 8;
/// So much is taken ahead of need at most.
const AHEAD_PAGES: u64 = 4;

/// The most pages of a handle that a pool ever takes.
pub(super) fn most_pages(packing: Packing, budget: u64, page: u64) -> u64 {
    match packing {
        Packing::Quick => (budget / BUDGET_SHARE / page.max(1)).clamp(1, MOST_PAGES),
        Packing::Tight => 1,
    }
}

/// A place for a request, and what must be mapped there.
struct Place {
    /// A free piece of the run that it lies in.
    piece: Piece,
    /// Where it begins in the region.
    from: u64,
    /// Pages that must be mapped.
    missing: u64,
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
        let (found, mut plan) = self.claim(home, request, size)?;
        let mut hand = Hand::new(share);
        let held = self.counts.held.load(Ordering::Relaxed);
        let mapped = self
            .gather(growth, &mut hand, &mut plan, request.size)
            .and_then(|()| self.map_all(home, found.piece, &mut hand, plan));
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
    fn claim(&self, home: &Arena, request: Request, size: u64) -> Result<(Found, Plan)> {
        let mut inner = home.lock();
        let place = self.find_place(&mut inner, size)?;
        let (from, to) = (place.from, place.from + size);
        let (piece, sides) = inner.heap.carve(place.piece, from, to);
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
        let plan = inner.region(inner.heap.node(piece)).map(|region| Plan::new(region, from, to));
        let found = inner.own(piece, request.size.0, self.order.tag(request.stream));
        Ok((found, plan.ok_or_else(|| self.refusal(request.size))?))
    }

    /// Where to put a request: tight packing wants the smallest piece that holds it,
    /// quick packing the place that needs the least to be mapped.
    fn find_place(&self, inner: &mut Inner, size: u64) -> Result<Place> {
        if let Some(place) = self.search(inner, size) {
            return Ok(place);
        }
        self.add_range(inner)?;
        self.search(inner, size).ok_or_else(|| self.refusal(Bytes(size)))
    }

    /// The fewest pages that are taken from the device at a time, and the most by one
    /// handle: more, as the pool grows.
    pub(super) fn handle_pages(&self) -> (u64, u64) {
        let share = self.counts.held.load(Ordering::Relaxed) / self.page / HELD_SHARE;
        let fewest = share.clamp(1, AHEAD_PAGES).min(self.most);
        (fewest, share.max(SMALL_PAGES).min(self.most))
    }

    fn search(&self, inner: &Inner, size: u64) -> Option<Place> {
        let place = |piece: Piece, from: u64| {
            let region = inner.region(inner.heap.node(piece))?;
            let missing = region.missing(from, from + size);
            Some(Place { piece, from, missing })
        };
        if inner.heap.key() == Key::Length {
            let piece = inner.heap.best_fit(size, usize::MAX, |_| true)?;
            return place(piece, inner.heap.node(piece).offset);
        }
        let cost = |place: &Place| (place.missing, inner.heap.node(place.piece).size);
        // From the start of each piece, and up to its end, as far as the run reaches.
        let mut best: Option<Place> = None;
        for (piece, node) in inner.heap.free_pieces() {
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
        let size = Bytes(self.budget.saturating_mul(RANGE).0.next_multiple_of(self.page));
        let base = self.mapping()?.reserve(size)?;
        inner.add_region(Region::of_pages(base, size.0, self.page), 0);
        Ok(())
    }

    /// Gives an address range back with all that is mapped there.
    pub(super) fn dismantle_range(&self, growth: &mut Growth, region: &mut Region) -> Result<()> {
        let mapping = self.mapping()?;
        let mut hand = Hand::new(true);
        let mut result = Ok(());
        let (base, page) = (region.base.pointer(), region.page);
        region.extents.retain(|number, extent| {
            let unmapped = mapping.unmap(base + number * page, Bytes(extent.pages * page));
            let gone = unmapped.is_ok();
            if gone {
                hand.add(*extent);
            }
            result = std::mem::replace(&mut result, Ok(())).and(unmapped);
            !gone
        });
        self.keep(growth, hand);
        result?;
        mapping.unreserve(region.base.pointer(), Bytes(region.size))
    }
}
