//! Tensors that are on a GPU, on the stream of whoever owns them.
//!
//! Kernels, what they work in and the streams that they were given are kept from call to call, so
//! that the second call of a shape only queues kernels. What is kept is never freed before the
//! process ends: an interpreter that is shutting down has often lost the driver already.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll::backend::cuda::{Cuda, CudaOptions};
use plimsoll::{AdaptiveRunner, Error, Stream};
use plimsoll_points::backend::cuda::{
    HardShape, ResidentHard, ResidentPillars, ResidentPlaces, ResidentReduced, ResidentShape,
    ResidentVoxels, StartedHard,
};
use plimsoll_points::network::HardSpec;
use plimsoll_points::{VoxelMode, VoxelSpec};
use pyo3::prelude::*;

use super::{PyVoxelSpec, check_fork};
use crate::errors::OrRaise;

/// Shapes that are kept for each device: a program has few of them.
const MOST_SHAPES: usize = 64;
/// Bytes of a float.
const FLOAT: u64 = 4;

/// A device and what was made on it.
struct CudaState {
    device: Arc<Cuda>,
    streams: HashMap<usize, Stream>,
    shapes: Vec<(Stream, ResidentShape, Arc<ResidentGrids>)>,
    /// Those that no call uses now; those used last are behind.
    hard: Vec<(Stream, Arc<ResidentHard>)>,
    places: Vec<(HardSpec, usize, Arc<ResidentPlaces>)>,
    pillars: Vec<(Stream, PillarsKey, Arc<ResidentPillars>)>,
}

/// What kernels for pillars are made for: the spec, columns, and at most so many pillars.
type PillarsKey = (HardSpec, usize, u64);

/// Kernels that make grids of one shape.
enum ResidentGrids {
    Occupancy(ResidentVoxels),
    Reduced(ResidentReduced),
}

impl ResidentGrids {
    fn new(device: &Arc<Cuda>, shape: &ResidentShape) -> plimsoll::Result<ResidentGrids> {
        Ok(match shape.spec.mode() {
            VoxelMode::Occupancy => {
                ResidentGrids::Occupancy(ResidentVoxels::new(Arc::clone(device), shape)?)
            }
            _ => ResidentGrids::Reduced(ResidentReduced::new(device, shape)?),
        })
    }

    /// # Safety
    ///
    /// As [`ResidentVoxels::launch_at`].
    unsafe fn launch_at(
        &self,
        stream: Stream,
        points: u64,
        count: u64,
        out: u64,
    ) -> plimsoll::Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                ResidentGrids::Occupancy(voxels) => voxels.launch_at(stream, points, count, out),
                ResidentGrids::Reduced(voxels) => voxels.launch_at(stream, points, count, out),
            }
        }
    }
}

/// By the device's number.
type CudaStates = Mutex<Vec<(u32, &'static Mutex<CudaState>)>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn state(number: u32) -> plimsoll::Result<&'static Mutex<CudaState>> {
    static STATES: CudaStates = Mutex::new(Vec::new());
    check_fork()?;
    let mut states = lock(&STATES);
    if let Some((_, state)) = states.iter().find(|(of, _)| *of == number) {
        return Ok(state);
    }
    // Plain blocks: what kernels work in is small, and never given back.
    let device = Arc::new(Cuda::open_with(&CudaOptions::new(number).mapping(false))?);
    let state = CudaState {
        device,
        streams: HashMap::new(),
        shapes: Vec::new(),
        hard: Vec::new(),
        places: Vec::new(),
        pillars: Vec::new(),
    };
    let state: &'static _ = Box::leak(Box::new(Mutex::new(state)));
    states.push((number, state));
    Ok(state)
}

impl CudaState {
    fn stream(&mut self, raw: usize) -> plimsoll::Result<Stream> {
        if raw == 0 {
            return Ok(Stream::DEFAULT);
        }
        if let Some(stream) = self.streams.get(&raw) {
            return Ok(*stream);
        }
        // SAFETY: the caller's current stream of this device's primary context, which every
        // library shares. The device is never dropped, so nothing waits for a stream that is
        // gone; a new stream at the same address is as good.
        let stream = unsafe { self.device.adopt_stream(raw as *mut std::ffi::c_void) }?;
        self.streams.insert(raw, stream);
        Ok(stream)
    }

    /// Kernels for a shape on a stream: those of one stream follow each other, so they can share
    /// what they work in.
    fn voxels(
        &mut self,
        stream: Stream,
        shape: &ResidentShape,
    ) -> plimsoll::Result<Arc<ResidentGrids>> {
        let known = self.shapes.iter().position(|(on, of, _)| *on == stream && of == shape);
        if let Some(place) = known {
            return Ok(Arc::clone(&self.shapes[place].2));
        }
        let made = Arc::new(ResidentGrids::new(&self.device, shape)?);
        if self.shapes.len() >= MOST_SHAPES {
            // What it works in is returned behind the work of all streams.
            self.device.synchronize_stream(self.shapes[0].0)?;
            self.shapes.remove(0);
        }
        self.shapes.push((stream, *shape, Arc::clone(&made)));
        Ok(made)
    }
}

/// Hard voxels in the making: the first kernel is queued. Its kernels are its own until it is
/// dropped, so that no other thread queues one in between.
pub(super) struct HardCall {
    /// Dropped before the kernels are put back.
    started: StartedHard,
    lease: HardLease,
}

/// Kernels that are taken from a device's, and put back when this is dropped.
struct HardLease {
    state: &'static Mutex<CudaState>,
    stream: Stream,
    hard: Arc<ResidentHard>,
}

impl HardLease {
    /// Kernels for a cloud of so many points, as a stream of the caller's has them.
    fn take(number: u32, raw: usize, shape: HardShape) -> plimsoll::Result<HardLease> {
        let whole = state(number)?;
        let mut state = lock(whole);
        let stream = state.stream(raw)?;
        let known =
            state.hard.iter().rposition(|(on, hard)| *on == stream && *hard.shape() == shape);
        if let Some(place) = known {
            let (_, hard) = state.hard.remove(place);
            return Ok(HardLease { state: whole, stream, hard });
        }
        if state.hard.len() >= MOST_SHAPES {
            // What it works in is returned behind the work of all streams.
            state.device.synchronize_stream(state.hard[0].0)?;
            state.hard.remove(0);
        }
        let hard = Arc::new(ResidentHard::new(Arc::clone(&state.device), &shape)?);
        Ok(HardLease { state: whole, stream, hard })
    }
}

impl Drop for HardLease {
    fn drop(&mut self) {
        lock(self.state).hard.push((self.stream, Arc::clone(&self.hard)));
    }
}

impl HardCall {
    /// Queues the first kernel for a cloud of so many points, on a stream of the caller's.
    ///
    /// # Safety
    ///
    /// At the address are so many points of the device, until the stream is past the launch.
    pub(super) unsafe fn start(
        (number, raw): (u32, usize),
        spec: &HardSpec,
        columns: usize,
        count: u64,
        points: u64,
    ) -> plimsoll::Result<HardCall> {
        // Clouds of changing length share kernels.
        let most = count.next_power_of_two();
        let shape = HardShape { spec: *spec, columns, clouds: 1, points: most, ragged: false };
        let lease = HardLease::take(number, raw, shape)?;
        // SAFETY: the caller's promise; nobody else has these kernels.
        let started = unsafe { lease.hard.start(lease.stream, count, points) }?;
        Ok(HardCall { started, lease })
    }

    /// Queues the second kernel; gives the number of voxels, which may still be in the making.
    ///
    /// # Safety
    ///
    /// As [`StartedHard::finish`].
    pub(super) unsafe fn finish(
        self,
        voxels: u64,
        coordinates: u64,
        num_points: u64,
    ) -> plimsoll::Result<u64> {
        let HardCall { started, lease: _lease } = self;
        // SAFETY: the caller's promise.
        unsafe { started.finish(voxels, coordinates, num_points) }
    }
}

/// The kernel of dynamic voxels for points of so many columns.
pub(super) fn places(
    number: u32,
    raw: usize,
    spec: &HardSpec,
    columns: usize,
) -> plimsoll::Result<(Arc<ResidentPlaces>, Stream)> {
    let mut state = lock(state(number)?);
    let stream = state.stream(raw)?;
    let known = state.places.iter().find(|(of, wide, _)| of == spec && *wide == columns);
    if let Some((.., places)) = known {
        return Ok((Arc::clone(places), stream));
    }
    let made = Arc::new(ResidentPlaces::new(&state.device, spec, columns)?);
    if state.places.len() >= MOST_SHAPES {
        state.places.remove(0);
    }
    state.places.push((*spec, columns, Arc::clone(&made)));
    Ok((made, stream))
}

/// Kernels of pillars of points of so many columns, as a stream of the caller's has them.
pub(super) fn pillars(
    number: u32,
    raw: usize,
    spec: &HardSpec,
    columns: usize,
    count: u64,
) -> plimsoll::Result<(Arc<ResidentPillars>, Stream)> {
    let mut state = lock(state(number)?);
    let stream = state.stream(raw)?;
    let key = (*spec, columns, count.next_power_of_two());
    let known = state.pillars.iter().find(|(on, of, _)| *on == stream && *of == key);
    if let Some((.., pillars)) = known {
        return Ok((Arc::clone(pillars), stream));
    }
    let made = Arc::new(ResidentPillars::new(&state.device, spec, columns, 1, key.2)?);
    if state.pillars.len() >= MOST_SHAPES {
        state.device.synchronize_stream(state.pillars[0].0)?;
        state.pillars.remove(0);
    }
    state.pillars.push((stream, key, Arc::clone(&made)));
    Ok((made, stream))
}

/// Tensors as numbers: clouds of equally many points, one after the other, and their grids.
#[derive(Debug, Clone, Copy)]
struct ResidentBatch {
    spec: VoxelSpec,
    points: u64,
    out: u64,
    clouds: u64,
    count: u64,
    stride: u64,
    stream: usize,
}

impl ResidentBatch {
    fn launch(&self, state: &Mutex<CudaState>, from: u64, clouds: u64) -> plimsoll::Result<()> {
        let spec = self.spec;
        let shape = ResidentShape {
            spec,
            clouds,
            // Clouds of changing length share kernels: the next power of two has room for all.
            points: self.count.next_power_of_two(),
            features: (self.stride - 3) as usize,
        };
        let mut state = lock(state);
        let stream = state.stream(self.stream)?;
        let voxels = state.voxels(stream, &shape)?;
        let points = self.points + from * self.count * self.stride * FLOAT;
        let out = self.out + from * spec.cloud_bytes(spec.grid().voxels());
        // SAFETY: the caller's tensors, which it keeps until its stream is past the launch.
        unsafe { voxels.launch_at(stream, points, self.count, out) }
    }

    /// Clouds that parts of the batch are a multiple of, so that points and grids of every part
    /// begin with a multiple of 16 bytes, as the whole does.
    fn unit(&self) -> u64 {
        let points = self.count * self.stride * FLOAT;
        let grid = self.spec.cloud_bytes(self.spec.grid().voxels());
        let whole = |unit: &u64| [points, grid].iter().all(|each| (each * unit).is_multiple_of(16));
        [1, 2, 4, 8].into_iter().find(whole).unwrap_or(16)
    }

    /// At most this many clouds at once, or all of them; and where what the kernels work in does
    /// not fit, fewer.
    fn launch_all(&self, device: u32, chunk: Option<u64>) -> plimsoll::Result<()> {
        let (state, unit) = (state(device)?, self.unit());
        let most = chunk.map_or(self.clouds, |chunk| chunk.clamp(1, self.clouds));
        if most == self.clouds {
            match self.launch(state, 0, self.clouds) {
                Err(error) if error.is_out_of_memory() && self.clouds > unit => {}
                other => return other,
            }
        }
        let launch = |units: std::ops::Range<u64>| {
            let end = (units.end * unit).min(self.clouds);
            self.launch(state, units.start * unit, end - units.start * unit)
        };
        let run = AdaptiveRunner::new((most / unit).max(1));
        let run = run.run_by(self.clouds.div_ceil(unit), launch, Error::is_out_of_memory);
        run.map(drop).map_err(|failure| failure.error)
    }
}

/// Queues the kernels that make grids of tensors on a GPU, on a stream of the caller's.
#[pyfunction]
#[pyo3(signature = (spec, device, stream, points, out, clouds, count, columns, chunk = None))]
#[expect(clippy::too_many_arguments, reason = "what Python knows of two tensors")]
pub(crate) fn voxelize_resident(
    py: Python<'_>,
    spec: &PyVoxelSpec,
    device: u32,
    stream: usize,
    points: u64,
    out: u64,
    clouds: u64,
    count: u64,
    columns: u64,
    chunk: Option<u64>,
) -> PyResult<()> {
    let batch = ResidentBatch { spec: spec.0, points, out, clouds, count, stride: columns, stream };
    if clouds == 0 {
        return Ok(());
    }
    py.detach(|| batch.launch_all(device, chunk)).or_raise()
}
