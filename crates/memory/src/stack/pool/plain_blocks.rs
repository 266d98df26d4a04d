//! Plain blocks from the device, for devices that cannot map.
//!
//! They cannot move, so what counts is how they are cut. A large request gets a block of
//! its own size, small ones share blocks, and before another is taken, blocks that lie
//! wholly free are given back, as many as are needed to keep what is held from growing.
//!
//! That leaves what is *pinned*: free bytes in a block of which some other part is live.
//! They are the waste, and they begin with a small request that is cut from a large block
//! that lay wholly free. So the pool counts them, and once they are an eighth of the most
//! that was ever held, such a request gets a block of its own instead: a device call now
//! for a bound on what is held.

use std::sync::atomic::{AtomicU64, Ordering};

use super::arena::{Arena, TakenPiece};
use super::region::Region;
use super::{Growth, Pool};
use crate::memory::{Memory, Request, Stream};
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

/// Requests below this share blocks.
const SMALL: u64 = 1 << 20;
/// Blocks are a multiple of this, and the ones that are shared are this large.
const STEP: u64 = 2 << 20;

/// The share of the peak that may be pinned.
const PINNED: u64 = 8;

/// What is pinned in all arenas of a pool, and the most that was ever held.
#[derive(Debug, Default)]
pub(super) struct Pins {
    pinned: AtomicU64,
    peak: AtomicU64,
}

impl Pins {
    /// Whether this much more may be pinned.
    pub(super) fn allow(&self, more: u64) -> bool {
        let most = self.peak.load(Ordering::Relaxed) / PINNED;
        self.pinned.load(Ordering::Relaxed) + more <= most.max(STEP)
    }

    /// Replaces what an arena had pinned by what it has now.
    pub(super) fn update(&self, before: u64, now: u64) {
        if before != now {
            // Wraps where it goes down: the sum over all arenas never does.
            self.pinned.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    fn raise_peak(&self, held: u64) {
        self.peak.fetch_max(held, Ordering::Relaxed);
    }
}

impl Pool {
    /// Serves a request from a new block.
    pub(super) fn take_plain_block(
        &self,
        growth: &mut Growth,
        home: &Arena,
        request: Request,
        size: u64,
    ) -> Result<TakenPiece> {
        let wanted = if size < SMALL { STEP } else { Bytes(size).round_up(STEP).0 };
        // Where that is too much, exactly what is needed, as the device counts it.
        let least = Bytes(size).round_up(self.device().info().granularity.0).0;
        self.return_segments(growth, wanted)?;
        let mut block = self.new_plain_block(growth, wanted)?;
        if block.is_none() && wanted > least {
            block = self.new_plain_block(growth, least)?;
        }
        if block.is_none() {
            // Full: now it is worth waiting, and giving everything back that lies free.
            self.await_free(growth)?;
            self.return_segments(growth, u64::MAX)?;
            block = self.new_plain_block(growth, least)?;
        }
        let region = block.ok_or_else(|| self.refusal(request.size))?;
        let held = region.size;
        let mut inner = home.lock();
        let piece = inner.add_region(region, held);
        inner.figures.held += held;
        inner.figures.misses += 1;
        let piece = inner.take_front(piece, size);
        let found = inner.hand_out(piece, request.size.0, self.order.tag(request.stream));
        home.publish(&mut inner);
        Ok(found)
    }

    fn new_plain_block(&self, growth: &mut Growth, size: u64) -> Result<Option<Region>> {
        if size > self.room(growth, size)? {
            return Ok(None);
        }
        match self.upstream.allocate(Request::new(size)) {
            Ok(block) => {
                self.count_held(size);
                self.pins.raise_peak(self.counts.held.load(Ordering::Relaxed));
                Ok(Some(Region::of_block(block, size)))
            }
            Err(error) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives wholly free blocks back, the largest first, until `enough` bytes are.
    pub(super) fn return_segments(&self, growth: &Growth, enough: u64) -> Result<()> {
        let private = self.retired_arenas(growth);
        let mut returned = 0u64;
        for arena in self.shared_arenas().chain(private.iter().map(AsRef::as_ref)) {
            let mut inner = arena.lock();
            let mut free: Vec<_> = inner
                .heap
                .free_pieces()
                .filter(|(_, node)| inner.is_whole_region(node))
                .map(|(piece, node)| (node.size, piece))
                .collect();
            free.sort_unstable();
            while let Some((size, piece)) = free.pop() {
                if returned >= enough {
                    return Ok(());
                }
                let node = inner.heap.node(piece).clone();
                if !self.order.is_over(self.device(), &node.tags)? {
                    continue;
                }
                let Some(block) = inner.region(&node).and_then(|region| region.block) else {
                    continue;
                };
                self.upstream.release(block, Stream::DEFAULT)?;
                inner.remove_region(piece, &node);
                arena.publish(&mut inner);
                self.count_returned(size);
                returned += size;
            }
        }
        Ok(())
    }
}
