//! What moving free handles to a place would take, to choose between that and lending.

use std::ops::Range;

use super::super::arena::Arena;
use super::super::{Growth, Pool};

/// `FEWER`: where new memory was taken for a request, the rest is moved to it if that takes less than 75 % of the mappings
/// of a span.
const FEWER: u64 = 75;

/// The place in an arena that needs the least to be mapped.
#[derive(Debug)]
pub(super) struct LeastPlace {
    region: u32,
    bytes: Range<u64>,
    /// The pages that have nothing behind them, and the same with what mappings in the way count as.
    holes: u64,
    pub(super) missing: u64,
}

impl Pool {
    /// Where there are no addresses for one, all is missing.
    pub(super) fn least_place(&self, growth: &Growth, home: &Arena, size: u64) -> LeastPlace {
        let free = self.free_handles(growth);
        let mut inner = home.lock();
        let place = self.find_place(growth, (home.number, &mut inner), size, &free).ok();
        let found = place.and_then(|place| {
            let node = inner.heap.node(place.piece);
            let (region, bytes) = (node.region, place.from..place.from + size);
            let holes = inner.region(node)?.holes(bytes.start, bytes.end);
            let holes = holes.map(|hole| hole.end - hole.start).sum();
            Some(LeastPlace { region, bytes, holes, missing: place.missing })
        });
        let none = LeastPlace { region: u32::MAX, bytes: 0..0, holes: u64::MAX, missing: u64::MAX };
        found.unwrap_or(none)
    }

    /// How many pages must be new where all handles that are free elsewhere move to a place.
    pub(super) fn new_if_moved(&self, home: &Arena, place: &LeastPlace, share: bool) -> u64 {
        let mut new = place.holes;
        self.free_elsewhere(home, place, share, |pages| {
            new = new.saturating_sub(pages);
            new > 0
        });
        new
    }

    /// Whether moving takes clearly fewer mappings than a span of this many parts, and no more new memory than
    /// may be taken.
    pub(super) fn moves_fewer(
        &self,
        growth: &Growth,
        home: &Arena,
        (size, share): (u64, bool),
        parts: usize,
    ) -> bool {
        let place = self.least_place(growth, home, size);
        let new = self.new_if_moved(home, &place, share);
        let mut handles = Vec::new();
        self.free_elsewhere(home, &place, share, |pages| {
            handles.push(pages);
            true
        });
        handles.sort_unstable();
        let mut left = place.missing.saturating_sub(new);
        let mut mappings = u64::from(new > 0);
        while left > 0 {
            let Some(pages) = handles.pop() else { break };
            left = left.saturating_sub(pages);
            mappings += 1;
        }
        self.may_grow(growth, new) && mappings * 100 < parts as u64 * FEWER
    }

    /// The pages of each handle that lies wholly free outside of a place, until `visit` has seen enough.
    fn free_elsewhere(
        &self,
        home: &Arena,
        place: &LeastPlace,
        share: bool,
        mut visit: impl FnMut(u64) -> bool,
    ) {
        for arena in self.shared_arenas().filter(|arena| share || arena.number == home.number) {
            let inner = arena.lock();
            for (_, node) in inner.heap.free_pieces() {
                let same = (arena.number, node.region) == (home.number, place.region);
                let whole = inner.region(node).into_iter().flat_map(|region| region.whole(node));
                for (first, extent) in whole {
                    let (from, to) = (first * self.page, (first + extent.pages) * self.page);
                    let outside = !same || to <= place.bytes.start || from >= place.bytes.end;
                    if outside && !visit(extent.pages) {
                        return;
                    }
                }
            }
        }
    }
}
