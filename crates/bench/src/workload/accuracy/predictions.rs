//! The detections that are judged, as COCO's results: for pycocotools and others to judge again.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use plimsoll_accuracy::{FoundObject, LabelClass};
use serde_json::{Value, json};

/// A file of results that is being written.
pub(super) struct Predictions {
    path: PathBuf,
    file: BufWriter<File>,
    count: u64,
}

impl Predictions {
    /// Makes the file; where several models are judged its name gets the number of the slot.
    pub(super) fn create(path: &Path, number: Option<usize>) -> Result<Predictions, String> {
        let path = match number {
            None => path.to_path_buf(),
            Some(number) => {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                let ending = path.extension().map(|ending| ending.to_string_lossy());
                let ending = ending.map_or(String::new(), |ending| format!(".{ending}"));
                path.with_file_name(format!("{stem}_{number}{ending}"))
            }
        };
        let file = File::create(&path).map_err(|error| cannot(&path, &error))?;
        Ok(Predictions { path, file: BufWriter::new(file), count: 0 })
    }

    /// Adds the detections of an image.
    pub(super) fn add(
        &mut self,
        image: &Value,
        found: &[FoundObject],
        classes: &[LabelClass],
    ) -> Result<(), String> {
        for one in found {
            let line = result(image, one, classes);
            let before = if self.count == 0 { "[" } else { ",\n" };
            let written = write!(self.file, "{before}{line}");
            written.map_err(|error| cannot(&self.path, &error))?;
            self.count += 1;
        }
        Ok(())
    }

    /// Ends the file.
    pub(super) fn end(mut self) -> Result<(), String> {
        let end = if self.count == 0 { "[]\n" } else { "]\n" };
        let written = self.file.write_all(end.as_bytes()).and_then(|()| self.file.flush());
        written.map_err(|error| cannot(&self.path, &error))
    }
}

fn cannot(path: &Path, error: &std::io::Error) -> String {
    format!("--predictions {} cannot be written: {error}", path.display())
}

fn result(image: &Value, one: &FoundObject, classes: &[LabelClass]) -> Value {
    let class = classes.get(one.class as usize).map(|class| class.id);
    let mut result = json!({
        "image_id": image, "category_id": class, "bbox": one.bounds, "score": one.score,
    });
    if let Some(fields) = result.as_object_mut() {
        if let Some(mask) = &one.mask {
            let (rows, columns) = mask.size();
            let coded = json!({ "size": [rows, columns], "counts": mask.to_text() });
            fields.insert("segmentation".to_string(), coded);
        }
        if !one.keypoints.is_empty() {
            let points: Vec<f64> = one.keypoints.iter().flat_map(|&[x, y]| [x, y, 1.0]).collect();
            fields.insert("keypoints".to_string(), json!(points));
        }
    }
    result
}
