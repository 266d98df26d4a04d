//! The slow path: what happens when no mapped piece of the home arena fits.
//!
//! First, other pieces that are mapped are tried: those behind another stream's work, then those
//! of another arena. Then, under the growth lock, free parts of handles are lent (`lend`), or memory is
//! brought to a place. A place goes through these
//! states, top to bottom, in one call:
//!
//! ```text
//!    free addresses
//!         │ claim     the place is cut out and made live, but counted nowhere, so that
//!         ▼           no other thread takes it or a page of it
//!      claimed ─────────────────────────────┐
//!         │ recall    free memory that is still mapped in its holes (`kept`)
//!         │ gather    extents for the others: spare ones, free ones of other places, new ones
//!         ▼                                 │ refused, or a call failed
//!      gathered ────────────────────────────┤
//!         │ map       each extent appears   │
//!         ▼           in its hole           ▼ undo
//!      mapped ────────────────────────── free again, with its last users; what was
//!         │ settle    counted, and       gathered is spare, and what was taken from
//!         ▼           published          the device for it goes back
//!       live
//! ```
//!
//! If the device cannot map, a plain block takes the place of all this (`plain_blocks`).
//! Before a refusal every arena is searched once more, whatever sharing may cost.
//!
//! Extents are as large as the hole that they fill with quick packing, as a driver charges
//! by the handle and hardly by the byte; tight packing takes the smallest, which fit
//! anywhere.

use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::arena::{Arena, ArenaState, Miss, TakenPiece};
use super::heap::NONE;
use super::region::{Extent, FreePlace, LooseExtents, MapPlan, Region, SpareExtent};
use super::shrink::Unfinished;
use super::tag::UseTags;
use super::{Growth, Pool};
use crate::config::Packing;
use crate::memory::{Block, Handle, Memory, Request, Stream};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// `RANGE`: the address range of an arena, or of spans, is 8 times the budget, so that it hardly ever fills.
const RANGE: u64 = 8;
/// `LAST`: at most 1/16 of what may still be taken is taken before it is needed.
const LAST: u64 = 16;

impl Pool {
    /// Serves a request that home could not serve at once: behind other streams, from
    /// another arena, or with memory from the device.
    #[cold]
    pub(super) fn allocate_elsewhere(
        &self,
        home: &Arena,
        request: Request,
        size: u64,
        miss: Miss,
    ) -> Result<Block> {
        let Request { size: asked, stream, .. } = request;
        if miss.unordered
            && let Some(found) = self.take_behind(home, stream, size, asked.0)?
        {
            return Ok(self.block(home.number, found, asked));
        }
        // Always where holding least is what counts, else as long as it does not cost too
        // much.
        let share = miss.share || self.config.packing == Packing::Tight;
        let others = || self.shared_arenas().filter(|arena| arena.number != home.number);
        if share {
            // First what lies behind events that are known to be over: nothing is asked.
            let known = others().find_map(|arena| {
                let found = arena.try_serve(&self.order, stream, size, asked.0)?;
                Some(self.block(arena.number, found, asked))
            });
            if let Some(block) = known {
                return Ok(block);
            }
            for arena in others() {
                if let Some(found) = self.take_behind(arena, stream, size, asked.0)? {
                    return Ok(self.block(arena.number, found, asked));
                }
            }
        }
        let start = Instant::now();
        let result = self.allocate_slowly(home, request, size, share);
        self.bring_home_late();
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counts.slow.fetch_add(1, Ordering::Relaxed);
        self.counts.slow_nanos.fetch_add(nanos, Ordering::Relaxed);
        result
    }

    /// Serves a request with memory from the device.
    fn allocate_slowly(
        &self,
        home: &Arena,
        request: Request,
        size: u64,
        share: bool,
    ) -> Result<Block> {
        let Request { size: asked, stream, .. } = request;
        let mut growth = self.growth();
        // While this thread waited, another may have brought what is needed.
        if let Some(found) = self.take_behind(home, stream, size, asked.0)? {
            return Ok(self.block(home.number, found, asked));
        }
        if self.order.any_capture() {
            return Err(Error::Capturing { what: "taking more memory from the device" });
        }
        let take = |growth: &mut Growth| match self.page {
            0 => self.take_plain_block(growth, home, request, size),
            _ => self.take_pages(growth, home, request, (size, share)),
        };
        let found = match take(&mut growth) {
            // Somebody returned lent memory while this thread had the growth lock.
            Err(error) if error.is_out_of_memory() && self.bring_home(&mut growth) => {
                take(&mut growth)
            }
            found => found,
        };
        match found {
            Ok(found) => Ok(self.block(home.number, found, asked)),
            Err(error) if error.is_out_of_memory() => self.last_resort(request, size, error),
            Err(error) => Err(error),
        }
    }

    /// Serves a request with memory that is lent, or brought to a place.
    fn take_pages(
        &self,
        growth: &mut Growth,
        home: &Arena,
        request: Request,
        (size, share): (u64, bool),
    ) -> Result<TakenPiece> {
        let most_live = growth.most_live;
        self.note_live(growth, size);
        let found = match self.take_lent(growth, home, request, (size, share)) {
            Ok(Some(found)) => Ok(found),
            // Memory that cannot be had as new may still be moved.
            Err(error) if !error.is_out_of_memory() => Err(error),
            _ => self.take_mapping(growth, home, request, size, share),
        };
        let found = match found {
            // Nor can it be moved: what may be held would allow more than the device has.
            Err(error) if error.is_out_of_memory() => {
                let lent = self.take_all_lent(growth, home, request, size);
                lent.and_then(|found| found.ok_or(error))
            }
            found => found,
        };
        if found.is_err() {
            // It was never live.
            growth.most_live = most_live;
        }
        found
    }

    /// Before a refusal: a piece of any arena, whatever sharing may cost.
    fn last_resort(&self, request: Request, size: u64, refusal: Error) -> Result<Block> {
        for arena in self.shared_arenas() {
            let found = self.take_behind(arena, request.stream, size, request.size.0)?;
            if let Some(found) = found {
                return Ok(self.block(arena.number, found, request.size));
            }
        }
        Err(refusal)
    }

    /// Takes a piece that is mapped, ordering the stream behind its last users.
    fn take_behind(
        &self,
        arena: &Arena,
        stream: Stream,
        size: u64,
        asked: u64,
    ) -> Result<Option<TakenPiece>> {
        let mut inner = arena.lock();
        let mut tried = Vec::new();
        loop {
            let fit = inner.heap.best_fit(size, usize::MAX, |node| {
                !tried.contains(&(node.region, node.offset)) && inner.suits(node, size)
            });
            let Some(piece) = fit.filter(|piece| inner.heap.node(*piece).ready >= size) else {
                return Ok(None);
            };
            let node = inner.heap.node(piece);
            if self.order.put_behind(self.device(), stream, &node.tags)? {
                let piece = inner.take_front(piece, size);
                let found = inner.hand_out(piece, asked, self.order.tag(stream));
                inner.figures.hits += 1;
                arena.publish(&mut inner);
                return Ok(Some(found));
            }
            // Its last user is being captured: nothing can be recorded there.
            let place = (node.region, node.offset);
            tried.push(place);
        }
    }

    /// Serves a request by mapping pages at a place: the states of the head of this file.
    pub(super) fn take_mapping(
        &self,
        growth: &mut Growth,
        home: &Arena,
        request: Request,
        size: u64,
        share: bool,
    ) -> Result<TakenPiece> {
        let free = self.free_handles(growth);
        let (number, mut inner) = (home.number, home.lock());
        let place = self.find_place(growth, (number, &mut inner), size, &free)?;
        self.take_place(growth, home, request, (size, share), (inner, place))
    }

    /// Serves a request at a place.
    pub(super) fn take_place(
        &self,
        growth: &mut Growth,
        home: &Arena,
        request: Request,
        (size, share): (u64, bool),
        place: (MutexGuard<'_, ArenaState>, FreePlace),
    ) -> Result<TakenPiece> {
        let (found, mut plan) = self.claim(request, size, place)?;
        let mut hand = LooseExtents::new(share);
        let held = self.counts.held.load(Ordering::Relaxed);
        let mapped = self
            .recall(growth, home, (found.piece, request.stream, share), &mut plan)
            .and_then(|()| self.gather(growth, &mut hand, &mut plan, request.size))
            .and_then(|()| self.map(growth, home, &mut hand, plan));
        // What was gathered and not used goes back, or is kept for the next request.
        self.put_away(growth, hand);
        let mut inner = home.lock();
        inner.settle_around(found.piece);
        if mapped.is_ok() {
            inner.count(found.piece, request.size.0);
            inner.figures.misses += 1;
        } else {
            // What was found waits for its users on this stream, perhaps later than the tag says.
            let now = UseTags::of(self.order.tag(request.stream));
            inner.heap.add_users(found.piece, &now);
            inner.undo(found.piece);
        }
        home.publish(&mut inner);
        drop(inner);
        if mapped.is_err() {
            // A refusal must not cost memory: what was taken for it goes back.
            self.destroy_spare(growth, held)?;
        }
        mapped.map(|()| found)
    }

    /// Finds a place and makes it live before its pages are there, so that nobody else
    /// gets it meanwhile and no page of it is taken for free. It is counted when they are,
    /// so that what others publish meanwhile never has more taken than held.
    fn claim(
        &self,
        request: Request,
        size: u64,
        (mut inner, place): (MutexGuard<'_, ArenaState>, FreePlace),
    ) -> Result<(TakenPiece, MapPlan)> {
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
        let number = inner.heap.node(piece).region;
        let plan = inner.region(inner.heap.node(piece));
        let plan = plan.map(|region| MapPlan::new((number, region), from..to));
        let found = inner.own(piece, request.size.0, self.order.tag(request.stream));
        Ok((found, plan.ok_or_else(|| self.refusal(request.size))?))
    }

    /// The place that the arena finds, in a new address range where the others are full.
    pub(super) fn find_place(
        &self,
        growth: &Growth,
        (arena, inner): (u32, &mut ArenaState),
        size: u64,
        free: &[Handle],
    ) -> Result<FreePlace> {
        let price = growth.calm.price_of_mapping();
        let kept = |region: u32, hole: Range<u64>| {
            let (found, lost) = growth.kept.found_in((arena, region), hole, free);
            (found, lost * price)
        };
        if let Some(place) = inner.search(size, kept) {
            return Ok(place);
        }
        self.add_range(inner)?;
        inner.search(size, kept).ok_or_else(|| self.refusal(Bytes(size)))
    }

    /// How many addresses are set aside at a time.
    pub(super) fn range_size(&self) -> Bytes {
        Bytes(self.budget.saturating_mul(RANGE).0.next_multiple_of(self.page))
    }

    pub(super) fn add_range(&self, inner: &mut ArenaState) -> Result<()> {
        let size = self.range_size();
        if size == Bytes::ZERO {
            return Err(self.refusal(Bytes(self.page)));
        }
        let base = self.mapping()?.reserve(size)?;
        inner.add_region(Region::of_pages(base, size.0, self.page), 0);
        Ok(())
    }

    /// Finds memory for a plan: spare, free elsewhere, and new, in that order. What is not
    /// used, or all of it after a failure, is left in the hand.
    fn gather(
        &self,
        growth: &mut Growth,
        hand: &mut LooseExtents,
        plan: &mut MapPlan,
        asked: Bytes,
    ) -> Result<()> {
        if plan.missing() == 0 {
            return Ok(());
        }
        let gathered = self.find_memory(growth, hand, plan);
        if gathered.is_ok() && plan.missing() == 0 {
            return Ok(());
        }
        plan.laid.drain(..).for_each(|(_, extent)| hand.add(extent));
        gathered.and(Err(self.refusal(asked)))
    }

    fn find_memory(
        &self,
        growth: &mut Growth,
        hand: &mut LooseExtents,
        plan: &mut MapPlan,
    ) -> Result<()> {
        while hand.pages() < plan.missing() {
            let Some(spare) = growth.spare.last() else { break };
            self.order.await_all(self.device(), &spare.users)?;
            let Some(SpareExtent { extent, .. }) = growth.spare.pop() else { break };
            self.counts.spare.fetch_sub(extent.pages * self.page, Ordering::Release);
            hand.add(extent);
        }
        if hand.thrifty && !self.may_grow(growth, plan.missing()) {
            self.collect(growth, hand, (plan.missing(), u64::MAX), Unfinished::Await)?;
            self.collect_smaller(growth, hand, plan)?;
        }
        self.exchange(growth, hand, plan)?;
        let mut missing = u64::MAX;
        // Full: what lies free anywhere is worth more than another thread's peace. More than once, as a
        // handle may be larger than the hole that it fills.
        while (1..missing).contains(&plan.missing()) {
            missing = plan.missing();
            self.collect(growth, hand, (missing, u64::MAX), Unfinished::Await)?;
            self.exchange(growth, hand, plan)?;
        }
        Ok(())
    }

    /// Lays what is in hand, gives back what does not fit, and takes as much as is missing
    /// then, or as may be had.
    fn exchange(
        &self,
        growth: &mut Growth,
        hand: &mut LooseExtents,
        plan: &mut MapPlan,
    ) -> Result<()> {
        plan.lay(hand);
        if plan.missing() == 0 {
            return Ok(());
        }
        let mapping = self.mapping()?;
        while let Some(extent) = hand.pop() {
            if let Err(error) = self.destroy(growth, extent) {
                hand.add(extent);
                return Err(error);
            }
        }
        let mut room = self.room(growth, plan.missing() * self.page)? / self.page;
        let (fewest, mut most) = self.handle_pages(growth, plan.missing());
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

    /// Maps what was laid behind a piece; after a failure the rest is back in the hand.
    fn map(
        &self,
        growth: &mut Growth,
        home: &Arena,
        hand: &mut LooseExtents,
        plan: MapPlan,
    ) -> Result<()> {
        let mapping = self.mapping()?;
        let (mut mapped, mut extents) = (0, 0);
        let mut result = self.clear_kept(growth, home.number, &plan);
        let mut inner = home.lock();
        if let Some(region) = inner.region_mut(plan.region) {
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
        drop(inner);
        self.counts.remapped.fetch_add(hand.moved.min(extents), Ordering::Relaxed);
        self.note_moved(growth);
        result
    }
}
