//! Free pieces by size: best fit in a few steps.
//!
//! Sixteen bins to a doubling, so the sizes in one differ by 6 % at most and few pieces
//! share it; a word of bits for 64 bins says which have any. An entry carries all that a
//! search compares, so that it walks one small array and touches no piece but the one that
//! it finds.

use super::heap::PieceId;

/// Bins to a doubling, as a power of two.
const FINE: u32 = 4;
/// Sizes are distinguished from this power of two on.
const LEAST: u32 = 7;
const BINS: usize = ((64 - LEAST) << FINE) as usize;
const WORDS: usize = BINS.div_ceil(64);

/// A free piece as its bin knows it.
#[derive(Debug, Clone)]
pub(super) struct BinEntry {
    pub(super) length: u64,
    /// Region and offset in one number, to prefer low addresses.
    pub(super) place: u64,
    pub(super) piece: PieceId,
}

/// Where an entry stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    bin: u16,
    slot: u32,
}

impl Spot {
    /// Nowhere.
    pub(super) const NONE: Spot = Spot { bin: u16::MAX, slot: 0 };
}

/// All bins.
#[derive(Debug)]
pub(super) struct Bins {
    bins: Box<[Vec<BinEntry>]>,
    full: [u64; WORDS],
}

impl Default for Bins {
    fn default() -> Self {
        Bins { bins: vec![Vec::new(); BINS].into(), full: [0; WORDS] }
    }
}

/// The bin of a size: its leading bit and the four below it.
fn bin_of(size: u64) -> usize {
    let size = (size >> LEAST).max(1);
    let top = 63 - size.leading_zeros();
    let fine = (size << (63 - top) >> (63 - FINE)) & ((1 << FINE) - 1);
    (top << FINE) as usize | fine as usize
}

impl Bins {
    /// Adds an entry.
    pub(super) fn insert(&mut self, entry: BinEntry) -> Spot {
        let bin = bin_of(entry.length);
        let slot = self.bins[bin].len() as u32;
        self.bins[bin].push(entry);
        self.full[bin / 64] |= 1 << (bin % 64);
        Spot { bin: bin as u16, slot }
    }

    /// Puts an entry in the place of another, if it belongs into the same bin.
    pub(super) fn replace(&mut self, spot: Spot, entry: &BinEntry) -> bool {
        let bin = usize::from(spot.bin);
        if bin_of(entry.length) != bin {
            return false;
        }
        match self.bins[bin].get_mut(spot.slot as usize) {
            Some(old) => {
                *old = entry.clone();
                true
            }
            None => false,
        }
    }

    /// Takes an entry out; returns the piece that has moved to its spot.
    pub(super) fn remove(&mut self, spot: Spot) -> Option<PieceId> {
        let bin = usize::from(spot.bin);
        let entries = self.bins.get_mut(bin)?;
        entries.swap_remove(spot.slot as usize);
        if entries.is_empty() {
            self.full[bin / 64] &= !(1 << (bin % 64));
        }
        entries.get(spot.slot as usize).map(|moved| moved.piece)
    }

    /// The smallest entry of at least `size` that `usable` lets pass.
    pub(super) fn best_fit(
        &self,
        size: u64,
        most: usize,
        usable: impl Fn(PieceId) -> bool,
    ) -> Option<PieceId> {
        let first = bin_of(size);
        let mut word = first / 64;
        let mut bits = self.full[word] & (!0 << (first % 64));
        loop {
            while bits != 0 {
                let bin = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(piece) = self.best_in_bin(bin, size, most, &usable) {
                    return Some(piece);
                }
            }
            word += 1;
            bits = *self.full.get(word)?;
        }
    }

    fn best_in_bin(
        &self,
        bin: usize,
        size: u64,
        most: usize,
        usable: impl Fn(PieceId) -> bool,
    ) -> Option<PieceId> {
        // Entries up to this one have been turned down.
        let mut after = (0, 0);
        loop {
            let mut best: Option<&BinEntry> = None;
            let mut best_key = (u64::MAX, u64::MAX);
            for entry in self.bins[bin].iter().take(most) {
                let key = (entry.length, entry.place);
                if entry.length >= size && key < best_key && (after == (0, 0) || key > after) {
                    best = Some(entry);
                    best_key = key;
                }
            }
            let best = best?;
            if usable(best.piece) {
                return Some(best.piece);
            }
            after = best_key;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bins_are_in_the_order_of_sizes_and_never_run_out() {
        let sizes = (0..64).flat_map(|shift| [(1u64 << shift) - 1, 1 << shift, (1 << shift) + 1]);
        let mut last = 0;
        for size in sizes.chain([u64::MAX]) {
            let bin = bin_of(size);
            assert!(bin >= last && bin < BINS, "{size} is in bin {bin} after {last}");
            last = bin;
        }
    }

    #[test]
    fn the_best_fit_is_the_smallest_at_the_lowest_place() {
        let mut bins = Bins::default();
        let lengths = [4096u64, 8192, 8448, 8448, 1 << 20];
        let spots: Vec<_> = lengths
            .iter()
            .enumerate()
            .map(|(i, length)| {
                let place = 100 - i as u64;
                bins.insert(BinEntry { length: *length, place, piece: i as PieceId })
            })
            .collect();
        assert_eq!(bins.best_fit(8193, 32, |_| true), Some(3));
        assert_eq!(bins.best_fit(8193, 32, |piece| piece != 3), Some(2));
        assert_eq!(bins.best_fit(8193, 32, |piece| piece < 2), None);
        assert_eq!(bins.best_fit(1, 32, |_| true), Some(0));
        assert_eq!(bins.best_fit((1 << 20) + 1, 32, |_| true), None);
        assert_eq!(bins.remove(spots[2]), Some(3), "the last of the bin moves up");
        assert_eq!(bins.best_fit(8193, 32, |_| true), Some(3));
        assert_eq!(bins.remove(Spot::NONE), None);
    }
}
