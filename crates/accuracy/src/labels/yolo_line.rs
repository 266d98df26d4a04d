//! Lines of a YOLO text file: a class, then a box, a box with keypoints, or a polygon, as shares of
//! the picture's width and height. The four corners of an oriented box are a polygon too.

use std::collections::HashSet;

use super::{LabelsError, area_of, check_polygon};
use crate::object::{LabelledObject, ObjectOutline};

/// How far outside the picture a coordinate may be, as a share: labels are rounded.
const SLACK: f64 = 0.01;

/// What the lines of a data set are.
#[derive(Debug, Clone, Copy)]
pub(super) struct YoloRows {
    pub(super) classes: usize,
    /// Number of keypoints, and of numbers for each.
    pub(super) keypoints: Option<[usize; 2]>,
}

/// The objects of a text, in a picture of so many rows and columns. A line that occurs twice counts
/// once, as in Ultralytics.
pub(super) fn objects(
    text: &str,
    rows: &YoloRows,
    size: (u32, u32),
) -> Result<Vec<LabelledObject>, LabelsError> {
    let mut seen: HashSet<Vec<u64>> = HashSet::new();
    let mut objects = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |why: String| LabelsError::new(format!("line {}", at + 1), why);
        let numbers = numbers(line).map_err(wrong)?;
        if seen.insert(numbers.iter().map(|number| number.to_bits()).collect()) {
            objects.push(rows.object(&numbers, size).map_err(wrong)?);
        }
    }
    Ok(objects)
}

fn numbers(line: &str) -> Result<Vec<f64>, String> {
    let words = line.split_whitespace().map(|word| {
        let number: Option<f64> = word.parse().ok();
        number.filter(|number| number.is_finite()).ok_or_else(|| format!("{word:?} is no number"))
    });
    words.collect()
}

impl YoloRows {
    fn object(&self, numbers: &[f64], size: (u32, u32)) -> Result<LabelledObject, String> {
        let (&class, place) = numbers.split_first().ok_or("it is empty")?;
        if class < 0.0 || class.fract() != 0.0 || class >= self.classes as f64 {
            return Err(format!("class {class}; the classes are 0 to {}", self.classes as i64 - 1));
        }
        let mut object = match self.keypoints {
            Some([count, dims]) if place.len() == 4 + count * dims => {
                self.posed(place, dims, size)?
            }
            Some([count, dims]) => {
                let wanted = 5 + count * dims;
                return Err(format!("{} numbers; kpt_shape asks for {wanted}", numbers.len()));
            }
            None if place.len() == 4 => boxed(place, size)?,
            None if place.len() >= 6 && place.len() % 2 == 0 => outlined(place, size)?,
            None => {
                return Err(format!(
                    "{} numbers; a box has 5, a polygon 7 or more, an odd number",
                    numbers.len()
                ));
            }
        };
        object.class = class as u32;
        Ok(object)
    }

    fn posed(
        &self,
        place: &[f64],
        dims: usize,
        size: (u32, u32),
    ) -> Result<LabelledObject, String> {
        let mut object = boxed(&place[..4], size)?;
        let points = place[4..].chunks_exact(dims);
        let point = |point: &[f64]| {
            let [x, y] = pixels(point[0], point[1], size);
            // Without visibility, a point at the origin is one that is not labelled.
            let labelled = if point[0] == 0.0 && point[1] == 0.0 { 0.0 } else { 2.0 };
            [x, y, point.get(2).copied().unwrap_or(labelled)]
        };
        object.keypoints = points.map(point).collect();
        object.without_keypoints = object.keypoints.iter().all(|point| point[2] <= 0.0);
        Ok(object)
    }
}

/// Centre, width and height.
fn boxed(place: &[f64], size: (u32, u32)) -> Result<LabelledObject, String> {
    inside(place)?;
    let [x, y] = pixels(place[0], place[1], size);
    let [width, height] = pixels(place[2], place[3], size);
    let bounds = [x - width / 2.0, y - height / 2.0, width, height];
    let without_keypoints = true;
    Ok(LabelledObject { bounds, area: width * height, without_keypoints, ..Default::default() })
}

/// The corners of a polygon.
fn outlined(place: &[f64], size: (u32, u32)) -> Result<LabelledObject, String> {
    inside(place)?;
    let points: Vec<f64> =
        place.chunks_exact(2).flat_map(|point| pixels(point[0], point[1], size)).collect();
    check_polygon(&points, size)?;
    let ends = |axis: usize| {
        let all = || points.iter().skip(axis).step_by(2).copied();
        (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max))
    };
    let ((left, right), (top, bottom)) = (ends(0), ends(1));
    let bounds = [left, top, right - left, bottom - top];
    let outline = ObjectOutline::Polygons(vec![points]);
    let area = area_of(&outline, bounds, size);
    Ok(LabelledObject { bounds, area, outline, without_keypoints: true, ..Default::default() })
}

fn pixels(x: f64, y: f64, (rows, columns): (u32, u32)) -> [f64; 2] {
    [x * f64::from(columns), y * f64::from(rows)]
}

fn inside(place: &[f64]) -> Result<(), String> {
    match place.iter().find(|share| !(-SLACK..=1.0 + SLACK).contains(*share)) {
        Some(share) => Err(format!("{share} is outside the picture; 0 to 1 are inside")),
        None => Ok(()),
    }
}
