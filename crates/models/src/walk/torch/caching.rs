//! PyTorch's caching allocator on CUDA, without memory: blocks out of segments that it keeps.
//!
//! Sizes are rounded up to 512 bytes. A request takes the smallest free block of its pool that
//! is large enough; else the driver is asked for a segment: 2 MiB for requests up to 1 MiB,
//! 20 MiB for those below 10 MiB, else the request in steps of 2 MiB. What is left of a block is
//! cut off, of large ones only where it is more than 1 MiB, and what is freed becomes one with
//! its free neighbours. Each stream has pools of its own. Segments stay until the program gives its cache back, or until the driver
//! refuses a further one: then it gives back what is wholly free, and asks again. So it holds more
//! than lives, and how much more depends on the order in which things come and go.

use std::collections::{BTreeMap, BTreeSet};

const STEP: u64 = 512;
/// Requests up to this are small.
const SMALL: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;
/// Requests below this share a segment.
const SHARED: u64 = 10 << 20;
const SHARED_SEGMENT: u64 = 20 << 20;
/// Larger segments are multiples of this.
const SEGMENT_STEP: u64 = 2 << 20;

/// Where a block begins: its segment, by address, and the offset in it.
pub type CachedBlockId = (usize, u64);

#[derive(Debug, Clone, Copy)]
struct CachedBlock {
    size: u64,
    /// Which stream it belongs to, and whether it is small: nothing else may take it.
    pool: CachedPool,
    free: bool,
}

type CachedPool = (usize, bool);

/// The allocator.
#[derive(Debug, Clone, Default)]
pub struct Caching {
    blocks: BTreeMap<CachedBlockId, CachedBlock>,
    /// Free blocks by size, then place: of each stream the large and the small ones.
    free: Vec<[BTreeSet<(u64, CachedBlockId)>; 2]>,
    segments: usize,
    reserved: u64,
    most_reserved: u64,
    largest_segment: u64,
    allocated: u64,
    peak: u64,
    /// The most that the driver gives, where it is limited.
    room: Option<u64>,
    failed: bool,
}

impl Caching {
    /// An allocator whose driver gives this much and no more.
    #[must_use]
    pub fn within(room: u64) -> Caching {
        Caching { room: Some(room), ..Caching::default() }
    }

    /// Whether every request was met; one that is refused even after all that was free had been given
    /// back ends the program. None where the driver is not limited.
    #[must_use]
    pub fn met(&self) -> Option<bool> {
        self.room.map(|_| !self.failed)
    }

    /// All segments.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The most in segments at once.
    #[must_use]
    pub fn peak_reserved(&self) -> u64 {
        self.most_reserved
    }

    /// The largest piece that the driver was asked for.
    #[must_use]
    pub fn largest_segment(&self) -> u64 {
        self.largest_segment
    }

    /// What is in blocks now.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// The most in blocks at once.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// A block of this many bytes; none for nothing.
    pub fn take(&mut self, bytes: u64) -> Option<CachedBlockId> {
        self.take_on(0, bytes)
    }

    /// The same for work on a stream of this number: blocks that another stream freed do not serve it.
    pub fn take_on(&mut self, stream: usize, bytes: u64) -> Option<CachedBlockId> {
        if bytes == 0 {
            return None;
        }
        let size = bytes.checked_next_multiple_of(STEP)?;
        let small = size <= SMALL;
        let pool = (stream, small);
        let place = match self.free_in(pool).range((size, (0, 0))..).next().copied() {
            Some((_, place)) => place,
            None => self.grow(size, pool)?,
        };
        let block = *self.blocks.get(&place)?;
        self.free_in(pool).remove(&(block.size, place));
        let rest = block.size - size;
        let cut = if small { rest >= STEP } else { rest > SMALL };
        let taken = if cut { size } else { block.size };
        self.blocks.insert(place, CachedBlock { size: taken, pool, free: false });
        if cut {
            self.put((place.0, place.1 + size), CachedBlock { size: rest, pool, free: true });
        }
        self.allocated = self.allocated.saturating_add(taken);
        self.peak = self.peak.max(self.allocated);
        Some(place)
    }

    /// Frees what [`Caching::take`] gave.
    pub fn free(&mut self, place: Option<CachedBlockId>) {
        let Some(place) = place else { return };
        let Some(mut block) = self.blocks.remove(&place) else { return };
        self.allocated = self.allocated.saturating_sub(block.size);
        block.free = true;
        let mut start = place;
        let next = (place.0, place.1 + block.size);
        if let Some(after) = self.lift_free(next) {
            block.size += after.size;
        }
        let before = self.blocks.range((place.0, 0)..place).next_back().map(|(&at, _)| at);
        if let Some((at, block_before)) = before.and_then(|at| Some((at, self.lift_free(at)?))) {
            block.size += block_before.size;
            start = at;
        }
        self.put(start, block);
    }

    /// Gives segments that are wholly free back to the driver, as `torch.cuda.empty_cache()` does.
    pub fn give_back(&mut self) {
        let whole = |&(size, place): &(u64, CachedBlockId)| {
            place.1 == 0 && !self.blocks.contains_key(&(place.0, size))
        };
        let gone: Vec<_> = self.free.iter().flatten().flatten().copied().filter(whole).collect();
        for (size, place) in gone {
            self.lift_free(place);
            self.reserved = self.reserved.saturating_sub(size);
        }
    }

    /// Begins anew with what is in blocks: what is wholly free is given back, what was held at most is
    /// forgotten, and from here on the driver gives this much and no more, where that is said.
    pub fn begin(&mut self, room: Option<u64>) {
        self.give_back();
        (self.most_reserved, self.peak) = (self.reserved, self.allocated);
        self.room = room;
        self.failed = room.is_some_and(|room| self.reserved > room);
    }

    /// Takes a free block out, to become part of another.
    fn lift_free(&mut self, place: CachedBlockId) -> Option<CachedBlock> {
        let block = *self.blocks.get(&place).filter(|block| block.free)?;
        self.blocks.remove(&place);
        self.free_in(block.pool).remove(&(block.size, place));
        Some(block)
    }

    fn free_in(&mut self, (stream, small): CachedPool) -> &mut BTreeSet<(u64, CachedBlockId)> {
        if self.free.len() <= stream {
            self.free.resize_with(stream + 1, Default::default);
        }
        &mut self.free[stream][usize::from(small)]
    }

    fn put(&mut self, place: CachedBlockId, block: CachedBlock) {
        self.free_in(block.pool).insert((block.size, place));
        self.blocks.insert(place, block);
    }

    fn grow(&mut self, size: u64, pool: CachedPool) -> Option<CachedBlockId> {
        let segment = match size {
            _ if pool.1 => SMALL_SEGMENT,
            ..SHARED => SHARED_SEGMENT,
            _ => size.checked_next_multiple_of(SEGMENT_STEP)?,
        };
        let refused = |torch: &Caching| {
            torch.room.is_some_and(|room| torch.reserved.saturating_add(segment) > room)
        };
        if refused(self) {
            self.give_back();
            self.failed |= refused(self);
        }
        self.reserved = self.reserved.saturating_add(segment);
        self.most_reserved = self.most_reserved.max(self.reserved);
        self.largest_segment = self.largest_segment.max(segment);
        // Of blocks of one size the allocator takes that at the lowest address, and the driver hands
        // out addresses from the top down: the newest segment comes first.
        let place = (usize::MAX - self.segments, 0);
        self.segments += 1;
        self.put(place, CachedBlock { size: segment, pool, free: true });
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What is reserved and allocated after these requests.
    fn after(requests: &[u64]) -> (u64, u64) {
        let mut torch = Caching::default();
        for &bytes in requests {
            torch.take(bytes);
        }
        (torch.reserved(), torch.peak())
    }

    #[test]
    fn segments_go_by_the_size_of_the_request() {
        assert_eq!(after(&[0]), (0, 0));
        assert_eq!(after(&[1]), (2 * MIB, 512));
        assert_eq!(after(&[MIB, MIB]), (2 * MIB, 2 * MIB), "two share a small segment");
        assert_eq!(after(&[MIB + 1]), (20 * MIB, MIB + 512));
        assert_eq!(after(&[6 * MIB; 3]), (20 * MIB, 18 * MIB));
        assert_eq!(after(&[6 * MIB; 4]), (40 * MIB, 24 * MIB), "the last 2 MiB are too little");
        assert_eq!(after(&[10 * MIB]), (10 * MIB, 10 * MIB));
        assert_eq!(after(&[11 * MIB]), (12 * MIB, 12 * MIB), "1 MiB is not cut off");
        assert_eq!(after(&[u64::MAX]), (0, 0), "beyond counting");
    }

    #[test]
    fn the_smallest_block_that_is_large_enough_is_cut() {
        let mut torch = Caching::default();
        let blocks: Vec<_> = [40, 30].map(|n| torch.take(n * MIB)).into();
        assert_eq!(torch.reserved(), 70 * MIB);
        blocks.into_iter().for_each(|block| torch.free(block));
        torch.take(29 * MIB);
        torch.take(38 * MIB);
        assert_eq!(torch.reserved(), 70 * MIB, "each found the one that fits best");
        assert_eq!(torch.allocated, 68 * MIB, "of the first 1 MiB is air, of the second 2 are cut");
        torch.take(2 * MIB);
        assert_eq!(torch.reserved(), 70 * MIB, "what was cut off serves the next");
    }

    #[test]
    fn free_neighbours_become_one_and_segments_do_not() {
        let mut torch = Caching::default();
        let parts: Vec<_> = (0..4).map(|_| torch.take(5 * MIB)).collect();
        assert_eq!(torch.reserved(), 20 * MIB);
        for n in [0, 2, 1, 3] {
            torch.free(parts[n]);
        }
        assert_eq!((torch.blocks.len(), torch.allocated), (1, 0));
        let whole = torch.take(20 * MIB);
        assert_eq!(torch.reserved(), 20 * MIB);
        torch.free(whole);
        let other = torch.take(30 * MIB);
        torch.free(other);
        torch.take(50 * MIB);
        assert_eq!((torch.reserved(), torch.largest_segment()), (100 * MIB, 50 * MIB));
        torch.free(Some((9, 9)));
        assert_eq!(torch.reserved(), 100 * MIB, "nothing is given back");
    }

    #[test]
    fn of_blocks_of_one_size_the_newest_is_taken() {
        let mut torch = Caching::default();
        let blocks: Vec<_> = [30, 30].map(|n| torch.take(n * MIB)).into();
        blocks.iter().for_each(|&block| torch.free(block));
        assert_eq!(torch.take(30 * MIB), blocks[1]);
    }

    #[test]
    fn only_whole_segments_are_given_back() {
        let mut torch = Caching::default();
        let blocks: Vec<_> = [40, 30, 6].map(|n| torch.take(n * MIB)).into();
        torch.free(blocks[0]);
        torch.give_back();
        assert_eq!((torch.reserved(), torch.allocated()), (50 * MIB, 36 * MIB));
        torch.give_back();
        assert_eq!(torch.reserved(), 50 * MIB, "6 MiB hold a segment of 20");
        torch.free(blocks[2]);
        torch.free(blocks[1]);
        torch.give_back();
        assert_eq!((torch.reserved(), torch.allocated()), (0, 0));
        torch.take(MIB);
        assert_eq!(torch.reserved(), 2 * MIB);
    }

    #[test]
    fn what_the_driver_refuses_is_found_in_the_cache() {
        let mut torch = Caching::within(100 * MIB);
        let parts: Vec<_> = [40, 30, 20].map(|n| torch.take(n * MIB)).into();
        torch.free(parts[0]);
        torch.free(parts[1]);
        torch.take(50 * MIB);
        assert_eq!(torch.met(), Some(true), "70 MiB were free in pieces of 40 and 30");
        assert_eq!(torch.reserved(), 70 * MIB);
        torch.take(31 * MIB);
        assert_eq!(torch.met(), Some(false), "70 MiB live, and 32 more are asked for");
        assert_eq!(Caching::default().met(), None);
    }

    #[test]
    fn what_came_before_the_program_leaves_holes_and_no_peak() {
        let mut torch = Caching::default();
        let parts: Vec<_> = [40, 30, 6, 6].map(|n| torch.take(n * MIB)).into();
        torch.free(parts[0]);
        torch.free(parts[2]);
        torch.begin(Some(60 * MIB));
        assert_eq!((torch.peak_reserved(), torch.peak()), (50 * MIB, 36 * MIB));
        torch.take(6 * MIB);
        assert_eq!((torch.reserved(), torch.met()), (50 * MIB, Some(true)), "in the hole");
        torch.take(12 * MIB);
        assert_eq!(torch.met(), Some(false));
        torch.begin(Some(1));
        assert_eq!(torch.met(), Some(false), "what is there is more");
    }

    #[test]
    fn what_one_stream_freed_does_not_serve_another() {
        let mut torch = Caching::default();
        let first = torch.take_on(1, 30 * MIB);
        torch.free(first);
        torch.take(30 * MIB);
        assert_eq!(torch.reserved(), 60 * MIB);
        assert_eq!(torch.take_on(1, 30 * MIB), first);
        torch.take_on(2, 512);
        assert_eq!((torch.reserved(), torch.allocated()), (62 * MIB, 60 * MIB + 512));
    }

    #[test]
    fn a_cache_that_grows_by_copies_leaves_holes() {
        let mut torch = Caching::default();
        let old = torch.take(32 * MIB);
        let new = torch.take(32 * MIB + 512);
        torch.free(old);
        torch.take(32 * MIB + 1024);
        assert_eq!(torch.reserved(), (32 + 34 + 34) * MIB, "the first hole is too small by 1 KiB");
        torch.free(new);
        torch.take(32 * MIB + 1536);
        assert_eq!(torch.reserved(), 100 * MIB, "the second had air enough");
    }
}
