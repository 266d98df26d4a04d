//! ONNX Runtime's arena: best fit with coalescing, in regions that double.
//!
//! What it counts as in use is the chunk, not the request: a chunk is cut only where at least
//! as much again is left over, so up to half of it may be air. That, and regions that are
//! twice as large as the last, is why the runtime holds more than the graph needs.

/// The smallest step of sizes.
const STEP: u64 = 256;
const FIRST_REGION: u64 = 1 << 20;
const LARGEST_STEP: u64 = 1 << 30;
/// A chunk is cut in any case where this much is left over.
const MOST_WASTE: u64 = 128 << 20;

/// How the arena grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Extend {
    /// Each region is twice the last one.
    #[default]
    NextPowerOfTwo,
    /// A region for each request that finds no room.
    SameAsRequested,
}

#[derive(Debug, Clone, Copy)]
struct BfcChunk {
    size: u64,
    token: Option<usize>,
}

/// The arena, without memory.
#[derive(Debug, Clone)]
pub(super) struct BfcArena {
    /// Chunks of each region, in the order of addresses.
    regions: Vec<Vec<BfcChunk>>,
    extend: Extend,
    next_region: u64,
    next_token: usize,
    pub(super) in_use: u64,
    pub(super) peak: u64,
    pub(super) reserved: u64,
}

impl BfcArena {
    pub(super) fn new(extend: Extend) -> BfcArena {
        BfcArena {
            regions: Vec::new(),
            extend,
            next_region: FIRST_REGION,
            next_token: 0,
            in_use: 0,
            peak: 0,
            reserved: 0,
        }
    }

    /// Memory for the session's life, beside the regions.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.reserved = self.reserved.saturating_add(bytes);
        self.count(bytes);
    }

    fn count(&mut self, bytes: u64) {
        self.in_use = self.in_use.saturating_add(bytes);
        self.peak = self.peak.max(self.in_use);
    }

    /// A token for this many bytes; nothing for none.
    pub(super) fn take(&mut self, bytes: u64) -> Option<usize> {
        if bytes == 0 {
            return None;
        }
        let size = bytes.checked_next_multiple_of(STEP)?;
        let (region, place) = match self.best(size) {
            Some(found) => found,
            None => {
                self.grow(size);
                (self.regions.len() - 1, 0)
            }
        };
        let token = self.next_token;
        self.next_token += 1;
        let chunks = &mut self.regions[region];
        let rest = chunks[place].size - size;
        if rest >= size || rest >= MOST_WASTE {
            chunks[place].size = size;
            chunks.insert(place + 1, BfcChunk { size: rest, token: None });
        }
        chunks[place].token = Some(token);
        let size = chunks[place].size;
        self.count(size);
        Some(token)
    }

    /// The smallest free chunk that is large enough.
    fn best(&self, size: u64) -> Option<(usize, usize)> {
        let chunks = self.regions.iter().enumerate().flat_map(|(region, chunks)| {
            chunks.iter().enumerate().map(move |(place, chunk)| (region, place, chunk))
        });
        chunks
            .filter(|(.., chunk)| chunk.token.is_none() && chunk.size >= size)
            .min_by_key(|(region, place, chunk)| (chunk.size, *region, *place))
            .map(|(region, place, _)| (region, place))
    }

    fn grow(&mut self, size: u64) {
        let bytes = match self.extend {
            Extend::SameAsRequested => size,
            Extend::NextPowerOfTwo => {
                let mut grown = false;
                while size > self.next_region {
                    self.next_region = self.next_region.saturating_mul(2);
                    grown = true;
                }
                let bytes = self.next_region;
                if !grown {
                    let double = self.next_region.saturating_mul(2);
                    self.next_region = if double < LARGEST_STEP { double } else { LARGEST_STEP };
                }
                bytes
            }
        };
        self.reserved = self.reserved.saturating_add(bytes);
        self.regions.push(vec![BfcChunk { size: bytes, token: None }]);
    }

    /// Gives back what a token stands for.
    pub(super) fn free(&mut self, token: usize) {
        for chunks in &mut self.regions {
            let Some(mut place) = chunks.iter().position(|chunk| chunk.token == Some(token)) else {
                continue;
            };
            self.in_use = self.in_use.saturating_sub(chunks[place].size);
            chunks[place].token = None;
            let is_free =
                |chunk: Option<&BfcChunk>| chunk.is_some_and(|chunk| chunk.token.is_none());
            if is_free(chunks.get(place + 1)) {
                let next = chunks.remove(place + 1);
                chunks[place].size += next.size;
            }
            if place > 0 && is_free(chunks.get(place - 1)) {
                let this = chunks.remove(place);
                place -= 1;
                chunks[place].size += this.size;
            }
            return;
        }
    }
}

/// The runtime's plan for all tensors of a run: each gets the tightest gap between those that
/// live, in the order in which they are made.
#[derive(Debug, Clone, Default)]
pub(super) struct Pattern {
    /// Offset, size and owner of what lives, by offset.
    blocks: Vec<(u64, u64, usize)>,
    /// How large the buffer must be.
    pub(super) size: u64,
}

impl Pattern {
    pub(super) fn take(&mut self, owner: usize, size: u64) {
        if size == 0 {
            return;
        }
        let mut current = 0;
        let mut best: Option<(u64, u64)> = None;
        let mut offer = |gap: u64, offset: u64| {
            if gap >= size && best.is_none_or(|(waste, _)| gap - size < waste) {
                best = Some((gap - size, offset));
            }
        };
        for &(offset, length, _) in &self.blocks {
            if offset >= current {
                offer(offset - current, current);
            }
            current = current.max(offset.saturating_add(length));
        }
        if current < self.size {
            offer(self.size - current, current);
        }
        let offset = best.map_or(current, |(_, offset)| offset);
        self.size = self.size.max(offset.saturating_add(size));
        let place = self.blocks.partition_point(|block| block.0 < offset);
        self.blocks.insert(place, (offset, size, owner));
    }

    pub(super) fn free(&mut self, owner: usize) {
        self.blocks.retain(|block| block.2 != owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn regions_double_and_chunks_are_cut_only_in_halves() {
        let mut arena = BfcArena::new(Extend::NextPowerOfTwo);
        let first = arena.take(6 * MIB).expect("a token");
        assert_eq!((arena.reserved, arena.in_use), (8 * MIB, 8 * MIB), "too little is left to cut");
        let second = arena.take(MIB).expect("a token");
        assert_eq!((arena.reserved, arena.in_use), (16 * MIB, 9 * MIB), "the next one is as large");
        arena.take(10 * MIB).expect("a token");
        assert_eq!(arena.reserved, 32 * MIB, "and the one after that twice");
        arena.free(first);
        arena.free(second);
        assert_eq!(arena.in_use, 16 * MIB);
        arena.take(8 * MIB).expect("a token");
        assert_eq!(arena.reserved, 32 * MIB, "what was freed is found again");
    }

    #[test]
    fn neighbours_that_are_free_become_one() {
        let mut arena = BfcArena::new(Extend::SameAsRequested);
        let whole = arena.take(4 * MIB).expect("a token");
        arena.free(whole);
        let parts: Vec<usize> = (0..4).filter_map(|_| arena.take(MIB)).collect();
        assert_eq!(arena.reserved, 4 * MIB);
        for part in [1, 0, 3, 2] {
            arena.free(parts[part]);
        }
        arena.take(4 * MIB).expect("a token");
        assert_eq!((arena.reserved, arena.peak), (4 * MIB, 4 * MIB));
        assert_eq!(arena.take(0), None);
    }

    #[test]
    fn a_pattern_takes_the_tightest_gap() {
        let mut pattern = Pattern::default();
        for (owner, size) in [(0, 100), (1, 10), (2, 50), (3, 10)] {
            pattern.take(owner, size);
        }
        assert_eq!(pattern.size, 170);
        pattern.free(0);
        pattern.free(2);
        pattern.take(4, 40);
        assert_eq!(pattern.blocks[1], (110, 40, 4));
        pattern.take(5, 100);
        assert_eq!(pattern.size, 170);
    }
}
