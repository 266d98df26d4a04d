//! The detections that are judged, as COCO's results: for pycocotools and others to judge again.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use plimsoll::files::followed;
use plimsoll_accuracy::{FoundObject, LabelClass};
use serde_json::{Value, json};
use tempfile::TempPath;

/// A file of results that is being written. Whoever reads it finds all of it, or what was there
/// before; what is judged does not depend on it.
pub(super) struct Predictions {
    path: PathBuf,
    file: io::Result<PredictionsFile>,
    count: u64,
}

struct PredictionsFile {
    to: BufWriter<File>,
    /// Its name until it is whole; none for what is no file, such as a pipe.
    part: Option<TempPath>,
}

impl Predictions {
    /// Makes the file; where several models are judged its name gets the number of the slot.
    pub(super) fn create(path: &Path, number: Option<usize>) -> Predictions {
        let path = match number {
            None => path.to_path_buf(),
            Some(number) => {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                let ending = path.extension().map(|ending| ending.to_string_lossy());
                let ending = ending.map_or(String::new(), |ending| format!(".{ending}"));
                path.with_file_name(format!("{stem}_{number}{ending}"))
            }
        };
        let file = PredictionsFile::create(&path);
        Predictions { path, file, count: 0 }
    }

    /// Adds the detections of an image.
    pub(super) fn add(&mut self, image: &Value, found: &[FoundObject], classes: &[LabelClass]) {
        for one in found {
            let line = result(image, one, classes);
            let before = if self.count == 0 { "[" } else { ",\n" };
            self.write(&format!("{before}{line}"));
            self.count += 1;
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// What could not be written, and why.
    pub(super) fn end(mut self) -> Result<(), String> {
        self.write(if self.count == 0 { "[]\n" } else { "]\n" });
        let Predictions { path, file, .. } = self;
        file.and_then(|file| file.end(&path))
            .map_err(|error| format!("--predictions {} cannot be written: {error}", path.display()))
    }

    /// Writes as long as that goes well.
    fn write(&mut self, text: &str) {
        let done = self.file.as_mut().map(|file| file.to.write_all(text.as_bytes()));
        if let Ok(Err(error)) = done {
            self.file = Err(error);
        }
    }
}

impl PredictionsFile {
    fn create(path: &Path) -> io::Result<PredictionsFile> {
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            let file = File::options().write(true).open(path)?;
            return Ok(PredictionsFile { to: BufWriter::new(file), part: None });
        }
        let path = followed(path);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
        let made = builder.tempfile_in(folder.unwrap_or(Path::new(".")));
        // Its error names the temporary file, which nobody has heard of.
        let (file, part) = made.map_err(|error| io::Error::from(error.kind()))?.into_parts();
        Ok(PredictionsFile { to: BufWriter::new(file), part: Some(part) })
    }

    fn end(mut self, path: &Path) -> io::Result<()> {
        self.to.flush()?;
        let path = followed(path);
        self.part.map_or(Ok(()), |part| part.persist(path).map_err(|error| error.error))
    }
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
