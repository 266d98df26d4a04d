//! What a model's answer is made of: boxes, and what its task adds to them.

use super::mask::Mask;

/// What a model answers about a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Task {
    /// Boxes.
    #[default]
    Detect,
    /// Boxes, each with a mask.
    Segment,
    /// Boxes, each with keypoints.
    Pose,
    /// Boxes that are turned by an angle.
    Oriented,
    /// Classes of the whole frame.
    Classify,
}

impl Task {
    /// The task of a name, as Ultralytics writes it into a file's metadata.
    #[must_use]
    pub fn named(name: &str) -> Option<Task> {
        Some(match name {
            "detect" => Task::Detect,
            "segment" => Task::Segment,
            "pose" => Task::Pose,
            "obb" => Task::Oriented,
            "classify" => Task::Classify,
            _ => return None,
        })
    }

    /// Its name, as Ultralytics writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Task::Detect => "detect",
            Task::Segment => "segment",
            Task::Pose => "pose",
            Task::Oriented => "obb",
            Task::Classify => "classify",
        }
    }
}

impl std::fmt::Display for Task {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(self.name())
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Detection {
    /// Left, top, right, bottom, in frame pixels. Of a turned box: the upright box around it.
    /// Of a class of the whole frame: the frame.
    pub bounds: [f32; 4],
    /// How sure the detector is, 0 to 1.
    pub confidence: f32,
    /// The class, an index into the model's names.
    pub class: u32,
    /// What the model's task adds to the box.
    pub detail: Detail,
}

/// What a detection has beside its box.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Detail {
    /// Nothing: the box is all.
    #[default]
    Box,
    /// Which pixels belong to it.
    Mask(Mask),
    /// Its keypoints, in the model's order.
    Keypoints(Vec<Keypoint>),
    /// The turned box.
    Oriented(OrientedBox),
    /// The class is one of the whole frame, which has no place in it.
    Frame,
}

impl Detection {
    /// A box and nothing else.
    #[must_use]
    pub fn boxed(bounds: [f32; 4], confidence: f32, class: u32) -> Detection {
        Detection { bounds, confidence, class, detail: Detail::Box }
    }

    /// Its mask, where it has one.
    #[must_use]
    pub fn mask(&self) -> Option<&Mask> {
        match &self.detail {
            Detail::Mask(mask) => Some(mask),
            _ => None,
        }
    }

    /// Its keypoints; empty where it has none.
    #[must_use]
    pub fn keypoints(&self) -> &[Keypoint] {
        match &self.detail {
            Detail::Keypoints(points) => points,
            _ => &[],
        }
    }

    /// The turned box, where it is one.
    #[must_use]
    pub fn oriented(&self) -> Option<&OrientedBox> {
        match &self.detail {
            Detail::Oriented(turned) => Some(turned),
            _ => None,
        }
    }
}

/// A keypoint, in frame pixels.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Keypoint {
    /// From the left.
    pub x: f32,
    /// From the top.
    pub y: f32,
    /// How sure the model is that it can be seen, 0 to 1; `None` where the model does not say.
    pub confidence: Option<f32>,
}

/// A box that is turned, in frame pixels.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OrientedBox {
    /// The centre, across and down.
    pub centre: [f32; 2],
    /// The extents before the turn, across and down.
    pub size: [f32; 2],
    /// The turn in radians, clockwise as seen, as the model gives it: mostly from −π/4 to 3π/4.
    pub angle: f32,
}

impl OrientedBox {
    /// The four corners, in order around the box.
    #[must_use]
    pub fn corners(&self) -> [[f32; 2]; 4] {
        let [x, y] = self.centre;
        let (sin, cos) = self.angle.sin_cos();
        let along = [self.size[0] / 2.0 * cos, self.size[0] / 2.0 * sin];
        let across = [-self.size[1] / 2.0 * sin, self.size[1] / 2.0 * cos];
        [[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]]
            .map(|[a, b]| [x + a * along[0] + b * across[0], y + a * along[1] + b * across[1]])
    }

    /// The upright box around it: left, top, right, bottom.
    #[must_use]
    pub fn around(&self) -> [f32; 4] {
        let corners = self.corners();
        let least = |axis: usize| corners.iter().map(|at| at[axis]).fold(f32::INFINITY, f32::min);
        let most =
            |axis: usize| corners.iter().map(|at| at[axis]).fold(f32::NEG_INFINITY, f32::max);
        [least(0), least(1), most(0), most(1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_turn_swaps_the_sides() {
        let turned = OrientedBox {
            centre: [10.0, 20.0],
            size: [8.0, 2.0],
            angle: std::f32::consts::FRAC_PI_2,
        };
        let near = |a: [f32; 4], b: [f32; 4]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
        assert!(near(turned.around(), [9.0, 16.0, 11.0, 24.0]), "{:?}", turned.around());
        let flat = OrientedBox { angle: 0.0, ..turned };
        assert!(near(flat.around(), [6.0, 19.0, 14.0, 21.0]));
    }

    #[test]
    fn every_task_has_a_name_that_finds_it() {
        for task in [Task::Detect, Task::Segment, Task::Pose, Task::Oriented, Task::Classify] {
            assert_eq!(Task::named(task.name()), Some(task));
        }
        assert_eq!(Task::named("depth"), None);
    }
}
