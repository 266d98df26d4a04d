//! Which points are in one cell, in the order of points.
//!
//! Cells of all points come first, and each worker has its own ([`super::shares`]). Then it goes
//! through its points in order with a table of its own, so what is told of a cell is told in the
//! order of its points.
//!
//! Small clouds are left to the calling thread alone: to wake another takes as long as they do.

use rayon::iter::plumbing::{Producer, ProducerCallback};
use rayon::prelude::*;

use super::shares::PointShares;
use crate::simd;
use crate::simd::place;

/// How many points ahead the table is fetched.
const AHEAD: usize = 12;

/// Points up to which a cloud is left to the calling thread.
const ALONE: usize = 1 << 15;
/// Whether a cloud of so many points is made by the calling thread alone.
pub(crate) fn is_small(points: usize) -> bool {
    points <= ALONE
}

/// Goes through pieces one after the other.
struct OneByOne<F>(F);

impl<T, F: Fn(T)> ProducerCallback<T> for OneByOne<F> {
    type Output = ();

    fn callback<P: Producer<Item = T>>(self, producer: P) {
        producer.into_iter().for_each(self.0);
    }
}

/// Does work on every piece of a cloud of so many points: by all processors, or by the calling
/// thread where it is small.
pub(super) fn each_piece<I: IndexedParallelIterator>(
    points: usize,
    pieces: I,
    work: impl Fn(I::Item) + Sync + Send,
) {
    if is_small(points) {
        pieces.with_producer(OneByOne(work));
    } else {
        pieces.for_each(work);
    }
}

/// The number of a cell, or that there is none.
pub(super) trait CellNumber: Copy + Eq + Send + Sync + Default {
    /// No cell.
    const NOWHERE: Self;
    fn is_somewhere(self) -> bool;
    fn number(self) -> u64;
}

impl CellNumber for u32 {
    const NOWHERE: u32 = place::NOWHERE;

    fn is_somewhere(self) -> bool {
        self < place::NOWHERE
    }

    fn number(self) -> u64 {
        u64::from(self)
    }
}

impl CellNumber for u64 {
    const NOWHERE: u64 = u64::MAX;

    fn is_somewhere(self) -> bool {
        self != u64::MAX
    }

    fn number(self) -> u64 {
        self
    }
}

/// A cell with points: the first, the last so far, and how many.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CellEntry<K> {
    key: K,
    pub(super) first: u32,
    pub(super) last: u32,
    /// 0 where nobody is here.
    pub(super) seen: u32,
}

/// Cells of one worker, by open addressing.
#[derive(Debug, Default)]
pub(super) struct CellTable<K> {
    entries: Vec<CellEntry<K>>,
    used: usize,
    shift: u32,
}

pub(super) fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl<K: CellNumber> CellTable<K> {
    /// Empty, with room for some cells before it must grow.
    fn clear(&mut self, cells: usize) {
        let slots = (2 * cells).next_power_of_two().max(64);
        // A table that is far too large would take longer to clear than to use.
        if self.entries.len() < slots || self.entries.len() > 8 * slots {
            self.entries = vec![CellEntry::default(); slots];
        } else {
            self.entries.fill(CellEntry::default());
        }
        self.used = 0;
        self.shift = 64 - self.entries.len().trailing_zeros();
    }

    fn slot(&self, key: K) -> usize {
        (mixed(key.number()) >> self.shift) as usize
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.entries);
        self.entries = vec![CellEntry::default(); 2 * old.len().max(32)];
        self.shift = 64 - self.entries.len().trailing_zeros();
        let mask = self.entries.len() - 1;
        for entry in old.into_iter().filter(|entry| entry.seen != 0) {
            let mut at = self.slot(entry.key);
            while self.entries[at].seen != 0 {
                at = (at + 1) & mask;
            }
            self.entries[at] = entry;
        }
    }
}

impl<K: CellNumber> CellTable<K> {
    /// Has the place of a cell on its way to the caches.
    fn fetch(&self, key: K) {
        simd::fetch(&self.entries, self.slot(key));
    }

    /// The entry of a cell, which is new where nothing was seen of it.
    fn entry(&mut self, key: K) -> &mut CellEntry<K> {
        if 2 * self.used >= self.entries.len() {
            self.grow();
        }
        let (mut at, mask) = (self.slot(key), self.entries.len() - 1);
        while self.entries[at].seen != 0 && self.entries[at].key != key {
            at = (at + 1) & mask;
        }
        self.used += usize::from(self.entries[at].seen == 0);
        self.entries[at].key = key;
        &mut self.entries[at]
    }
}

/// Calls `visit(position, entry)` for every point that has a cell, those of one cell in order.
/// `entry.seen` is how many of the cell came before; 0 says that the point is its first. The
/// visitor says whether the point becomes the cell's last. `cells` are those at each position.
pub(super) fn visit<K: CellNumber>(
    shares: &PointShares,
    cells: &[K],
    tables: &mut Vec<CellTable<K>>,
    visit: impl Fn(u32, &CellEntry<K>) -> bool + Sync,
) {
    let workers = shares.workers();
    tables.resize_with(workers, CellTable::default);
    each_piece(cells.len(), tables.par_iter_mut().enumerate(), |(worker, table)| {
        table.clear(cells.len() / workers / 4);
        for part in shares.parts(worker) {
            let cells = cells.get(part.clone()).unwrap_or_default();
            for (index, cell) in cells.iter().enumerate() {
                if let Some(ahead) = cells.get(index + AHEAD) {
                    table.fetch(*ahead);
                }
                let position = (part.start + index) as u32;
                let entry = table.entry(*cell);
                let becomes_last = visit(position, entry);
                if entry.seen == 0 {
                    entry.first = position;
                }
                if becomes_last {
                    entry.last = position;
                }
                entry.seen = entry.seen.saturating_add(1);
            }
        }
    });
}
