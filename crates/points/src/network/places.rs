//! What is known of each cell of a small grid: a number, or nothing yet.

use crate::simd;

/// A place for each cell. It holds the number, and below it which cloud that was of, so that the
/// places need not be cleared for the next cloud.
#[derive(Debug, Default)]
pub(super) struct CellPlaces {
    places: Vec<u32>,
    cloud: u32,
}

/// Bits of a place that say which cloud it was of; the numbers of a small cloud fit above them.
const CLOUD_BITS: u32 = 16;
const CLOUD: u32 = (1 << CLOUD_BITS) - 1;

/// The places for one cloud.
#[derive(Debug)]
pub(super) struct CloudPlaces<'p> {
    places: &'p mut [u32],
    cloud: u32,
}

impl CellPlaces {
    /// Nothing known, for a cloud of a grid of so many cells.
    pub(super) fn clear(&mut self, cells: usize) {
        self.cloud += 1;
        if self.places.len() != cells || self.cloud > CLOUD {
            self.places.clear();
            self.places.resize(cells, 0);
            self.cloud = 1;
        }
    }

    /// The same, to work with.
    pub(super) fn cleared(&mut self, cells: usize) -> CloudPlaces<'_> {
        self.clear(cells);
        self.of_cloud()
    }

    /// What is known of the cloud.
    #[inline(always)]
    pub(super) fn of_cloud(&mut self) -> CloudPlaces<'_> {
        CloudPlaces { places: &mut self.places, cloud: self.cloud }
    }

    /// Has the place of a cell on its way to the caches.
    #[inline(always)]
    pub(super) fn fetch(&self, cell: usize) {
        simd::fetch(&self.places, cell);
    }
}

impl CloudPlaces<'_> {
    /// Has the place of a cell on its way to the caches.
    #[inline(always)]
    pub(super) fn fetch(&self, cell: usize) {
        simd::fetch(self.places, cell);
    }

    /// The number of a cell that has one.
    #[inline(always)]
    pub(super) fn get(&self, cell: usize) -> Option<usize> {
        let place = *self.places.get(cell)?;
        (place & CLOUD == self.cloud).then_some((place >> CLOUD_BITS) as usize)
    }

    /// Gives a number below 2¹⁶ to a cell.
    #[inline(always)]
    pub(super) fn set(&mut self, cell: usize, number: usize) {
        if let Some(place) = self.places.get_mut(cell) {
            *place = (number as u32) << CLOUD_BITS | self.cloud;
        }
    }
}
