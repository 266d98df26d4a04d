//! The voxel of each cell, or that it has none yet.
//!
//! A place says which cloud it was written for, so that places need not be cleared for the next.

use plimsoll_memory::Result;

use super::group;
use crate::room;
use crate::simd;

/// Where the voxels of cells are looked up.
pub(super) trait VoxelPlaces {
    /// Has the place of a cell on its way to the caches.
    fn fetch(&self, cell: u32);

    /// The voxel of a cell that has one.
    fn get(&self, cell: u32) -> Option<usize>;

    /// Gives a voxel to a cell that has none.
    fn set(&mut self, cell: u32, voxel: usize);
}

/// A place for each cell of a small grid: the voxel, and below it the number of the cloud.
#[derive(Debug, Default)]
pub(super) struct CellPlaces {
    places: Vec<u32>,
    cloud: u32,
}

impl CellPlaces {
    const CLOUD_BITS: u32 = 16;
    const CLOUD: u32 = (1 << Self::CLOUD_BITS) - 1;
    /// Voxels that can be told apart.
    pub(super) const VOXELS: usize = 1 << (u32::BITS - Self::CLOUD_BITS);

    /// Nothing known, for a cloud of a grid of so many cells.
    pub(super) fn clear(&mut self, cells: usize) -> Result<()> {
        self.cloud += 1;
        if self.places.len() != cells || self.cloud > Self::CLOUD {
            // Not two of them at once, and none of the old where there is no room.
            self.places = Vec::new();
            self.places = room::zeroed(cells)?;
            self.cloud = 1;
        }
        Ok(())
    }
}

impl VoxelPlaces for CellPlaces {
    #[inline(always)]
    fn fetch(&self, cell: u32) {
        simd::fetch(&self.places, cell as usize);
    }

    #[inline(always)]
    fn get(&self, cell: u32) -> Option<usize> {
        let place = *self.places.get(cell as usize)?;
        (place & Self::CLOUD == self.cloud).then_some((place >> Self::CLOUD_BITS) as usize)
    }

    #[inline(always)]
    fn set(&mut self, cell: u32, voxel: usize) {
        if let Some(place) = self.places.get_mut(cell as usize) {
            *place = (voxel as u32) << Self::CLOUD_BITS | self.cloud;
        }
    }
}

/// A table of cells, at most half full: the cell (below 2³⁰), its voxel, and below them the number
/// of the cloud.
#[derive(Debug, Default)]
pub(super) struct HashedPlaces {
    places: Vec<u64>,
    cloud: u32,
    /// The places of this cloud begin at 0 and end here; a larger cloud may have left others behind.
    last: usize,
    shift: u32,
}

impl HashedPlaces {
    const CLOUD_BITS: u32 = 10;
    const CLOUD: u32 = (1 << Self::CLOUD_BITS) - 1;
    const CELL_SHIFT: u32 = u64::BITS - 30;
    /// Voxels that can be told apart.
    pub(super) const VOXELS: usize = 1 << (Self::CELL_SHIFT - Self::CLOUD_BITS);
    /// What it takes for each voxel at most.
    pub(super) const MOST_BYTES: u64 = 4 * size_of::<u64>() as u64;

    /// Nothing known, for a cloud of at most so many voxels.
    pub(super) fn clear(&mut self, voxels: usize) -> Result<()> {
        let room = (2 * voxels).next_power_of_two().max(64);
        self.cloud += 1;
        if self.places.len() < room || self.cloud > Self::CLOUD {
            // Not two of them at once.
            self.places = Vec::new();
            self.places = room::zeroed(room)?;
            self.cloud = 1;
        }
        self.last = room - 1;
        self.shift = u64::BITS - room.trailing_zeros();
        Ok(())
    }

    #[inline(always)]
    fn start(&self, cell: u32) -> usize {
        (group::mixed(cell.into()) >> self.shift) as usize
    }

    /// Where a cell is, and its voxel; or where it would be.
    #[inline(always)]
    fn find(&self, cell: u32) -> (usize, Option<usize>) {
        let mut at = self.start(cell);
        loop {
            let place = self.places.get(at).copied().unwrap_or_default();
            if place as u32 & Self::CLOUD != self.cloud {
                return (at, None);
            }
            if (place >> Self::CELL_SHIFT) as u32 == cell {
                let voxel = (place >> Self::CLOUD_BITS) as usize & (Self::VOXELS - 1);
                return (at, Some(voxel));
            }
            at = (at + 1) & self.last;
        }
    }
}

impl VoxelPlaces for HashedPlaces {
    #[inline(always)]
    fn fetch(&self, cell: u32) {
        simd::fetch(&self.places, self.start(cell));
    }

    #[inline(always)]
    fn get(&self, cell: u32) -> Option<usize> {
        self.find(cell).1
    }

    #[inline(always)]
    fn set(&mut self, cell: u32, voxel: usize) {
        let (at, _) = self.find(cell);
        if let Some(place) = self.places.get_mut(at) {
            let voxel = (voxel as u64) << Self::CLOUD_BITS;
            *place = u64::from(cell) << Self::CELL_SHIFT | voxel | u64::from(self.cloud);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const CELLS: u32 = 40;

    fn check<P: VoxelPlaces>(mut places: P, clear: impl Fn(&mut P), clouds: u32, voxels: usize) {
        let mut state = 1u32;
        for cloud in 0..clouds {
            clear(&mut places);
            let mut known = HashMap::new();
            for _ in 0..12 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let (cell, voxel) = ((state >> 16) % CELLS, state as usize % voxels);
                places.fetch(cell);
                assert_eq!(places.get(cell), known.get(&cell).copied(), "cloud {cloud}");
                if let std::collections::hash_map::Entry::Vacant(entry) = known.entry(cell) {
                    places.set(cell, *entry.insert(voxel));
                }
            }
            for cell in 0..CELLS {
                assert_eq!(places.get(cell), known.get(&cell).copied(), "cloud {cloud}");
            }
        }
    }

    #[test]
    fn cells_have_the_voxels_of_this_cloud_alone() {
        let clear = |places: &mut CellPlaces| places.clear(CELLS as usize).unwrap();
        check(CellPlaces::default(), clear, CellPlaces::CLOUD + 3, CellPlaces::VOXELS);
        let clear = |places: &mut HashedPlaces| places.clear(12).unwrap();
        check(HashedPlaces::default(), clear, 2 * HashedPlaces::CLOUD + 3, HashedPlaces::VOXELS);
    }

    #[test]
    fn a_table_that_is_half_full_tells_all_cells_apart() {
        let mut places = HashedPlaces::default();
        for voxels in [500, 40_000, 7] {
            places.clear(voxels).unwrap();
            let cell = |voxel: usize| ((1 << 30) - 1 - 3 * voxel) as u32;
            (0..voxels).for_each(|voxel| places.set(cell(voxel), voxel));
            assert!((0..voxels).all(|voxel| places.get(cell(voxel)) == Some(voxel)));
            assert_eq!(places.get(cell(voxels)), None);
        }
    }
}
