//! Where blocks lie in address ranges: split, merge, best fit. It calls no device.
//!
//! An address range (a *region*) is cut into pieces that are live or free, linked in the
//! order of their addresses. Addresses may have no memory behind them yet, so a free
//! piece carries the length of its mapped front, `ready`: what it can serve without asking
//! the device.
//!
//! Free pieces are indexed by size (`bins`). The index key also decides which free neighbours
//! are merged. With [`IndexKey::Ready`], mapped memory is preferred: a piece is either all mapped
//! or not mapped at all, so that every mapped stretch can be found. With [`IndexKey::Length`], the
//! tightest place wins and pages are moved to it: free neighbours are always merged, and small blocks go to
//! rests of pages first (`rests`).

use super::bins::{BinEntry, Bins, Spot};
use super::rests::{PageRests, RestSide, RestSpots};
use super::tag::{UseTag, UseTags};

/// The number of a piece.
pub(super) type PieceId = u32;
/// No piece.
pub(super) const NONE: PieceId = u32::MAX;

/// What is known of a piece.
#[derive(Debug, Clone)]
pub(super) struct PieceNode {
    /// Bytes from the start of the region.
    pub(super) offset: u64,
    pub(super) size: u64,
    /// Free: bytes at the front that have memory behind them. Live: bytes asked for.
    pub(super) ready: u64,
    pub(super) before: PieceId,
    pub(super) after: PieceId,
    /// Where the index has it, and its rests of pages.
    spot: Spot,
    rests: RestSpots,
    pub(super) region: u32,
    /// Counts how often this number was handed out: a stale block does not match.
    pub(super) generation: u64,
    pub(super) state: PieceState,
    /// Free: the streams that may still use it. Live: the stream it was handed to.
    pub(super) tags: UseTags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceState {
    Live,
    /// Returned, and not merged yet.
    Aside,
    Free,
    /// A block in memory that other pieces lent (`lend`): it has no neighbours and no region.
    Loan,
    /// The number is not in use.
    Unused,
}

/// What the index goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexKey {
    /// What is mapped: the best fit that asks nothing of the device.
    Ready,
    /// The whole piece: the tightest place, mapped or not. Rests of pages of this many bytes are found too.
    Length { page: u64 },
}

/// The pieces of some regions, and the index of the free ones.
#[derive(Debug)]
pub(super) struct Heap {
    nodes: Vec<PieceNode>,
    unused: Vec<PieceId>,
    bins: Bins,
    /// Where pieces are indexed by their length.
    rests: Option<PageRests>,
}

impl Heap {
    pub(super) fn new(key: IndexKey) -> Heap {
        let rests = match key {
            IndexKey::Ready => None,
            IndexKey::Length { page } => Some(PageRests::new(page)),
        };
        Heap { nodes: Vec::new(), unused: Vec::new(), bins: Bins::default(), rests }
    }

    pub(super) fn node(&self, piece: PieceId) -> &PieceNode {
        &self.nodes[piece as usize]
    }

    pub(super) fn get(&self, piece: PieceId) -> Option<&PieceNode> {
        self.nodes.get(piece as usize)
    }

    fn node_mut(&mut self, piece: PieceId) -> &mut PieceNode {
        &mut self.nodes[piece as usize]
    }

    /// The addresses of a free piece and all free pieces around it.
    pub(super) fn run(&self, piece: PieceId) -> std::ops::Range<u64> {
        let (mut first, mut last) = (piece, piece);
        while self.is_free(self.node(first).before) {
            first = self.node(first).before;
        }
        while self.is_free(self.node(last).after) {
            last = self.node(last).after;
        }
        self.node(first).offset..self.node(last).offset + self.node(last).size
    }

    /// All free pieces.
    pub(super) fn free_pieces(&self) -> impl Iterator<Item = (PieceId, &PieceNode)> {
        self.nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.state == PieceState::Free)
            .map(|(piece, node)| (piece as PieceId, node))
    }

    /// The free pieces with no free piece before them.
    pub(super) fn first_of_runs(&self) -> impl Iterator<Item = PieceId> {
        self.free_pieces().filter(|(_, node)| !self.is_free(node.before)).map(|(piece, _)| piece)
    }

    /// A free piece and all that follow it without a live one between.
    pub(super) fn run_from(&self, first: PieceId) -> impl Iterator<Item = (PieceId, &PieceNode)> {
        let after =
            |piece: &PieceId| Some(self.node(*piece).after).filter(|next| self.is_free(*next));
        std::iter::successors(Some(first), after).map(|piece| (piece, self.node(piece)))
    }

    fn new_node(&mut self, region: u32, offset: u64, size: u64, ready: u64) -> PieceId {
        let fresh = |generation| PieceNode {
            offset,
            size,
            ready,
            before: NONE,
            after: NONE,
            spot: Spot::NONE,
            rests: [Spot::NONE; 2],
            region,
            generation,
            state: PieceState::Free,
            tags: UseTags::NONE,
        };
        match self.unused.pop() {
            Some(piece) => {
                let generation = self.node(piece).generation;
                *self.node_mut(piece) = fresh(generation);
                piece
            }
            None => {
                self.nodes.push(fresh(0));
                (self.nodes.len() - 1) as PieceId
            }
        }
    }

    /// Whether pieces are indexed by their length, mapped or not.
    pub(super) fn goes_by_length(&self) -> bool {
        self.rests.is_some()
    }

    /// Adds a region as one free piece.
    pub(super) fn add_region(&mut self, region: u32, size: u64, ready: u64) -> PieceId {
        let piece = self.new_node(region, 0, size, ready);
        self.index(piece);
        piece
    }

    /// Takes a region away that is one free piece.
    pub(super) fn remove_region(&mut self, piece: PieceId) {
        self.unindex(piece);
        self.retire(piece);
    }

    fn retire(&mut self, piece: PieceId) {
        let node = self.node_mut(piece);
        node.state = PieceState::Unused;
        node.tags = UseTags::NONE;
        self.unused.push(piece);
    }

    fn index(&mut self, piece: PieceId) {
        self.index_at(Spot::NONE, piece);
    }

    /// Indexes a piece where another stood, which saves moving others if it is of about
    /// the same size: what is left of a piece, or what it has grown to, mostly is.
    fn index_at(&mut self, spot: Spot, piece: PieceId) {
        let node = self.node(piece);
        let length = if self.goes_by_length() { node.size } else { node.ready };
        let place = u64::from(node.region) << 40 | node.offset >> 7;
        let bytes = (node.offset, node.size);
        let entry = BinEntry { length, place, piece };
        let spot = if length > 0 && self.bins.replace(spot, &entry) {
            spot
        } else {
            self.unindex_spot(spot);
            if length > 0 { self.bins.insert(entry) } else { Spot::NONE }
        };
        self.node_mut(piece).spot = spot;
        if let Some(rests) = &mut self.rests {
            self.nodes[piece as usize].rests = rests.insert(piece, place, bytes);
        }
    }

    fn unindex_spot(&mut self, spot: Spot) {
        if let Some(moved) = self.bins.remove(spot) {
            self.node_mut(moved).spot = spot;
        }
    }

    /// Leaves the entry of a piece to whoever comes in its place.
    fn leave(&mut self, piece: PieceId) -> Spot {
        if let Some(rests) = &mut self.rests {
            let spots = std::mem::replace(&mut self.nodes[piece as usize].rests, [Spot::NONE; 2]);
            for (side, spot) in RestSide::BOTH.into_iter().zip(spots) {
                if let Some(moved) = rests.remove(side, spot) {
                    self.nodes[moved as usize].rests[side as usize] = spot;
                }
            }
        }
        std::mem::replace(&mut self.node_mut(piece).spot, Spot::NONE)
    }

    fn unindex(&mut self, piece: PieceId) {
        let spot = self.leave(piece);
        self.unindex_spot(spot);
    }

    /// The smallest free piece that holds `size` and that `usable` lets pass; of equals
    /// the one at the lowest address. Looks at no more than `most` pieces of a bin, so
    /// that a crowd of equals is cheap.
    pub(super) fn best_fit(
        &self,
        size: u64,
        most: usize,
        usable: impl Fn(&PieceNode) -> bool,
    ) -> Option<PieceId> {
        self.bins.best_fit(size, most, |piece| usable(self.node(piece)))
    }

    /// The smallest rest of a page that holds `size` and that `usable` lets pass; of equals one at the
    /// front of a piece.
    pub(super) fn best_rest(
        &self,
        size: u64,
        most: usize,
        usable: impl Fn(&PieceNode) -> bool,
    ) -> Option<(PieceId, RestSide)> {
        let rests = self.rests.as_ref()?;
        let found = RestSide::BOTH.map(|side| {
            let piece = rests.best_fit(side, (size, most), |piece| usable(self.node(piece)))?;
            let node = self.node(piece);
            Some((rests.length(side, (node.offset, node.size)), piece, side))
        });
        let best = found.into_iter().flatten().min_by_key(|(length, ..)| *length);
        best.map(|(_, piece, side)| (piece, side))
    }

    /// Hands out the last `size` bytes of a free piece; the rest stays free.
    pub(super) fn take_end(&mut self, piece: PieceId, size: u64) -> PieceId {
        let left = self.node(piece).size - size;
        if left == 0 {
            return self.take(piece, size);
        }
        let spot = self.leave(piece);
        let end = self.split(piece, left);
        let node = self.node_mut(piece);
        node.ready = node.ready.min(left);
        self.index_at(spot, piece);
        self.make_live(end);
        end
    }

    /// Hands out the first `size` bytes of a free piece; the rest stays free.
    #[inline]
    pub(super) fn take(&mut self, piece: PieceId, size: u64) -> PieceId {
        let spot = self.leave(piece);
        if size < self.node(piece).size {
            let ready = self.node(piece).ready.saturating_sub(size);
            let rest = self.split(piece, size);
            self.node_mut(rest).ready = ready;
            self.index_at(spot, rest);
        } else {
            self.unindex_spot(spot);
        }
        let node = self.node_mut(piece);
        node.state = PieceState::Live;
        node.generation = node.generation.wrapping_add(1);
        piece
    }

    /// Joins the free pieces around this one, however they are mapped, and cuts
    /// `[from, to)` out of them. It is taken out of the index, and so are the pieces left
    /// of it and right of it, which are returned too: each must be settled.
    pub(super) fn carve(&mut self, piece: PieceId, from: u64, to: u64) -> (PieceId, [PieceId; 2]) {
        let mut piece = piece;
        while self.is_free(self.node(piece).before) {
            piece = self.node(piece).before;
        }
        self.unindex(piece);
        while self.is_free(self.node(piece).after) {
            let after = self.node(piece).after;
            self.unindex(after);
            self.absorb(piece, after);
        }
        let PieceNode { offset, size, .. } = *self.node(piece);
        let right = if to < offset + size { self.split(piece, to - offset) } else { NONE };
        if from > offset {
            let middle = self.split(piece, from - offset);
            return (middle, [piece, right]);
        }
        (piece, [NONE, right])
    }

    /// Makes a carved piece live.
    pub(super) fn make_live(&mut self, piece: PieceId) {
        let node = self.node_mut(piece);
        node.state = PieceState::Live;
        node.generation = node.generation.wrapping_add(1);
    }

    fn is_free(&self, piece: PieceId) -> bool {
        piece != NONE && self.node(piece).state == PieceState::Free
    }

    /// Whether two free neighbours are to be one piece.
    fn belong(&self, left: PieceId, right: PieceId) -> bool {
        let mapped = |node: &PieceNode| node.ready == node.size;
        self.goes_by_length() || mapped(self.node(left)) == mapped(self.node(right))
    }

    /// Cuts a piece where its mapping changes. The right one is returned, not indexed and
    /// already marked as mapped or not.
    pub(super) fn split_where_mapping_changes(
        &mut self,
        piece: PieceId,
        at: u64,
        mapped: bool,
    ) -> PieceId {
        let right = self.split(piece, at);
        let node = self.node_mut(right);
        node.ready = if mapped { node.size } else { 0 };
        right
    }

    /// Cuts a piece that is not indexed in two; returns the right one, not indexed.
    fn split(&mut self, piece: PieceId, at: u64) -> PieceId {
        let PieceNode { region, offset, size, after, .. } = *self.node(piece);
        let right = self.new_node(region, offset + at, size - at, 0);
        self.node_mut(right).before = piece;
        self.node_mut(right).after = after;
        self.node_mut(right).tags = self.node(piece).tags.clone();
        if after != NONE {
            self.node_mut(after).before = right;
        }
        let node = self.node_mut(piece);
        node.after = right;
        node.size = at;
        right
    }

    /// Takes a live piece back, to be freed or to be handed out again as it is.
    pub(super) fn set_aside(&mut self, piece: PieceId, tags: UseTags) {
        let node = self.node_mut(piece);
        node.state = PieceState::Aside;
        node.tags = tags;
    }

    /// Makes a piece free that was set aside, all of which is mapped.
    pub(super) fn free(&mut self, piece: PieceId) -> PieceId {
        let node = self.node_mut(piece);
        node.state = PieceState::Free;
        let mapped = node.size;
        self.settle(piece, mapped)
    }

    /// Indexes a free piece of which this much is mapped, merged with its neighbours.
    pub(super) fn settle(&mut self, piece: PieceId, ready: u64) -> PieceId {
        let node = self.node_mut(piece);
        node.ready = ready;
        let PieceNode { before, after, .. } = *node;
        let with_before = self.is_free(before) && self.belong(before, piece);
        let with_after = self.is_free(after) && self.belong(piece, after);
        let mut spot = Spot::NONE;
        if with_after {
            if with_before {
                self.unindex(after);
            } else {
                spot = self.leave(after);
            }
            self.absorb(piece, after);
        }
        let mut piece = piece;
        if with_before {
            spot = self.leave(before);
            self.absorb(before, piece);
            piece = before;
        }
        self.index_at(spot, piece);
        piece
    }

    /// Makes a live piece free that is not all mapped, to be settled.
    pub(super) fn make_free(&mut self, piece: PieceId) {
        self.node_mut(piece).state = PieceState::Free;
    }

    /// Takes a free piece out of the index, to be settled again.
    pub(super) fn unsettle(&mut self, piece: PieceId) {
        self.unindex(piece);
    }

    /// Joins a free piece with the free one after it; neither is indexed.
    fn absorb(&mut self, left: PieceId, right: PieceId) {
        let node = self.node_mut(right);
        let (size, ready, after) = (node.size, node.ready, node.after);
        let tags = std::mem::replace(&mut node.tags, UseTags::NONE);
        let node = self.node_mut(left);
        if node.ready == node.size {
            node.ready += ready;
        }
        node.size += size;
        node.after = after;
        node.tags.join(&tags);
        if after != NONE {
            self.node_mut(after).before = left;
        }
        self.retire(right);
    }

    /// Adds a block in lent memory; returns its number and generation.
    pub(super) fn add_loan(&mut self, size: u64, asked: u64, tag: UseTag) -> (PieceId, u64) {
        let piece = self.new_node(u32::MAX, 0, size, asked);
        let node = self.node_mut(piece);
        node.state = PieceState::Loan;
        node.generation = node.generation.wrapping_add(1);
        node.tags = UseTags::of(tag);
        (piece, node.generation)
    }

    /// Takes a block away that lay in lent memory.
    pub(super) fn remove_loan(&mut self, piece: PieceId) {
        self.retire(piece);
    }

    /// The free piece that these bytes of a region lie in.
    pub(super) fn free_piece_at(
        &self,
        region: u32,
        bytes: std::ops::Range<u64>,
    ) -> Option<PieceId> {
        let mut pieces = self.free_pieces().filter(|(_, node)| node.region == region);
        let around =
            |node: &PieceNode| node.offset <= bytes.start && bytes.end <= node.offset + node.size;
        pieces.find(|(_, node)| around(node)).map(|(piece, _)| piece)
    }

    /// Notes what a live piece was asked for, and by which stream.
    pub(super) fn set_owner(&mut self, piece: PieceId, asked: u64, tag: UseTag) {
        let node = self.node_mut(piece);
        node.ready = asked;
        node.tags = UseTags::of(tag);
    }

    /// Adds users to a free piece.
    pub(super) fn add_users(&mut self, piece: PieceId, users: &UseTags) {
        self.node_mut(piece).tags.join(users);
    }

    /// Adds users to the free pieces beside a live one.
    pub(super) fn add_users_beside(&mut self, piece: PieceId, users: &UseTags) {
        let PieceNode { before, after, .. } = *self.node(piece);
        for beside in [before, after] {
            if self.is_free(beside) {
                self.add_users(beside, users);
            }
        }
    }

    /// Notes how much of a free piece is mapped that is not indexed.
    pub(super) fn set_ready(&mut self, piece: PieceId, ready: u64) {
        self.node_mut(piece).ready = ready;
    }

    /// Adds users to every free piece.
    pub(super) fn tag_all_free(&mut self, tags: &UseTags) {
        for node in self.nodes.iter_mut().filter(|node| node.state == PieceState::Free) {
            node.tags.join(tags);
        }
    }
}
