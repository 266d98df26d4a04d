//! The voxel of every point, without a bound on either.

use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_memory::{Error, Result};
use rayon::prelude::*;

use super::group::{self, CellNumber};
use super::shares::{FindCells, PointShares};
use super::{CoordinateForm, PointBatch};
use crate::grid::VoxelGrid;
use crate::reduce::{largest, mean, sum};
use crate::room;
use crate::simd::place::SimdPlaces;

/// Points of a piece of parallel work.
const PIECE: usize = 1 << 13;

/// The coordinates of every point's voxel, −1 where it has none: what mmcv's operator gives for
/// `max_points` of −1. With a batch index, the number of the cloud stands in front of these too.
///
/// # Errors
///
/// [`Error::OutOfMemory`] where there is no room for them, as everywhere here.
pub fn dynamic_coordinates(
    batch: &PointBatch<'_>,
    grid: &VoxelGrid,
    form: CoordinateForm,
) -> Result<Vec<i32>> {
    let mut made = room::zeroed(batch.points().saturating_mul(form.columns()))?;
    dynamic_coordinates_into(batch, grid, form, &mut made)?;
    Ok(made)
}

/// The same into memory of the caller's.
///
/// # Errors
///
/// [`Error::Config`] where that memory has another length.
pub fn dynamic_coordinates_into(
    batch: &PointBatch<'_>,
    grid: &VoxelGrid,
    form: CoordinateForm,
    to: &mut [i32],
) -> Result<()> {
    check_result(to.len(), batch.points().saturating_mul(form.columns()))?;
    let (columns, width) = (batch.columns(), form.columns());
    let mut rest = to;
    for cloud in 0..batch.clouds() {
        let floats = batch.cloud(cloud);
        let (own, after) = rest.split_at_mut(floats.len() / columns * width);
        rest = after;
        let pieces = own.par_chunks_mut(PIECE * width).zip(floats.par_chunks(PIECE * columns));
        group::each_piece(floats.len() / columns, pieces, |(own, floats)| {
            for (to, point) in own.chunks_exact_mut(width).zip(floats.chunks_exact(columns)) {
                form.write(batch.number(cloud), cells_of(grid, point), to);
            }
        });
    }
    Ok(())
}

/// The cells of a point along z, y and x.
fn cells_of(grid: &VoxelGrid, point: &[f32]) -> Option<[u32; 3]> {
    let cell = |axis: usize| {
        let quotient = (point[axis] - grid.origin()[axis]) / grid.size()[axis];
        // Rounded down it is within the same bounds, and rounding towards zero rounds it down.
        (quotient >= 0.0 && quotient < grid.cells()[axis] as f32).then_some(quotient as u32)
    };
    Some([cell(2)?, cell(1)?, cell(0)?])
}

/// The voxels that have points, in the order of their first points, cloud by cloud.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct UniqueVoxels {
    /// Voxels, and three or four numbers of each.
    pub coordinates: Vec<i32>,
    /// The voxel of each point, or −1.
    pub point_to_voxel: Vec<i32>,
    /// Points of each voxel.
    pub num_points: Vec<i32>,
    /// Voxels of each cloud.
    pub clouds: Vec<usize>,
}

impl UniqueVoxels {
    /// Finds them.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for 2³¹ points or more.
    pub fn of(
        batch: &PointBatch<'_>,
        grid: &VoxelGrid,
        form: CoordinateForm,
    ) -> Result<UniqueVoxels> {
        if i32::try_from(batch.points()).is_err() {
            return Err(Error::Config {
                field: "points",
                value: batch.points().to_string(),
                range: "fewer than 2^31",
            });
        }
        let mut made = UniqueVoxels::default();
        let places = SimdPlaces::new(grid);
        for cloud in 0..batch.clouds() {
            let firsts = match &places {
                Some(places) => firsts_of(places, batch, cloud),
                None => firsts_of(grid, batch, cloud),
            };
            made.add(batch, grid, form, cloud, &firsts?)?;
        }
        Ok(made)
    }

    /// Numbers the voxels of a cloud, of whose points each knows the first of its voxel.
    fn add(
        &mut self,
        batch: &PointBatch<'_>,
        grid: &VoxelGrid,
        form: CoordinateForm,
        cloud: usize,
        firsts: &[AtomicU32],
    ) -> Result<()> {
        let (floats, columns, before) =
            (batch.cloud(cloud), batch.columns(), self.num_points.len());
        let mut numbers = room::zeroed::<i32>(firsts.len())?;
        let is_first =
            |(point, first): &(usize, &AtomicU32)| first.load(Ordering::Relaxed) as usize == *point;
        let voxels = firsts.iter().enumerate().filter(is_first).count();
        room::reserve(&mut self.point_to_voxel, firsts.len())?;
        room::reserve(&mut self.num_points, voxels)?;
        room::reserve(&mut self.coordinates, voxels * form.columns())?;
        for (point, first) in firsts.iter().enumerate() {
            let first = first.load(Ordering::Relaxed);
            if first == NONE {
                self.point_to_voxel.push(-1);
                continue;
            }
            if first as usize == point {
                numbers[point] = self.num_points.len() as i32;
                self.num_points.push(0);
                let at = self.coordinates.len();
                self.coordinates.resize(at + form.columns(), 0);
                let cells = floats.get(point * columns..).and_then(|point| cells_of(grid, point));
                form.write(batch.number(cloud), cells, &mut self.coordinates[at..]);
            }
            let number = numbers[first as usize];
            self.point_to_voxel.push(number);
            self.num_points[number as usize] += 1;
        }
        self.clouds.push(self.num_points.len() - before);
        Ok(())
    }
}

const NONE: u32 = u32::MAX;

/// The first point of each point's voxel.
fn firsts_of<K: CellNumber>(
    finder: &impl FindCells<K>,
    batch: &PointBatch<'_>,
    cloud: usize,
) -> Result<Vec<AtomicU32>> {
    let (mut shares, mut cells) = (PointShares::default(), Vec::new());
    shares.divide(finder, batch.cloud(cloud), batch.columns(), &mut cells)?;
    let (points, mut tables) = (shares.points(), Vec::new());
    let mut firsts = Vec::new();
    room::fit_length(&mut firsts, cells.len(), || AtomicU32::new(NONE))?;
    group::visit(&shares, &cells, &mut tables, |position, cell| {
        let first = if cell.seen == 0 { position } else { cell.last };
        let point = |position: u32| points.get(position as usize).copied().unwrap_or(NONE);
        if let Some(own) = firsts.get(point(position) as usize) {
            own.store(point(first), Ordering::Relaxed);
        }
        cell.seen == 0
    })?;
    Ok(firsts)
}

/// What is made of the points of a voxel. Each goes through them in the order of points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScatterRule {
    /// Summed in double precision, and rounded to single once.
    Sum,
    /// The sum, divided before it is rounded.
    Mean,
    /// The largest: NaN above everything, +0 above −0.
    Max,
}

/// What the points of each voxel come to, column by column: [voxels, columns].
/// `point_to_voxel` has the voxel of each point, or −1. A voxel without points is 0.
///
/// # Errors
///
/// [`Error::Config`] where there are not as many floats as points and columns say, or a voxel
/// is past `voxels`.
pub fn scatter_points(
    features: &[f32],
    columns: usize,
    point_to_voxel: &[i32],
    voxels: usize,
    rule: ScatterRule,
) -> Result<Vec<f32>> {
    check_scatter(features.len(), columns, point_to_voxel, voxels)?;
    let order = sorted(point_to_voxel, voxels)?;
    let mut made = room::zeroed(voxels.saturating_mul(columns))?;
    write_scattered(features, columns, &order, rule, &mut made);
    Ok(made)
}

/// The same into memory of the caller's, where nothing is written if it fails.
///
/// # Errors
///
/// As [`scatter_points`], and where that memory has another length.
pub fn scatter_points_into(
    features: &[f32],
    columns: usize,
    point_to_voxel: &[i32],
    voxels: usize,
    rule: ScatterRule,
    to: &mut [f32],
) -> Result<()> {
    check_scatter(features.len(), columns, point_to_voxel, voxels)?;
    check_result(to.len(), voxels.saturating_mul(columns))?;
    let order = sorted(point_to_voxel, voxels)?;
    to.fill(0.0);
    write_scattered(features, columns, &order, rule, to);
    Ok(())
}

/// Writes it where zeros are: for each voxel from where the one before ends in the order of points.
fn write_scattered(
    features: &[f32],
    columns: usize,
    (ends, order): &(Vec<usize>, Vec<u32>),
    rule: ScatterRule,
    to: &mut [f32],
) {
    if columns == 0 {
        return;
    }
    to.par_chunks_mut(columns).enumerate().for_each(|(voxel, made)| {
        let start = voxel.checked_sub(1).map_or(0, |before| ends[before]);
        let points = &order[start..ends[voxel]];
        for (column, value) in made.iter_mut().enumerate().filter(|_| !points.is_empty()) {
            let mut all = points.iter().map(|point| features[*point as usize * columns + column]);
            *value = match rule {
                ScatterRule::Sum => sum(&mut all),
                ScatterRule::Mean => mean(&mut all),
                ScatterRule::Max => largest(&mut all),
            };
        }
    });
}

/// Whether a result has the length that it is to have.
pub(super) fn check_result(is: usize, wanted: usize) -> Result<()> {
    if is == wanted {
        return Ok(());
    }
    let value = format!("{is} instead of {wanted} numbers");
    Err(Error::Config { field: "result", value, range: "as many as there are to write" })
}

/// Points by voxel, in their order; and where each voxel's end.
fn sorted(point_to_voxel: &[i32], voxels: usize) -> Result<(Vec<usize>, Vec<u32>)> {
    let mut ends: Vec<usize> = room::zeroed(voxels)?;
    for voxel in point_to_voxel.iter().filter_map(|voxel| usize::try_from(*voxel).ok()) {
        ends[voxel] += 1;
    }
    let mut before = 0;
    for end in &mut ends {
        before += std::mem::replace(end, before);
    }
    let mut order = room::zeroed::<u32>(before)?;
    for (point, voxel) in point_to_voxel.iter().enumerate() {
        if let Ok(voxel) = usize::try_from(*voxel) {
            order[ends[voxel]] = point as u32;
            ends[voxel] += 1;
        }
    }
    Ok((ends, order))
}

/// The row of each point's voxel, and zeros for a point without one: [points, columns].
///
/// # Errors
///
/// [`Error::Config`] where a voxel is past the values.
pub fn voxels_to_points(
    values: &[f32],
    columns: usize,
    point_to_voxel: &[i32],
) -> Result<Vec<f32>> {
    let voxels = values.len().checked_div(columns).unwrap_or(0);
    check_scatter(point_to_voxel.len().saturating_mul(columns), columns, point_to_voxel, voxels)?;
    let mut made = room::zeroed(point_to_voxel.len().saturating_mul(columns))?;
    write_back(values, columns, point_to_voxel, &mut made);
    Ok(made)
}

/// The same into memory of the caller's, where nothing is written if it fails.
///
/// # Errors
///
/// As [`voxels_to_points`], and where that memory has another length.
pub fn voxels_to_points_into(
    values: &[f32],
    columns: usize,
    point_to_voxel: &[i32],
    to: &mut [f32],
) -> Result<()> {
    let voxels = values.len().checked_div(columns).unwrap_or(0);
    let floats = point_to_voxel.len().saturating_mul(columns);
    check_scatter(floats, columns, point_to_voxel, voxels)?;
    check_result(to.len(), floats)?;
    to.fill(0.0);
    write_back(values, columns, point_to_voxel, to);
    Ok(())
}

/// Writes it where zeros are.
fn write_back(values: &[f32], columns: usize, point_to_voxel: &[i32], to: &mut [f32]) {
    if columns > 0 {
        to.par_chunks_mut(columns).zip(point_to_voxel).for_each(|(made, voxel)| {
            if let Ok(voxel) = usize::try_from(*voxel) {
                made.copy_from_slice(&values[voxel * columns..(voxel + 1) * columns]);
            }
        });
    }
}

/// Whether each point has a voxel that there is, or none, and as many floats as columns.
pub(crate) fn check_scatter(
    floats: usize,
    columns: usize,
    point_to_voxel: &[i32],
    voxels: usize,
) -> Result<()> {
    let past = point_to_voxel.iter().any(|voxel| *voxel >= 0 && *voxel as usize >= voxels);
    let points = point_to_voxel.len();
    if floats == points.saturating_mul(columns) && !past && u32::try_from(points).is_ok() {
        return Ok(());
    }
    Err(Error::Config {
        field: "point_to_voxel",
        value: format!("{points} points of {columns} columns, {floats} floats, {voxels} voxels"),
        range: "a voxel that there is, or -1, for each point, and as many floats as these need",
    })
}
