//! COCO's JSON: images, annotations, categories.

use std::collections::HashMap;

use serde::Deserialize;

use super::segmentation::Segmentation;
use super::{ImagePlace, LabelledImage, LabelsError, area_of, check_polygon};
use crate::mask::{MOST_PIXELS, PixelRuns};
use crate::object::{LabelClass, LabelledObject, ObjectOutline};

#[derive(Debug, Deserialize)]
struct CocoFile {
    images: Vec<CocoImage>,
    annotations: Vec<CocoAnnotation>,
    categories: Vec<CocoCategory>,
}

#[derive(Debug, Deserialize)]
struct CocoImage {
    id: i64,
    file_name: String,
    width: Option<u32>,
    height: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct CocoCategory {
    id: i64,
    name: String,
}

#[derive(Debug, Deserialize)]
struct CocoAnnotation {
    #[serde(default = "one")]
    id: i64,
    image_id: i64,
    category_id: i64,
    bbox: Option<Vec<f64>>,
    area: Option<f64>,
    #[serde(default)]
    iscrowd: u8,
    #[serde(default)]
    segmentation: Segmentation,
    #[serde(default)]
    keypoints: Vec<f64>,
    num_keypoints: Option<u32>,
}

fn one() -> i64 {
    1
}

/// The labels of a COCO file.
#[derive(Debug)]
pub(super) struct CocoLabels {
    /// By their ids.
    images: Vec<CocoImage>,
    /// Annotations of each image, with the index of their class.
    annotations: Vec<Vec<(u32, CocoAnnotation)>>,
    /// Places of images by the names of their files without folders.
    by_name: HashMap<String, Vec<usize>>,
}

impl CocoLabels {
    /// Reads the file. Annotations of images or categories that it does not have are left out,
    /// as pycocotools leaves them out.
    pub(super) fn parse(json: &[u8]) -> Result<(Vec<LabelClass>, CocoLabels), LabelsError> {
        let whole = |why: String| LabelsError::new("", why);
        if json.trim_ascii_start().first() == Some(&b'[') {
            let why = "a list: these are detections; labels have images, annotations, categories";
            return Err(whole(why.to_owned()));
        }
        let CocoFile { mut images, annotations, mut categories } =
            serde_json::from_slice(json).map_err(|error| whole(error.to_string()))?;
        images.sort_by_key(|image| image.id);
        categories.sort_by_key(|category| category.id);
        twice(images.iter().map(|image| image.id), "images")?;
        twice(categories.iter().map(|category| category.id), "categories")?;
        let image_at: HashMap<i64, usize> =
            images.iter().enumerate().map(|(at, image)| (image.id, at)).collect();
        let class_at: HashMap<i64, u32> =
            categories.iter().enumerate().map(|(at, class)| (class.id, at as u32)).collect();
        let mut by_image: Vec<Vec<(u32, CocoAnnotation)>> =
            images.iter().map(|_| Vec::new()).collect();
        for one in annotations {
            let place = image_at.get(&one.image_id).zip(class_at.get(&one.category_id));
            if let Some((&image, &class)) = place {
                by_image[image].push((class, one));
            }
        }
        let mut by_name: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, image) in images.iter().enumerate() {
            let name = image.file_name.rsplit(['/', '\\']).next().unwrap_or_default();
            by_name.entry(name.to_owned()).or_default().push(at);
        }
        let classes =
            categories.into_iter().map(|CocoCategory { id, name }| LabelClass { id, name });
        Ok((classes.collect(), CocoLabels { images, annotations: by_image, by_name }))
    }

    pub(super) fn images(&self) -> usize {
        self.images.len()
    }

    pub(super) fn find(&self, file: &str) -> Result<Option<ImagePlace>, LabelsError> {
        match self.by_name.get(file).map(Vec::as_slice) {
            None => Ok(None),
            Some(&[at]) => Ok(Some(ImagePlace::Coco(at))),
            Some(several) => {
                let names: Vec<&str> =
                    several.iter().map(|&at| self.images[at].file_name.as_str()).collect();
                let why = format!("several images are called {file}: {}", names.join(", "));
                Err(LabelsError::new("images", why))
            }
        }
    }

    pub(super) fn image(&self, at: usize, size: (u32, u32)) -> Result<LabelledImage, LabelsError> {
        let image = &self.images[at];
        let wrong = |why: String| LabelsError::new(format!("image {}", image.id), why);
        let (rows, columns) = size;
        let labelled = (image.height.unwrap_or(rows), image.width.unwrap_or(columns));
        if labelled != size {
            return Err(wrong(format!(
                "the labels are of a picture of {} x {} pixels, but {} has {columns} x {rows}",
                labelled.1, labelled.0, image.file_name
            )));
        }
        if rows == 0 || columns == 0 || u64::from(rows) * u64::from(columns) > MOST_PIXELS {
            return Err(wrong(format!("{columns} x {rows} pixels cannot be judged")));
        }
        let objects = self.annotations[at].iter().map(|(class, one)| {
            let place = || format!("annotation {}", one.id);
            one.object(*class, size).map_err(|why| LabelsError::new(place(), why))
        });
        Ok(LabelledImage { id: Some(image.id), objects: objects.collect::<Result<_, _>>()? })
    }
}

impl CocoAnnotation {
    fn object(&self, class: u32, size: (u32, u32)) -> Result<LabelledObject, String> {
        let outline = self.outline(size)?;
        let bounds = match self.bbox.as_deref() {
            Some(&[left, top, width, height]) => [left, top, width, height],
            Some(other) => return Err(format!("its bbox has {} numbers, not 4", other.len())),
            None => match outline.pixels(size) {
                Some(mask) => mask.bounds(),
                None => return Err("it has neither bbox nor segmentation".to_owned()),
            },
        };
        if !self.keypoints.len().is_multiple_of(3) {
            return Err("its keypoints are not triples of x, y and visibility".to_owned());
        }
        let keypoints: Vec<[f64; 3]> =
            self.keypoints.chunks_exact(3).map(|p| [p[0], p[1], p[2]]).collect();
        let seen = keypoints.iter().filter(|point| point[2] > 0.0).count();
        Ok(LabelledObject {
            class,
            bounds,
            area: self.area.unwrap_or_else(|| area_of(&outline, bounds, size)),
            crowd: self.iscrowd != 0,
            id_zero: self.id == 0,
            without_keypoints: self.num_keypoints.map_or(seen == 0, |count| count == 0),
            outline,
            keypoints,
        })
    }

    fn outline(&self, size: (u32, u32)) -> Result<ObjectOutline, String> {
        let of = |[rows, columns]: [u32; 2]| (rows, columns);
        let runs = match &self.segmentation {
            Segmentation::None => return Ok(ObjectOutline::None),
            Segmentation::Polygons(polygons) => {
                // Two points enclose nothing.
                let drawn = polygons.iter().filter(|points| points.len() >= 6);
                let drawn: Vec<Vec<f64>> = drawn.cloned().collect();
                drawn.iter().try_for_each(|points| check_polygon(points, size))?;
                return Ok(ObjectOutline::Polygons(drawn));
            }
            Segmentation::Counts(at, counts) => {
                PixelRuns::from_counts(of(*at), counts.iter().copied())
            }
            Segmentation::Text(at, text) => PixelRuns::from_text(of(*at), text.as_bytes()),
        };
        runs.map(ObjectOutline::Runs).map_err(|error| format!("its mask: {error}"))
    }
}

/// Refuses ids, in order, of which one occurs twice.
fn twice(ids: impl Iterator<Item = i64> + Clone, what: &str) -> Result<(), LabelsError> {
    let same = ids.clone().zip(ids.skip(1)).find(|(one, next)| one == next);
    match same {
        Some((id, _)) => Err(LabelsError::new(what, format!("two have the id {id}"))),
        None => Ok(()),
    }
}
