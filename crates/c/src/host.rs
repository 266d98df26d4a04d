//! On the host, in the caller's memory.

use std::cell::RefCell;

use plimsoll_memory::{Error, Result};
use plimsoll_points::network::{
    HardHost, HardSlices, HardSpec, PillarSlices, PointBatch, ScatterRule, birds_eye_into,
    dynamic_coordinates_into, image_length, pillar_features_into, scatter_points_into,
    voxels_to_points_into,
};

use crate::error::{PlimsollStatus, slice, slice_mut, status};
use crate::spec::PlimsollHardSpec;

/// The clouds of the caller.
///
/// # Safety
///
/// As [`plimsoll_hard_voxelize`].
unsafe fn clouds<'a>(
    points: *const f32,
    columns: u32,
    lengths: *const u64,
    clouds: u32,
) -> Result<PointBatch<'a>> {
    // SAFETY: the caller's promise.
    let lengths = unsafe { slice("lengths", lengths, clouds as usize) }?;
    let lengths: Vec<usize> =
        lengths.iter().map(|length| usize::try_from(*length).unwrap_or(usize::MAX)).collect();
    let all = lengths.iter().fold(0usize, |sum, length| sum.saturating_add(*length));
    let floats = all.saturating_mul(columns as usize);
    // SAFETY: the caller's promise.
    let floats = unsafe { slice("points", points, floats) }?;
    PointBatch::ragged(floats, columns as usize, &lengths)
}

thread_local! {
    /// What small clouds of this thread are made in: robots make one after the other.
    static KEPT: RefCell<Option<HardHost>> = const { RefCell::new(None) };
}

/// Does work with what is kept for a spec. What large clouds need is not kept.
fn with_host<T>(
    spec: HardSpec,
    batch: &PointBatch<'_>,
    work: impl FnOnce(&mut HardHost) -> Result<T>,
) -> Result<T> {
    let kept = KEPT.take().filter(|host| *host.spec() == spec);
    let mut host = kept.unwrap_or_else(|| HardHost::new(spec));
    let made = work(&mut host);
    if HardHost::works_alone(batch) {
        KEPT.set(Some(host));
    }
    made
}

/// Makes hard voxels of clouds that follow each other in memory: `lengths` has the points of each
/// cloud, and a point has `columns` floats.
///
/// `voxels` ([voxels, max_points, columns]), `coordinates` (3 or 4 of a voxel) and `num_points`
/// have room for `capacity` voxels; a batch needs at most min(points, max_voxels) of each cloud.
/// `totals` gets the voxels of each cloud, then of all. Voxels of the clouds follow each other.
///
/// # Safety
///
/// All pointers lead to as much memory as is said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_hard_voxelize(
    spec: *const PlimsollHardSpec,
    points: *const f32,
    columns: u32,
    lengths: *const u64,
    cloud_count: u32,
    capacity: u64,
    voxels: *mut f32,
    coordinates: *mut i32,
    num_points: *mut i32,
    totals: *mut i32,
) -> PlimsollStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let spec = unsafe { PlimsollHardSpec::read(spec) }?;
        // SAFETY: the caller's promise.
        let batch = unsafe { clouds(points, columns, lengths, cloud_count) }?;
        let each = spec.max_points() as usize * batch.columns();
        let most = (0..batch.clouds())
            .map(|cloud| spec.most_voxels(batch.range(cloud).len() as u64))
            .fold(0u64, u64::saturating_add);
        // Nothing is made past this, so that a careless capacity does no harm.
        let room = usize::try_from(capacity.min(most)).unwrap_or(usize::MAX);
        // SAFETY: the caller's promise.
        let to = unsafe {
            HardSlices {
                voxels: slice_mut("voxels", voxels, room.saturating_mul(each))?,
                coordinates: slice_mut("coordinates", coordinates, room * spec.form().columns())?,
                num_points: slice_mut("num_points", num_points, room)?,
            }
        };
        // SAFETY: the caller's promise.
        let totals = unsafe { slice_mut("totals", totals, batch.clouds() + 1) }?;
        let made = with_host(spec, &batch, |host| host.run_into(&batch, to))?;
        let all = made.iter().sum();
        for (to, count) in totals.iter_mut().zip(made.into_iter().chain([all])) {
            *to = count as i32;
        }
        Ok(())
    })
}

/// The coordinates of every point's voxel, or −1: [points, 3], or 4 with a batch index.
///
/// # Safety
///
/// As [`plimsoll_hard_voxelize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_dynamic_coordinates(
    spec: *const PlimsollHardSpec,
    points: *const f32,
    columns: u32,
    lengths: *const u64,
    cloud_count: u32,
    coordinates: *mut i32,
) -> PlimsollStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let spec = unsafe { PlimsollHardSpec::read(spec) }?;
        // SAFETY: the caller's promise.
        let batch = unsafe { clouds(points, columns, lengths, cloud_count) }?;
        let length = batch.points().saturating_mul(spec.form().columns());
        // SAFETY: the caller's promise.
        let to = unsafe { slice_mut("coordinates", coordinates, length) }?;
        dynamic_coordinates_into(&batch, spec.grid(), spec.form(), to)
    })
}

/// The features of pillars of what [`plimsoll_hard_voxelize`] made: those of each point, its
/// offset from the mean of the pillar's points and from the pillar's centre:
/// [voxels, max_points, columns + 6]. Points of four columns so get OpenPCDet's ten.
///
/// # Safety
///
/// As [`plimsoll_hard_voxelize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_pillar_features(
    spec: *const PlimsollHardSpec,
    columns: u32,
    voxel_count: u64,
    voxels: *const f32,
    coordinates: *const i32,
    num_points: *const i32,
    features: *mut f32,
) -> PlimsollStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let spec = unsafe { PlimsollHardSpec::read(spec) }?;
        let (count, columns) = (voxel_count as usize, columns as usize);
        let rows = count.saturating_mul(spec.max_points() as usize);
        // SAFETY: the caller's promise.
        let (made, to) = unsafe {
            let made = PillarSlices {
                voxels: slice("voxels", voxels, rows.saturating_mul(columns))?,
                coordinates: slice(
                    "coordinates",
                    coordinates,
                    count.saturating_mul(spec.form().columns()),
                )?,
                num_points: slice("num_points", num_points, count)?,
            };
            (made, slice_mut("features", features, rows.saturating_mul(columns.saturating_add(6)))?)
        };
        pillar_features_into(made, &spec, columns, to)
    })
}

/// The image from above: what a network made of each pillar (`values`, a row of `feature_count`
/// floats each) at its place, and 0 elsewhere: [clouds, features, height, width].
///
/// # Safety
///
/// As [`plimsoll_hard_voxelize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_birds_eye(
    spec: *const PlimsollHardSpec,
    voxel_count: u64,
    coordinates: *const i32,
    values: *const f32,
    feature_count: u32,
    cloud_count: u32,
    image: *mut f32,
) -> PlimsollStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let spec = unsafe { PlimsollHardSpec::read(spec) }?;
        let (count, features) = (voxel_count as usize, feature_count as usize);
        let (numbers, clouds) = (count.saturating_mul(spec.form().columns()), cloud_count as usize);
        let length = image_length(&spec, features, clouds);
        // SAFETY: the caller's promise.
        let (places, values, to) = unsafe {
            let values = slice("values", values, count.saturating_mul(features))?;
            let places = slice("coordinates", coordinates, numbers)?;
            (places, values, slice_mut("image", image, length)?)
        };
        birds_eye_into(values, features, places, (&spec, clouds), to)
    })
}

/// What is made of the points of a voxel, by its number in C.
pub(crate) fn scatter_rule(rule: u32) -> Result<ScatterRule> {
    match rule {
        0 => Ok(ScatterRule::Sum),
        1 => Ok(ScatterRule::Mean),
        2 => Ok(ScatterRule::Max),
        other => Err(Error::Config {
            field: "rule",
            value: other.to_string(),
            range: "0 for sums, 1 for means or 2 for maxima",
        }),
    }
}

/// What the points of each voxel come to, column by column, in the order of points: `values` gets
/// [voxels, columns]. `rule` is 0 for sums, 1 for means and 2 for maxima; `point_to_voxel` has the
/// voxel of each point, or −1.
///
/// # Safety
///
/// As [`plimsoll_hard_voxelize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_scatter_points(
    features: *const f32,
    columns: u32,
    point_to_voxel: *const i32,
    point_count: u64,
    voxel_count: u64,
    rule: u32,
    values: *mut f32,
) -> PlimsollStatus {
    status(|| {
        let (points, columns) = (point_count as usize, columns as usize);
        // SAFETY: the caller's promise.
        let (features, owners) = unsafe {
            let features = slice("features", features, points.saturating_mul(columns))?;
            (features, slice("point_to_voxel", point_to_voxel, points)?)
        };
        let rule = scatter_rule(rule)?;
        let voxels = voxel_count as usize;
        // SAFETY: the caller's promise.
        let to = unsafe { slice_mut("values", values, voxels.saturating_mul(columns)) }?;
        scatter_points_into(features, columns, owners, voxels, rule, to)
    })
}

/// Back from voxels to points: `features` gets the row of each point's voxel, and zeros for a point
/// without one, [points, columns].
///
/// # Safety
///
/// As [`plimsoll_hard_voxelize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_voxels_to_points(
    values: *const f32,
    voxel_count: u64,
    columns: u32,
    point_to_voxel: *const i32,
    point_count: u64,
    features: *mut f32,
) -> PlimsollStatus {
    status(|| {
        let (points, columns) = (point_count as usize, columns as usize);
        // SAFETY: the caller's promise.
        let (values, owners) = unsafe {
            let floats = (voxel_count as usize).saturating_mul(columns);
            (slice("values", values, floats)?, slice("point_to_voxel", point_to_voxel, points)?)
        };
        // SAFETY: the caller's promise.
        let to = unsafe { slice_mut("features", features, points.saturating_mul(columns)) }?;
        voxels_to_points_into(values, columns, owners, to)
    })
}
