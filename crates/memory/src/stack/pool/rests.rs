//! Rests of pages: where tight packing puts small blocks first.
//!
//! A page that is partly in use cannot move, so its free rest is good for blocks that fit in there and for
//! hardly anything else. A small block that goes there leaves a whole page to others.

use super::bins::{BinEntry, Bins, Spot};
use super::heap::PieceId;

/// Which end of a free piece is the rest of a page that is partly in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RestSide {
    /// It begins inside the page.
    Front,
    /// It begins before the page or with it, and ends inside.
    End,
}

/// Where the index has the rests of a piece: its front and its end.
pub(super) type RestSpots = [Spot; 2];

/// The rests of all free pieces, by size.
#[derive(Debug)]
pub(super) struct PageRests {
    page: u64,
    bins: [Bins; 2],
}

impl RestSide {
    pub(super) const BOTH: [RestSide; 2] = [RestSide::Front, RestSide::End];
}

impl PageRests {
    /// None yet, of pages of this many bytes.
    pub(super) fn new(page: u64) -> PageRests {
        PageRests { page, bins: [Bins::default(), Bins::default()] }
    }

    /// The bytes of a piece that are the rest of a page; 0 where that side has none.
    pub(super) fn length(&self, side: RestSide, (offset, size): (u64, u64)) -> u64 {
        match side {
            RestSide::Front => match offset % self.page {
                0 => 0,
                into => size.min(self.page - into),
            },
            RestSide::End => match (offset + size) % self.page {
                // The whole piece lies inside the page: that is its front.
                into if into > size => 0,
                into => into,
            },
        }
    }

    /// Notes the rests of a piece; tells where they stand.
    pub(super) fn insert(&mut self, piece: PieceId, place: u64, bytes: (u64, u64)) -> RestSpots {
        RestSide::BOTH.map(|side| match self.length(side, bytes) {
            0 => Spot::NONE,
            length => self.bins[side as usize].insert(BinEntry { length, place, piece }),
        })
    }

    /// Forgets what stands there; returns the piece that has moved to the spot.
    pub(super) fn remove(&mut self, side: RestSide, spot: Spot) -> Option<PieceId> {
        self.bins[side as usize].remove(spot)
    }

    /// The smallest rest on a side that holds `size` and that `usable` lets pass; looks at no more than `most` of a
    /// bin.
    pub(super) fn best_fit(
        &self,
        side: RestSide,
        (size, most): (u64, usize),
        usable: impl Fn(PieceId) -> bool,
    ) -> Option<PieceId> {
        self.bins[side as usize].best_fit(size, most, usable)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_rest_is_what_a_piece_has_of_a_page_that_it_does_not_fill() {
        let rests = PageRests::new(100);
        let lengths = |offset, size| RestSide::BOTH.map(|side| rests.length(side, (offset, size)));
        assert_eq!(lengths(100, 300), [0, 0], "whole pages");
        assert_eq!(lengths(130, 270), [70, 0]);
        assert_eq!(lengths(100, 250), [0, 50]);
        assert_eq!(lengths(130, 200), [70, 30]);
        assert_eq!(lengths(130, 80), [70, 10], "no whole page between them");
        assert_eq!(lengths(130, 20), [20, 0], "the middle of a page");
        assert_eq!(lengths(130, 70), [70, 0]);
        assert_eq!(lengths(100, 20), [0, 20]);
    }

    #[test]
    fn the_smallest_that_holds_a_block_is_found_on_its_side() {
        let mut rests = PageRests::new(1000);
        let spots: Vec<_> = [(1400, 2600), (2700, 1500), (5000, 300)]
            .into_iter()
            .zip(0..)
            .map(|(bytes, piece)| rests.insert(piece, bytes.0, bytes))
            .collect();
        let fit = |rests: &PageRests, side, size| rests.best_fit(side, (size, 32), |_| true);
        assert_eq!(fit(&rests, RestSide::Front, 200), Some(1));
        assert_eq!(fit(&rests, RestSide::Front, 400), Some(0));
        assert_eq!(fit(&rests, RestSide::End, 200), Some(1));
        assert_eq!(fit(&rests, RestSide::End, 250), Some(2));
        assert_eq!(fit(&rests, RestSide::End, 400), None);
        assert_eq!(rests.remove(RestSide::End, spots[1][1]), None);
        assert_eq!(fit(&rests, RestSide::End, 150), Some(2));
    }
}
