//! What other allocators would reserve for a trace, by their published rules.
//!
//! For a comparison where no GPU is: sizes are rounded, segments taken, split and merged as the
//! sources of those allocators do it, and the bytes of all segments are counted. Their speed is
//! not modelled. On a GPU `scripts/replay-peers` runs the allocators themselves.
//!
//! ```
//! use plimsoll_models::Bytes;
//! use plimsoll_models::trace::Trace;
//! use plimsoll_models::trace::peers::PeerRule;
//!
//! let mut builder = Trace::builder();
//! builder.allocate(1, Bytes::mib(3), 0, 0)?;
//! assert_eq!(PeerRule::Torch.peak_reserved(&builder.finish()), Bytes::mib(20));
//! # Ok::<(), plimsoll_models::Error>(())
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::{Trace, TraceOp};
use plimsoll_machine::units::Bytes;

const MIB: u64 = 1 << 20;

/// An allocator whose rules are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerRule {
    /// PyTorch's caching allocator: segments of 2 MiB, 20 MiB or the request's own size, for
    /// each stream and for small and large blocks apart.
    Torch,
    /// The same with expandable segments: one range for each of those, which grows at its end.
    TorchExpandable,
    /// RMM's pool: best fit among all streams, and each growth doubles it.
    RmmPool,
}

impl PeerRule {
    /// All of them.
    pub const ALL: [PeerRule; 3] = [PeerRule::Torch, PeerRule::TorchExpandable, PeerRule::RmmPool];

    /// As reports call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PeerRule::Torch => "PyTorch's rules",
            PeerRule::TorchExpandable => "PyTorch's, expandable segments",
            PeerRule::RmmPool => "RMM pool's rules",
        }
    }

    /// The most that it would have reserved, with memory for all.
    #[must_use]
    pub fn peak_reserved(self, trace: &Trace) -> Bytes {
        let mut heaps: BTreeMap<(u16, bool), PeerHeap> = BTreeMap::new();
        let mut slots = vec![None; trace.slots()];
        let mut reserved = 0;
        for event in trace.events() {
            let slot = event.id as usize;
            match event.op {
                TraceOp::Allocate => {
                    let size = self.rounded(event.size);
                    let small = self != PeerRule::RmmPool && size <= MIB;
                    let stream = if self == PeerRule::RmmPool { 0 } else { event.stream };
                    let heap = heaps.entry((stream, small)).or_default();
                    let found = heap.take(size, self.splits_above(small)).unwrap_or_else(|| {
                        let (more, joined) = self.growth(heap, size, small, reserved);
                        reserved += more;
                        heap.add(more, joined);
                        heap.take(size, self.splits_above(small)).unwrap_or_default()
                    });
                    slots[slot] = Some(((stream, small), found));
                }
                TraceOp::Free => {
                    if let Some((heap, place)) = slots[slot].take()
                        && let Some(heap) = heaps.get_mut(&heap)
                    {
                        heap.free(place);
                    }
                }
            }
        }
        Bytes(reserved)
    }

    fn rounded(self, size: u64) -> u64 {
        let step = if self == PeerRule::RmmPool { 256 } else { 512 };
        size.max(1).next_multiple_of(step)
    }

    /// A block is split where more than this would be left.
    fn splits_above(self, small: bool) -> u64 {
        match self {
            PeerRule::RmmPool => 0,
            _ if small => 511,
            // Expandable segments are split like small ones.
            PeerRule::TorchExpandable => 511,
            PeerRule::Torch => MIB,
        }
    }

    /// How much is taken for a request, and whether it lies at the end of what there is.
    fn growth(self, heap: &PeerHeap, size: u64, small: bool, reserved: u64) -> (u64, bool) {
        match self {
            PeerRule::RmmPool => (size.max(reserved).next_multiple_of(2 * MIB), false),
            PeerRule::Torch if small => (2 * MIB, false),
            PeerRule::Torch if size < 10 * MIB => (20 * MIB, false),
            PeerRule::Torch => (size.next_multiple_of(2 * MIB), false),
            PeerRule::TorchExpandable => {
                let step = if small { 2 * MIB } else { 20 * MIB };
                ((size - heap.free_at_end().min(size)).max(1).next_multiple_of(step), true)
            }
        }
    }
}

/// Where a block lies: its segment and offset, and its size.
type PeerPlace = (u64, u64, u64);

/// Free and live blocks of some segments.
#[derive(Debug, Default)]
struct PeerHeap {
    /// Free blocks by size, and by place.
    by_size: BTreeSet<(u64, u64, u64)>,
    by_place: BTreeMap<(u64, u64), u64>,
    segments: u64,
    /// The end of the last segment.
    end: u64,
}

impl PeerHeap {
    fn free_at_end(&self) -> u64 {
        let last = self.by_place.iter().next_back();
        last.filter(|((_, at), size)| at + **size == self.end).map_or(0, |(_, size)| *size)
    }

    fn add(&mut self, size: u64, at_the_end: bool) {
        if at_the_end {
            let at = self.end;
            self.end += size;
            self.free((0, at, size));
        } else {
            self.segments += 1;
            self.free((self.segments, 0, size));
        }
    }

    fn take(&mut self, size: u64, splits_above: u64) -> Option<PeerPlace> {
        let (length, segment, at) = *self.by_size.range((size, 0, 0)..).next()?;
        self.remove((segment, at, length));
        if length - size <= splits_above {
            return Some((segment, at, length));
        }
        self.insert((segment, at + size, length - size));
        Some((segment, at, size))
    }

    fn free(&mut self, (segment, mut at, mut size): PeerPlace) {
        let before = self.by_place.range(..(segment, at)).next_back().map(|(k, v)| (*k, *v));
        if let Some(((same, start), length)) = before
            && same == segment
            && start + length == at
        {
            self.remove((segment, start, length));
            (at, size) = (start, size + length);
        }
        if let Some(length) = self.by_place.get(&(segment, at + size)).copied() {
            self.remove((segment, at + size, length));
            size += length;
        }
        self.insert((segment, at, size));
    }

    fn insert(&mut self, (segment, at, size): PeerPlace) {
        if size > 0 {
            self.by_size.insert((size, segment, at));
            self.by_place.insert((segment, at), size);
        }
    }

    fn remove(&mut self, (segment, at, size): PeerPlace) {
        self.by_size.remove(&(size, segment, at));
        self.by_place.remove(&(segment, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peaks(blocks: &[(u64, u64)]) -> [u64; 3] {
        let mut builder = Trace::builder();
        for (id, (size, stream)) in (0..).zip(blocks) {
            builder.allocate(id, Bytes(*size), *stream, id).unwrap();
        }
        let trace = builder.finish();
        PeerRule::ALL.map(|rule| rule.peak_reserved(&trace).get() / MIB)
    }

    #[test]
    fn segments_are_as_large_as_their_sources_say() {
        assert_eq!(peaks(&[(100, 0)]), [2, 2, 2]);
        assert_eq!(peaks(&[(3 * MIB, 0)]), [20, 20, 4]);
        assert_eq!(peaks(&[(11 * MIB, 0)]), [12, 20, 12]);
        // Streams do not share with PyTorch; the second block of a stream fits its segment.
        assert_eq!(peaks(&[(3 * MIB, 0), (3 * MIB, 1)]), [40, 40, 8]);
        assert_eq!(peaks(&[(3 * MIB, 0), (3 * MIB, 0)]), [20, 20, 8]);
        // An expandable segment grows by what is missing at its end.
        assert_eq!(peaks(&[(15 * MIB, 0), (10 * MIB, 0)]), [26, 40, 32]);
    }

    #[test]
    fn what_is_freed_is_merged_and_used_again() {
        let mut builder = Trace::builder();
        for id in 0..4 {
            builder.allocate(id, Bytes::mib(5), 0, id).unwrap();
        }
        for id in [1, 3, 0, 2] {
            builder.free(id, 0, 10 + id).unwrap();
        }
        builder.allocate(9, Bytes::mib(20), 0, 20).unwrap();
        let trace = builder.finish();
        for rule in [PeerRule::Torch, PeerRule::TorchExpandable] {
            assert_eq!(rule.peak_reserved(&trace), Bytes::mib(20), "{}", rule.name());
        }
    }
}
