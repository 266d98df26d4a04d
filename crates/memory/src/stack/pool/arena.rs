//! A heap with a lock of its own: the unit of contention.
//!
//! Each stream has its home arena, so threads that work on streams of their own do not
//! meet. Which arena a piece lies in says nothing about which stream may use it: that is
//! the tags' business. An arena that has room serves any stream.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::heap::{Heap, IndexKey, NONE, PieceId, PieceNode, PieceState};
use super::order::StreamOrder;
use super::peaks::Peaks;
use super::plain_blocks::Pins;
use super::region::Region;
use super::rests::RestSide;
use super::tag::{UseTag, UseTags};
use crate::memory::{Address, Stream};
use crate::stats::{Counters, StatFigures};

/// How many pieces of a bin the fast path looks at.
const LOOKS: usize = 32;
/// What waiting for other threads may cost: nanoseconds for each request, and to begin with.
const CREDIT: u64 = 400;
const FIRST_CREDIT: u64 = 20_000_000;
/// What it costs to wait for another thread.
const WAITED: u64 = 20_000;

#[derive(Debug)]
pub(super) struct ArenaState {
    pub(super) heap: Heap,
    pub(super) regions: Vec<Option<Region>>,
    pub(super) figures: StatFigures,
    /// Whether regions are plain blocks.
    plain: bool,
    /// Nanoseconds that waiting for locks has cost, and how many waits it has counted so far.
    waited: u64,
    crowd: u64,
    /// The piece that was returned last, set aside until somebody else comes.
    last: PieceId,
    /// On devices that cannot map, for arenas that others may use: what is pinned in all of them.
    pins: Option<Arc<Pins>>,
    /// On devices that cannot map: bytes of regions that are wholly free.
    whole: u64,
    /// On devices that cannot map: what this arena last said it has pinned.
    pinned: u64,
    /// Who else may use what is returned: the streams on which a graph may have run that is gone.
    pub(super) late_users: Option<UseTags>,
    /// The most that was ever live here, and what is updated when it rises.
    most_live: u64,
    peaks: Arc<Peaks>,
}

/// What a successful search gives.
#[derive(Debug, Clone, Copy)]
pub(super) struct TakenPiece {
    pub(super) piece: PieceId,
    pub(super) generation: u64,
    pub(super) address: Address,
}

/// Why an arena could not serve a request at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Miss {
    /// It has a piece that would do, of which another stream may still be a user.
    pub(super) unordered: bool,
    /// It may take from other arenas.
    pub(super) share: bool,
}

/// What became of a block that was to be returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GiveBack {
    /// It is not live here.
    Stranger,
    Taken,
    /// It was the last that was live here.
    Last,
    /// It lies in memory that others lent: nothing was done yet.
    Lent,
}

/// On cache lines of its own: arenas lie side by side and have different threads.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Arena {
    /// Its number in blocks' names.
    pub(super) number: u32,
    inner: Mutex<ArenaState>,
    counters: Counters,
    /// How often anyone had to wait for a lock of any arena of the pool.
    crowd: Arc<AtomicU64>,
}

impl Arena {
    pub(super) fn new(
        number: u32,
        key: IndexKey,
        plain: bool,
        pins: Option<&Arc<Pins>>,
        (crowd, peaks): (&Arc<AtomicU64>, &Arc<Peaks>),
    ) -> Arena {
        let inner = ArenaState {
            heap: Heap::new(key),
            regions: Vec::new(),
            figures: StatFigures::default(),
            plain,
            last: NONE,
            waited: 0,
            crowd: crowd.load(Ordering::Relaxed),
            pins: pins.filter(|_| plain).map(Arc::clone),
            whole: 0,
            pinned: 0,
            late_users: None,
            most_live: 0,
            peaks: Arc::clone(peaks),
        };
        let (inner, counters) = (Mutex::new(inner), Counters::default());
        Arena { number, inner, counters, crowd: Arc::clone(crowd) }
    }

    /// Locked, with everything that lies free merged: how all but the fast path see it.
    pub(super) fn lock(&self) -> MutexGuard<'_, ArenaState> {
        let mut inner = self.lock_as_is();
        inner.merge_last();
        inner
    }

    fn lock_as_is(&self) -> MutexGuard<'_, ArenaState> {
        match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.crowd.fetch_add(1, Ordering::Relaxed);
                self.inner.lock().unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    /// Makes what was counted visible. Called before the lock is given up.
    pub(super) fn publish(&self, inner: &mut ArenaState) {
        self.counters.publish(&inner.figures);
        let live = inner.figures.live;
        if live > inner.most_live {
            inner.peaks.live_rose(live - std::mem::replace(&mut inner.most_live, live));
        }
        if let Some(pins) = &inner.pins {
            let now = inner.figures.held - inner.figures.taken - inner.whole;
            pins.update(std::mem::replace(&mut inner.pinned, now), now);
        }
    }

    pub(super) fn figures(&self) -> StatFigures {
        self.counters.snapshot()
    }

    /// Goes up whenever the figures change.
    pub(super) fn version(&self) -> u64 {
        self.counters.version()
    }

    /// Hands out a piece that is mapped and that the stream is behind already.
    #[inline]
    pub(super) fn try_take(
        &self,
        order: &StreamOrder,
        stream: Stream,
        size: u64,
        asked: u64,
    ) -> Result<TakenPiece, Miss> {
        let mut inner = self.lock_as_is();
        let last = inner.take_last(order, stream, size);
        let Some(piece) = last.or_else(|| inner.take_fitting(order, stream, size)) else {
            return Err(Miss {
                unordered: inner.heap.best_fit(size, usize::MAX, |_| true).is_some(),
                share: inner.may_share(self.crowd.load(Ordering::Relaxed)),
            });
        };
        let found = inner.hand_out(piece, asked, order.tag(stream));
        inner.figures.hits += 1;
        self.publish(&mut inner);
        Ok(found)
    }

    /// The same for a stream that is not at home here: it hears no reasons.
    pub(super) fn try_serve(
        &self,
        order: &StreamOrder,
        stream: Stream,
        size: u64,
        asked: u64,
    ) -> Option<TakenPiece> {
        let mut inner = self.lock();
        let piece = inner.take_fitting(order, stream, size)?;
        let found = inner.hand_out(piece, asked, order.tag(stream));
        inner.figures.hits += 1;
        self.publish(&mut inner);
        Some(found)
    }

    /// Takes a block back.
    #[inline]
    pub(super) fn give_back(
        &self,
        order: &StreamOrder,
        piece: PieceId,
        generation: u64,
        asked: u64,
        stream: Stream,
    ) -> GiveBack {
        let mut inner = self.lock_as_is();
        let Some(node) = inner.heap.get(piece) else { return GiveBack::Stranger };
        // The size too: whoever counts above goes by what the block says.
        if node.state != PieceState::Live || node.generation != generation || node.ready != asked {
            let lent = node.state == PieceState::Loan && node.generation == generation;
            return if lent && node.ready == asked { GiveBack::Lent } else { GiveBack::Stranger };
        }
        let size = node.size;
        let mut tags = order.users_of(node.tags.first().stream(), stream);
        if let Some(late) = &inner.late_users {
            tags.join(late);
        }
        inner.merge_last();
        inner.heap.set_aside(piece, tags);
        inner.last = piece;
        inner.figures.taken -= size;
        inner.figures.live -= asked;
        inner.figures.blocks -= 1;
        self.publish(&mut inner);
        if inner.figures.blocks == 0 { GiveBack::Last } else { GiveBack::Taken }
    }
}

impl ArenaState {
    /// Whether the arena may go on sharing: taking pieces and pages from others keeps what
    /// is held small, and costs locks. Where threads are in each other's way all the time,
    /// each had better have memory of its own. A single thread always shares: what it holds
    /// must not depend on how long it has run.
    fn may_share(&mut self, crowd: u64) -> bool {
        let new = crowd - std::mem::replace(&mut self.crowd, crowd).min(crowd);
        // Old waits count for less and less, or a storm would be remembered for ever.
        self.waited = self.waited / 2 + new * WAITED;
        let requests = self.figures.hits + self.figures.misses;
        self.waited <= FIRST_CREDIT + requests * CREDIT
    }

    /// Takes the piece that was returned last, if it is of just this size. Half of all
    /// requests are for what was returned just before: they need no search, cut or merge.
    #[inline]
    fn take_last(&mut self, order: &StreamOrder, stream: Stream, size: u64) -> Option<PieceId> {
        if self.last == NONE {
            return None;
        }
        let node = self.heap.node(self.last);
        if node.size != size || !order.is_behind(stream, &node.tags) {
            self.merge_last();
            return None;
        }
        self.heap.make_live(self.last);
        Some(std::mem::replace(&mut self.last, NONE))
    }

    /// Takes the best fit that is mapped and that the stream is behind, of rests of pages first.
    #[inline]
    fn take_fitting(&mut self, order: &StreamOrder, stream: Stream, size: u64) -> Option<PieceId> {
        if let Some(piece) = self.take_rest(order, stream, size) {
            return Some(piece);
        }
        let piece = self.heap.best_fit(size, LOOKS, |node| {
            order.is_behind(stream, &node.tags) && self.suits(node, size)
        })?;
        (self.heap.node(piece).ready >= size).then(|| self.take_front(piece, size))
    }

    /// Takes the smallest rest of a page that the stream is behind, unless its page is still being mapped.
    fn take_rest(&mut self, order: &StreamOrder, stream: Stream, size: u64) -> Option<PieceId> {
        let behind = |node: &PieceNode| order.is_behind(stream, &node.tags);
        let (piece, side) = self.heap.best_rest(size, LOOKS, behind)?;
        let node = self.heap.node(piece);
        let is_mapped = match side {
            RestSide::Front => node.ready > 0,
            RestSide::End => {
                let last = node.offset + node.size - 1;
                node.ready == node.size || self.region(node)?.is_mapped(last)
            }
        };
        is_mapped.then(|| match side {
            RestSide::Front => self.heap.take(piece, size),
            RestSide::End => self.heap.take_end(piece, size),
        })
    }

    /// Merges the piece that was returned last with its neighbours.
    fn merge_last(&mut self) {
        if self.last == NONE {
            return;
        }
        let merged = self.heap.free(std::mem::replace(&mut self.last, NONE));
        if self.is_whole_region(self.heap.node(merged)) {
            self.whole += self.heap.node(merged).size;
        }
    }

    /// Hands out a piece that has become live.
    #[inline]
    pub(super) fn hand_out(&mut self, piece: PieceId, asked: u64, tag: UseTag) -> TakenPiece {
        self.count(piece, asked);
        self.own(piece, asked, tag)
    }

    /// Notes who a live piece belongs to, and tells where it lies.
    #[inline]
    pub(super) fn own(&mut self, piece: PieceId, asked: u64, tag: UseTag) -> TakenPiece {
        self.heap.set_owner(piece, asked, tag);
        let node = self.heap.node(piece);
        let address = self.regions[node.region as usize]
            .as_ref()
            .map_or(Address { buffer: 0, offset: 0 }, |region| region.base.plus(node.offset));
        TakenPiece { piece, generation: node.generation, address }
    }

    /// Counts a live piece, once there is memory behind it.
    #[inline]
    pub(super) fn count(&mut self, piece: PieceId, asked: u64) {
        self.figures.taken += self.heap.node(piece).size;
        self.figures.live += asked;
        self.figures.blocks += 1;
    }

    /// Frees a live piece whose pages could not be had, before it was counted.
    pub(super) fn undo(&mut self, piece: PieceId) {
        self.heap.make_free(piece);
        self.settle(piece);
    }

    /// Adds a region as one free piece.
    pub(super) fn add_region(&mut self, region: Region, ready: u64) -> PieceId {
        let size = region.size;
        let number = match self.regions.iter().position(Option::is_none) {
            Some(number) => {
                self.regions[number] = Some(region);
                number
            }
            None => {
                self.regions.push(Some(region));
                self.regions.len() - 1
            }
        };
        if self.plain {
            self.whole += size;
        }
        self.heap.add_region(number as u32, size, ready)
    }

    /// Takes a region away that lies wholly free.
    pub(super) fn remove_region(&mut self, piece: PieceId, node: &PieceNode) {
        self.heap.remove_region(piece);
        self.regions[node.region as usize] = None;
        self.figures.held -= node.size;
        self.whole -= node.size;
    }

    /// Whether a piece is a good place for this size, or a plain block that lies wholly
    /// free and is better given back than pinned.
    #[inline]
    pub(super) fn suits(&self, node: &PieceNode, size: u64) -> bool {
        self.pins
            .as_ref()
            .is_none_or(|pins| !self.is_whole_region(node) || pins.allow(node.size - size))
    }

    /// Makes the first bytes of a free piece live.
    #[inline]
    pub(super) fn take_front(&mut self, piece: PieceId, size: u64) -> PieceId {
        if self.is_whole_region(self.heap.node(piece)) {
            self.whole -= self.heap.node(piece).size;
        }
        self.heap.take(piece, size)
    }

    pub(super) fn region(&self, node: &PieceNode) -> Option<&Region> {
        self.regions.get(node.region as usize)?.as_ref()
    }

    pub(super) fn region_mut(&mut self, number: u32) -> Option<&mut Region> {
        self.regions.get_mut(number as usize)?.as_mut()
    }

    /// Indexes a free piece that is not indexed, after looking up what is mapped.
    pub(super) fn settle(&mut self, piece: PieceId) {
        let mut piece = piece;
        loop {
            let node = self.heap.node(piece);
            let (mapped, length) =
                self.region(node).map_or((false, node.size), |region| region.stretch(node));
            let ready = if mapped { length } else { 0 };
            if length == node.size || self.heap.goes_by_length() {
                self.heap.settle(piece, ready);
                return;
            }
            let rest = self.heap.split_where_mapping_changes(piece, length, !mapped);
            self.heap.settle(piece, ready);
            piece = rest;
        }
    }

    /// Settles the free neighbours of a piece again, behind which pages came or went.
    pub(super) fn settle_around(&mut self, piece: PieceId) {
        // One at a time: settling one may merge it with what lies beyond.
        for side in [|node: &PieceNode| node.before, |node: &PieceNode| node.after] {
            let neighbour = side(self.heap.node(piece));
            if neighbour != NONE && self.heap.node(neighbour).state == PieceState::Free {
                self.heap.unsettle(neighbour);
                self.settle(neighbour);
            }
        }
    }

    /// Whether a free piece is all of its region.
    #[inline]
    pub(super) fn is_whole_region(&self, node: &PieceNode) -> bool {
        self.plain && node.before == NONE && node.after == NONE
    }
}
