//! The points of a cloud, divided among workers by their cells.
//!
//! Each worker looks after its own share of cells: no table is shared. Points are put in the order
//! of workers, a piece of the cloud at a time, so that a worker reads and writes nothing between its
//! own points: two processors that write into one line of the caches wait for each other each time.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_memory::Result;
use rayon::prelude::*;

use super::group::{self, CellNumber};
use crate::grid::VoxelGrid;
use crate::room;
use crate::simd;
use crate::simd::place::{BLOCK, SimdPlaces};

/// Points of one piece of parallel work.
pub(super) const PIECE: usize = 16 * BLOCK;
/// The most workers.
const MOST_WORKERS: usize = 64;

/// Points that have no cell, and why.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DroppedPoints {
    pub(crate) not_finite: u64,
    pub(crate) outside: u64,
}

impl DroppedPoints {
    pub(super) fn see(&mut self, point: &[f32]) {
        if point.iter().take(3).all(|value| value.is_finite()) {
            self.outside += 1;
        } else {
            self.not_finite += 1;
        }
    }
}

/// Finds the cell of every point.
pub(super) trait FindCells<K>: Sync {
    fn find(&self, floats: &[f32], columns: usize, cells: &mut [K]);
}

impl FindCells<u32> for SimdPlaces {
    fn find(&self, floats: &[f32], columns: usize, cells: &mut [u32]) {
        simd::places(self, floats, columns, cells);
    }
}

impl FindCells<u64> for VoxelGrid {
    fn find(&self, floats: &[f32], columns: usize, cells: &mut [u64]) {
        for (point, cell) in floats.chunks_exact(columns).zip(cells) {
            *cell = self.voxel([point[0], point[1], point[2]]).unwrap_or(u64::MAX);
        }
    }
}

/// Which points are whose. A *position* counts points piece by piece, in a piece worker by worker,
/// and those of one worker in order; behind all of these come the points without a cell.
#[derive(Debug, Default)]
pub(super) struct PointShares {
    /// The point at each position.
    points: Vec<u32>,
    /// Where each worker's part of each piece ends.
    ends: Vec<u32>,
    workers: usize,
}

impl PointShares {
    /// Divides the points of a cloud; `cells` are those of the points at each position.
    pub(super) fn divide<K: CellNumber>(
        &mut self,
        finder: &impl FindCells<K>,
        floats: &[f32],
        columns: usize,
        cells: &mut Vec<K>,
    ) -> Result<DroppedPoints> {
        let points = floats.len() / columns;
        let threads = if group::is_small(points) { 1 } else { rayon::current_num_threads() };
        self.workers = threads.clamp(1, MOST_WORKERS);
        room::fit_length(&mut self.points, points, || 0)?;
        room::fit_length(&mut self.ends, points.div_ceil(PIECE) * self.workers, || 0)?;
        room::fit_length(cells, points, || K::NOWHERE)?;
        let (not_finite, outside) = (AtomicU64::new(0), AtomicU64::new(0));
        let own = self.points.par_chunks_mut(PIECE).zip(cells.par_chunks_mut(PIECE));
        let pieces = floats.par_chunks(PIECE * columns).zip(own);
        let pieces = pieces.zip(self.ends.par_chunks_mut(self.workers)).enumerate();
        group::each_piece(points, pieces, |(piece, ((floats, (points, cells)), ends))| {
            let mut found = [K::NOWHERE; PIECE];
            let found = &mut found[..cells.len()];
            finder.find(floats, columns, found);
            let inside = divide_piece(found, (piece * PIECE) as u32, points, cells, ends);
            let mut dropped = DroppedPoints::default();
            for point in points.get(inside..).unwrap_or_default() {
                let at = (*point as usize - piece * PIECE) * columns;
                dropped.see(floats.get(at..at + columns).unwrap_or_default());
            }
            not_finite.fetch_add(dropped.not_finite, Ordering::Relaxed);
            outside.fetch_add(dropped.outside, Ordering::Relaxed);
        });
        let (not_finite, outside) = (not_finite.into_inner(), outside.into_inner());
        Ok(DroppedPoints { not_finite, outside })
    }

    /// Workers that points were divided among.
    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// The point at each position.
    pub(super) fn points(&self) -> &[u32] {
        &self.points
    }

    /// The positions of a worker's points, piece by piece.
    pub(super) fn parts(&self, worker: usize) -> impl Iterator<Item = Range<usize>> {
        self.ends.chunks_exact(self.workers).enumerate().map(move |(piece, ends)| {
            let start = worker.checked_sub(1).map_or(0, |before| ends[before]);
            piece * PIECE + start as usize..piece * PIECE + ends[worker] as usize
        })
    }

    /// The positions in a piece that have a cell.
    pub(super) fn inside(&self, piece: usize) -> Range<usize> {
        let end = (piece + 1).checked_mul(self.workers).and_then(|after| self.ends.get(after - 1));
        piece * PIECE..piece * PIECE + end.map_or(0, |end| *end as usize)
    }
}

/// Puts the points of a piece, numbered from `first` on, in the order of workers, whose parts end at
/// `ends`; gives how many have a cell.
fn divide_piece<K: CellNumber>(
    found: &[K],
    first: u32,
    points: &mut [u32],
    cells: &mut [K],
    ends: &mut [u32],
) -> usize {
    let workers = ends.len();
    // Points without a cell belong to nobody, who comes last.
    let worker_of = |cell: K| {
        // Tables go by the highest bits.
        let bits = (group::mixed(cell.number()) >> 16) as u16;
        if cell.is_somewhere() { (usize::from(bits) * workers) >> 16 } else { workers }
    };
    let mut next = [0u32; MOST_WORKERS + 1];
    for cell in found {
        next[worker_of(*cell)] += 1;
    }
    let mut before = 0;
    for (worker, next) in next.iter_mut().enumerate().take(workers + 1) {
        let end = before + *next;
        *next = std::mem::replace(&mut before, end);
        if let Some(own) = ends.get_mut(worker) {
            *own = end;
        }
    }
    for (point, cell) in (first..).zip(found) {
        let at = &mut next[worker_of(*cell)];
        points[*at as usize] = point;
        cells[*at as usize] = *cell;
        *at += 1;
    }
    ends.last().map_or(0, |end| *end as usize)
}
