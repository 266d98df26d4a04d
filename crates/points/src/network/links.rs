//! Which points are in one voxel, and which voxels come first: what lies between finding cells and
//! filling voxels.

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;

use super::HardSpec;
use super::group::{self, CellNumber, CellTables, DroppedPoints, FindCells};

/// Which points are in one voxel: what lies between finding cells and filling voxels.
#[derive(Debug, Default)]
pub(super) struct HardLinks {
    /// The next point of each point's voxel, or [`END`]; with the bit [`FIRST`] where the point
    /// is the first of its voxel.
    next: Vec<AtomicU32>,
    /// The first points of the voxels, in order.
    pub(super) firsts: Vec<u32>,
}

const END: u32 = 0x7FFF_FFFF;
const FIRST: u32 = 0x8000_0000;
/// Points of a piece of parallel work.
const PIECE: usize = 1 << 13;

/// What cells are found and looked up in.
#[derive(Debug)]
pub(super) struct Workspace<K> {
    cells: Vec<K>,
    tables: CellTables<K>,
}

impl<K> Default for Workspace<K> {
    fn default() -> Workspace<K> {
        Workspace { cells: Vec::new(), tables: CellTables::default() }
    }
}

impl HardLinks {
    /// Chains the points of a cloud and numbers its voxels.
    pub(super) fn link<K: CellNumber>(
        &mut self,
        finder: &impl FindCells<K>,
        workspace: &mut Workspace<K>,
        floats: &[f32],
        columns: usize,
        spec: &HardSpec,
    ) -> DroppedPoints {
        let Workspace { cells, tables } = workspace;
        let dropped = finder.find(floats, columns, cells);
        self.next.resize_with(cells.len(), || AtomicU32::new(END));
        let (next, grid) = (self.next.as_slice(), spec.grid().voxels());
        // Where tables tell the first points, nobody looks at points without a voxel.
        if !group::is_dense(next.len(), grid) {
            group::each_piece(next.len(), next.par_chunks(PIECE), |next| {
                next.iter().for_each(|next| next.store(END, Ordering::Relaxed));
            });
        }
        let set = |point: u32, value: u32| {
            if let Some(next) = next.get(point as usize) {
                next.store(value, Ordering::Relaxed);
            }
        };
        group::visit(cells, grid, tables, |point, cell| {
            let chained = cell.seen < spec.max_points();
            match cell.seen {
                0 => set(point, FIRST | END),
                seen if chained => {
                    set(cell.last, if seen == 1 { FIRST | point } else { point });
                    set(point, END);
                }
                _ => {}
            }
            chained
        });
        let most = spec.max_voxels() as usize;
        self.firsts.clear();
        match tables.firsts(cells.len(), grid) {
            Some(firsts) => self.firsts.extend(firsts.take(most)),
            None => self.number(most),
        }
        dropped
    }

    /// Points of the cloud.
    pub(super) fn points(&self) -> usize {
        self.next.len()
    }

    /// Lists the first points, no more than there may be voxels.
    fn number(&mut self, most: usize) {
        let is_first = |next: &AtomicU32| next.load(Ordering::Relaxed) & FIRST != 0;
        if group::is_small(self.next.len()) {
            let firsts = self.next.iter().enumerate().filter(|(_, next)| is_first(next));
            self.firsts.extend(firsts.map(|(point, _)| point as u32).take(most));
            return;
        }
        let pieces = self.next.par_chunks(PIECE);
        let counts: Vec<usize> =
            pieces.map(|next| next.iter().filter(|next| is_first(next)).count()).collect();
        self.firsts.resize(counts.iter().sum(), 0);
        let mut rest = self.firsts.as_mut_slice();
        let mut parts = Vec::with_capacity(counts.len());
        for (piece, count) in counts.into_iter().enumerate() {
            let (part, after) = rest.split_at_mut(count);
            parts.push((piece * PIECE, part));
            rest = after;
        }
        let next = self.next.as_slice();
        parts.into_par_iter().for_each(|(start, part)| {
            let piece = next.get(start..).unwrap_or_default().iter().take(PIECE);
            let firsts = piece.enumerate().filter(|(_, next)| is_first(next));
            for (to, (index, _)) in part.iter_mut().zip(firsts) {
                *to = (start + index) as u32;
            }
        });
        self.firsts.truncate(most);
    }

    /// Calls `visit` for the points of a voxel, no more than it may have.
    pub(super) fn follow(&self, first: u32, mut visit: impl FnMut(u32)) {
        let mut point = first;
        while point != END {
            visit(point);
            let next = self.next.get(point as usize);
            point = next.map_or(END, |next| next.load(Ordering::Relaxed)) & END;
        }
    }

    /// Copies the points of a chain, with zeros behind them; says how many there are.
    pub(super) fn gather(
        &self,
        floats: &[f32],
        columns: usize,
        first: u32,
        voxel: &mut [f32],
    ) -> i32 {
        let mut count = 0;
        let mut places = voxel.chunks_exact_mut(columns);
        self.follow(first, |point| {
            let at = point as usize * columns;
            if let Some(place) = places.next() {
                place.copy_from_slice(floats.get(at..at + columns).unwrap_or_default());
                count += 1;
            }
        });
        voxel[count as usize * columns..].fill(0.0);
        count
    }
}
