//! What networks take beside hard voxels, on a CUDA device, in the caller's memory and on the
//! caller's stream.

use std::ffi::c_void;
use std::sync::Arc;

use plimsoll_memory::Result;
use plimsoll_memory::backend::cuda::{Cuda, CudaOptions};
use plimsoll_points::backend::cuda::{
    CallerStreams, PillarCount, ResidentPillars, ResidentPlaces, ResidentScatter, ScatterShape,
};

use crate::error::{PlimsollStatus, null, status};
use crate::host::scatter_rule;
use crate::spec::PlimsollHardSpec;

/// Voxels of points, features of pillars and images from above on a CUDA device.
pub struct PlimsollCudaPillars {
    streams: CallerStreams,
    places: ResidentPlaces,
    pillars: ResidentPillars,
}

/// Scatters on a CUDA device.
pub struct PlimsollCudaScatter {
    streams: CallerStreams,
    scatter: ResidentScatter,
}

fn open(device: u32) -> Result<Arc<Cuda>> {
    Ok(Arc::new(Cuda::open_with(&CudaOptions::new(device).mapping(false))?))
}

fn address<T>(at: *const T) -> u64 {
    at.addr() as u64
}

/// Makes ready for pillars of points of `columns` floats: at most so many pillars of all clouds, and
/// images of at most so many clouds. Compiles the kernels, and takes four bytes for each place of an
/// image.
///
/// # Safety
///
/// `spec` and `made` are null or lead to memory of their types.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_pillars_create(
    spec: *const PlimsollHardSpec,
    columns: u32,
    cloud_count: u32,
    pillar_count: u64,
    device: u32,
    made: *mut *mut PlimsollCudaPillars,
) -> PlimsollStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (spec, made) = unsafe { (PlimsollHardSpec::read(spec)?, made.as_mut()) };
        let (made, columns) = (made.ok_or_else(|| null("made"))?, columns as usize);
        let device = open(device)?;
        let places = ResidentPlaces::new(&device, &spec, columns)?;
        let pillars = ResidentPillars::new(&device, &spec, columns, cloud_count, pillar_count)?;
        let streams = CallerStreams::on(&device);
        *made = Box::into_raw(Box::new(PlimsollCudaPillars { streams, places, pillars }));
        Ok(())
    })
}

/// Queues the coordinates of every point's voxel, or −1: [points, 3], without a batch index.
///
/// # Safety
///
/// `pillars` was made by [`plimsoll_cuda_pillars_create`]; the pointers lead to memory of its device,
/// as large as is said, that lives until the stream is past the launch; the stream outlives
/// `pillars`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_dynamic_coordinates(
    pillars: *const PlimsollCudaPillars,
    stream: *mut c_void,
    points: *const f32,
    point_count: u64,
    coordinates: *mut i32,
) -> PlimsollStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let own = unsafe { pillars.as_ref() }.ok_or_else(|| null("pillars"))?;
        // SAFETY: the caller's promise.
        unsafe {
            let stream = own.streams.stream(stream)?;
            own.places.launch(stream, address(points), point_count, address(coordinates))
        }
    })
}

/// Queues the features of pillars, as `plimsoll_pillar_features` makes them. `total` is null, or a
/// number on the device that says how many of the `pillar_count` pillars there are: the last of
/// `totals` of `plimsoll_cuda_hard_launch`.
///
/// # Safety
///
/// As [`plimsoll_cuda_dynamic_coordinates`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_pillar_features(
    pillars: *const PlimsollCudaPillars,
    stream: *mut c_void,
    pillar_count: u64,
    total: *const i32,
    voxels: *const f32,
    coordinates: *const i32,
    num_points: *const i32,
    features: *mut f32,
) -> PlimsollStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let own = unsafe { pillars.as_ref() }.ok_or_else(|| null("pillars"))?;
        let count = PillarCount { most: pillar_count, total: address(total) };
        let from = [address(voxels), address(coordinates), address(num_points)];
        // SAFETY: the caller's promise.
        unsafe {
            let stream = own.streams.stream(stream)?;
            own.pillars.features(stream, count, from, address(features))
        }
    })
}

/// Queues the image from above, as `plimsoll_birds_eye` makes it; pillars at places that there are
/// not are left out. The image is aligned to 16 bytes. Launches of one value follow each other on one
/// stream.
///
/// # Safety
///
/// As [`plimsoll_cuda_dynamic_coordinates`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_birds_eye(
    pillars: *const PlimsollCudaPillars,
    stream: *mut c_void,
    pillar_count: u64,
    total: *const i32,
    coordinates: *const i32,
    values: *const f32,
    feature_count: u32,
    cloud_count: u32,
    image: *mut f32,
) -> PlimsollStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let own = unsafe { pillars.as_ref() }.ok_or_else(|| null("pillars"))?;
        let count = PillarCount { most: pillar_count, total: address(total) };
        let (from, shape) = ([address(values), address(coordinates)], (feature_count, cloud_count));
        // SAFETY: the caller's promise.
        unsafe {
            let stream = own.streams.stream(stream)?;
            own.pillars.birds_eye(stream, count, from, shape, address(image))
        }
    })
}

/// Waits for its work and gives back what it took; null is nothing.
///
/// # Safety
///
/// `pillars` is null or was made by [`plimsoll_cuda_pillars_create`], and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_pillars_destroy(pillars: *mut PlimsollCudaPillars) {
    if !pillars.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(pillars) });
    }
}

/// Makes ready for scatters of at most so many points: compiles the kernels, and takes 16 bytes for
/// each point.
///
/// # Safety
///
/// `made` is null or leads to memory of its type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_scatter_create(
    point_count: u64,
    device: u32,
    made: *mut *mut PlimsollCudaScatter,
) -> PlimsollStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let made = unsafe { made.as_mut() }.ok_or_else(|| null("made"))?;
        let device = open(device)?;
        let scatter = ResidentScatter::new(&device, point_count)?;
        let streams = CallerStreams::on(&device);
        *made = Box::into_raw(Box::new(PlimsollCudaScatter { streams, scatter }));
        Ok(())
    })
}

/// Queues what `plimsoll_scatter_points` makes; a point whose voxel there is not belongs to none.
/// Launches of one value follow each other on one stream.
///
/// # Safety
///
/// `scatter` was made by [`plimsoll_cuda_scatter_create`]; the rest as
/// [`plimsoll_cuda_dynamic_coordinates`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_scatter_points(
    scatter: *const PlimsollCudaScatter,
    stream: *mut c_void,
    features: *const f32,
    columns: u32,
    point_to_voxel: *const i32,
    point_count: u64,
    voxel_count: u32,
    rule: u32,
    values: *mut f32,
) -> PlimsollStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let own = unsafe { scatter.as_ref() }.ok_or_else(|| null("scatter"))?;
        let shape = ScatterShape { points: point_count, voxels: voxel_count, columns };
        let (from, rule) = ([address(features), address(point_to_voxel)], scatter_rule(rule)?);
        // SAFETY: the caller's promise.
        unsafe {
            let stream = own.streams.stream(stream)?;
            own.scatter.scatter(stream, shape, from, rule, address(values))
        }
    })
}

/// Queues what `plimsoll_voxels_to_points` makes; a point whose voxel there is not gets zeros.
///
/// # Safety
///
/// As [`plimsoll_cuda_scatter_points`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_voxels_to_points(
    scatter: *const PlimsollCudaScatter,
    stream: *mut c_void,
    values: *const f32,
    voxel_count: u32,
    columns: u32,
    point_to_voxel: *const i32,
    point_count: u64,
    features: *mut f32,
) -> PlimsollStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let own = unsafe { scatter.as_ref() }.ok_or_else(|| null("scatter"))?;
        let shape = ScatterShape { points: point_count, voxels: voxel_count, columns };
        let from = [address(values), address(point_to_voxel)];
        // SAFETY: the caller's promise.
        unsafe {
            let stream = own.streams.stream(stream)?;
            own.scatter.to_points(stream, shape, from, address(features))
        }
    })
}

/// Waits for its work and gives back what it took; null is nothing.
///
/// # Safety
///
/// `scatter` is null or was made by [`plimsoll_cuda_scatter_create`], and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_cuda_scatter_destroy(scatter: *mut PlimsollCudaScatter) {
    if !scatter.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(scatter) });
    }
}
