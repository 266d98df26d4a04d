//! Which points are in one voxel, and which voxels come first: what lies between finding cells and
//! filling voxels.

use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_memory::Result;
use rayon::prelude::*;

use super::HardSpec;
use super::group::{self, CellNumber, CellTable};
use super::shares::{DroppedPoints, FindCells, PIECE, PointShares};
use crate::room;

/// Which points are in one voxel: what lies between finding cells and filling voxels. Points are
/// told by their positions.
#[derive(Debug, Default)]
pub(super) struct HardLinks {
    shares: PointShares,
    /// The next point of each point's voxel, or [`END`]; with the bit [`FIRST`] where the point
    /// is the first of its voxel.
    next: Vec<AtomicU32>,
    /// The first points of the voxels, in order.
    firsts: Vec<u32>,
}

const END: u32 = 0x7FFF_FFFF;
const FIRST: u32 = 0x8000_0000;

/// What cells are found and looked up in.
#[derive(Debug)]
pub(super) struct Workspace<K> {
    cells: Vec<K>,
    tables: Vec<CellTable<K>>,
}

impl<K> Default for Workspace<K> {
    fn default() -> Workspace<K> {
        Workspace { cells: Vec::new(), tables: Vec::new() }
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
    ) -> Result<DroppedPoints> {
        let Workspace { cells, tables } = workspace;
        let dropped = self.shares.divide(finder, floats, columns, cells)?;
        room::fit_length(&mut self.next, cells.len(), || AtomicU32::new(END))?;
        let next = self.next.as_slice();
        let set = |position: u32, value: u32| {
            if let Some(next) = next.get(position as usize) {
                next.store(value, Ordering::Relaxed);
            }
        };
        group::visit(&self.shares, cells, tables, |position, cell| {
            let chained = cell.seen < spec.max_points();
            set(position, if cell.seen == 0 { FIRST | END } else { END });
            match cell.seen {
                1 if chained => set(cell.last, FIRST | position),
                seen if seen > 1 && chained => set(cell.last, position),
                _ => {}
            }
            chained
        })?;
        self.number(spec.max_voxels() as usize)?;
        Ok(dropped)
    }

    /// Points of the cloud.
    pub(super) fn points(&self) -> usize {
        self.next.len()
    }

    /// Voxels of the cloud.
    pub(super) fn voxels(&self) -> usize {
        self.firsts.len()
    }

    /// The first points of the voxels, in order.
    pub(super) fn firsts(&self) -> &[u32] {
        &self.firsts
    }

    /// The point at a position.
    pub(super) fn point(&self, position: u32) -> usize {
        self.shares.points().get(position as usize).map_or(0, |point| *point as usize)
    }

    /// Lists the first points in order, no more than there may be voxels.
    fn number(&mut self, most: usize) -> Result<()> {
        let HardLinks { shares, next, firsts } = self;
        let pieces = 0..next.len().div_ceil(PIECE);
        let marks = |piece: usize| next.get(shares.inside(piece)).unwrap_or_default();
        let is_first = |next: &AtomicU32| next.load(Ordering::Relaxed) & FIRST != 0;
        let count = |piece| marks(piece).iter().filter(|next| is_first(next)).count();
        let small = group::is_small(next.len());
        let counts: Vec<usize> = if small {
            pieces.map(count).collect()
        } else {
            pieces.into_par_iter().map(count).collect()
        };
        room::fit_length(firsts, counts.iter().sum(), || 0)?;
        let mut rest = firsts.as_mut_slice();
        let mut parts = Vec::with_capacity(counts.len());
        for count in counts {
            let (part, after) = rest.split_at_mut(count);
            parts.push(part);
            rest = after;
        }
        group::each_piece(next.len(), parts.into_par_iter().enumerate(), |(piece, part)| {
            // Positions by point: workers follow each other, points are in order again.
            let (mut positions, mut known) = ([0u32; PIECE], [0u64; PIECE / 64]);
            let inside = shares.inside(piece);
            let points = shares.points().get(inside.clone()).unwrap_or_default();
            for ((position, point), next) in (inside.start as u32..).zip(points).zip(marks(piece)) {
                let point = *point as usize % PIECE;
                positions[point] = position;
                known[point / 64] |= u64::from(is_first(next)) << (point % 64);
            }
            let words = known.iter().enumerate().flat_map(|(word, bits)| {
                let mut bits = *bits;
                std::iter::from_fn(move || {
                    let bit = bits.trailing_zeros() as usize;
                    (bits != 0).then(|| bits &= bits - 1)?;
                    Some(64 * word + bit)
                })
            });
            part.iter_mut().zip(words).for_each(|(to, point)| *to = positions[point]);
        });
        firsts.truncate(most);
        Ok(())
    }

    /// Calls `visit` for the points of a voxel, no more than it may have.
    pub(super) fn follow(&self, first: u32, mut visit: impl FnMut(u32)) {
        let (points, mut position) = (self.shares.points(), first);
        while position != END {
            if let Some(point) = points.get(position as usize) {
                visit(*point);
            }
            let next = self.next.get(position as usize);
            position = next.map_or(END, |next| next.load(Ordering::Relaxed)) & END;
        }
    }
}
