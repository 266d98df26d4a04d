//! What labels say is in an image, and what a detector found there.

use crate::mask::PixelRuns;

/// A class of the labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelClass {
    /// Its number in the labels.
    pub id: i64,
    /// Its name.
    pub name: String,
}

/// The outline of a labelled object.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ObjectOutline {
    /// The labels have only its box.
    #[default]
    None,
    /// Polygons of alternating x and y, in pixels; all of them together are the object.
    Polygons(Vec<Vec<f64>>),
    /// Its pixels.
    Runs(PixelRuns),
}

impl ObjectOutline {
    /// The pixels inside, in an image of so many rows and columns; `None` without an outline.
    #[must_use]
    pub fn pixels(&self, size: (u32, u32)) -> Option<PixelRuns> {
        match self {
            ObjectOutline::None => None,
            ObjectOutline::Runs(runs) => Some(runs.clone()),
            ObjectOutline::Polygons(polygons) => {
                let parts: Vec<PixelRuns> =
                    polygons.iter().map(|points| PixelRuns::from_polygon(size, points)).collect();
                Some(PixelRuns::union(size, &parts))
            }
        }
    }
}

/// An object that labels say is there.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LabelledObject {
    /// An index into the classes of the labels.
    pub class: u32,
    /// Left, top, width and height in pixels.
    pub bounds: [f64; 4],
    /// Its pixels by the labels' own account, which decides whether it is small or large.
    pub area: f64,
    /// Whether it stands for many objects that nobody told apart. What is found there is neither
    /// right nor wrong.
    pub crowd: bool,
    /// Whether its id in a COCO file is 0. There pycocotools writes down that nothing was found
    /// when the object was; these figures equal its figures.
    pub id_zero: bool,
    /// Its outline.
    pub outline: ObjectOutline,
    /// x, y and visibility of its keypoints; 0 is not labelled.
    pub keypoints: Vec<[f64; 3]>,
    /// Whether the labels count no keypoint of it, so that its keypoints are not judged.
    pub without_keypoints: bool,
}

/// An object that a detector found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FoundObject {
    /// An index into the classes of the labels.
    pub class: u32,
    /// How sure the detector is.
    pub score: f64,
    /// Left, top, width and height in pixels.
    pub bounds: [f64; 4],
    /// Its mask.
    pub mask: Option<PixelRuns>,
    /// x and y of its keypoints.
    pub keypoints: Vec<[f64; 2]>,
}

/// The overlap of two boxes (left, top, width, height): intersection over union, or over the found
/// box alone where the truth is a crowd.
#[must_use]
pub fn box_overlap(found: [f64; 4], truth: [f64; 4], crowd: bool) -> f64 {
    let side = |axis: usize| {
        (found[axis + 2] + found[axis]).min(truth[axis + 2] + truth[axis])
            - found[axis].max(truth[axis])
    };
    let (width, height) = (side(0), side(1));
    if width <= 0.0 || height <= 0.0 {
        return 0.0;
    }
    let (common, area) = (width * height, found[2] * found[3]);
    let all = if crowd { area } else { area + truth[2] * truth[3] - common };
    common / all
}
