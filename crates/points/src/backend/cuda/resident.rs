//! Clouds that are on the device already, and grids that stay there.
//!
//! Made once for a shape, launched as often as wanted, captured in a graph where one likes:
//! a launch only queues kernels. Which ones is decided by the shape (`plan`).

use std::sync::Arc;

use plimsoll_memory::backend::cuda::{Argument, Cuda, Function, Launch};
use plimsoll_memory::{Block, Bytes, Device, Error, Memory, Request, Result, Stream};

use super::plan::{Exchange, PlanFacts, VoxelPlan};
use super::{ARGUMENTS, Defines, Division, grid_arguments, load};
use crate::spec::{Cells, VoxelMode, VoxelSpec};

/// The shape of a batch: clouds of equally many points, every point with its features.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResidentShape {
    /// Occupancy, as floats or bytes.
    pub spec: VoxelSpec,
    /// Clouds.
    pub clouds: u64,
    /// Points of each.
    pub points: u64,
    /// Numbers of a point beside its coordinates.
    pub features: usize,
}

impl ResidentShape {
    /// Whether clouds of so many points may be launched with these addresses.
    pub(super) fn check_launch(&self, points: u64, count: u64, out: u64) -> Result<()> {
        if count <= self.points && points.is_multiple_of(16) && out.is_multiple_of(16) {
            return Ok(());
        }
        Err(Error::Config {
            field: "points",
            value: format!("{count} points at {points:#x}, their grids at {out:#x}"),
            range: "no more points than the shape's, at addresses that are multiples of 16",
        })
    }
}

/// What a launch saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResidentCounts {
    /// Points with a coordinate that is NaN or infinite.
    pub not_finite: u64,
    /// Points outside the grid.
    pub outside: u64,
    /// Voxels with points, where the plan counts them.
    pub occupied: Option<u64>,
}

/// Occupancy on the device, for one shape.
#[derive(Debug)]
pub struct ResidentVoxels {
    device: Arc<Cuda>,
    /// The plan's kernels, in the order in which they run: to look one up takes as long as to
    /// queue it.
    kernels: Vec<Function>,
    shape: ResidentShape,
    plan: VoxelPlan,
    /// Bits or bins (or nothing), a report, and a second one or the gate that blocks meet at.
    workspace: [Block; 3],
}

/// How a kernel is launched.
#[derive(Debug, Clone, Copy)]
enum LaunchKind {
    Plain,
    /// It may start before the work before it is over.
    Early,
    /// Its blocks wait for each other.
    Together,
}

const THREADS: u32 = 256;
const SLAB_THREADS: u32 = 1024;

impl ResidentVoxels {
    /// Chooses the plan, compiles what it needs and takes what it works in.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for another mode than occupancy as floats or bytes, or a grid past
    /// 2³² voxels; what compiling and allocating end with.
    pub fn new(device: Arc<Cuda>, shape: &ResidentShape) -> Result<ResidentVoxels> {
        let spec = &shape.spec;
        let voxels = spec.grid().voxels();
        let fits =
            spec.mode() == VoxelMode::Occupancy && matches!(spec.cells(), Cells::F32 | Cells::U8);
        if !fits || voxels >= 1 << 32 {
            return Err(Error::Config {
                field: "spec",
                value: format!("{} as {} of {voxels} voxels", spec.mode(), spec.cells()),
                range: "occupancy as f32 or u8 of fewer than 2^32 voxels",
            });
        }
        let cell = spec.plane_bytes(1);
        let facts = PlanFacts {
            clouds: shape.clouds,
            points: shape.points,
            voxels,
            cell,
            multiprocessors: device.facts().multiprocessors.unwrap_or(16).into(),
            shared: shared_memory(device.info().compute_capability),
            clusters: device.info().compute_capability >= Some((9, 0)),
            // Older drivers have no call for it.
            together: device.info().compute_capability >= Some((8, 0))
                && device.facts().driver_version >= 12_000,
        };
        let plan = VoxelPlan::of(&facts);
        let defines = Defines {
            stride: 3 + shape.features,
            wide: false,
            wide_keys: false,
            whole: true,
            division: Division::of(spec.grid()),
            ragged: false,
            bytes: cell == 1,
        };
        let module = load(&device, &defines.text())?;
        let kernels = kernels(plan).into_iter().map(|name| module.function(&name));
        let kernels = kernels.collect::<Result<Vec<Function>>>()?;
        let bits = match plan {
            VoxelPlan::Bits => shape.clouds * words(voxels) * 4,
            VoxelPlan::Exchange(exchange) => exchange.left(),
            _ => 4,
        };
        let reports = report_blocks(shape, plan).map(|blocks| u64::from(blocks) * 3 * 4);
        let take = |bytes: u64| device.allocate(Request::new(Bytes(bytes)));
        let workspace = [take(bits)?, take(reports[0])?, take(reports[1])?];
        for (block, bytes) in [(workspace[0], bits), (workspace[2], reports[1])] {
            device.fill_on(Stream::DEFAULT, block.address(), 0, Bytes(bytes))?;
        }
        device.synchronize_stream(Stream::DEFAULT)?;
        Ok(ResidentVoxels { device, kernels, shape: *shape, plan, workspace })
    }

    /// The plan in words.
    #[must_use]
    pub fn plan(&self) -> String {
        match self.plan {
            VoxelPlan::Slabs { slabs, parts: 1, .. } => format!("{slabs} slabs in shared memory"),
            VoxelPlan::Slabs { slabs, parts, .. } => {
                format!("{slabs} slabs in shared memory, {parts} blocks each")
            }
            VoxelPlan::Direct => "straight into the output".to_string(),
            VoxelPlan::Exchange(_) => "blocks that hand points to each other".to_string(),
            VoxelPlan::Bits => "bits in device memory".to_string(),
        }
    }

    /// Bytes of the points: clouds, points, coordinates and features.
    #[must_use]
    pub fn points_bytes(&self) -> u64 {
        self.shape.clouds * self.shape.points * (3 + self.shape.features as u64) * 4
    }

    /// Bytes of the output: clouds, depth, height, width.
    #[must_use]
    pub fn out_bytes(&self) -> u64 {
        let spec = &self.shape.spec;
        spec.cloud_bytes(spec.grid().voxels()) * self.shape.clouds
    }

    /// Queues the work on a stream of the device. One launch at a time: those of the same value
    /// must follow each other, as they do on one stream.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where a block is too small; what the driver says otherwise.
    pub fn launch(&self, stream: Stream, points: &Block, out: &Block) -> Result<()> {
        for (block, bytes, field) in
            [(points, self.points_bytes(), "points"), (out, self.out_bytes(), "out")]
        {
            if !self.device.owns(block) || block.size().get() < bytes {
                return Err(Error::Config {
                    field,
                    value: format!("a block of {}", block.size()),
                    range: "a block of this device, as large as the shape says",
                });
            }
        }
        let (points, out) = (points.address().into(), out.address().into());
        self.queue_all(stream, points, self.shape.points, out)
    }

    /// The same with memory of the caller's: clouds of `count` points each, which may be fewer
    /// than the shape's, and the output. The addresses are multiples of 16.
    ///
    /// # Safety
    ///
    /// At the addresses are as many bytes of this device as the shape says (of points: as `count`
    /// says), and they stay there until the stream is past the launch.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for more points than the shape's, or an address that is not a multiple
    /// of 16; what the driver says otherwise.
    pub unsafe fn launch_at(
        &self,
        stream: Stream,
        points: u64,
        count: u64,
        out: u64,
    ) -> Result<()> {
        self.shape.check_launch(points, count, out)?;
        self.queue_all(stream, Argument::U64(points), count, Argument::U64(out))
    }

    fn queue_all(&self, stream: Stream, points: Argument, count: u64, out: Argument) -> Result<()> {
        let [bits, first, second] = self.workspace.map(|block| Argument::from(block.address()));
        let [blocks, after] = report_blocks(&self.shape, self.plan);
        let over_points = |report: &[Argument]| {
            let mut arguments = Vec::with_capacity(ARGUMENTS);
            arguments.extend([points, Argument::U64(0)]);
            arguments.extend(self.grid(count));
            arguments.extend_from_slice(report);
            arguments
        };
        let down = self.down();
        let flat = |blocks: u32| Launch { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared: 0 };
        let square = |blocks: u32| Launch { grid: [blocks / down, down, 1], ..flat(blocks) };
        let words = words(self.shape.spec.grid().voxels());
        match self.plan {
            VoxelPlan::Slabs { slabs, words, .. } => {
                let shared = words as u32 * 4;
                let launch = Launch { grid: [blocks, 1, 1], block: [SLAB_THREADS, 1, 1], shared };
                let cut = [slabs, words].map(|number| Argument::U32(number as u32));
                let arguments = over_points(&[cut[0], cut[1], out, first]);
                self.queue(0, stream, launch, &arguments, LaunchKind::Plain)
            }
            VoxelPlan::Exchange(exchange) => {
                let Exchange { slab_bits, vector_bits, .. } = exchange;
                let shared = exchange.shared() as u32;
                let launch = Launch { grid: [blocks, 1, 1], block: [SLAB_THREADS, 1, 1], shared };
                let cut = [slab_bits, vector_bits].map(Argument::U32);
                let arguments = over_points(&[cut[0], cut[1], bits, second, out, first]);
                self.queue(0, stream, launch, &arguments, LaunchKind::Together)
            }
            VoxelPlan::Direct => {
                let vectors = self.out_bytes() / 16;
                let wipe = [out, Argument::U64(vectors)];
                let across = vectors.div_ceil(THREADS.into()).clamp(1, 1056) as u32;
                self.queue(0, stream, flat(across), &wipe, LaunchKind::Plain)?;
                let early = self.device.info().compute_capability >= Some((9, 0));
                let how = if early { LaunchKind::Early } else { LaunchKind::Plain };
                self.queue(1, stream, square(blocks), &over_points(&[out, first]), how)
            }
            VoxelPlan::Bits => {
                let mark = over_points(&[bits, Argument::U64(words), first]);
                self.queue(0, stream, square(blocks), &mark, LaunchKind::Plain)?;
                let voxels = self.shape.spec.grid().voxels();
                let numbers = [words, voxels, self.shape.clouds].map(Argument::U64);
                let expand = [bits, numbers[0], numbers[1], numbers[2], out, second];
                self.queue(1, stream, square(after), &expand, LaunchKind::Plain)
            }
        }
    }

    /// What the last launch saw, once the stream has passed it.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn seen(&self, stream: Stream) -> Result<ResidentCounts> {
        self.device.synchronize_stream(stream)?;
        let [blocks, after] = report_blocks(&self.shape, self.plan).map(|blocks| blocks as usize);
        let slots = if matches!(self.plan, VoxelPlan::Slabs { .. }) { 3 } else { 2 };
        let first = self.read(1, blocks * slots)?;
        let sum = |counts: &[u32], slot: usize, slots: usize| -> u64 {
            counts.iter().skip(slot).step_by(slots).map(|count| u64::from(*count)).sum()
        };
        let occupied = match self.plan {
            VoxelPlan::Slabs { .. } => Some(sum(&first, 2, 3)),
            VoxelPlan::Bits => Some(sum(&self.read(2, after)?, 0, 1)),
            VoxelPlan::Direct | VoxelPlan::Exchange(_) => None,
        };
        Ok(ResidentCounts {
            not_finite: sum(&first, 0, slots),
            outside: sum(&first, 1, slots),
            occupied,
        })
    }

    fn read(&self, block: usize, numbers: usize) -> Result<Vec<u32>> {
        let mut counts = vec![0u32; numbers];
        let bytes = bytemuck::cast_slice_mut(&mut counts);
        self.device.read(self.workspace[block].address(), bytes)?;
        Ok(counts)
    }

    fn down(&self) -> u32 {
        self.shape.clouds.clamp(1, 65_535) as u32
    }

    fn grid(&self, points: u64) -> [Argument; 16] {
        let grid = self.shape.spec.grid();
        grid_arguments(grid, [0, grid.voxels(), points, self.shape.clouds])
    }

    fn queue(
        &self,
        kernel: usize,
        stream: Stream,
        launch: Launch,
        arguments: &[Argument],
        how: LaunchKind,
    ) -> Result<()> {
        let function = self.kernels.get(kernel).ok_or_else(|| Error::Device {
            call: "launch",
            why: format!("the plan has no kernel {kernel}"),
        })?;
        // SAFETY: the arguments are those of the kernel, whose text keeps inside the memory
        // that it is given; blocks were checked to be as large as the shape says and live
        // until they are returned behind the work of their stream, and of other memory the
        // caller of `launch_at` has promised the same.
        unsafe {
            match how {
                LaunchKind::Plain => function.launch(stream, launch, arguments),
                LaunchKind::Early => function.launch_early(stream, launch, arguments),
                LaunchKind::Together => function.launch_together(stream, launch, arguments),
            }
        }
    }
}

impl Drop for ResidentVoxels {
    fn drop(&mut self) {
        for block in self.workspace {
            if let Err(error) = self.device.release(block, Stream::DEFAULT) {
                tracing::warn!(%error, "a block could not be returned to the device");
            }
        }
    }
}

/// The kernels of a plan, in the order in which they run.
fn kernels(plan: VoxelPlan) -> Vec<String> {
    let names: &[&str] = match plan {
        VoxelPlan::Slabs { parts, .. } => return vec![format!("slabs_{parts}")],
        VoxelPlan::Exchange(_) => &["exchange"],
        VoxelPlan::Direct => &["wipe", "light"],
        VoxelPlan::Bits => &["mark", "expand"],
    };
    names.iter().map(ToString::to_string).collect()
}

fn words(voxels: u64) -> u64 {
    voxels.div_ceil(32)
}

/// Blocks of the first kernel that reports, and of the second.
fn report_blocks(shape: &ResidentShape, plan: VoxelPlan) -> [u32; 2] {
    let down = shape.clouds.clamp(1, 65_535);
    let over = |items: u64, most: u64| {
        let across = items.div_ceil(u64::from(THREADS) * 4).clamp(1, (most / down).max(1));
        (across * down) as u32
    };
    match plan {
        VoxelPlan::Slabs { slabs, parts, .. } => [(shape.clouds * slabs * parts) as u32, 1],
        VoxelPlan::Direct => [over(shape.points, 65_535), 1],
        VoxelPlan::Exchange(exchange) => [exchange.slabs as u32, 1],
        VoxelPlan::Bits => {
            [over(shape.points, 2112), over(words(shape.spec.grid().voxels()), 3168)]
        }
    }
}

/// The most shared memory that a block of a generation can have.
fn shared_memory(generation: Option<(u32, u32)>) -> u64 {
    let kib = match generation {
        Some((9 | 10, _)) => 227,
        Some((8, 0 | 7)) => 163,
        Some((8 | 12, _)) => 99,
        Some((7, 5)) => 64,
        Some((7, _)) => 96,
        _ => 48,
    };
    kib << 10
}
