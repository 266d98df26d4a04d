//! Which points are in one cell, in the order of points.
//!
//! Cells of all points come first, many at a time. Then every processor goes through all of them
//! in order and looks after its own share of cells, in a table of its own: no table is shared, and
//! what is told of a cell is told in the order of its points.

use rayon::prelude::*;

use crate::grid::VoxelGrid;
use crate::simd;
use crate::simd::place::{self, BLOCK, SimdPlaces};

/// Points of one piece of parallel work.
const PIECE: usize = 16 * BLOCK;
/// How many points ahead the table is fetched.
const AHEAD: usize = 12;

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

/// Points that have no cell, and why.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DroppedPoints {
    pub(super) not_finite: u64,
    pub(super) outside: u64,
}

impl DroppedPoints {
    fn see(&mut self, point: &[f32]) {
        if point.iter().take(3).all(|value| value.is_finite()) {
            self.outside += 1;
        } else {
            self.not_finite += 1;
        }
    }

    fn plus(self, other: DroppedPoints) -> DroppedPoints {
        DroppedPoints {
            not_finite: self.not_finite + other.not_finite,
            outside: self.outside + other.outside,
        }
    }
}

/// The cell of every point, into `cells`.
pub(super) trait FindCells<K> {
    fn find(&self, floats: &[f32], columns: usize, cells: &mut Vec<K>) -> DroppedPoints;
}

impl FindCells<u32> for SimdPlaces {
    fn find(&self, floats: &[f32], columns: usize, cells: &mut Vec<u32>) -> DroppedPoints {
        by_pieces(floats, columns, cells, |floats, cells| {
            let mut packed = [0.0; 3 * BLOCK];
            for (block, cells) in floats.chunks(BLOCK * columns).zip(cells.chunks_mut(BLOCK)) {
                simd::places(self, place::triples(block, columns, &mut packed), cells);
            }
        })
    }
}

impl FindCells<u64> for VoxelGrid {
    fn find(&self, floats: &[f32], columns: usize, cells: &mut Vec<u64>) -> DroppedPoints {
        by_pieces(floats, columns, cells, |floats, cells| {
            for (point, cell) in floats.chunks_exact(columns).zip(cells) {
                *cell = self.voxel([point[0], point[1], point[2]]).unwrap_or(u64::MAX);
            }
        })
    }
}

fn by_pieces<K: CellNumber>(
    floats: &[f32],
    columns: usize,
    cells: &mut Vec<K>,
    find: impl Fn(&[f32], &mut [K]) + Sync,
) -> DroppedPoints {
    cells.resize(floats.len() / columns, K::NOWHERE);
    let pieces = floats.par_chunks(PIECE * columns).zip(cells.par_chunks_mut(PIECE));
    let dropped = pieces.map(|(floats, cells)| {
        find(floats, cells);
        let mut dropped = DroppedPoints::default();
        for (cell, point) in cells.iter().zip(floats.chunks_exact(columns)) {
            if !cell.is_somewhere() {
                dropped.see(point);
            }
        }
        dropped
    });
    dropped.reduce(DroppedPoints::default, DroppedPoints::plus)
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

fn mixed(number: u64) -> u64 {
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

/// Calls `visit(point, entry)` for every point that has a cell, those of one cell in order.
/// `entry.seen` is how many of the cell came before; 0 says that the point is its first. The
/// visitor says whether the point becomes the cell's last.
pub(super) fn visit<K: CellNumber>(
    cells: &[K],
    tables: &mut Vec<CellTable<K>>,
    visit: impl Fn(u32, &CellEntry<K>) -> bool + Sync,
) {
    let workers = rayon::current_num_threads().clamp(1, 64).min(cells.len() / PIECE + 1);
    tables.resize_with(workers, CellTable::default);
    tables.par_iter_mut().enumerate().for_each(|(worker, table)| {
        table.clear(cells.len() / workers / 4);
        let own = |cell: K| {
            let low = mixed(cell.number()) & 0xFFFF;
            cell.is_somewhere() && (workers == 1 || (low as usize * workers) >> 16 == worker)
        };
        for (point, cell) in cells.iter().enumerate() {
            if let Some(ahead) = cells.get(point + AHEAD)
                && own(*ahead)
            {
                simd::fetch(&table.entries, table.slot(*ahead));
            }
            if !own(*cell) {
                continue;
            }
            let point = point as u32;
            let entry = table.entry(*cell);
            let becomes_last = visit(point, entry);
            if entry.seen == 0 {
                entry.first = point;
            }
            if becomes_last {
                entry.last = point;
            }
            entry.seen = entry.seen.saturating_add(1);
        }
    });
}
