//! Features of pillars, and the image from above, of what is on the device already, on the caller's
//! memory and stream.

use std::sync::Arc;

use plimsoll_memory::backend::cuda::{Argument, Cuda};
use plimsoll_memory::{Block, Error, Result, Stream};

use super::held::HeldBlocks;
use super::{LoadedKernels, grid_arguments};
use crate::backend::device::network::check_pillar_floats;
use crate::backend::device::program::{BLOCK_FEATURES, network_text, pillar_shape};
use crate::backend::device::{Kernel, KernelShape};
use crate::network::HardSpec;

const KERNELS: [Kernel; 4] =
    [Kernel::PillarFeatures, Kernel::Zeros, Kernel::BirdsMark, Kernel::BirdsFill];

/// How many pillars there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PillarCount {
    /// At most so many.
    pub most: u64,
    /// The address of a number (`i32`) of the device that says how many, as
    /// [`HardBuffers::totals`](super::HardBuffers::totals) has them; 0 where `most` is it.
    pub total: u64,
}

/// Features of pillars and images on the device. Made once for a spec, launched as often as wanted,
/// captured in a graph where one likes: a launch queues kernels and waits for nothing.
#[derive(Debug)]
pub struct ResidentPillars {
    spec: HardSpec,
    clouds: u32,
    kernels: LoadedKernels,
    /// The pillar of each place of the image, and what is counted of wrong places.
    workspace: [Block; 2],
    most: u64,
    _held: HeldBlocks,
}

impl ResidentPillars {
    /// Compiles the kernels for pillars of points of so many columns, and takes what images of at
    /// most so many clouds, and so many pillars in all, need: four bytes for each place.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for fewer than three columns, no clouds, more than 65,535 clouds or 2³¹
    /// pillars; what compiling and allocating end with.
    pub fn new(
        device: &Arc<Cuda>,
        spec: &HardSpec,
        columns: usize,
        clouds: u32,
        most: u64,
    ) -> Result<ResidentPillars> {
        if columns < 3 || !(1..=65_535).contains(&clouds) || most >= 1 << 31 {
            return Err(Error::Config {
                field: "pillars",
                value: format!("{most} of {columns} columns in {clouds} clouds"),
                range: "three columns or more, 1 to 65535 clouds, fewer than 2^31 pillars",
            });
        }
        check_pillar_floats(spec, columns)?;
        let kernels = LoadedKernels::load(device, &network_text(spec, columns), &KERNELS)?;
        let mut held = HeldBlocks::on(device);
        let map = held.take(u64::from(clouds).saturating_mul(area(spec)).saturating_mul(4))?;
        let report = held.take(u64::from(KernelShape::across(most).blocks[0]) * 4)?;
        let (spec, workspace) = (*spec, [map, report]);
        Ok(ResidentPillars { spec, clouds, kernels, workspace, most, _held: held })
    }

    fn check(&self, count: PillarCount) -> Result<()> {
        if count.most <= self.most {
            return Ok(());
        }
        Err(Error::Config {
            field: "pillars",
            value: count.most.to_string(),
            range: "no more pillars than it was made for",
        })
    }

    fn queue(
        &self,
        kernel: Kernel,
        stream: Stream,
        shape: KernelShape,
        arguments: &[Argument],
    ) -> Result<()> {
        // SAFETY: the arguments are those of the kernel; the workspace is as large as clouds and
        // pillars say, which were checked, and the rest is the caller's promise.
        unsafe { self.kernels.launch(kernel, stream, shape, arguments) }
    }

    /// Queues the features of pillars: [pillars, points, columns + 6], as
    /// [`pillar_features`](crate::network::pillar_features) makes them. What is behind the pillars
    /// that there are stays as it was.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for more pillars than it was made for; what the driver says otherwise.
    ///
    /// # Safety
    ///
    /// The addresses are of memory of this device that is as large as `count` says, aligned to 4
    /// bytes, and lives until the stream is past the launch.
    pub unsafe fn features(
        &self,
        stream: Stream,
        count: PillarCount,
        [voxels, coordinates, num_points]: [u64; 3],
        features: u64,
    ) -> Result<()> {
        self.check(count)?;
        let mut arguments = [voxels, coordinates, num_points].map(Argument::U64).to_vec();
        let grid = self.spec.grid();
        arguments.extend(grid_arguments(grid, [0, grid.voxels(), 0, 1]));
        arguments.extend([count.most, count.total, features].map(Argument::U64));
        self.queue(Kernel::PillarFeatures, stream, pillar_shape(count.most), &arguments)
    }

    /// Queues the image from above: [clouds, features, height, width], as
    /// [`birds_eye`](crate::network::birds_eye) makes it. `values` has a row of `features` floats
    /// for each pillar. Pillars of a cloud or a place that there is not are left out. One launch at
    /// a time: those of the same value must follow each other, as they do on one stream.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for more clouds or pillars than it was made for, more features than 2²⁰,
    /// a range with more than one voxel along z, or an image that is not aligned to 16 bytes; what
    /// the driver says otherwise.
    ///
    /// # Safety
    ///
    /// As [`ResidentPillars::features`].
    pub unsafe fn birds_eye(
        &self,
        stream: Stream,
        count: PillarCount,
        [values, coordinates]: [u64; 2],
        (features, clouds): (u32, u32),
        image: u64,
    ) -> Result<()> {
        self.check(count)?;
        let groups = u64::from(features).div_ceil(BLOCK_FEATURES);
        let down = groups * u64::from(clouds);
        let flat = self.spec.grid().dims()[0] == 1;
        if clouds > self.clouds || down > 65_535 || !flat || !image.is_multiple_of(16) {
            return Err(Error::Config {
                field: "image",
                value: format!("{features} features of {clouds} clouds at {image:#x}"),
                range: "one voxel along z, no more clouds than it was made for, fewer than 65,536 \
                        groups of 16 features of all clouds, aligned to 16 bytes",
            });
        }
        if down == 0 {
            return Ok(());
        }
        let area = area(&self.spec);
        let [map, report] = self.workspace.map(|block| Argument::from(block.address()));
        let places = u64::from(clouds) * area;
        let clear = [map, Argument::U64(places)];
        self.queue(Kernel::Zeros, stream, KernelShape::over(places), &clear)?;
        let mut mark = vec![Argument::U64(coordinates)];
        mark.extend(grid_arguments(self.spec.grid(), [0, area, 0, u64::from(clouds)]));
        mark.extend([count.most, count.total].map(Argument::U64));
        mark.extend([map, report]);
        self.queue(Kernel::BirdsMark, stream, KernelShape::across(count.most), &mark)?;
        let fill = [
            map,
            Argument::U64(values),
            Argument::U64(area),
            Argument::U32(features),
            Argument::U64(image),
        ];
        let across = KernelShape::across(area.div_ceil(4));
        let shape = KernelShape { blocks: [across.blocks[0], down as u32], ..across };
        self.queue(Kernel::BirdsFill, stream, shape, &fill)
    }
}

/// Places of the image of a cloud.
fn area(spec: &HardSpec) -> u64 {
    let [_, height, width] = spec.grid().dims().map(u64::from);
    height * width
}
