//! Memory that is lent: free parts of handles used together at other addresses.
//!
//! A live block keeps its whole handle where it is, so the rest of the handle can serve only what fits
//! in there. But a handle may be mapped a second time. So the free end of one handle, handles that are
//! wholly free and the free front of another are mapped one behind the other at new addresses (`chain`),
//! and a block is handed out that begins inside the first and ends inside the last. That takes a
//! few mappings, however large the parts are, and no new memory.
//!
//! At home, where they lie otherwise, the parts are live until the block is returned; then they
//! are free there again, behind whoever used the block. So a byte is in use through one address at a
//! time, and its users are ordered by its piece at home, whichever address they use.
//!
//! The addresses stay mapped (a *span*) and serve the next request that fits, without a call to the device.
//! Where a handle backs another place meanwhile, the span is as good as before; it goes when a
//! handle of it goes back to the device, or when others are needed more.
//!
//! Where new memory is needed as well, it comes to fresh addresses first. If free handles that move to it then serve the
//! request with clearly fewer mappings than a span, they move instead (`grow`). Before a refusal anything is lent.

mod moving;

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use super::arena::{Arena, ArenaState, GiveBack, TakenPiece};
use super::chain::{self, FreePart};
use super::heap::{NONE, PieceId, PieceState};
use super::order::StreamOrder;
use super::spans::Span;
use super::tag::UseTags;
use super::{Growth, Pool};
use crate::config::Packing;
use crate::memory::{Address, Handle, Memory, Request, Stream};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// `SPANS`: as many mappings of spans for each handle. They cost the driver page tables.
const SPANS: u64 = 8;
/// `MOST_PARTS`: a span without new memory has at most 64 parts; others are moved rather than lent.
const MOST_PARTS: usize = 64;

/// A block in lent memory that was returned, and who may still use it.
#[derive(Debug)]
pub(super) struct ReturnedLoan {
    arena: u32,
    piece: PieceId,
    users: UseTags,
}

impl Pool {
    /// Serves a request from free parts of handles, at a span that is mapped already or at a new one.
    /// Nothing where new memory may be taken instead, or where the parts are not enough.
    pub(super) fn take_lent(
        &self,
        growth: &mut Growth,
        home: &Arena,
        request: Request,
        (size, share): (u64, bool),
    ) -> Result<Option<TakenPiece>> {
        if !self.can_alias {
            return Ok(None);
        }
        if share {
            self.settle_spare(growth);
        }
        let place = self.least_place(growth, home, size);
        if place.missing == 0 {
            return Ok(None);
        }
        let new = self.new_if_moved(home, &place, share);
        // Tight packing moves its small handles instead, which takes a mapping for each page that is missing
        // and not one for each page of the block.
        if self.config.packing == Packing::Tight && (new == 0 || self.stays_tight(growth, new)) {
            return Ok(None);
        }
        let free = self.free_parts(home, share);
        if let Some((span, start, parts)) = growth.spans.find(&free, size, self.page) {
            self.counts.found.fetch_add(parts.len() as u64, Ordering::Relaxed);
            return self.lend(growth, home, request, (Some(span), start, parts));
        }
        if self.may_grow(growth, place.missing) {
            return Ok(None);
        }
        let mut parts = chain::find(&free, size, self.page, MOST_PARTS);
        if parts.is_none() && new > 0 {
            let room = self.room_to_grow(growth);
            let pages = chain::lacking(&free, size, self.page, room);
            if pages < new || pages <= room {
                if pages > 0 {
                    self.bring(growth, home, request.stream, pages)?;
                }
                parts = chain::find(&self.free_parts(home, share), size, self.page, usize::MAX);
                // The new memory lies beside other memory that is free, perhaps: then the rest may come to it.
                let fewer =
                    |parts: &Vec<_>| self.moves_fewer(growth, home, (size, share), parts.len());
                if pages > 0 && parts.as_ref().is_some_and(fewer) {
                    return Ok(None);
                }
            }
        }
        let Some(parts) = parts else { return Ok(None) };
        let start = parts.first().map_or(0, |part| part.from);
        self.lend(growth, home, request, (None, start, parts))
    }

    /// Serves a request from free parts of handles wherever there are enough, of all arenas: before a refusal.
    pub(super) fn take_all_lent(
        &self,
        growth: &mut Growth,
        home: &Arena,
        request: Request,
        size: u64,
    ) -> Result<Option<TakenPiece>> {
        if !self.can_alias {
            return Ok(None);
        }
        self.settle_spare(growth);
        let free = self.free_parts(home, true);
        if let Some((span, start, parts)) = growth.spans.find(&free, size, self.page) {
            self.counts.found.fetch_add(parts.len() as u64, Ordering::Relaxed);
            return self.lend(growth, home, request, (Some(span), start, parts));
        }
        let Some(parts) = chain::find(&free, size, self.page, usize::MAX) else { return Ok(None) };
        let start = parts.first().map_or(0, |part| part.from);
        self.lend(growth, home, request, (None, start, parts))
    }

    /// Brings new memory to addresses where nothing is mapped, and leaves it free there.
    fn bring(&self, growth: &mut Growth, home: &Arena, stream: Stream, pages: u64) -> Result<()> {
        let size = pages * self.page;
        let mut inner = home.lock();
        let mut place = inner.fresh_place(size, |region| growth.kept.end(home.number, region));
        if place.is_none() {
            self.add_range(&mut inner)?;
            place = inner.fresh_place(size, |_| 0);
        }
        let place = place.ok_or_else(|| self.refusal(Bytes(size)))?;
        // Nobody asked for it, so nothing of it is live and nothing was missed.
        let request = Request { size: Bytes::ZERO, stream, tag: None };
        let found = self.take_place(growth, home, request, (size, false), (inner, place))?;
        home.lock().figures.misses -= 1;
        home.give_back(&self.order, found.piece, found.generation, 0, stream);
        Ok(())
    }

    /// Lends these parts to a block in a span, which is mapped if there is none.
    fn lend(
        &self,
        growth: &mut Growth,
        home: &Arena,
        request: Request,
        (span, start, parts): (Option<u64>, u64, Vec<FreePart>),
    ) -> Result<Option<TakenPiece>> {
        let mut lent = Vec::with_capacity(parts.len());
        for part in &parts {
            match self.lend_part(part, request.stream) {
                Ok(Some(piece)) => lent.push((part.arena, piece)),
                // Another thread was faster, or the device failed.
                other => {
                    self.come_home(&lent, None);
                    return other.map(|_| None);
                }
            }
        }
        let mapped = span.map_or_else(|| self.map_span(growth, &parts), Ok);
        let span = mapped.inspect_err(|_| self.come_home(&lent, None))?;
        Ok(self.hand_out_lent(growth, home, request, (span, start, lent)))
    }

    /// Makes a block of what was lent.
    fn hand_out_lent(
        &self,
        growth: &mut Growth,
        home: &Arena,
        request: Request,
        (number, start, lent): (u64, u64, Vec<(u32, PieceId)>),
    ) -> Option<TakenPiece> {
        growth.spans.clock += 1;
        let used = growth.spans.clock;
        let span = growth.spans.spans.get_mut(&number)?;
        (span.lent, span.used) = (lent, used);
        let address = Address { buffer: span.address, offset: start };
        let asked = request.size.0;
        let size = asked.max(1).next_multiple_of(self.alignment);
        let mut inner = home.lock();
        let tag = self.order.tag(request.stream);
        let (piece, generation) = inner.heap.add_loan(size, asked, tag);
        inner.figures.live += asked;
        inner.figures.blocks += 1;
        inner.figures.misses += 1;
        home.publish(&mut inner);
        drop(inner);
        // A loan that was returned meanwhile may have had this name.
        self.bring_home(growth);
        growth.spans.loans.insert((home.number, piece), number);
        Some(TakenPiece { piece, generation, address })
    }

    /// The mapped parts of handles that lie free, in this arena or in all that are shared.
    fn free_parts(&self, home: &Arena, share: bool) -> Vec<FreePart> {
        let mut parts = Vec::new();
        for arena in self.shared_arenas().filter(|arena| share || arena.number == home.number) {
            let inner = arena.lock();
            for (_, node) in inner.heap.free_pieces() {
                let Some(region) = inner.region(node) else { continue };
                let bytes = node.offset..node.offset + node.size;
                parts.extend(region.parts(bytes).map(|(base, extent, inside)| FreePart {
                    extent,
                    arena: arena.number,
                    region: node.region,
                    base,
                    from: inside.start,
                    to: inside.end,
                }));
            }
        }
        parts
    }

    /// Makes a part live at home, with the stream behind its users; nothing where it is free no more.
    fn lend_part(&self, part: &FreePart, stream: Stream) -> Result<Option<PieceId>> {
        let arena = self.shared_arenas().find(|arena| arena.number == part.arena);
        let Some(arena) = arena else { return Ok(None) };
        let mut inner = arena.lock();
        let Some(piece) = inner.lend(part) else { return Ok(None) };
        let behind =
            self.order.put_behind(self.device(), stream, &inner.heap.node(piece).tags.clone());
        let behind = behind.and_then(|behind| {
            let why = Error::Capturing { what: "taking memory that a captured stream has used" };
            if behind { Ok(()) } else { Err(why) }
        });
        if behind.is_err() {
            inner.come_home(piece, None);
        }
        arena.publish(&mut inner);
        behind.map(|()| Some(piece))
    }

    /// Makes parts free at home again, behind these users or those that they had.
    fn come_home(&self, lent: &[(u32, PieceId)], users: Option<&UseTags>) {
        let lends = |arena: &&Arena| lent.iter().any(|(number, _)| *number == arena.number);
        for arena in self.shared_arenas().filter(lends) {
            let mut inner = arena.lock();
            for (_, piece) in lent.iter().filter(|(number, _)| *number == arena.number) {
                inner.come_home(*piece, users);
            }
            arena.publish(&mut inner);
        }
    }

    /// Maps the handles of these parts one behind the other.
    fn map_span(&self, growth: &mut Growth, parts: &[FreePart]) -> Result<u64> {
        let most = (self.handles() * SPANS).saturating_sub(parts.len() as u64);
        while growth.spans.mapped() > most && self.unmap_oldest_span(growth)? {}
        let mapping = self.mapping()?;
        let size = parts.iter().map(|part| part.extent.pages * self.page).sum();
        let address = match growth.spans.take_addresses(size) {
            Some(address) => address,
            None => {
                let range = self.range_size();
                let base = mapping.reserve(range)?;
                growth.spans.ranges.push((base, range.get()));
                growth.spans.return_addresses(base, range.get());
                let address = growth.spans.take_addresses(size);
                address.ok_or_else(|| self.refusal(Bytes(size)))?
            }
        };
        let mut span =
            Span { address, parts: Vec::new(), users: UseTags::NONE, lent: Vec::new(), used: 0 };
        let mut at = address;
        let mut result = Ok(());
        for part in parts {
            let bytes = part.extent.pages * self.page;
            if result.is_ok() {
                result = mapping.map(at, part.extent.handle, Bytes(bytes));
            }
            span.parts.push((part.extent, result.is_ok()));
            at += bytes;
        }
        self.counts.remapped.fetch_add(parts.len() as u64, Ordering::Relaxed);
        let number = growth.spans.insert(span);
        if let Err(error) = result {
            self.unmap_span(growth, number)?;
            return Err(error);
        }
        Ok(number)
    }

    /// Takes a block back that lies in lent memory.
    #[cold]
    pub(super) fn take_back_lent(
        &self,
        arena: &Arena,
        (piece, generation, asked): (PieceId, u64, u64),
        stream: Stream,
    ) -> GiveBack {
        let mut inner = arena.lock();
        let users = inner.end_loan(&self.order, (piece, generation, asked), stream);
        let last = inner.figures.blocks == 0;
        arena.publish(&mut inner);
        let Some(users) = users else { return GiveBack::Stranger };
        // Before the arena is unlocked, so that nobody gets the name without seeing this.
        self.returned().push(ReturnedLoan { arena: arena.number, piece, users });
        drop(inner);
        // A thread that has the growth lock may wait for work that returns this very block. It, or
        // the next one, brings the parts home.
        drop(self.try_growth());
        if last { GiveBack::Last } else { GiveBack::Taken }
    }

    fn returned(&self) -> MutexGuard<'_, Vec<ReturnedLoan>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings home what was returned while another thread had the growth lock.
    pub(super) fn bring_home_late(&self) {
        if !self.returned().is_empty() {
            drop(self.try_growth());
        }
    }

    /// Makes the parts of blocks that were returned free at home; whether there were any.
    pub(super) fn bring_home(&self, growth: &mut Growth) -> bool {
        let returned = std::mem::take(&mut *self.returned());
        let any = !returned.is_empty();
        for ReturnedLoan { arena, piece, users } in returned {
            let number = growth.spans.loans.remove(&(arena, piece));
            let span = number.and_then(|number| growth.spans.spans.get_mut(&number));
            if let Some(span) = span {
                span.users.join(&users);
                self.come_home(&std::mem::take(&mut span.lent), Some(&users));
            }
        }
        any
    }

    /// Unmaps a span once nobody uses it; what cannot be unmapped stays, with its addresses.
    fn unmap_span(&self, growth: &mut Growth, number: u64) -> Result<()> {
        let Some(span) = growth.spans.spans.get(&number) else { return Ok(()) };
        self.order.await_all(self.device(), &span.users)?;
        growth.spans.unmap(number, (self.mapping()?, self.page), |_| true)?;
        self.forget_span(growth, number);
        Ok(())
    }

    /// Forgets a span without mappings.
    fn forget_span(&self, growth: &mut Growth, number: u64) {
        if let Some(span) = growth.spans.remove(number) {
            let pages: u64 = span.parts.iter().map(|(extent, _)| extent.pages).sum();
            growth.spans.return_addresses(span.address, pages * self.page);
        }
    }

    /// Unmaps the span that was used least lately of those that nobody uses; whether there was one.
    fn unmap_oldest_span(&self, growth: &mut Growth) -> Result<bool> {
        let idle = growth.spans.spans.iter().filter(|(_, span)| span.lent.is_empty());
        let oldest = idle.min_by_key(|(number, span)| (span.used, **number));
        let Some(number) = oldest.map(|(number, _)| *number) else { return Ok(false) };
        self.unmap_span(growth, number).map(|()| true)
    }

    /// Unmaps a handle from all spans, as it goes back to the device. It is wholly free and all work on
    /// it over, through whichever address: so nothing is waited for, and the other parts of
    /// its spans stay.
    pub(super) fn leave_spans(&self, growth: &mut Growth, handle: Handle) -> Result<()> {
        for number in growth.spans.of(handle).to_vec() {
            growth.spans.unmap(number, (self.mapping()?, self.page), |of| of == handle)?;
            let Some(span) = growth.spans.spans.get(&number) else { continue };
            if span.lent.is_empty() && span.parts.iter().all(|(_, there)| !there) {
                self.forget_span(growth, number);
            }
        }
        Ok(())
    }

    /// Unmaps all spans at the end, live or not, and gives their addresses back; goes on past failures.
    pub(super) fn unmap_all_spans(&self, growth: &mut Growth) -> Result<()> {
        let mut result = Ok(());
        for number in growth.spans.spans.keys().copied().collect::<Vec<_>>() {
            result = result.and(self.unmap_span(growth, number));
        }
        for (base, size) in std::mem::take(&mut growth.spans.ranges) {
            result = result.and(self.mapping().and_then(|m| m.unreserve(base, Bytes(size))));
        }
        result
    }
}

impl ArenaState {
    /// Makes a free part live.
    fn lend(&mut self, part: &FreePart) -> Option<PieceId> {
        let bytes: Range<u64> = part.base + part.from..part.base + part.to;
        let piece = self.heap.free_piece_at(part.region, bytes.clone())?;
        let node = self.heap.node(piece);
        let there = self.region(node)?.parts(bytes.clone()).any(|(_, one, _)| one == part.extent);
        if !there {
            return None;
        }
        let (piece, sides) = self.heap.carve(piece, bytes.start, bytes.end);
        self.heap.make_live(piece);
        for side in sides.into_iter().filter(|side| *side != NONE) {
            self.settle(side);
        }
        self.figures.taken += bytes.end - bytes.start;
        Some(piece)
    }

    /// Makes a part free again that was lent.
    fn come_home(&mut self, piece: PieceId, users: Option<&UseTags>) {
        self.figures.taken -= self.heap.node(piece).size;
        if let Some(users) = users {
            self.heap.set_aside(piece, users.clone());
        }
        self.undo(piece);
    }

    /// Ends a loan; who may still use what was lent. Nothing where there is none of that name.
    fn end_loan(
        &mut self,
        order: &StreamOrder,
        (piece, generation, asked): (PieceId, u64, u64),
        stream: Stream,
    ) -> Option<UseTags> {
        let node = self.heap.get(piece)?;
        if node.state != PieceState::Loan || node.generation != generation || node.ready != asked {
            return None;
        }
        let users = order.users_of(node.tags.first().stream(), stream);
        self.heap.remove_loan(piece);
        self.figures.live -= asked;
        self.figures.blocks -= 1;
        Some(users)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
