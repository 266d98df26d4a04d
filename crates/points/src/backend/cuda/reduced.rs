//! Counts, means and maxima of clouds that are on the device already: grids that stay there.
//!
//! The kernels are those for clouds of the host's memory (`features.h`). A launch queues them on the
//! caller's stream and waits for nothing.

use std::sync::Arc;

use plimsoll_memory::backend::cuda::{Argument, Cuda};
use plimsoll_memory::{Block, Error, Result, Stream};

use super::held::HeldBlocks;
use super::resident::ResidentShape;
use super::{Defines, Division, LoadedKernels, argument, grid_arguments};
use crate::backend::device::sort::{SortBlocks, sort};
use crate::backend::device::{Arg, Kernel, KernelShape, MOST_BLOCKS};
use crate::spec::{Cells, VoxelMode};

const THREADS: u32 = 256;

/// Counts, means or maxima on the device, for one shape.
#[derive(Debug)]
pub struct ResidentReduced {
    shape: ResidentShape,
    kernels: LoadedKernels,
    /// What was dropped, and for means what points are sorted in.
    report: Block,
    sorting: Option<SortBlocks>,
    _held: HeldBlocks,
}

impl ResidentReduced {
    /// Compiles what it needs and takes what it works in.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for occupancy, another type than f32 or u32, features that are not those
    /// of the spec, or more than 2³² voxels of all clouds or 2³² points; what compiling and
    /// allocating end with.
    pub fn new(device: &Arc<Cuda>, shape: &ResidentShape) -> Result<ResidentReduced> {
        let (spec, voxels) = (&shape.spec, shape.spec.grid().voxels());
        let mode = spec.mode();
        let points = shape.clouds.saturating_mul(shape.points);
        let fits = mode != VoxelMode::Occupancy
            && matches!(spec.cells(), Cells::F32 | Cells::U32)
            && (!mode.of_features() || shape.features as u64 == spec.planes())
            && shape.clouds.saturating_mul(voxels) < u64::from(u32::MAX)
            && points < u64::from(u32::MAX);
        if !fits {
            return Err(Error::Config {
                field: "spec",
                value: format!("{mode} as {} of {voxels} voxels, {points} points", spec.cells()),
                range: "counts, means or maxima as f32, or counts as u32, of fewer than 2^32 voxels \
                        and points of all clouds",
            });
        }
        let defines = Defines {
            stride: 3 + shape.features,
            wide: false,
            wide_keys: false,
            whole: true,
            division: Division::of(spec.grid()),
            ragged: false,
            bytes: false,
        };
        let kernels = LoadedKernels::load(device, &defines.text(), kernels(mode))?;
        let mut held = HeldBlocks::on(device);
        let blocks = points_shape(shape).blocks.map(u64::from);
        let report = held.take((blocks[0] * blocks[1] * 8).max(MOST_BLOCKS * 4))?;
        let sorting = match mode {
            VoxelMode::Mean => Some(SortBlocks::new(points, |bytes| held.take(bytes))?),
            _ => None,
        };
        Ok(ResidentReduced { shape: *shape, kernels, report, sorting, _held: held })
    }

    /// As [`ResidentVoxels::launch_at`](super::ResidentVoxels::launch_at).
    ///
    /// # Safety
    ///
    /// As there.
    ///
    /// # Errors
    ///
    /// As there; addresses are multiples of 16.
    pub unsafe fn launch_at(
        &self,
        stream: Stream,
        points: u64,
        count: u64,
        out: u64,
    ) -> Result<()> {
        self.shape.check_launch(points, count, out)?;
        let spec = &self.shape.spec;
        let numbers = self.shape.clouds * spec.grid().voxels() * spec.planes();
        let all = [Argument::U64(out), Argument::U64(numbers)];
        self.queue(Kernel::Zeros, stream, KernelShape::over(numbers), &all)?;
        match spec.mode() {
            VoxelMode::Mean => return self.means(stream, points, count, out),
            VoxelMode::Max => {
                self.over_points(Kernel::Largest, stream, points, count, &[all[0]])?
            }
            _ => self.over_points(Kernel::Count, stream, points, count, &[all[0]])?,
        }
        if spec.cells() == Cells::U32 {
            return Ok(());
        }
        let ranks = Argument::U32(u32::from(spec.mode() == VoxelMode::Max));
        self.queue(Kernel::ToFloats, stream, KernelShape::over(numbers), &[all[0], all[1], ranks])
    }

    /// A kernel that goes over the points, and reports what it drops.
    fn over_points(
        &self,
        kernel: Kernel,
        stream: Stream,
        points: u64,
        count: u64,
        rest: &[Argument],
    ) -> Result<()> {
        let grid = self.shape.spec.grid();
        let mut arguments = vec![Argument::U64(points), Argument::U64(0)];
        arguments.extend(grid_arguments(grid, [0, grid.voxels(), count, self.shape.clouds]));
        arguments.extend_from_slice(rest);
        arguments.push(self.report.address().into());
        self.queue(kernel, stream, points_shape(&self.shape), &arguments)
    }

    /// Sorts points by voxel and adds up each run.
    fn means(&self, stream: Stream, points: u64, count: u64, out: u64) -> Result<()> {
        let Some(blocks) = &self.sorting else { return Ok(()) };
        let (span, all) = (self.shape.spec.grid().voxels(), self.shape.clouds * count);
        let nowhere = self.shape.clouds * span;
        let first = [blocks.keys[0], blocks.numbers[0]].map(|block| block.address().into());
        let keys = [first[0], first[1], Argument::U64(nowhere)];
        self.over_points(Kernel::Keys, stream, points, count, &keys)?;
        let (keys, numbers) = sort(blocks, all, nowhere, |kernel, shape, arguments| {
            let arguments: Vec<Argument> = arguments.iter().map(argument).collect();
            self.queue(kernel, stream, shape, &arguments)
        })?;
        let arguments = [
            Arg::U64(points),
            Arg::Block(&keys),
            Arg::Block(&numbers),
            Arg::U64(all),
            Arg::U64(span),
            Arg::U64(nowhere),
            Arg::U64(out),
            Arg::Block(&self.report),
        ];
        self.queue(
            Kernel::Means,
            stream,
            KernelShape::over(all),
            &arguments.each_ref().map(argument),
        )
    }

    fn queue(
        &self,
        kernel: Kernel,
        stream: Stream,
        shape: KernelShape,
        arguments: &[Argument],
    ) -> Result<()> {
        // SAFETY: the arguments are those of the kernel, whose text keeps inside the memory that
        // it is given; the workspace is as large as the shape says, and of other memory the caller
        // of `launch_at` has promised the same.
        unsafe { self.kernels.launch(kernel, stream, shape, arguments) }
    }
}

/// The kernels of a mode.
fn kernels(mode: VoxelMode) -> &'static [Kernel] {
    match mode {
        VoxelMode::Mean => &[
            Kernel::Zeros,
            Kernel::Keys,
            Kernel::Digits,
            Kernel::Sums,
            Kernel::Move,
            Kernel::Means,
        ],
        VoxelMode::Max => &[Kernel::Zeros, Kernel::Largest, Kernel::ToFloats],
        _ => &[Kernel::Zeros, Kernel::Count, Kernel::ToFloats],
    }
}

fn points_shape(shape: &ResidentShape) -> KernelShape {
    let down = shape.clouds.clamp(1, 65_535);
    let most = (MOST_BLOCKS / down).max(1);
    let across = shape.points.div_ceil(u64::from(THREADS) * 4).clamp(1, most);
    KernelShape { blocks: [across as u32, down as u32], lanes: THREADS }
}
