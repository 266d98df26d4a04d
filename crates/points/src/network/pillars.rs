//! Pillars: voxels as high as the range, as PointPillars takes them.

use plimsoll_memory::{Error, Result};
use rayon::prelude::*;

use super::dynamic::check_result;
use super::{CoordinateForm, CoordinateOrder, HardSpec, HardVoxels};
use crate::reduce::{mean, quiet};
use crate::room;

/// The features of every point of every voxel: those that it has, its offset from the mean of its
/// voxel's points, and from the voxel's centre, x, y and z each. Points with an intensity so get
/// OpenPCDet's ten. Places without a point are 0: [voxels, points, columns + 6].
///
/// The mean is summed in the order of points in double precision, divided and rounded to single
/// once. The centre is cell × size + (size / 2 + origin); that and the offsets are in single
/// precision, each operation rounded.
///
/// # Errors
///
/// [`Error::Config`] where `made` has not the shape that the spec and the columns say.
pub fn pillar_features<'s>(
    made: impl Into<PillarSlices<'s>>,
    spec: &HardSpec,
    columns: usize,
) -> Result<Vec<f32>> {
    let made = made.into();
    check_pillars(made, spec, columns)?;
    let mut features = room::zeroed(features_length(made, spec, columns))?;
    write_features(made, spec, columns, &mut features);
    Ok(features)
}

/// Hard voxels, wherever they are.
#[derive(Debug, Clone, Copy)]
pub struct PillarSlices<'s> {
    /// Voxels, points, columns.
    pub voxels: &'s [f32],
    /// Voxels, and three or four numbers of each.
    pub coordinates: &'s [i32],
    /// Points of each voxel.
    pub num_points: &'s [i32],
}

impl<'s> From<&'s HardVoxels> for PillarSlices<'s> {
    fn from(made: &'s HardVoxels) -> PillarSlices<'s> {
        let HardVoxels { voxels, coordinates, num_points, .. } = made;
        PillarSlices { voxels, coordinates, num_points }
    }
}

/// The same into memory of the caller's, where nothing is written if it fails.
///
/// # Errors
///
/// As [`pillar_features`], and where that memory has another length.
pub fn pillar_features_into(
    made: PillarSlices<'_>,
    spec: &HardSpec,
    columns: usize,
    features: &mut [f32],
) -> Result<()> {
    check_pillars(made, spec, columns)?;
    check_result(features.len(), features_length(made, spec, columns))?;
    features.fill(0.0);
    write_features(made, spec, columns, features);
    Ok(())
}

fn features_length(made: PillarSlices<'_>, spec: &HardSpec, columns: usize) -> usize {
    let rows = made.num_points.len().saturating_mul(spec.max_points() as usize);
    rows.saturating_mul(columns + 6)
}

/// Writes them where zeros are.
fn write_features(made: PillarSlices<'_>, spec: &HardSpec, columns: usize, features: &mut [f32]) {
    let (points, form) = (spec.max_points() as usize, spec.form());
    let width = columns + 6;
    let rows =
        features.par_chunks_mut(points * width).zip(made.voxels.par_chunks(points * columns));
    let cells = made.coordinates.par_chunks(form.columns()).zip(made.num_points);
    rows.zip(cells).for_each(|((features, voxel), (cells, count))| {
        let count = usize::try_from(*count).unwrap_or(0).min(points);
        let own = &voxel[..count * columns];
        let centre = centre(spec, form, cells);
        let mean: [f32; 3] = std::array::from_fn(|axis| {
            mean(&mut own.chunks_exact(columns).map(|point| point[axis]))
        });
        for (to, point) in features.chunks_exact_mut(width).zip(own.chunks_exact(columns)) {
            to[..columns].copy_from_slice(point);
            for axis in 0..3 {
                to[columns + axis] = quiet(point[axis] - mean[axis]);
                to[columns + 3 + axis] = quiet(point[axis] - centre[axis]);
            }
        }
    });
}

/// Whether hard voxels have the shape that a spec and their columns say.
pub(crate) fn check_pillars<'s>(
    made: impl Into<PillarSlices<'s>>,
    spec: &HardSpec,
    columns: usize,
) -> Result<()> {
    let made = made.into();
    let voxels = made.num_points.len();
    let rows = voxels.saturating_mul(spec.max_points() as usize);
    let fits = made.voxels.len() == rows.saturating_mul(columns)
        && made.coordinates.len() == voxels.saturating_mul(spec.form().columns())
        && columns >= 3;
    if fits {
        return Ok(());
    }
    Err(Error::Config {
        field: "voxels",
        value: format!("{} floats for {voxels} voxels of {columns} columns", made.voxels.len()),
        range: "what hard voxelization made with this spec, of three columns or more",
    })
}

/// The centre of a voxel along x, y and z.
fn centre(spec: &HardSpec, form: CoordinateForm, cells: &[i32]) -> [f32; 3] {
    let cells = &cells[form.columns() - 3..];
    std::array::from_fn(|axis| {
        let cell = match form.order {
            CoordinateOrder::Zyx => cells[2 - axis],
            CoordinateOrder::Xyz => cells[axis],
        };
        let (size, origin) = (spec.grid().size()[axis], spec.grid().origin()[axis]);
        cell as f32 * size + (size / 2.0 + origin)
    })
}

/// Whether a row of values for each pillar makes an image; gives the pillars.
pub(crate) fn check_image(
    values: &[f32],
    features: usize,
    coordinates: &[i32],
    spec: &HardSpec,
) -> Result<usize> {
    let depth = spec.grid().dims()[0];
    let pillars = coordinates.len() / spec.form().columns();
    if depth != 1 || values.len() != pillars.saturating_mul(features) {
        return Err(no_image(format!("{depth} along z, {} values", values.len())));
    }
    Ok(pillars)
}

/// The error for pillars that make no image.
pub(crate) fn no_image(value: String) -> Error {
    Error::Config {
        field: "pillars",
        value,
        range: "one voxel along z, places that there are, and a row of values for each pillar",
    }
}

/// The image from above: what was made of each pillar at its place, and 0 elsewhere:
/// [clouds, features, height, width]. `values` has a row of `features` floats for each pillar.
///
/// # Errors
///
/// [`Error::Config`] for a range with more than one voxel along z, coordinates of a cloud or a
/// cell that there is not, or as many values as do not fit.
pub fn birds_eye(
    values: &[f32],
    features: usize,
    coordinates: &[i32],
    spec: &HardSpec,
    clouds: usize,
) -> Result<Vec<f32>> {
    check_image(values, features, coordinates, spec)?;
    let places = image_places(coordinates, spec, clouds)?;
    let mut image = room::zeroed(image_length(spec, features, clouds))?;
    write_image(values, features, &places, spec, &mut image);
    Ok(image)
}

/// Numbers of an image from above.
#[must_use]
pub fn image_length(spec: &HardSpec, features: usize, clouds: usize) -> usize {
    let [_, height, width] = spec.grid().dims().map(|extent| extent as usize);
    clouds.saturating_mul(features).saturating_mul(height.saturating_mul(width))
}

/// The same into memory of the caller's, where nothing is written if it fails.
///
/// # Errors
///
/// As [`birds_eye`], and where that memory has another length.
pub fn birds_eye_into(
    values: &[f32],
    features: usize,
    coordinates: &[i32],
    (spec, clouds): (&HardSpec, usize),
    image: &mut [f32],
) -> Result<()> {
    check_image(values, features, coordinates, spec)?;
    let places = image_places(coordinates, spec, clouds)?;
    check_result(image.len(), image_length(spec, features, clouds))?;
    image.fill(0.0);
    write_image(values, features, &places, spec, image);
    Ok(())
}

/// The cloud of each pillar, and its place in the image of that.
fn image_places(
    coordinates: &[i32],
    spec: &HardSpec,
    clouds: usize,
) -> Result<Vec<(usize, usize)>> {
    let [_, height, width] = spec.grid().dims().map(|extent| extent as usize);
    let form = spec.form();
    let mut places = Vec::new();
    room::reserve(&mut places, coordinates.len() / form.columns())?;
    for cells in coordinates.chunks_exact(form.columns()) {
        let (cloud, cells) = cells.split_at(form.columns() - 3);
        let [z, y, x] = match form.order {
            CoordinateOrder::Zyx => [cells[0], cells[1], cells[2]],
            CoordinateOrder::Xyz => [cells[2], cells[1], cells[0]],
        };
        let index = |number: i32, extent: usize| {
            usize::try_from(number).ok().filter(|number| *number < extent)
        };
        let cloud = cloud.first().copied().unwrap_or(0);
        let at = index(z, 1).and(index(y, height)).zip(index(x, width)).zip(index(cloud, clouds));
        let ((y, x), cloud) = at.ok_or_else(|| no_image(format!("{cloud},{z},{y},{x}")))?;
        places.push((cloud, y * width + x));
    }
    Ok(places)
}

/// Writes it where zeros are.
fn write_image(
    values: &[f32],
    features: usize,
    places: &[(usize, usize)],
    spec: &HardSpec,
    image: &mut [f32],
) {
    let area = image_length(spec, 1, 1);
    if area > 0 {
        image.par_chunks_mut(area).enumerate().for_each(|(plane, image)| {
            let (cloud, feature) = (plane / features, plane % features);
            for (pillar, (own, place)) in places.iter().enumerate() {
                if *own == cloud {
                    image[*place] = values[pillar * features + feature];
                }
            }
        });
    }
}
