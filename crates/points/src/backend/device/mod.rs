//! A device with kernels of its own: CUDA's or OpenCL's, which differ only in how a program is
//! compiled, launched and given bytes (`KernelEngine`).
//!
//! A piece is cut once more, into turns of a few clouds, and a few lanes take turns: while one
//! waits for its kernel, another copies, and a third has the processors write its result. What
//! crosses the bus is as small as it can be: occupancy comes back as bits, and the floats are
//! made where they are wanted.
//!
//! Device memory comes from a [`Pool`] under a [`Limit`], which holds the limit and counts. A lane's
//! stream and memory are kept for the next one, so that a slab after the other calls no driver.

mod hard;
mod kernel;
mod lane;
pub(crate) mod network;
pub(crate) mod program;
pub(crate) mod sort;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_memory::{
    Block, Bytes, Error, Limit, Memory, MemoryConfig, Pool, Request, Result, SAFETY_MARGIN, Stream,
};

pub(crate) use self::kernel::{Arg, Kernel, KernelShape, MOST_BLOCKS};
use self::lane::{LaneMemory, VoxelLane, VoxelTurn};
use self::program::{Defines, ProgramText};
use super::host::VoxelHost;
use super::{Filled, VoxelBackend, VoxelPiece, VoxelTally, check_features};
use crate::estimate::{VoxelizationShape, estimate_voxelization_memory};
use crate::network::{HardSpec, HardVoxels, PointBatch, ScatterRule};
use crate::spec::{Cells, VoxelMode, VoxelSpec};

/// Who compiles, launches and copies.
pub(crate) trait KernelEngine: Send + Sync {
    /// `cuda:0`, `opencl:1`.
    fn name(&self) -> String;

    /// Where blocks come from: a pool on the device, under the limit.
    fn pool(&self) -> &Pool;

    /// Whether copies go over a bus, so that pinned memory and several lanes pay.
    fn is_discrete(&self) -> bool;

    /// Whether it has floats of double precision, which means are summed in.
    fn has_doubles(&self) -> bool;

    /// A stream of work for one lane.
    fn stream(&self) -> Result<Stream>;

    /// The compiled program, from memory where it was compiled before.
    fn program(&self, text: &ProgramText) -> Result<Arc<dyn KernelProgram>>;

    /// Whether kernels are compiled as CUDA, whose forms of some take other arguments.
    fn is_cuda(&self) -> bool;

    /// Room for bytes on their way, pinned where that helps.
    fn staging(&self, bytes: u64) -> Result<Box<dyn Staging>>;

    /// Copies onto the device, behind the work of the stream.
    fn write(&self, stream: Stream, to: &Block, bytes: &[u8]) -> Result<()>;

    /// Zeroes this many bytes, behind the work of the stream.
    fn clear(&self, stream: Stream, block: &Block, bytes: u64) -> Result<()>;

    /// Copies from the device, behind the work of the stream, and returns when they are here.
    fn read(&self, stream: Stream, from: &Block, bytes: &mut [u8]) -> Result<()>;
}

/// Compiled kernels.
pub(crate) trait KernelProgram: Send + Sync {
    /// Queues a kernel. The arguments are those that the kernel's text declares.
    fn launch(
        &self,
        stream: Stream,
        kernel: Kernel,
        shape: KernelShape,
        arguments: &[Arg],
    ) -> Result<()>;
}

/// Bytes on their way.
pub(crate) trait Staging: Send {
    fn bytes(&mut self) -> &mut [u8];
}

/// Lanes that take turns on a discrete device.
const LANES: u64 = 3;
/// What a turn moves at most: enough for full speed, little enough for many turns.
const TURN: u64 = 16 << 20;

/// A pool on a device that takes at most this many bytes of it.
pub(crate) fn pool_on(device: Arc<dyn Memory>, limit: Bytes) -> Result<Pool> {
    // The limit is the only bound: what the device has free was measured when it was chosen.
    let config = MemoryConfig::default().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
    Pool::new(Arc::new(Limit::new(device, limit)), config)
}

/// A device as a backend.
pub struct VoxelDevice {
    engine: Box<dyn KernelEngine>,
    available: Bytes,
    turns: AtomicU64,
    /// What lanes that have ended worked in, for the next ones.
    kept: Mutex<Vec<LaneMemory>>,
}

impl VoxelDevice {
    pub(crate) fn new(engine: Box<dyn KernelEngine>, available: Bytes) -> VoxelDevice {
        VoxelDevice { engine, available, turns: AtomicU64::new(0), kept: Mutex::default() }
    }

    /// What of its memory is planned with.
    #[must_use]
    pub fn available(&self) -> Bytes {
        self.available
    }

    /// Whether its memory is the host's.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        !self.engine.is_discrete()
    }

    /// Refuses what is summed in double precision where the device has none.
    fn needs_doubles(&self, what: &str) -> Result<()> {
        if self.engine.has_doubles() {
            return Ok(());
        }
        Err(Error::Unavailable {
            what: format!("{what} on {}", self.engine.name()),
            why: "it has no double precision; use the host".to_string(),
        })
    }

    /// A block of the device.
    fn allocate(&self, bytes: u64, stream: Stream) -> Result<Block> {
        self.engine.pool().allocate(Request::new(Bytes(bytes.max(4))).on(stream))
    }

    fn release(&self, block: Block, stream: Stream) {
        if let Err(error) = self.engine.pool().release(block, stream) {
            tracing::warn!(%error, "a block could not be returned to the device");
        }
    }

    /// What a lane that has ended worked in, or a new stream without memory.
    fn lane_memory(&self) -> Result<LaneMemory> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.map_or_else(|| Ok(LaneMemory::new(self.engine.stream()?)), Ok)
    }

    fn keep(&self, memory: LaneMemory) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
    }

    /// Returns what lanes kept, so that it can be allocated in other sizes.
    fn release_kept(&self) {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        kept.into_iter().for_each(|memory| memory.release(self));
    }

    /// Cuts a piece into turns and has lanes take them.
    fn make(&self, piece: &VoxelPiece<'_>, out: &mut [u8]) -> Result<VoxelTally> {
        check_features(piece)?;
        if piece.spec.mode() == VoxelMode::Mean {
            self.needs_doubles("means")?;
        }
        let each = piece.spec.cloud_bytes(piece.span()) as usize;
        if out.len() as u64 != piece.bytes() || each == 0 {
            return Ok(VoxelTally::default());
        }
        let (turn, lanes) = self.cut(piece);
        let keys = (turn as u64).saturating_mul(piece.span());
        let program = self.engine.program(&Defines::of(piece, keys).text())?;
        let turns = piece.clouds.chunks(turn).zip(out.chunks_mut(each * turn));
        let turns = Mutex::new(turns.map(|(clouds, out)| VoxelTurn { clouds, out }));
        let next = || turns.lock().unwrap_or_else(PoisonError::into_inner).next();
        let run = || -> Result<VoxelTally> {
            let mut tally = VoxelTally::default();
            let mut lane: Option<VoxelLane<'_>> = None;
            while let Some(turn) = next() {
                let lane = match &mut lane {
                    Some(lane) => lane,
                    empty => empty.insert(VoxelLane::new(self, &*program, piece)?),
                };
                tally += lane.take(turn)?;
                self.turns.fetch_add(1, Ordering::Relaxed);
            }
            Ok(tally)
        };
        if lanes == 1 {
            return run();
        }
        std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(run)).collect();
            let ended = lanes.into_iter().map(|lane| {
                lane.join().unwrap_or_else(|_| {
                    Err(Error::Device { call: "a lane", why: "it ended by itself".to_string() })
                })
            });
            Ok(ended.collect::<Result<Vec<VoxelTally>>>()?.into_iter().sum())
        })
    }

    /// Clouds of a turn and lanes, for what may be used.
    fn cut(&self, piece: &VoxelPiece<'_>) -> (usize, u64) {
        let most = piece.clouds.iter().map(|cloud| cloud.len() as u64).max().unwrap_or(0);
        let one = device_bytes(piece.spec, most, piece.span());
        let usable = self.available.fraction(SAFETY_MARGIN).get();
        let clouds = piece.clouds.len() as u64;
        let lanes = if self.engine.is_discrete() { LANES.min(clouds).max(1) } else { 1 };
        let lanes = lanes.min(usable / one.max(1)).max(1);
        let turn = (usable / lanes / one.max(1)).min(TURN / one.max(1)).min(clouds.div_ceil(lanes));
        (turn.max(1) as usize, lanes)
    }
}

/// What a cloud takes on the device: its points, its part of the output in the form that is
/// brought back, and what lies between.
fn device_bytes(spec: &VoxelSpec, points: u64, span: u64) -> u64 {
    let shape = VoxelizationShape::of(spec, 1, points, spec.features() as u64);
    let estimate = estimate_voxelization_memory(&shape);
    let result = match spec.mode() {
        VoxelMode::Occupancy => span.div_ceil(64) * 8,
        _ => span.saturating_mul(4).saturating_mul(spec.planes()),
    };
    let between = if spec.mode() == VoxelMode::Mean { estimate.workspace.get() } else { 0 };
    estimate.points.get().saturating_add(result).saturating_add(between)
}

impl Drop for VoxelDevice {
    fn drop(&mut self) {
        self.release_kept();
    }
}

impl VoxelBackend for VoxelDevice {
    fn name(&self) -> String {
        self.engine.name()
    }

    fn dense(&self, piece: &VoxelPiece<'_>, out: &mut [u8]) -> Result<VoxelTally> {
        let made = self.make(piece, out);
        if made.is_err() {
            // A smaller piece may need other sizes.
            self.release_kept();
        }
        made
    }

    /// Bits are made on the device and read on the host; what else a sparse result tells is
    /// made by sorting, which the host does as well.
    fn sparse(&self, piece: &VoxelPiece<'_>) -> Result<(Vec<Filled>, VoxelTally)> {
        if self.left_to_host(piece.spec, piece.span()).is_some() {
            return VoxelHost::default().sparse(piece);
        }
        let bits = VoxelSpec::new(*piece.spec.grid(), VoxelMode::Occupancy, Cells::Bits, 0)?;
        let dense = VoxelPiece { clouds: piece.clouds, spec: &bits, voxels: piece.voxels.clone() };
        let mut words = super::zeroed_words(dense.bytes())?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        let bytes = bytes.get_mut(..dense.bytes() as usize).unwrap_or_default();
        let tally = self.dense(&dense, bytes)?;
        let each = bits.cloud_bytes(piece.span()).max(1) as usize;
        let filled = bytes.chunks(each).map(|bytes| lit(bytes, piece.voxels.start)).collect();
        Ok((filled, tally))
    }

    fn left_to_host(&self, spec: &VoxelSpec, span: u64) -> Option<String> {
        let sorted = spec.mode() != VoxelMode::Occupancy || span > 1 << 36;
        (spec.cells() == Cells::Sparse && sorted).then(|| {
            "sparse results are made on the host, but for occupancy up to 2^36 voxels".to_string()
        })
    }

    fn working_bytes(&self, spec: &VoxelSpec, points: u64, span: u64) -> u64 {
        device_bytes(spec, points, span)
    }

    fn hard(&self, batch: &PointBatch<'_>, spec: &HardSpec, made: &mut HardVoxels) -> Result<()> {
        self.make_hard(batch, spec, made)
    }

    fn hard_bytes(&self, spec: &HardSpec, columns: usize, points: u64) -> u64 {
        self.bytes_of_hard(spec, columns, points)
    }

    fn dynamic(&self, batch: &PointBatch<'_>, spec: &HardSpec) -> Result<Vec<i32>> {
        self.make_places(batch, spec)
    }

    fn pillars(&self, made: &HardVoxels, spec: &HardSpec, columns: usize) -> Result<Vec<f32>> {
        self.make_pillars(made, spec, columns)
    }

    fn birds_eye(
        &self,
        values: &[f32],
        features: usize,
        coordinates: &[i32],
        spec: &HardSpec,
        clouds: usize,
    ) -> Result<Vec<f32>> {
        self.make_image(values, features, coordinates, spec, clouds)
    }

    fn scatter(
        &self,
        features: &[f32],
        columns: usize,
        point_to_voxel: &[i32],
        voxels: usize,
        rule: ScatterRule,
    ) -> Result<Vec<f32>> {
        self.make_scatter(features, columns, point_to_voxel, voxels, rule)
    }

    fn to_points(
        &self,
        values: &[f32],
        columns: usize,
        point_to_voxel: &[i32],
    ) -> Result<Vec<f32>> {
        self.make_points(values, columns, point_to_voxel)
    }

    fn peak_bytes(&self) -> Option<u64> {
        Some(self.engine.pool().stats().peak_bytes.get())
    }

    fn turns(&self) -> Option<u64> {
        Some(self.turns.load(Ordering::Relaxed))
    }
}

/// The voxels whose bit is set. Their points were not counted.
fn lit(bytes: &[u8], first: u64) -> Filled {
    let set = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
    let voxels = set.flat_map(|(index, byte)| {
        let byte = *byte;
        let start = first + 8 * index as u64;
        (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| start + bit)
    });
    Filled { voxels: voxels.collect(), ..Filled::default() }
}
