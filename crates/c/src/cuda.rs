//! On a CUDA device, in the caller's memory and on the caller's stream.

use std::ffi::c_void;
use std::sync::Arc;

use plimsoll_memory::Result;
use plimsoll_memory::backend::cuda::{Cuda, CudaOptions};
use plimsoll_points::backend::cuda::{HardBuffers, HardClouds, HardShape, ResidentHard};

use crate::error::{PlimsollStatus, null, status};
use crate::spec::PlimsollHardSpec;

/// Hard voxelization on a CUDA device.
pub struct PlimsollCudaHard(ResidentHard);

/// Addresses of the caller's memory on the device.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PlimsollCudaBuffers {
    /// Points, and `columns` floats of each; aligned to 16 bytes.
    pub points: *const f32,
    /// [voxels, max_points, columns], for min(points, max_voxels) voxels of each cloud; aligned to
    /// 16 bytes.
    pub voxels: *mut f32,
    /// Three numbers of each voxel, or four with a batch index.
    pub coordinates: *mut i32,
    /// Points of each voxel.
    pub num_points: *mut i32,
    /// The voxels of each cloud, then of all. In pinned memory of the host, the host sees them before
    /// the voxels are written.
    pub totals: *mut i32,
}

/// Makes ready for launches of at most so many clouds, and so many points of all clouds together,
/// on a device: compiles the kernels, and takes what they work in. It uses the device's primary
/// context, as CUDA's runtime does. `ragged` is 1 for launches of clouds that differ in length.
///
/// # Safety
///
/// `spec` and `made` are null or lead to memory of their types.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_hard_create(
    spec: *const PlimsollHardSpec,
    columns: u32,
    cloud_count: u32,
    points: u64,
    ragged: u32,
    device: u32,
    made: *mut *mut PlimsollCudaHard,
) -> PlimsollStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (spec, made) = unsafe { (PlimsollHardSpec::read(spec)?, made.as_mut()) };
        let made = made.ok_or_else(|| null("made"))?;
        let device = Arc::new(Cuda::open_with(&CudaOptions::new(device).mapping(false))?);
        let columns = columns as usize;
        let shape = HardShape { spec, columns, clouds: cloud_count, points, ragged: ragged != 0 };
        let hard = PlimsollCudaHard(ResidentHard::new(device, &shape)?);
        *made = Box::into_raw(Box::new(hard));
        Ok(())
    })
}

/// Queues hard voxelization of clouds of `points` points each on a stream (a `cudaStream_t`, or
/// null for the default one), and returns at once. It can be captured in a graph. Launches of one
/// value follow each other on one stream.
///
/// # Safety
///
/// `hard` was made by [`plimsoll_cuda_hard_create`]; the buffers are memory of its device, as large
/// as they say, and live until the stream is past the launch; the stream outlives `hard`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_hard_launch(
    hard: *const PlimsollCudaHard,
    stream: *mut c_void,
    cloud_count: u32,
    points: u64,
    buffers: *const PlimsollCudaBuffers,
) -> PlimsollStatus {
    let clouds = HardClouds::Equal { clouds: cloud_count, points };
    // SAFETY: the caller's promise.
    status(|| unsafe { launch(hard, stream, clouds, buffers) })
}

/// The same for clouds that differ in length: `starts` is memory of the device with one number
/// more than there are clouds, where each begins and where the last ends, in points. `longest` is
/// the points of the longest cloud, or more.
///
/// # Safety
///
/// As [`plimsoll_cuda_hard_launch`]; `starts` never decreases, and ends with no more points than
/// `hard` was made for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_hard_launch_ragged(
    hard: *const PlimsollCudaHard,
    stream: *mut c_void,
    cloud_count: u32,
    longest: u64,
    starts: *const u64,
    buffers: *const PlimsollCudaBuffers,
) -> PlimsollStatus {
    let starts = starts.addr() as u64;
    let clouds = HardClouds::Ragged { clouds: cloud_count, longest, starts };
    // SAFETY: the caller's promise.
    status(|| unsafe { launch(hard, stream, clouds, buffers) })
}

/// # Safety
///
/// As [`plimsoll_cuda_hard_launch_ragged`].
unsafe fn launch(
    hard: *const PlimsollCudaHard,
    stream: *mut c_void,
    clouds: HardClouds,
    buffers: *const PlimsollCudaBuffers,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (hard, buffers) = unsafe { (hard.as_ref(), buffers.as_ref()) };
    let PlimsollCudaHard(hard) = hard.ok_or_else(|| null("hard"))?;
    let buffers = buffers.ok_or_else(|| null("buffers"))?;
    let buffers = HardBuffers {
        points: buffers.points.addr() as u64,
        voxels: buffers.voxels.addr() as u64,
        coordinates: buffers.coordinates.addr() as u64,
        num_points: buffers.num_points.addr() as u64,
        totals: buffers.totals.addr() as u64,
    };
    // SAFETY: the caller's promise.
    unsafe {
        let stream = hard.stream(stream)?;
        hard.launch(stream, clouds, &buffers)
    }
}

/// Waits for its work and gives back what it took; null is nothing.
///
/// # Safety
///
/// `hard` is null or was made by [`plimsoll_cuda_hard_create`], and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_hard_destroy(hard: *mut PlimsollCudaHard) {
    if !hard.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(hard) });
    }
}
