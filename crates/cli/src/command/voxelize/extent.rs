//! Where the points of a batch lie, and the flags that would hold them: asked only where most of
//! them were dropped, as it reads all clouds once more.

use plimsoll_points::Batch;
use serde::Serialize;

use crate::page::{TextPage, TextTone};

/// How many numbers are read at a time, where a point has no more.
const PIECE: usize = 1 << 16;

/// The box around all finite points, and a grid that holds it. By x, y, z.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct CloudExtent {
    pub(super) least: [f32; 3],
    pub(super) most: [f32; 3],
    /// For `--origin`.
    pub(super) origin: [f32; 3],
    /// For `--voxel-size`, with as many voxels as the grid has.
    pub(super) voxel_size: [f32; 3],
}

impl CloudExtent {
    /// Reads all clouds. Nothing where no point is finite. `voxels` are by x, y, z.
    pub(super) fn of(batch: &Batch, voxels: [u32; 3]) -> plimsoll::Result<Option<CloudExtent>> {
        let mut around: Option<([f32; 3], [f32; 3])> = None;
        let mut buffer = Vec::new();
        for number in 0..batch.clouds() {
            for cloud in batch.load(number..number + 1, false)? {
                let piece = (PIECE / cloud.stride()).max(1);
                for from in (0..cloud.len()).step_by(piece) {
                    let to = (from + piece).min(cloud.len());
                    let floats = cloud.read(from..to, &mut buffer)?;
                    floats.chunks_exact(cloud.stride()).for_each(|point| widen(&mut around, point));
                }
            }
        }
        Ok(around.map(|(least, most)| CloudExtent::fitted(least, most, voxels)))
    }

    fn fitted(least: [f32; 3], most: [f32; 3], voxels: [u32; 3]) -> CloudExtent {
        let (mut origin, mut voxel_size) = ([0.0; 3], [0.0; 3]);
        for axis in 0..3 {
            let fitted = fit(least[axis], most[axis], voxels[axis]);
            (origin[axis], voxel_size[axis]) = fitted;
        }
        CloudExtent { least, most, origin, voxel_size }
    }

    /// The flags, as they are typed.
    pub(super) fn flags(&self) -> String {
        let list = |numbers: [f32; 3]| numbers.map(|number| number.to_string()).join(",");
        format!("--origin {} --voxel-size {}", list(self.origin), list(self.voxel_size))
    }

    /// The range that holds them in voxels of this size, as it is typed.
    pub(super) fn range_flag(&self, voxel: [f32; 3]) -> String {
        let end = |axis: usize| {
            let voxels = ((self.most[axis] - self.origin[axis]) / voxel[axis]).floor() + 1.0;
            self.origin[axis] + voxels * voxel[axis]
        };
        let ends = self.origin.into_iter().chain((0..3).map(end));
        let ends: Vec<String> = ends.map(|number| number.to_string()).collect();
        format!("--range {}", ends.join(","))
    }

    /// Where the points lie, in words.
    pub(super) fn words(&self) -> String {
        let axis = |(at, name)| format!("{name} {} to {}", self.least[at], self.most[at]);
        ["x", "y", "z"].into_iter().enumerate().map(axis).collect::<Vec<_>>().join(", ")
    }
}

/// What became of the points that are in no voxel.
#[derive(Debug, Clone, Copy)]
pub(super) struct LostPoints {
    pub(super) points: u64,
    pub(super) outside: u64,
    pub(super) not_finite: u64,
}

impl LostPoints {
    /// Whether more than half are in no voxel.
    pub(super) fn are_most(&self) -> bool {
        self.outside.saturating_add(self.not_finite) > self.points / 2
    }

    /// Says so where they are, with the flags that would hold all points.
    pub(super) fn warn(&self, page: &mut TextPage, held: Option<(&CloudExtent, String)>) {
        if !self.are_most() {
            return;
        }
        let of = |count: u64| count as f64 / self.points.max(1) as f64 * 100.0;
        let (outside, broken) = (of(self.outside), of(self.not_finite));
        page.toned(
            &format!("warning: most points were dropped: {outside:.1} % lie outside of the grid, {broken:.1} % are not finite"),
            TextTone::Doubt,
        );
        if let Some((extent, flags)) = held {
            page.line(&format!("  the points lie at {}", extent.words()));
            page.line(&format!("  this would hold all of them: {flags}"));
        }
    }
}

fn widen(around: &mut Option<([f32; 3], [f32; 3])>, point: &[f32]) {
    let [x, y, z, ..] = *point else { return };
    let point = [x, y, z];
    if !point.iter().all(|number| number.is_finite()) {
        return;
    }
    let (least, most) = around.get_or_insert((point, point));
    for axis in 0..3 {
        least[axis] = least[axis].min(point[axis]);
        most[axis] = most[axis].max(point[axis]);
    }
}

/// Three figures are enough to type, and the rule of the grid must hold both ends: the index of a
/// point is floor((p − origin) / size) in f32.
fn fit(least: f32, most: f32, voxels: u32) -> (f32, f32) {
    let span = f64::from(most) - f64::from(least);
    // All points in one place: any size does.
    let span = if span > 0.0 { span } else { f64::from(voxels) };
    let step = 10f64.powf(span.log10().floor() - 2.0);
    let mut origin = ((f64::from(least) / step).floor() * step) as f32;
    while origin > least {
        origin = origin.next_down();
    }
    let rough = (f64::from(most) - f64::from(origin)).max(span) / f64::from(voxels);
    let unit = 10f64.powf(rough.log10().floor() - 2.0);
    let mut figures = (rough / unit).ceil();
    loop {
        let size = (figures * unit) as f32;
        if ((most - origin) / size).floor() < voxels as f32 || !size.is_finite() {
            return (origin, size);
        }
        figures += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_suggested_holds_every_point() {
        let mut state = 5u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 40) as f32 / 1e4 - 800.0) * if state >> 63 == 0 { 1.0 } else { 1e-3 }
        };
        for voxels in [1, 2, 10, 512, 4096] {
            for _ in 0..500 {
                let (one, two) = (random(), random());
                let (least, most) = (one.min(two), one.max(two));
                let (origin, size) = fit(least, most, voxels);
                for end in [least, most] {
                    let index = ((end - origin) / size).floor();
                    assert!(
                        (0.0..voxels as f32).contains(&index),
                        "{least} {most} {voxels}: {index}"
                    );
                }
                // Not more than a tenth too large.
                let taken = f64::from(size) * f64::from(voxels);
                assert!(taken <= f64::from(most - least) * 1.1 + 1e-6, "{least} {most}: {taken}");
            }
        }
        assert_eq!(fit(-75.2, 75.1, 512), (-76.0, 0.296));
        assert_eq!(fit(3.0, 3.0, 4).0, 3.0);
    }

    #[test]
    fn points_that_are_not_finite_have_no_place() {
        let mut around = None;
        for point in [[f32::NAN, 0.0, 0.0], [1.0, 2.0, 3.0], [-1.0, 5.0, 3.0], [f32::INFINITY; 3]] {
            widen(&mut around, &point);
        }
        assert_eq!(around, Some(([-1.0, 2.0, 3.0], [1.0, 5.0, 3.0])));
        widen(&mut around, &[9.0]);
        assert_eq!(around.map(|(_, most)| most[0]), Some(1.0));
    }
}
