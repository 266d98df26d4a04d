//! Memory that lies free: found, waited for, moved to where it is needed, and given back.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use super::arena::{Arena, ArenaState};
use super::heap::{PieceId, PieceState};
use super::kept::PagePlace;
use super::region::{LooseExtents, MapPlan, Region, SpareExtent};
use super::tag::UseTags;
use super::{ARENAS, Growth, Pool};
use crate::memory::{Memory, Stream};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// What becomes of free memory that work in flight still uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfinished {
    /// The work is waited for: which memory is taken depends on what was asked for and
    /// returned, and not on how far the device has come.
    Await,
    /// It is left where it is.
    Leave,
}

impl Pool {
    /// Unmaps extents that lie wholly free until there is enough: in the longest stretches
    /// first, and larger ones than are needed only if nothing else is left.
    pub(super) fn collect(
        &self,
        growth: &mut Growth,
        hand: &mut LooseExtents,
        (pages, most): (u64, u64),
        unfinished: Unfinished,
    ) -> Result<()> {
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
                let place = (index, node.region, node.offset);
                (whole > 0).then_some((std::cmp::Reverse::<u64>(whole), place, piece))
            }));
        }
        // Of equals the first by address: numbers of pieces are an accident.
        stretches.sort_unstable();
        // Larger ones than are needed last, if at all.
        for fitting in [true, false].into_iter().filter(|fitting| *fitting || most == u64::MAX) {
            for (_, (index, ..), piece) in &stretches {
                if hand.pages() >= pages {
                    return Ok(());
                }
                let arena = arenas[*index];
                let Some(mut inner) = self.lock_over(arena, *piece, unfinished)? else { continue };
                let unmapped = self.unmap_free(
                    (growth, arena.number),
                    &mut inner,
                    *piece,
                    hand,
                    (pages, fitting, most),
                );
                arena.publish(&mut inner);
                unmapped?;
            }
        }
        Ok(())
    }

    /// Where what is in hand is too large for the holes that are left: finds smaller ones, as long
    /// as there are any, so that none has to go back to the device.
    pub(super) fn collect_smaller(
        &self,
        growth: &mut Growth,
        hand: &mut LooseExtents,
        plan: &mut MapPlan,
    ) -> Result<()> {
        plan.lay(hand);
        while let Some(largest) = plan.holes.iter().map(|hole| hole.end - hole.start).max() {
            let before = hand.pages();
            let wanted = (before + plan.missing(), largest);
            self.collect(growth, hand, wanted, Unfinished::Await)?;
            if !self.can_alias || hand.pages() == before {
                break;
            }
            plan.lay(hand);
        }
        Ok(())
    }

    /// Locks an arena in which a piece is free and the work on it over; nothing where it is not.
    fn lock_over<'a>(
        &self,
        arena: &'a Arena,
        piece: PieceId,
        unfinished: Unfinished,
    ) -> Result<Option<MutexGuard<'a, ArenaState>>> {
        let mut inner = arena.lock();
        for awaited in [false, true] {
            // The arena was unlocked meanwhile: the piece may be gone, live or another one.
            let free = inner.heap.get(piece).filter(|node| node.state == PieceState::Free);
            let Some(tags) = free.map(|node| node.tags.clone()) else { return Ok(None) };
            if self.order.is_over(self.device(), &tags)? {
                return Ok(Some(inner));
            }
            if awaited || unfinished == Unfinished::Leave {
                break;
            }
            // No arena is locked meanwhile, so that the work can give memory back.
            drop(inner);
            self.order.await_all(self.device(), &tags)?;
            inner = arena.lock();
        }
        Ok(None)
    }

    /// Unmaps extents of a free piece, from its end, until there is enough.
    fn unmap_free(
        &self,
        (growth, arena): (&mut Growth, u32),
        inner: &mut ArenaState,
        piece: PieceId,
        hand: &mut LooseExtents,
        (pages, fitting, most): (u64, bool, u64),
    ) -> Result<()> {
        let mapping = self.mapping()?;
        // What is to go back to the device need not be found again, nor graphs' memory that is gone.
        let keep = self.can_alias && pages < u64::MAX && arena < u32::from(ARENAS);
        let node = inner.heap.node(piece).clone();
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
                if fitting && extent.pages > needed.min(most) {
                    continue;
                }
                let bytes = extent.pages * region.page;
                let address = region.address(number);
                if keep {
                    let place = PagePlace { arena, region: node.region, page: number };
                    growth.kept.insert(place, extent, address, node.tags.clone());
                } else {
                    result = mapping.unmap(address, Bytes(bytes));
                }
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

    /// Waits until the work is over that still uses what lies free. No arena is locked
    /// meanwhile, so that the work can give memory back.
    pub(super) fn await_free(&self, growth: &Growth) -> Result<()> {
        self.order.await_all(self.device(), &self.last_users(growth))
    }

    /// Who has used what lies free.
    fn last_users(&self, growth: &Growth) -> UseTags {
        let private = self.retired_arenas(growth);
        let mut all = UseTags::NONE;
        for spare in &growth.spare {
            all.join(&spare.users);
        }
        for arena in self.shared_arenas().chain(private.iter().map(AsRef::as_ref)) {
            for (_, node) in arena.lock().heap.free_pieces() {
                all.join(&node.tags);
            }
        }
        all
    }

    /// The arenas whose graph is gone.
    pub(super) fn retired_arenas(&self, growth: &Growth) -> Vec<Arc<Arena>> {
        growth.retired.iter().filter_map(|number| self.private_arena(*number)).collect()
    }

    /// Gives back what is held and not in use.
    pub(super) fn give_back_free(&self, wait: bool) -> Result<Bytes> {
        let given = self.give_back_now(wait);
        self.bring_home_late();
        given
    }

    fn give_back_now(&self, wait: bool) -> Result<Bytes> {
        let mut growth = self.growth();
        if self.order.any_capture() {
            return Err(Error::Capturing { what: "giving memory back" });
        }
        let before = self.counts.held.load(Ordering::Relaxed);
        if wait {
            self.await_free(&growth)?;
        }
        if self.page > 0 {
            self.return_pages(&mut growth)?;
        } else {
            self.return_segments(&growth, u64::MAX)?;
        }
        self.forget_empty(&mut growth)?;
        Ok(Bytes(before.saturating_sub(self.counts.held.load(Ordering::Relaxed))))
    }

    /// Gives back everything that lies wholly free.
    fn return_pages(&self, growth: &mut Growth) -> Result<()> {
        let mut hand = LooseExtents::new(true);
        let collected = self.collect(growth, &mut hand, (u64::MAX, u64::MAX), Unfinished::Leave);
        self.keep(growth, hand);
        collected?;
        self.destroy_spare(growth, 0)
    }

    /// Gives spare memory back that nobody uses, until no more than this much is held.
    pub(super) fn destroy_spare(&self, growth: &mut Growth, held: u64) -> Result<()> {
        let mut next = growth.spare.len();
        while self.counts.held.load(Ordering::Relaxed) > held && next > 0 {
            next -= 1;
            let SpareExtent { extent, users } = &growth.spare[next];
            let extent = *extent;
            if !self.order.is_over(self.device(), users)? {
                continue;
            }
            self.destroy(growth, extent)?;
            growth.spare.remove(next);
            self.counts.spare.fetch_sub(extent.pages * self.page, Ordering::Release);
        }
        Ok(())
    }

    /// Gives everything back at the end, live or not. Goes on past failures, so that one
    /// costs no more than what it is about; the first is returned.
    pub(super) fn dismantle(&mut self) -> Result<()> {
        let mut result = self.order.await_all(self.upstream.device(), &self.order.every_tag());
        let mut growth = self.growth();
        result = result.and(self.unmap_all_kept(&mut growth));
        result = result.and(self.unmap_all_spans(&mut growth));
        let private = self.private_arenas();
        for arena in self.shared_arenas().chain(private.iter().map(AsRef::as_ref)) {
            for mut region in arena.lock().regions.drain(..).flatten() {
                let returned = match region.block {
                    Some(block) => self.upstream.release(block, Stream::DEFAULT),
                    None => self.dismantle_range(&mut growth, &mut region),
                };
                if returned.is_ok() && region.block.is_some() {
                    self.count_returned(region.size);
                }
                result = result.and(returned);
            }
        }
        while !growth.spare.is_empty() {
            let left = growth.spare.len();
            let destroyed = self.destroy_spare(&mut growth, 0);
            if growth.spare.len() == left {
                // The one that will not go is left behind, the others are not.
                growth.spare.pop();
            }
            result = result.and(destroyed);
        }
        result
    }

    /// Gives an address range back with all that is mapped there.
    pub(super) fn dismantle_range(&self, growth: &mut Growth, region: &mut Region) -> Result<()> {
        let mapping = self.mapping()?;
        let mut hand = LooseExtents::new(true);
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
