//! Which points are in one cell, in the order of points.
//!
//! Cells of all points come first, many at a time. Then every processor goes through all of them
//! in order and looks after its own share of cells, in a table of its own: no table is shared, and
//! what is told of a cell is told in the order of its points.
//!
//! Small clouds are left to the calling thread alone: to wake another takes as long as they do.

use std::sync::atomic::{AtomicU64, Ordering};

use rayon::iter::plumbing::{Producer, ProducerCallback};
use rayon::prelude::*;

use super::places::CellPlaces;
use crate::grid::VoxelGrid;
use crate::simd;
use crate::simd::place::{self, BLOCK, SimdPlaces};

/// Points of one piece of parallel work.
const PIECE: usize = 16 * BLOCK;
/// How many points ahead the table is fetched.
const AHEAD: usize = 12;

/// Points up to which a cloud is left to the calling thread.
const ALONE: usize = 1 << 15;
/// Cells up to which a grid has a place for each: a megabyte of them.
const DENSE: u64 = 1 << 18;
/// What these places take.
pub(super) const DENSE_BYTES: u64 = DENSE * size_of::<u32>() as u64;

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
}

/// The cell of every point, into `cells`.
pub(super) trait FindCells<K> {
    fn find(&self, floats: &[f32], columns: usize, cells: &mut Vec<K>) -> DroppedPoints;
}

impl FindCells<u32> for SimdPlaces {
    fn find(&self, floats: &[f32], columns: usize, cells: &mut Vec<u32>) -> DroppedPoints {
        by_pieces(floats, columns, cells, |floats, cells| {
            simd::places(self, floats, columns, cells);
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
    let points = floats.len() / columns;
    cells.resize(points, K::NOWHERE);
    let pieces = floats.par_chunks(PIECE * columns).zip(cells.par_chunks_mut(PIECE));
    let (not_finite, outside) = (AtomicU64::new(0), AtomicU64::new(0));
    each_piece(points, pieces, |(floats, cells)| {
        find(floats, cells);
        let mut dropped = DroppedPoints::default();
        for (cell, point) in cells.iter().zip(floats.chunks_exact(columns)) {
            if !cell.is_somewhere() {
                dropped.see(point);
            }
        }
        not_finite.fetch_add(dropped.not_finite, Ordering::Relaxed);
        outside.fetch_add(dropped.outside, Ordering::Relaxed);
    });
    DroppedPoints { not_finite: not_finite.into_inner(), outside: outside.into_inner() }
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

impl<K: CellNumber> FindEntry<K> for CellTable<K> {
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

/// Where cells are looked up.
trait FindEntry<K> {
    /// Has the place of a cell on its way to the caches.
    fn fetch(&self, key: K);

    /// The entry of a cell, which is new where nothing was seen of it.
    fn entry(&mut self, key: K) -> &mut CellEntry<K>;
}

/// Cells of a small grid, by a place for each.
#[derive(Debug)]
pub(super) struct DenseCells<K> {
    places: CellPlaces,
    entries: Vec<CellEntry<K>>,
}

impl<K> Default for DenseCells<K> {
    fn default() -> DenseCells<K> {
        DenseCells { places: CellPlaces::default(), entries: Vec::new() }
    }
}

impl<K: CellNumber> DenseCells<K> {
    /// Empty, for a cloud of a grid of so many cells.
    fn clear(&mut self, cells: usize) {
        self.places.clear(cells);
        self.entries.clear();
    }
}

impl<K: CellNumber> FindEntry<K> for DenseCells<K> {
    fn fetch(&self, key: K) {
        self.places.fetch(key.number() as usize);
    }

    fn entry(&mut self, key: K) -> &mut CellEntry<K> {
        let cell = key.number() as usize;
        let mut places = self.places.of_cloud();
        let at = places.get(cell).unwrap_or_else(|| {
            places.set(cell, self.entries.len());
            self.entries.push(CellEntry { key, ..CellEntry::default() });
            self.entries.len() - 1
        });
        &mut self.entries[at]
    }
}

/// What cells are looked up in, kept from one cloud to the next.
#[derive(Debug)]
pub(super) struct CellTables<K> {
    dense: DenseCells<K>,
    hashed: Vec<CellTable<K>>,
}

impl<K> Default for CellTables<K> {
    fn default() -> CellTables<K> {
        CellTables { dense: DenseCells::default(), hashed: Vec::new() }
    }
}

impl<K: CellNumber> CellTables<K> {
    /// The first points of the cells of a small cloud in a small grid, in order, once they were
    /// visited; none where cells were not looked up in this way.
    pub(super) fn firsts(&self, points: usize, grid: u64) -> Option<impl Iterator<Item = u32>> {
        is_dense(points, grid).then(|| self.dense.entries.iter().map(|entry| entry.first))
    }
}

/// Whether a cloud is small and its grid too.
pub(super) fn is_dense(points: usize, grid: u64) -> bool {
    is_small(points) && grid <= DENSE
}

/// Calls `visit(point, entry)` for every point that has a cell, those of one cell in order.
/// `entry.seen` is how many of the cell came before; 0 says that the point is its first. The
/// visitor says whether the point becomes the cell's last. `grid` has so many cells.
pub(super) fn visit<K: CellNumber>(
    cells: &[K],
    grid: u64,
    tables: &mut CellTables<K>,
    visit: impl Fn(u32, &CellEntry<K>) -> bool + Sync,
) {
    if is_dense(cells.len(), grid) {
        tables.dense.clear(grid as usize);
        visit_own(cells, &mut tables.dense, |cell| cell.is_somewhere(), visit);
        return;
    }
    let most = if is_small(cells.len()) { 1 } else { rayon::current_num_threads().clamp(1, 64) };
    let workers = most.min(cells.len() / PIECE + 1);
    tables.hashed.resize_with(workers, CellTable::default);
    each_piece(cells.len(), tables.hashed.par_iter_mut().enumerate(), |(worker, table)| {
        table.clear(cells.len() / workers / 4);
        let own = |cell: K| {
            let low = mixed(cell.number()) & 0xFFFF;
            cell.is_somewhere() && (workers == 1 || (low as usize * workers) >> 16 == worker)
        };
        visit_own(cells, table, own, &visit);
    });
}

/// The same for the cells that are a worker's own.
fn visit_own<K: CellNumber>(
    cells: &[K],
    table: &mut impl FindEntry<K>,
    own: impl Fn(K) -> bool,
    visit: impl Fn(u32, &CellEntry<K>) -> bool,
) {
    for (point, cell) in cells.iter().enumerate() {
        if let Some(ahead) = cells.get(point + AHEAD)
            && own(*ahead)
        {
            table.fetch(*ahead);
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
}
