//! Labels of images: COCO's JSON, or YOLO's data.yaml with its text files.
//!
//! Both are files of strangers: sizes and counts are bounded, and what is wrong is said with its
//! place. An image is found by the name of its file ([`LabelSet::find`]) and read when the size of
//! its picture is known ([`LabelSet::image`]), because YOLO's coordinates are shares of it.

mod coco;
mod segmentation;
mod yaml;
mod yolo;
mod yolo_line;

use std::path::{Path, PathBuf};

use plimsoll_machine::text;

use crate::object::{LabelClass, LabelledObject, ObjectOutline};

/// What is wrong with labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelsError {
    /// The file, and the place in it.
    pub place: String,
    /// What is wrong there, and what to do.
    pub why: String,
}

impl LabelsError {
    pub(crate) fn new(place: impl std::fmt::Display, why: impl Into<String>) -> LabelsError {
        LabelsError { place: place.to_string(), why: why.into() }
    }

    /// The same, with the file before the place.
    fn of(self, path: &Path) -> LabelsError {
        let place = match self.place.as_str() {
            "" => path.display().to_string(),
            place => format!("{}, {place}", path.display()),
        };
        LabelsError { place, ..self }
    }
}

impl std::fmt::Display for LabelsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LabelsError { place, why } = self;
        write!(f, "labels {}: {}", text::one_line(place), text::one_line(why))
    }
}

impl std::error::Error for LabelsError {}

/// The labels of an image.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LabelledImage {
    /// Its number in a COCO file.
    pub id: Option<i64>,
    /// What is in it.
    pub objects: Vec<LabelledObject>,
}

/// Where the labels of an image are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImagePlace {
    /// The place among the images of a COCO file, by their ids.
    Coco(usize),
    /// A text file.
    Text(PathBuf),
    /// An image of a YOLO data set without a text file: nothing is in it.
    Empty(PathBuf),
}

/// Labels of many images.
#[derive(Debug)]
pub struct LabelSet {
    path: PathBuf,
    classes: Vec<LabelClass>,
    format: LabelsFormat,
}

#[derive(Debug)]
enum LabelsFormat {
    Coco(coco::CocoLabels),
    Yolo(yolo::YoloLabels),
}

/// The largest file of labels: COCO's largest has 450 MB.
const LARGEST: u64 = 2 << 30;

impl LabelSet {
    /// Reads a COCO file, or the data.yaml of a YOLO data set. `frames` is the folder of the
    /// pictures; where a data set has several, it says which one is meant.
    ///
    /// # Errors
    /// [`LabelsError`], with the place and what is wrong there.
    pub fn read(path: &Path, frames: Option<&Path>) -> Result<LabelSet, LabelsError> {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        let read = |most: u64| {
            plimsoll_machine::files::read(path, most)
                .map_err(|error| LabelsError::new("", error.to_string()).of(path))
        };
        match ending.as_deref() {
            Some("json") => {
                let (classes, coco) =
                    coco::CocoLabels::parse(&read(LARGEST)?).map_err(|error| error.of(path))?;
                Ok(LabelSet::new(path, classes, LabelsFormat::Coco(coco)))
            }
            Some("yaml" | "yml") => {
                let bytes = read(yaml::LARGEST)?;
                let (classes, yolo) = yolo::YoloLabels::parse(&bytes, path, frames)?;
                Ok(LabelSet::new(path, classes, LabelsFormat::Yolo(yolo)))
            }
            _ => {
                let why = "labels are a COCO file (.json) or the data.yaml of a YOLO data set";
                Err(LabelsError::new(path.display(), why))
            }
        }
    }

    /// COCO's JSON from memory.
    ///
    /// # Errors
    /// [`LabelsError`], with the place and what is wrong there.
    pub fn from_coco(json: &[u8]) -> Result<LabelSet, LabelsError> {
        let (classes, coco) = coco::CocoLabels::parse(json)?;
        Ok(LabelSet::new(Path::new(""), classes, LabelsFormat::Coco(coco)))
    }

    fn new(path: &Path, classes: Vec<LabelClass>, format: LabelsFormat) -> LabelSet {
        LabelSet { path: path.to_path_buf(), classes, format }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The classes: of COCO in the order of their ids, of YOLO in that of their numbers.
    #[must_use]
    pub fn classes(&self) -> &[LabelClass] {
        &self.classes
    }

    /// How many images a COCO file has; `None` where nothing counts them.
    #[must_use]
    pub fn images(&self) -> Option<usize> {
        match &self.format {
            LabelsFormat::Coco(coco) => Some(coco.images()),
            LabelsFormat::Yolo(_) => None,
        }
    }

    /// The labels of the picture with this file name; `None` where there are none.
    ///
    /// # Errors
    /// [`LabelsError`] where two images have the name.
    pub fn find(&self, file: &str) -> Result<Option<ImagePlace>, LabelsError> {
        match &self.format {
            LabelsFormat::Coco(coco) => coco.find(file).map_err(|error| error.of(&self.path)),
            LabelsFormat::Yolo(yolo) => Ok(yolo.find(file)),
        }
    }

    /// What is in an image whose picture has so many rows and columns.
    ///
    /// # Errors
    /// [`LabelsError`] where the labels are of an image of another size, or wrong.
    pub fn image(
        &self,
        place: &ImagePlace,
        size: (u32, u32),
    ) -> Result<LabelledImage, LabelsError> {
        match (&self.format, place) {
            (LabelsFormat::Coco(coco), ImagePlace::Coco(at)) => {
                coco.image(*at, size).map_err(|error| error.of(&self.path))
            }
            (LabelsFormat::Yolo(yolo), ImagePlace::Text(file)) => yolo.image(file, size),
            _ => Ok(LabelledImage::default()),
        }
    }
}

/// Text of a YOLO label file from memory: what is in a picture of so many rows and columns.
/// `keypoints` is `kpt_shape`.
///
/// # Errors
/// [`LabelsError`], with the line and what is wrong there.
pub fn from_yolo_text(
    text: &str,
    classes: usize,
    keypoints: Option<[usize; 2]>,
    size: (u32, u32),
) -> Result<Vec<LabelledObject>, LabelsError> {
    yolo_line::objects(text, &yolo_line::YoloRows { classes, keypoints }, size)
}

/// What a YOLO data.yaml from memory names: its classes.
///
/// # Errors
/// [`LabelsError`], with the line and what is wrong there.
pub fn classes_of_yaml(text: &str) -> Result<Vec<String>, LabelsError> {
    yolo::DataYaml::parse(text).map(|data| data.names)
}

/// Checks that a polygon can be drawn in an image of that size.
fn check_polygon(points: &[f64], size: (u32, u32)) -> Result<(), String> {
    use crate::mask::{MOST_CROSSINGS, crossings};
    match crossings(points, size.1) {
        many if many > MOST_CROSSINGS => Err(format!(
            "a polygon whose edges cross columns of pixels {many} times; {MOST_CROSSINGS} are the \
             most"
        )),
        _ => Ok(()),
    }
}

/// The pixels of an outline, which is the area of an object whose labels give none.
fn area_of(outline: &ObjectOutline, bounds: [f64; 4], size: (u32, u32)) -> f64 {
    outline.pixels(size).map_or(bounds[2] * bounds[3], |mask| mask.area() as f64)
}

#[cfg(test)]
mod tests;
