//! Sums, means and maxima of the points of voxels, and back from voxels to points, of what is on the
//! device already, on the caller's memory and stream.

use std::sync::Arc;

use plimsoll_memory::backend::cuda::{Argument, Cuda};
use plimsoll_memory::{Error, Result, Stream};

use super::held::HeldBlocks;
use super::{LoadedKernels, argument};
use crate::backend::device::program::scatter_text;
use crate::backend::device::sort::{SortBlocks, sort};
use crate::backend::device::{Kernel, KernelShape};
use crate::network::ScatterRule;

const KERNELS: [Kernel; 7] = [
    Kernel::Zeros,
    Kernel::ScatterKeys,
    Kernel::Digits,
    Kernel::Sums,
    Kernel::Move,
    Kernel::Scatter,
    Kernel::VoxelsToPoints,
];

/// Floats of points and voxels: how many of each, and columns of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScatterShape {
    /// Points.
    pub points: u64,
    /// Voxels.
    pub voxels: u32,
    /// Floats of a point, and of a voxel.
    pub columns: u32,
}

/// Scatters on the device. Made once for a number of points, launched as often as wanted: a launch
/// queues kernels and waits for nothing. Launches of the same value must follow each other, as they
/// do on one stream.
#[derive(Debug)]
pub struct ResidentScatter {
    kernels: LoadedKernels,
    sorting: SortBlocks,
    most: u64,
    _held: HeldBlocks,
}

impl ResidentScatter {
    /// Compiles the kernels, and takes what so many points are sorted in: 16 bytes for each.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for 2³² points or more; what compiling and allocating end with.
    pub fn new(device: &Arc<Cuda>, most: u64) -> Result<ResidentScatter> {
        if most >= u64::from(u32::MAX) {
            let range = "fewer than 2^32 points";
            return Err(Error::Config { field: "points", value: most.to_string(), range });
        }
        let kernels = LoadedKernels::load(device, &scatter_text(), &KERNELS)?;
        let mut held = HeldBlocks::on(device);
        let sorting = SortBlocks::new(most, |bytes| held.take(bytes))?;
        Ok(ResidentScatter { kernels, sorting, most, _held: held })
    }

    /// Queues a scatter: [voxels, columns], as
    /// [`scatter_points`](crate::network::scatter_points) makes it. A point whose voxel is
    /// negative, or past `voxels`, belongs to none.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for more points than it was made for; what the driver says otherwise.
    ///
    /// # Safety
    ///
    /// The addresses are of memory of this device that is as large as the shape says, aligned to 4
    /// bytes, and lives until the stream is past the launch.
    pub unsafe fn scatter(
        &self,
        stream: Stream,
        shape: ScatterShape,
        [features, point_to_voxel]: [u64; 2],
        rule: ScatterRule,
        out: u64,
    ) -> Result<()> {
        self.check(shape)?;
        let ScatterShape { points, voxels, columns } = shape;
        let numbers = u64::from(voxels) * u64::from(columns);
        let clear = [out, numbers].map(Argument::U64);
        self.queue(Kernel::Zeros, stream, KernelShape::over(numbers), &clear)?;
        let [key, number] = [self.sorting.keys[0], self.sorting.numbers[0]]
            .map(|block| Argument::from(block.address()));
        let total = Argument::U64(points);
        let keys = [Argument::U64(point_to_voxel), total, Argument::U32(voxels), key, number];
        self.queue(Kernel::ScatterKeys, stream, KernelShape::over(points), &keys)?;
        let largest = voxels.into();
        let sorted = sort(&self.sorting, points, largest, |kernel, shape, arguments| {
            let arguments: Vec<Argument> = arguments.iter().map(argument).collect();
            self.queue(kernel, stream, shape, &arguments)
        });
        let (keys, numbers) = sorted?;
        let rule = match rule {
            ScatterRule::Sum => 0,
            ScatterRule::Mean => 1,
            ScatterRule::Max => 2,
        };
        let sorted = [Argument::U64(features), keys.address().into(), numbers.address().into()];
        let rest = [voxels, columns, rule].map(Argument::U32);
        let arguments = [&sorted[..], &[total], &rest, &[Argument::U64(out)]].concat();
        self.queue(
            Kernel::Scatter,
            stream,
            KernelShape::over(points * u64::from(columns)),
            &arguments,
        )
    }

    /// Queues the way back: [points, columns], as
    /// [`voxels_to_points`](crate::network::voxels_to_points) makes it. A point whose voxel is
    /// negative, or past `voxels`, gets zeros.
    ///
    /// # Errors
    ///
    /// As [`ResidentScatter::scatter`].
    ///
    /// # Safety
    ///
    /// As [`ResidentScatter::scatter`].
    pub unsafe fn to_points(
        &self,
        stream: Stream,
        shape: ScatterShape,
        [values, point_to_voxel]: [u64; 2],
        out: u64,
    ) -> Result<()> {
        self.check(shape)?;
        let addresses = [values, point_to_voxel, shape.points].map(Argument::U64);
        let numbers = [shape.voxels, shape.columns].map(Argument::U32);
        let arguments = [&addresses[..], &numbers, &[Argument::U64(out)]].concat();
        let floats = shape.points * u64::from(shape.columns);
        self.queue(Kernel::VoxelsToPoints, stream, KernelShape::over(floats), &arguments)
    }

    fn check(&self, shape: ScatterShape) -> Result<()> {
        if shape.points <= self.most && shape.voxels < 1 << 31 && shape.columns > 0 {
            return Ok(());
        }
        Err(Error::Config {
            field: "points",
            value: format!("{shape:?}"),
            range: "no more points than it was made for, fewer than 2^31 voxels, some columns",
        })
    }

    fn queue(
        &self,
        kernel: Kernel,
        stream: Stream,
        shape: KernelShape,
        arguments: &[Argument],
    ) -> Result<()> {
        // SAFETY: the arguments are those of the kernel; the workspace is as large as the points
        // say, which were checked, and the rest is the caller's promise.
        unsafe { self.kernels.launch(kernel, stream, shape, arguments) }
    }
}
