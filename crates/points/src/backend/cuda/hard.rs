//! Hard voxels of clouds that are on the device already, on the caller's memory and stream.
//!
//! Made once for a shape, launched as often as wanted, captured in a graph where one likes: a
//! launch queues two kernels and waits for nothing. Only the second writes to the caller's memory,
//! which can so be allocated while the first runs ([`ResidentHard::start`]).

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_memory::backend::cuda::{Argument, Cuda, Function, Launch};
use plimsoll_memory::{Block, Bytes, Device, Error, Memory, Request, Result, Stream};

use super::held::CallerStreams;
use super::started::StartedHard;
use super::totals::PinnedTotals;
use super::{ARGUMENTS, grid_arguments, load};
use crate::backend::device::program::{
    HARD_LANES, hard_fits, hard_slot_bytes, hard_slots, hard_text,
};
use crate::network::HardSpec;

/// The most that is launched with one [`ResidentHard`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HardShape {
    /// What is made of each cloud.
    pub spec: HardSpec,
    /// Floats of a point.
    pub columns: usize,
    /// Clouds at most.
    pub clouds: u32,
    /// Points of all clouds at most.
    pub points: u64,
    /// Whether clouds differ in length, and memory of the device says where each begins.
    pub ragged: bool,
}

/// The clouds of one launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HardClouds {
    /// Each has as many points.
    Equal {
        /// How many clouds.
        clouds: u32,
        /// Points of each.
        points: u64,
    },
    /// They differ.
    Ragged {
        /// How many clouds.
        clouds: u32,
        /// Points of the longest, or more.
        longest: u64,
        /// The address of numbers of 64 bits on the device, one more than there are clouds:
        /// where each begins, and where the last ends, in points.
        starts: u64,
    },
}

/// Addresses of the caller's memory on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HardBuffers {
    /// Points, and `columns` floats of each; aligned to 16 bytes.
    pub points: u64,
    /// Voxels, points and columns, with room for the most voxels that there can be; aligned to
    /// 16 bytes.
    pub voxels: u64,
    /// Three or four numbers of each voxel (`i32`).
    pub coordinates: u64,
    /// Points of each voxel (`i32`).
    pub num_points: u64,
    /// The voxels of each cloud, then of all (`i32`). What is written elsewhere ends there.
    pub totals: u64,
}

/// Hard voxelization on the device, for shapes up to one.
#[derive(Debug)]
pub struct ResidentHard {
    pub(super) device: Arc<Cuda>,
    shape: HardShape,
    kernels: [Function; 2],
    /// Whether the second kernel may start before the first is over.
    early: bool,
    workspace: Vec<(Block, u64)>,
    /// Made when a launch is first waited for.
    pub(super) totals: Mutex<Option<PinnedTotals>>,
    streams: CallerStreams,
}

/// Where blocks of the workspace stand.
const TABLES: usize = 0;
const ROWS: usize = 1;
const STATE: usize = 2;
/// Those before this begin as zeros. After a launch, rows are zeros again, and the table that the
/// next one uses.
const ZEROED: usize = 3;
const LISTS: usize = 3;
const OWNERS: usize = 4;
const STATUS: usize = 5;
const REPORT: usize = 6;

impl HardShape {
    /// Bytes of the workspace, block by block.
    fn blocks(&self) -> [u64; 7] {
        let (points, clouds) = (self.points.max(1), u64::from(self.clouds.max(1)));
        // Each cloud may end within a block.
        let across = points.div_ceil(HARD_LANES.into()).saturating_add(1).saturating_mul(clouds);
        let [slot, list, row] =
            hard_slot_bytes(&self.spec).map(|bytes| bytes.saturating_mul(hard_slots(points)));
        let statuses = across.saturating_mul(2).saturating_add(clouds);
        [
            slot.saturating_mul(2),
            row,
            8,
            list,
            points.saturating_mul(4),
            statuses.saturating_mul(4),
            across.saturating_mul(8),
        ]
    }

    /// What [`ResidentHard`] takes of the device beside the caller's memory.
    #[must_use]
    pub fn workspace_bytes(&self) -> Bytes {
        Bytes(self.blocks().iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)))
    }
}

impl ResidentHard {
    /// Compiles the kernels and takes what they work in.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for fewer than three columns, no clouds, more than 65,535 clouds, 2²⁷
    /// points or more, or 2³⁶ − 1 cells or more; what compiling and allocating end with.
    pub fn new(device: Arc<Cuda>, shape: &HardShape) -> Result<ResidentHard> {
        let fits = shape.columns >= 3 && (1..=65_535).contains(&shape.clouds);
        if !fits || !hard_fits(&shape.spec, shape.points) {
            return Err(Error::Config {
                field: "shape",
                value: format!(
                    "{} points of {} columns in {} clouds, {} cells each",
                    shape.points,
                    shape.columns,
                    shape.clouds,
                    shape.spec.grid().voxels()
                ),
                range: "three columns or more, 1 to 65535 clouds, fewer than 2^27 points, and \
                        fewer than 2^36 - 1 cells",
            });
        }
        let text = hard_text(&shape.spec, shape.columns, shape.ragged);
        let module = load(&device, &text)?;
        let kernels = [module.function("hard_insert")?, module.function("hard_fill")?];
        let early = device.info().compute_capability >= Some((9, 0))
            && device.facts().driver_version >= 12_000;
        let (workspace, totals) = (Vec::new(), Mutex::default());
        let streams = CallerStreams::on(&device);
        let shape = *shape;
        let mut made = ResidentHard { device, shape, kernels, early, workspace, totals, streams };
        for bytes in shape.blocks() {
            let block = made.device.allocate(Request::new(Bytes(bytes)))?;
            made.workspace.push((block, bytes));
        }
        made.clear(Stream::DEFAULT)?;
        made.device.synchronize_stream(Stream::DEFAULT)?;
        Ok(made)
    }

    /// The shape that it was made for.
    #[must_use]
    pub fn shape(&self) -> &HardShape {
        &self.shape
    }

    /// A stream of the caller's, for [`ResidentHard::launch`]: see [`CallerStreams::stream`].
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn stream(&self, raw: *mut c_void) -> Result<Stream> {
        // SAFETY: the caller's promise.
        unsafe { self.streams.stream(raw) }
    }

    /// Queues the work on a stream. One launch at a time: those of the same value must follow each
    /// other, as they do on one stream.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for more than the shape says, or addresses that are not aligned; what the
    /// driver says otherwise.
    ///
    /// # Safety
    ///
    /// The addresses are of memory of this device that is as large as the clouds and
    /// [`HardBuffers`] say, and lives until the stream is past the launch; `starts` never
    /// decreases and ends with no more points than the shape's.
    pub unsafe fn launch(
        &self,
        stream: Stream,
        clouds: HardClouds,
        buffers: &HardBuffers,
    ) -> Result<()> {
        check_outputs(buffers)?;
        // SAFETY: the caller's promise.
        unsafe {
            self.insert(stream, clouds, buffers.points)?;
            self.fill(stream, clouds, buffers)
        }
    }

    /// Queues the first kernel, which takes about half of the time and reads the points alone: the
    /// caller can allocate what the second one writes to while it runs. One cloud.
    ///
    /// # Errors
    ///
    /// As [`ResidentHard::launch`], and what pinning memory of the host ends with.
    ///
    /// # Safety
    ///
    /// As [`ResidentHard::launch`], and nothing else is launched with this value before the answer
    /// is finished or dropped.
    pub unsafe fn start(
        self: &Arc<ResidentHard>,
        stream: Stream,
        count: u64,
        points: u64,
    ) -> Result<StartedHard> {
        self.pinned(&mut self.totals.lock().unwrap_or_else(PoisonError::into_inner))?;
        let clouds = HardClouds::Equal { clouds: 1, points: count };
        // SAFETY: the caller's promise.
        unsafe { self.insert(stream, clouds, points) }?;
        Ok(StartedHard::new(Arc::clone(self), stream, clouds, points))
    }

    /// Where the device tells how many voxels there are; made when it is first needed.
    pub(super) fn pinned<'t>(
        &self,
        totals: &'t mut Option<PinnedTotals>,
    ) -> Result<&'t mut PinnedTotals> {
        Ok(match totals.take() {
            Some(pinned) => totals.insert(pinned),
            None => totals.insert(PinnedTotals::new(self.device.info().number)?),
        })
    }

    /// Queues the first kernel.
    ///
    /// # Safety
    ///
    /// As [`ResidentHard::launch`], of the points.
    unsafe fn insert(&self, stream: Stream, clouds: HardClouds, points: u64) -> Result<()> {
        let (launch, mut arguments) = self.arguments(clouds, points)?;
        arguments.push(self.own(REPORT));
        // SAFETY: the arguments are those of the kernel; the workspace is as large as the shape
        // says, which the clouds are within, and the rest is the caller's promise.
        unsafe { self.kernels[0].launch(stream, launch, &arguments) }
    }

    /// Queues the second kernel, behind the first one of the same clouds.
    ///
    /// # Safety
    ///
    /// As [`ResidentHard::launch`].
    pub(super) unsafe fn fill(
        &self,
        stream: Stream,
        clouds: HardClouds,
        to: &HardBuffers,
    ) -> Result<()> {
        let (launch, mut arguments) = self.arguments(clouds, to.points)?;
        arguments.extend([self.shape.spec.max_voxels(), 0].map(Argument::U32));
        let outputs = [to.voxels, to.coordinates, to.num_points, to.totals];
        arguments.extend(outputs.map(Argument::U64));
        // SAFETY: as above.
        let queued = unsafe {
            match self.early {
                true => self.kernels[1].launch_early(stream, launch, &arguments),
                false => self.kernels[1].launch(stream, launch, &arguments),
            }
        };
        // A step without the next leaves something behind.
        queued.inspect_err(|_| drop(self.clear(stream)))
    }

    fn own(&self, index: usize) -> Argument {
        self.workspace[index].0.address().into()
    }

    /// The blocks of a kernel, and what both take: points, where clouds begin, the grid, and what
    /// they work in.
    fn arguments(&self, clouds: HardClouds, points: u64) -> Result<(Launch, Vec<Argument>)> {
        let (count, longest, starts) = self.check(clouds, points)?;
        let across = longest.div_ceil(HARD_LANES.into()).max(1);
        let launch =
            Launch { grid: [across as u32, count, 1], block: [HARD_LANES, 1, 1], shared: 0 };
        let grid = self.shape.spec.grid();
        let mut arguments = Vec::with_capacity(ARGUMENTS);
        arguments.extend([points, starts].map(Argument::U64));
        arguments.extend(grid_arguments(grid, [0, grid.voxels(), longest, u64::from(count)]));
        arguments.extend([
            self.own(TABLES),
            Argument::U64(hard_slots(self.shape.points.max(1))),
            self.own(LISTS),
            self.own(ROWS),
            self.own(OWNERS),
            self.own(STATUS),
            self.own(STATE),
        ]);
        Ok((launch, arguments))
    }

    /// Clouds, points of the longest, and where they begin.
    fn check(&self, clouds: HardClouds, points: u64) -> Result<(u32, u64, u64)> {
        let shape = &self.shape;
        let (count, longest, starts) = match clouds {
            HardClouds::Equal { clouds, points } => (clouds, points, 0),
            HardClouds::Ragged { clouds, longest, starts } => (clouds, longest, starts),
        };
        let ragged = matches!(clouds, HardClouds::Ragged { .. });
        let all = if ragged { longest } else { longest.saturating_mul(count.into()) };
        if count == 0 || count > shape.clouds || all > shape.points || ragged != shape.ragged {
            return Err(Error::Config {
                field: "clouds",
                value: format!("{clouds:?}"),
                range: "1 or more, and no more clouds and points than the shape says",
            });
        }
        if !points.is_multiple_of(16) || !starts.is_multiple_of(8) {
            return Err(Error::Config {
                field: "points",
                value: format!("{points:#x}, and {clouds:?}"),
                range: "addresses of the device: points aligned to 16 bytes, starts to 8",
            });
        }
        Ok((count, longest, starts))
    }

    /// Points without a voxel in the last launch, once the stream has passed it: because they are
    /// not finite, and because they lie outside.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn dropped(&self, stream: Stream, clouds: HardClouds) -> Result<(u64, u64)> {
        let (count, longest) = match clouds {
            HardClouds::Equal { clouds, points } => (clouds, points),
            HardClouds::Ragged { clouds, longest, .. } => (clouds, longest),
        };
        self.device.synchronize_stream(stream)?;
        let blocks = longest.div_ceil(HARD_LANES.into()).max(1) * u64::from(count);
        let mut report = vec![[0u32; 2]; blocks as usize];
        let address = self.workspace[REPORT].0.address();
        self.device.read(address, bytemuck::cast_slice_mut(&mut report))?;
        let sum = |slot: usize| report.iter().map(|block| u64::from(block[slot])).sum();
        Ok((sum(0), sum(1)))
    }

    pub(super) fn clear(&self, stream: Stream) -> Result<()> {
        for (block, bytes) in self.workspace.iter().take(ZEROED) {
            self.device.fill_on(stream, block.address(), 0, Bytes(*bytes))?;
        }
        Ok(())
    }
}

impl Drop for ResidentHard {
    fn drop(&mut self) {
        // Work on streams of the caller's may still use the workspace.
        self.streams.wait();
        for (block, _) in self.workspace.drain(..) {
            if let Err(error) = self.device.release(block, Stream::DEFAULT) {
                tracing::warn!(%error, "a block could not be returned to the device");
            }
        }
    }
}

/// Whether results can be written there.
pub(super) fn check_outputs(buffers: &HardBuffers) -> Result<()> {
    let words = [buffers.coordinates, buffers.num_points, buffers.totals];
    let words_fit = words.iter().all(|at| at.is_multiple_of(4) && *at != 0);
    if buffers.voxels.is_multiple_of(16) && words_fit {
        return Ok(());
    }
    Err(Error::Config {
        field: "buffers",
        value: format!("{buffers:?}"),
        range: "addresses of the device, of voxels aligned to 16 bytes",
    })
}
