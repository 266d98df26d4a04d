//! What networks take beside hard voxels, of the host's memory on a device: brought there, made by
//! one kernel after the other, and brought back.

use bytemuck::Pod;
use plimsoll_memory::{Block, Error, Result, Stream};

use super::program::{
    BLOCK_FEATURES, BLOCK_PILLARS, grid_arguments, network_text, pillar_shape, scatter_text,
};
use super::sort::{SortBlocks, sort};
use super::{Arg, Kernel, KernelShape, VoxelDevice};
use crate::network::{
    HardSpec, HardVoxels, PointBatch, ScatterRule, check_image, check_pillars, check_scatter,
    no_image,
};

/// Blocks of the device for one call, returned behind its work.
struct DeviceWork<'d> {
    device: &'d VoxelDevice,
    stream: Stream,
    blocks: Vec<Block>,
}

impl Drop for DeviceWork<'_> {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            self.device.release(block, self.stream);
        }
    }
}

impl<'d> DeviceWork<'d> {
    fn on(device: &'d VoxelDevice) -> Result<DeviceWork<'d>> {
        let memory = device.lane_memory()?;
        let stream = memory.stream();
        device.keep(memory);
        Ok(DeviceWork { device, stream, blocks: Vec::new() })
    }

    fn room(&mut self, bytes: u64) -> Result<Block> {
        let block = self.device.allocate(bytes.max(8), self.stream)?;
        self.blocks.push(block);
        Ok(block)
    }

    fn zeros(&mut self, bytes: u64) -> Result<Block> {
        let block = self.room(bytes)?;
        self.device.engine.clear(self.stream, &block, bytes.max(8))?;
        Ok(block)
    }

    fn sent<T: Pod>(&mut self, values: &[T]) -> Result<Block> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let block = self.room(bytes.len() as u64)?;
        if !bytes.is_empty() {
            self.device.engine.write(self.stream, &block, bytes)?;
        }
        Ok(block)
    }

    fn fetched<T: Pod>(&self, from: &Block, count: usize) -> Result<Vec<T>> {
        let mut made = crate::room::zeroed(count)?;
        if count > 0 {
            let bytes = bytemuck::cast_slice_mut(&mut made);
            self.device.engine.read(self.stream, from, bytes)?;
        }
        Ok(made)
    }
}

impl VoxelDevice {
    /// The voxel of every point, one cloud after the other.
    pub(super) fn make_places(&self, batch: &PointBatch<'_>, spec: &HardSpec) -> Result<Vec<i32>> {
        let program = self.engine.program(&network_text(spec, batch.columns()))?;
        let mut made = Vec::new();
        for cloud in 0..batch.clouds() {
            let mut work = DeviceWork::on(self)?;
            let count = batch.range(cloud).len();
            let points = work.sent(batch.cloud(cloud))?;
            let places = work.room((count * spec.form().columns() * 4) as u64)?;
            let grid = spec.grid();
            let mut arguments = vec![Arg::Block(&points)];
            arguments.extend(grid_arguments(grid, [0, grid.voxels(), count as u64, 1]));
            let number = u32::try_from(batch.number(cloud)).unwrap_or(u32::MAX);
            arguments.extend([Arg::U32(number), Arg::Block(&places)]);
            program.launch(
                work.stream,
                Kernel::PlacePoints,
                KernelShape::across(count as u64),
                &arguments,
            )?;
            made.extend(work.fetched::<i32>(&places, count * spec.form().columns())?);
        }
        Ok(made)
    }

    /// The features of pillars.
    pub(super) fn make_pillars(
        &self,
        made: &HardVoxels,
        spec: &HardSpec,
        columns: usize,
    ) -> Result<Vec<f32>> {
        check_pillars(made, spec, columns)?;
        self.needs_doubles("features of pillars")?;
        check_pillar_floats(spec, columns)?;
        let program = self.engine.program(&network_text(spec, columns))?;
        let mut work = DeviceWork::on(self)?;
        let pillars = made.num_points.len() as u64;
        let floats = made.voxels.len() / columns * (columns + 6);
        let (voxels, places) = (work.sent(&made.voxels)?, work.sent(&made.coordinates)?);
        let (counts, total) = (work.sent(&made.num_points)?, work.sent(&[pillars as i32])?);
        let features = work.room(floats as u64 * 4)?;
        let grid = spec.grid();
        let mut arguments = [&voxels, &places, &counts].map(Arg::Block).to_vec();
        arguments.extend(grid_arguments(grid, [0, grid.voxels(), 0, 1]));
        arguments.extend([Arg::U64(pillars), Arg::Block(&total), Arg::Block(&features)]);
        let shape = pillar_shape(pillars);
        program.launch(work.stream, Kernel::PillarFeatures, shape, &arguments)?;
        work.fetched(&features, floats)
    }

    /// The image from above.
    pub(super) fn make_image(
        &self,
        values: &[f32],
        features: usize,
        coordinates: &[i32],
        spec: &HardSpec,
        clouds: usize,
    ) -> Result<Vec<f32>> {
        let pillars = check_image(values, features, coordinates, spec)? as u64;
        let [_, height, width] = spec.grid().dims().map(u64::from);
        let area = height * width;
        let floats = (clouds as u64).saturating_mul(features as u64).saturating_mul(area);
        let down = (clouds as u64).saturating_mul((features as u64).div_ceil(BLOCK_FEATURES));
        let (Ok(floats), Ok(down)) = (usize::try_from(floats), u16::try_from(down)) else {
            return Err(no_image(format!("{features} features of {clouds} clouds")));
        };
        let program = self.engine.program(&network_text(spec, 3))?;
        let mut work = DeviceWork::on(self)?;
        let (rows, places) = (work.sent(values)?, work.sent(coordinates)?);
        let total = work.sent(&[i32::try_from(pillars).unwrap_or(i32::MAX)])?;
        let map = work.zeros(clouds as u64 * area * 4)?;
        let mark = KernelShape::across(pillars);
        let report = work.room(u64::from(mark.blocks[0]) * 4)?;
        let mut arguments = vec![Arg::Block(&places)];
        arguments.extend(grid_arguments(spec.grid(), [0, area, 0, clouds as u64]));
        arguments.extend([Arg::U64(pillars), Arg::Block(&total)]);
        arguments.extend([&map, &report].map(Arg::Block));
        program.launch(work.stream, Kernel::BirdsMark, mark, &arguments)?;
        let wrong: u32 = work.fetched::<u32>(&report, mark.blocks[0] as usize)?.iter().sum();
        if wrong > 0 {
            return Err(no_image(format!("{wrong} of {pillars} pillars at places outside")));
        }
        let image = work.room(floats as u64 * 4)?;
        if floats > 0 {
            let arguments = [
                Arg::Block(&map),
                Arg::Block(&rows),
                Arg::U64(area),
                Arg::U32(features as u32),
                Arg::Block(&image),
            ];
            let blocks = [KernelShape::across(area.div_ceil(4)).blocks[0], down.into()];
            let shape = KernelShape { blocks, ..mark };
            program.launch(work.stream, Kernel::BirdsFill, shape, &arguments)?;
        }
        work.fetched(&image, floats)
    }

    /// Sums, means or maxima of the points of each voxel.
    pub(super) fn make_scatter(
        &self,
        features: &[f32],
        columns: usize,
        point_to_voxel: &[i32],
        voxels: usize,
        rule: ScatterRule,
    ) -> Result<Vec<f32>> {
        check_scatter(features.len(), columns, point_to_voxel, voxels)?;
        if rule != ScatterRule::Max {
            self.needs_doubles("sums and means")?;
        }
        let (most, wide) = narrow(voxels, columns)?;
        let points = point_to_voxel.len() as u64;
        let program = self.engine.program(&scatter_text())?;
        let mut work = DeviceWork::on(self)?;
        let (rows, owners) = (work.sent(features)?, work.sent(point_to_voxel)?);
        let blocks = SortBlocks::new(points, |bytes| work.room(bytes))?;
        let out = work.zeros((voxels * columns) as u64 * 4)?;
        let (total, voxel_count) = (Arg::U64(points), Arg::U32(most));
        let [key, number] = [&blocks.keys[0], &blocks.numbers[0]].map(Arg::Block);
        let arguments = [Arg::Block(&owners), total, voxel_count, key, number];
        program.launch(work.stream, Kernel::ScatterKeys, KernelShape::over(points), &arguments)?;
        let (keys, numbers) = sort(&blocks, points, most.into(), |kernel, shape, arguments| {
            program.launch(work.stream, kernel, shape, arguments)
        })?;
        let rule = Arg::U32(match rule {
            ScatterRule::Sum => 0,
            ScatterRule::Mean => 1,
            ScatterRule::Max => 2,
        });
        let sorted = [&rows, &keys, &numbers].map(Arg::Block);
        let rest = [total, voxel_count, Arg::U32(wide), rule, Arg::Block(&out)];
        let shape = KernelShape::over(points * columns as u64);
        program.launch(work.stream, Kernel::Scatter, shape, &[&sorted[..], &rest].concat())?;
        work.fetched(&out, voxels * columns)
    }

    /// The row of each point's voxel.
    pub(super) fn make_points(
        &self,
        values: &[f32],
        columns: usize,
        point_to_voxel: &[i32],
    ) -> Result<Vec<f32>> {
        let (points, voxels) =
            (point_to_voxel.len(), values.len().checked_div(columns).unwrap_or(0));
        check_scatter(points * columns, columns, point_to_voxel, voxels)?;
        let (most, wide) = narrow(voxels, columns)?;
        let program = self.engine.program(&scatter_text())?;
        let mut work = DeviceWork::on(self)?;
        let (rows, owners) = (work.sent(values)?, work.sent(point_to_voxel)?);
        let out = work.room((points * columns) as u64 * 4)?;
        let arguments = [
            Arg::Block(&rows),
            Arg::Block(&owners),
            Arg::U64(points as u64),
            Arg::U32(most),
            Arg::U32(wide),
            Arg::Block(&out),
        ];
        let shape = KernelShape::over((points * columns) as u64);
        program.launch(work.stream, Kernel::VoxelsToPoints, shape, &arguments)?;
        work.fetched(&out, points * columns)
    }
}

/// Voxels and columns as kernels take them.
fn narrow(voxels: usize, columns: usize) -> Result<(u32, u32)> {
    match (i32::try_from(voxels), u32::try_from(columns)) {
        (Ok(voxels), Ok(columns)) => Ok((voxels.cast_unsigned(), columns)),
        _ => Err(Error::Config {
            field: "voxels",
            value: format!("{voxels} of {columns} columns"),
            range: "fewer than 2^31 voxels",
        }),
    }
}

/// A block counts the floats that it makes in 32 bits.
pub(crate) fn check_pillar_floats(spec: &HardSpec, columns: usize) -> Result<()> {
    let each = u64::from(spec.max_points()).saturating_mul(columns as u64 + 6);
    if each.saturating_mul(BLOCK_PILLARS) < 1 << 32 {
        return Ok(());
    }
    Err(Error::Config {
        field: "max_points",
        value: format!("{} of {columns} columns", spec.max_points()),
        range: "fewer than 2^29 features of a pillar on a device",
    })
}
