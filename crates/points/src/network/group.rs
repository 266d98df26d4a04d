//! Which points are in one cell, in the order of points.
//!
//! Cells of all points come first, and each worker has its own ([`super::shares`]). Then it goes
//! through its points in order with a table of its own, so what is told of a cell is told in the
//! order of its points.
//!
//! Small clouds are left to the calling thread alone: to wake another takes as long as they do.

use std::sync::{Mutex, PoisonError};

use plimsoll_memory::Result;
use rayon::iter::plumbing::{Producer, ProducerCallback};
use rayon::prelude::*;

use super::shares::PointShares;
use crate::room;
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

/// A cell with points: one of them, and how many.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CellEntry<K> {
    key: K,
    /// The last that became this.
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

/// Numbers that lie evenly spaced, as the cells of a column do, are folded first: multiples of some
/// would lie close together in a table.
pub(super) fn mixed(number: u64) -> u64 {
    (number ^ number >> 15).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Entries of a table for so many cells: at most three quarters of them are used.
fn slots(cells: usize) -> usize {
    (cells.saturating_mul(4) / 3 + 1).next_power_of_two().max(64)
}

impl<K: CellNumber> CellTable<K> {
    /// Entries for each point that it takes at most: while it grows, the old are there too, half as
    /// many.
    pub(super) const MOST_ENTRIES: u64 = 4;

    /// Empty, for the cells of so many points. A small table need not grow.
    fn clear(&mut self, points: usize) -> Result<()> {
        let most = slots(points);
        let least = if is_small(points) { most } else { slots(points / 4) };
        if (least..=most).contains(&self.entries.len()) {
            self.entries.fill(CellEntry::default());
        } else {
            // One that is too large goes, too.
            self.entries = Vec::new();
            room::fit_length(&mut self.entries, least, CellEntry::default)?;
        }
        self.used = 0;
        self.shift = 64 - self.entries.len().trailing_zeros();
        Ok(())
    }

    fn slot(&self, key: K) -> usize {
        (mixed(key.number()) >> self.shift) as usize
    }

    fn grow(&mut self) -> Result<()> {
        let mut larger = Vec::new();
        room::fit_length(&mut larger, 2 * self.entries.len(), CellEntry::default)?;
        let old = std::mem::replace(&mut self.entries, larger);
        self.shift = 64 - self.entries.len().trailing_zeros();
        let mask = self.entries.len() - 1;
        for entry in old.into_iter().filter(|entry| entry.seen != 0) {
            let mut at = self.slot(entry.key);
            while self.entries[at].seen != 0 {
                at = (at + 1) & mask;
            }
            self.entries[at] = entry;
        }
        Ok(())
    }
}

impl<K: CellNumber> CellTable<K> {
    /// Has the place of a cell on its way to the caches.
    fn fetch(&self, key: K) {
        simd::fetch(&self.entries, self.slot(key));
    }

    /// The entry of a cell, which is new where nothing was seen of it.
    fn entry(&mut self, key: K) -> Result<&mut CellEntry<K>> {
        if 4 * (self.used + 1) > 3 * self.entries.len() {
            self.grow()?;
        }
        let (mut at, mask) = (self.slot(key), self.entries.len() - 1);
        while self.entries[at].seen != 0 && self.entries[at].key != key {
            at = (at + 1) & mask;
        }
        self.used += usize::from(self.entries[at].seen == 0);
        self.entries[at].key = key;
        Ok(&mut self.entries[at])
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
) -> Result<()> {
    tables.resize_with(shares.workers(), CellTable::default);
    // All before any grows, so that no table of another cloud's size is left.
    for (worker, table) in tables.iter_mut().enumerate() {
        table.clear(shares.parts(worker).map(|part| part.len()).sum())?;
    }
    let result = Mutex::new(Ok(()));
    each_piece(cells.len(), tables.par_iter_mut().enumerate(), |(worker, table)| {
        let visited = shares.parts(worker).try_for_each(|part| {
            let cells = cells.get(part.clone()).unwrap_or_default();
            for (index, cell) in cells.iter().enumerate() {
                if let Some(ahead) = cells.get(index + AHEAD) {
                    table.fetch(*ahead);
                }
                let position = (part.start + index) as u32;
                let entry = table.entry(*cell)?;
                if visit(position, entry) {
                    entry.last = position;
                }
                entry.seen = entry.seen.saturating_add(1);
            }
            Ok(())
        });
        if visited.is_err() {
            *result.lock().unwrap_or_else(PoisonError::into_inner) = visited;
        }
    });
    result.into_inner().unwrap_or_else(PoisonError::into_inner)
}
