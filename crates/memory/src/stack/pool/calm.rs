//! The moment when everything has been returned.
//!
//! A program that repeats itself is served alike in every turn if it finds the pool alike at the
//! beginning. So where each handle lies when all blocks have been returned is remembered, and the
//! next time every handle goes back there; what was taken since becomes spare, and is used where the turn
//! before left it. Mappings are kept when memory moves (`kept`), so this calls no device, and a
//! turn finds the mappings of the turn before. What cannot go back, because its mapping had to make
//! room or its handle went back to the device, stays where it is: after some turns nothing is
//! missing any more, or little.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::arena::{Arena, ArenaState};
use super::heap::{PieceId, PieceState};
use super::kept::{Destinations, PagePlace};
use super::{Growth, Pool};
use crate::memory::Handle;

/// `REQUESTS`: nothing goes back before this many requests for each handle: it costs about as much
/// as one request for each.
const REQUESTS: u64 = 32;
/// `MISSES`: after so many times that an arena was empty and another was not, none is looked at until
/// memory moves again.
const MISSES: u64 = 16;

/// `LOST`: in the first turn a mapping that must go to make room counts as 2 pages that are
/// missing: what the program will do again is not known yet.
const LOST: u64 = 2;
/// `AVOIDED`: afterwards it counts as 1,000 pages, so that it goes only for the largest requests, or
/// where no other addresses are left. One address can have one mapping: if a turn wanted two
/// handles at the same place, every turn would map both again.
const AVOIDED: u64 = 1000;

/// Where memory was when everything had been returned.
#[derive(Debug, Default)]
pub(super) struct CalmMoment {
    places: Option<BTreeMap<Handle, PagePlace>>,
    /// The requests up to then.
    requests: u64,
    /// How often only some arenas were empty since memory moved.
    missed: u64,
}

impl CalmMoment {
    /// How many missing pages a mapping counts as that must go to make room.
    pub(super) fn price_of_mapping(&self) -> u64 {
        if self.places.is_some() { AVOIDED } else { LOST }
    }
}

impl Pool {
    /// Notes that memory has moved.
    pub(super) fn note_moved(&self, growth: &mut Growth) {
        growth.calm.missed = 0;
        self.unrest.store(self.can_alias, Ordering::Relaxed);
    }

    /// An arena has got its last block back: if all have, memory goes back to where it was when
    /// that was so before.
    #[cold]
    pub(super) fn calm_down(&self) {
        if !self.unrest.load(Ordering::Relaxed) || self.order.any_capture() {
            return;
        }
        // Arenas are locked after the growth lock and never before, and nobody waits for this.
        let Some(mut growth) = self.try_growth() else { return };
        let figures: Vec<_> = self.shared_arenas().map(Arena::figures).collect();
        if figures.iter().any(|figures| figures.blocks > 0) {
            growth.calm.missed += 1;
            self.unrest.store(growth.calm.missed <= MISSES, Ordering::Relaxed);
            return;
        }
        let requests = self.requests();
        if requests.saturating_sub(growth.calm.requests) < REQUESTS * self.handles() {
            return;
        }
        growth.calm.requests = requests;
        self.unrest.store(false, Ordering::Relaxed);
        if let Some(places) = growth.calm.places.take() {
            self.go_back(&mut growth, &places);
        }
        for arena in self.shared_arenas() {
            arena.lock().settle_all();
        }
        growth.calm.places = Some(self.placed());
    }

    /// Where each handle is.
    fn placed(&self) -> BTreeMap<Handle, PagePlace> {
        let mut places = BTreeMap::new();
        for arena in self.shared_arenas() {
            let inner = arena.lock();
            for (number, region) in inner.regions.iter().enumerate() {
                let extents = region.iter().flat_map(|region| &region.extents);
                places.extend(extents.map(|(page, extent)| {
                    let (arena, region) = (arena.number, number as u32);
                    (extent.handle, PagePlace { arena, region, page: *page })
                }));
            }
        }
        places
    }

    /// Lets free memory go back to where it was, as far as it is still mapped there. What was taken
    /// since becomes spare.
    fn go_back(&self, growth: &mut Growth, places: &BTreeMap<Handle, PagePlace>) {
        let mapped = places.iter().filter(|(handle, place)| {
            growth.kept.get(**place).is_some_and(|kept| kept.extent.handle == **handle)
        });
        let back = mapped.map(|(handle, place)| (*handle, Some(*place)));
        let new = self.placed().into_keys().filter(|handle| !places.contains_key(handle));
        let wanted: Destinations = back.chain(new.map(|handle| (handle, None))).collect();
        let mut found = Vec::new();
        // Nobody is ordered behind anything here, so no call is made that could fail.
        drop(self.leave_spare(growth, &wanted, None, &mut found));
        for arena in self.shared_arenas() {
            drop(self.leave(growth, arena, &wanted, None, &mut found));
        }
        self.arrive(growth, found);
    }
}

impl ArenaState {
    /// Settles all free pieces again, in the order of their addresses, so that the index does
    /// not depend on what was there before.
    pub(super) fn settle_all(&mut self) {
        let free = self.heap.free_pieces();
        let mut pieces: Vec<_> =
            free.map(|(piece, node)| (node.region, node.offset, piece)).collect();
        pieces.sort_unstable();
        for (.., piece) in &pieces {
            self.heap.unsettle(*piece);
        }
        let mut parts = Vec::with_capacity(pieces.len());
        for (.., piece) in pieces {
            self.mark_parts(piece, &mut parts);
        }
        for part in parts {
            // One that was merged with its neighbour is gone.
            if self.heap.node(part).state == PieceState::Free {
                self.heap.settle(part, self.heap.node(part).ready);
            }
        }
    }

    /// Cuts a free piece that is not indexed where its mapping changes, and notes it.
    fn mark_parts(&mut self, piece: PieceId, parts: &mut Vec<PieceId>) {
        let mut piece = piece;
        loop {
            parts.push(piece);
            let node = self.heap.node(piece);
            let (mapped, length) =
                self.region(node).map_or((false, node.size), |region| region.stretch(node));
            let ready = if mapped { length } else { 0 };
            let whole = length == node.size || self.heap.goes_by_length();
            let rest =
                (!whole).then(|| self.heap.split_where_mapping_changes(piece, length, !mapped));
            self.heap.set_ready(piece, ready);
            let Some(rest) = rest else { return };
            piece = rest;
        }
    }
}
