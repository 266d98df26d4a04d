//! Hard voxelization on the host.
//!
//! Into the caller's memory, small clouds are written in one pass (`direct`), and so are all where
//! threads are few. Otherwise points of a cell are chained in their order, first come the cells' first
//! points. These are numbered, and each voxel is filled from its chain. Every step uses all
//! processors, but for small clouds.

use plimsoll_memory::{Error, Result};
use rayon::prelude::*;

use super::direct::{self, DirectCloud, DirectVoxels};
use super::group;
use super::links::{HardLinks, Workspace};
use super::places::HashedPlaces;
use super::shares::DroppedPoints;
use super::{HardSpec, PointBatch};
use crate::grid::VoxelGrid;
use crate::room::{reserve, resize};
use crate::simd;
use crate::simd::place::SimdPlaces;

/// What hard voxelization makes. Clouds follow each other.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct HardVoxels {
    /// Voxels, points, columns; what has no point is 0.
    pub voxels: Vec<f32>,
    /// Voxels, and three or four numbers of each.
    pub coordinates: Vec<i32>,
    /// Points of each voxel.
    pub num_points: Vec<i32>,
    /// Voxels of each cloud.
    pub clouds: Vec<usize>,
    /// Points without a voxel because a coordinate is NaN or infinite.
    pub not_finite: u64,
    /// Points without a voxel because they lie outside the range.
    pub outside: u64,
}

/// Hard voxelization of clouds in memory, on the host.
///
/// # Errors
///
/// [`Error::OutOfMemory`] where there is no room for the result.
pub fn hard_voxelize(batch: &PointBatch<'_>, spec: &HardSpec) -> Result<HardVoxels> {
    let mut made = HardVoxels::default();
    HardHost::new(*spec).run(batch, &mut made)?;
    Ok(made)
}

/// Hard voxelization on the host, which keeps what it works in from one call to the next.
#[derive(Debug)]
pub struct HardHost {
    spec: HardSpec,
    narrow: Option<(SimdPlaces, Workspace<u32>)>,
    wide: Workspace<u64>,
    links: HardLinks,
    direct: DirectVoxels,
}

/// Voxels of a piece of parallel work.
const VOXELS: usize = 1 << 10;
/// How many voxels ahead first points are fetched.
const AHEAD: usize = 16;

impl HardHost {
    /// With nothing to work in yet.
    #[must_use]
    pub fn new(spec: HardSpec) -> HardHost {
        let narrow = SimdPlaces::new(spec.grid()).map(|places| (places, Workspace::default()));
        let (wide, links) = (Workspace::default(), HardLinks::default());
        HardHost { spec, narrow, wide, links, direct: DirectVoxels::default() }
    }

    /// What it makes.
    #[must_use]
    pub fn spec(&self) -> &HardSpec {
        &self.spec
    }

    /// Makes the voxels of a batch, in the place of what `made` holds; its memory is used again.
    ///
    /// # Errors
    ///
    /// As [`hard_voxelize`].
    pub fn run(&mut self, batch: &PointBatch<'_>, made: &mut HardVoxels) -> Result<()> {
        made.clouds.clear();
        (made.not_finite, made.outside) = (0, 0);
        let mut before = 0;
        for cloud in 0..batch.clouds() {
            let dropped = self.link(batch, cloud)?;
            made.not_finite += dropped.not_finite;
            made.outside += dropped.outside;
            let voxels = self.links.voxels();
            made.clouds.push(voxels);
            if group::is_small(batch.range(cloud).len()) {
                self.append(batch, cloud, before, made)?;
            } else {
                made.make_room(before + voxels, &self.spec, batch.columns())?;
                self.fill(batch, cloud, made.slices().from(before, &self.spec, batch.columns()));
            }
            before += voxels;
        }
        made.make_room(before, &self.spec, batch.columns())
    }

    /// Makes the voxels of a batch in memory of the caller's, from its start on; what is behind
    /// them stays as it is. Gives how many voxels each cloud has.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where there is not enough of it, some of which may be written by then:
    /// min(points, maximum) voxels of each cloud always are enough.
    pub fn run_into(
        &mut self,
        batch: &PointBatch<'_>,
        mut to: HardSlices<'_>,
    ) -> Result<Vec<usize>> {
        let (spec, columns) = (self.spec, batch.columns());
        let (mut clouds, mut before) = (Vec::new(), 0usize);
        for cloud in 0..batch.clouds() {
            let room = to.from(before, &spec, columns);
            let most = room.capacity(&spec, columns);
            let voxels = self.make(batch, cloud, room)?.ok_or_else(|| Error::Config {
                field: "capacity",
                value: format!("{} voxels", before + most),
                range: "min(points, max_voxels) of each cloud",
            })?;
            clouds.push(voxels);
            before += voxels;
        }
        Ok(clouds)
    }

    /// Makes the voxels of one cloud; gives how many there are, or nothing where there is no room.
    fn make(
        &mut self,
        batch: &PointBatch<'_>,
        cloud: usize,
        to: HardSlices<'_>,
    ) -> Result<Option<usize>> {
        let (floats, columns) = (batch.cloud(cloud), batch.columns());
        if let Some((rule, _)) = &self.narrow
            && direct::is_quickest(floats.len() / columns)
        {
            let number = batch.number(cloud);
            let cloud = DirectCloud { rule, spec: &self.spec, floats, columns, number };
            return self.direct.run(cloud, to);
        }
        self.link(batch, cloud)?;
        let voxels = self.links.voxels();
        let fits = voxels <= to.capacity(&self.spec, columns);
        Ok(fits.then(|| {
            self.fill(batch, cloud, to);
            voxels
        }))
    }

    /// Whether the calling thread makes all clouds of a batch by itself, because they are small.
    #[must_use]
    pub fn works_alone(batch: &PointBatch<'_>) -> bool {
        (0..batch.clouds()).all(|cloud| group::is_small(batch.range(cloud).len()))
    }

    /// What it works in for a cloud of so many points at most, the result not counted: cells,
    /// order, chains, voxels, and tables that are at most half full, or those of small grids.
    #[must_use]
    pub fn working_bytes(points: u64) -> u64 {
        let entries = group::CellTable::<u64>::MOST_ENTRIES;
        let wide = entries * size_of::<group::CellEntry<u64>>() as u64;
        let narrow = entries * size_of::<group::CellEntry<u32>>() as u64;
        let tables = wide.max(narrow + HashedPlaces::MOST_BYTES);
        // Cells twice, as a piece is put in the order of workers.
        points.saturating_mul(2 * 8 + 3 * 4 + tables).saturating_add(direct::DENSE_BYTES)
    }

    /// Chains the points of one cloud and numbers its voxels.
    fn link(&mut self, batch: &PointBatch<'_>, cloud: usize) -> Result<DroppedPoints> {
        let (floats, columns) = (batch.cloud(cloud), batch.columns());
        let spec = &self.spec;
        match &mut self.narrow {
            Some((places, workspace)) => self.links.link(places, workspace, floats, columns, spec),
            None => self.links.link(spec.grid(), &mut self.wide, floats, columns, spec),
        }
    }

    /// Writes the voxels of a small cloud behind the `before` that are there, each number once.
    fn append(
        &self,
        batch: &PointBatch<'_>,
        cloud: usize,
        before: usize,
        made: &mut HardVoxels,
    ) -> Result<()> {
        let (spec, columns, links) = (&self.spec, batch.columns(), &self.links);
        let (floats, form, number) = (batch.cloud(cloud), spec.form(), batch.number(cloud));
        let (each, voxels) = (spec.max_points() as usize * columns, links.voxels());
        made.make_room(before.min(made.num_points.len()), spec, columns)?;
        reserve(&mut made.voxels, voxels.saturating_mul(each))?;
        reserve(&mut made.coordinates, voxels * form.columns())?;
        reserve(&mut made.num_points, voxels)?;
        for first in links.firsts() {
            let (start, mut count) = (made.voxels.len(), 0);
            links.follow(*first, |point| {
                let at = point as usize * columns;
                made.voxels.extend_from_slice(floats.get(at..at + columns).unwrap_or_default());
                count += 1;
            });
            let mut cells = [0; 4];
            form.write(number, Some(cell_of(spec.grid(), &made.voxels[start..])), &mut cells);
            made.voxels.resize(start + each, 0.0);
            made.num_points.push(count);
            made.coordinates.extend_from_slice(&cells[..form.columns()]);
        }
        Ok(())
    }

    /// Fills the voxels of a cloud.
    fn fill(&self, batch: &PointBatch<'_>, cloud: usize, to: HardSlices<'_>) {
        match batch.columns() {
            3 => self.fill_sized::<3>(batch, cloud, to),
            4 => self.fill_sized::<4>(batch, cloud, to),
            5 => self.fill_sized::<5>(batch, cloud, to),
            _ => self.fill_sized::<0>(batch, cloud, to),
        }
    }

    /// The same for points of `C` columns, or of any number of them where `C` is 0.
    fn fill_sized<const C: usize>(&self, batch: &PointBatch<'_>, cloud: usize, to: HardSlices<'_>) {
        let (columns, width) = (batch.columns(), self.spec.form().columns());
        let each = self.spec.max_points() as usize * columns;
        let voxels = to.voxels.par_chunks_mut(VOXELS.saturating_mul(each));
        let coordinates = to.coordinates.par_chunks_mut(VOXELS * width);
        let counts = to.num_points.par_chunks_mut(VOXELS);
        let firsts = self.links.firsts().par_chunks(VOXELS);
        let pieces = voxels.zip(coordinates).zip(counts).zip(firsts);
        group::each_piece(self.links.points(), pieces, |(((voxels, places), counts), firsts)| {
            let to = HardSlices { voxels, coordinates: places, num_points: counts };
            self.fill_piece::<C>(batch, cloud, firsts, to);
        });
    }

    /// Fills the voxels that have these first points.
    fn fill_piece<const C: usize>(
        &self,
        batch: &PointBatch<'_>,
        cloud: usize,
        firsts: &[u32],
        to: HardSlices<'_>,
    ) {
        // Copies of a known length are a few instructions, others are calls.
        let columns = if C == 0 { batch.columns() } else { C };
        let (spec, links, floats) = (&self.spec, &self.links, batch.cloud(cloud));
        let (form, number) = (spec.form(), batch.number(cloud));
        let voxels = to.voxels.chunks_exact_mut(spec.max_points() as usize * columns);
        let voxels = voxels.zip(to.coordinates.chunks_exact_mut(form.columns())).zip(to.num_points);
        for (index, (((voxel, place), count), first)) in voxels.zip(firsts).enumerate() {
            if let Some(ahead) = firsts.get(index + AHEAD) {
                simd::fetch(floats, links.point(*ahead) * columns);
            }
            let point = floats.get(links.point(*first) * columns..);
            form.write(number, point.map(|point| cell_of(spec.grid(), point)), place);
            let (mut rooms, mut filled) = (voxel.chunks_exact_mut(columns), 0);
            links.follow(*first, |point| {
                let at = point as usize * columns;
                if let (Some(room), Some(floats)) = (rooms.next(), floats.get(at..at + columns)) {
                    room.copy_from_slice(floats);
                    filled += 1;
                }
            });
            *count = filled;
            voxel[filled as usize * columns..].fill(0.0);
        }
    }
}

/// Memory of the caller's for voxels: points and columns of each, its coordinates, and how many
/// points it has.
#[derive(Debug)]
pub struct HardSlices<'s> {
    /// Voxels, points, columns.
    pub voxels: &'s mut [f32],
    /// Voxels, and three or four numbers of each.
    pub coordinates: &'s mut [i32],
    /// Points of each voxel.
    pub num_points: &'s mut [i32],
}

impl HardSlices<'_> {
    /// Voxels that there is room for.
    pub(super) fn capacity(&self, spec: &HardSpec, columns: usize) -> usize {
        let voxels = self.voxels.len() / (spec.max_points() as usize * columns).max(1);
        voxels.min(self.coordinates.len() / spec.form().columns()).min(self.num_points.len())
    }

    /// From a voxel on.
    fn from(&mut self, voxel: usize, spec: &HardSpec, columns: usize) -> HardSlices<'_> {
        let each = spec.max_points() as usize * columns;
        let HardSlices { voxels, coordinates, num_points } = self;
        HardSlices {
            voxels: voxels.get_mut(voxel * each..).unwrap_or_default(),
            coordinates: coordinates.get_mut(voxel * spec.form().columns()..).unwrap_or_default(),
            num_points: num_points.get_mut(voxel..).unwrap_or_default(),
        }
    }
}

/// The cells of a point that has a voxel.
fn cell_of(grid: &VoxelGrid, point: &[f32]) -> [u32; 3] {
    // It is not negative, so this rounds down.
    let cell = |axis: usize| ((point[axis] - grid.origin()[axis]) / grid.size()[axis]) as u32;
    [cell(2), cell(1), cell(0)]
}

impl HardVoxels {
    fn slices(&mut self) -> HardSlices<'_> {
        HardSlices {
            voxels: &mut self.voxels,
            coordinates: &mut self.coordinates,
            num_points: &mut self.num_points,
        }
    }

    /// Exactly as many voxels; those that were there stay, and new ones are 0.
    pub(crate) fn make_room(
        &mut self,
        voxels: usize,
        spec: &HardSpec,
        columns: usize,
    ) -> Result<()> {
        let floats = voxels.checked_mul(spec.max_points() as usize);
        let floats = floats.and_then(|points| points.checked_mul(columns)).unwrap_or(usize::MAX);
        resize(&mut self.voxels, floats)?;
        resize(&mut self.coordinates, voxels * spec.form().columns())?;
        resize(&mut self.num_points, voxels)
    }
}
