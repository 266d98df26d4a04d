//! The figures of detections in COCO's format of results, as JSON, and how long they took:
//!
//! ```sh
//! cargo run --release -p plimsoll-accuracy --example evaluate -- labels.json found.json boxes 5
//! ```
//!
//! The last number is how often they are computed; the least time of these is given.
//! `scripts/check-accuracy` compares them with those of pycocotools.

#![expect(clippy::print_stdout, reason = "it prints its result")]

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

use plimsoll_accuracy::labels::{ImagePlace, LabelledImage};
use plimsoll_accuracy::{AccuracyTask, FoundObject, Judge, LabelSet, PixelRuns};
use serde::Deserialize;
use serde_json::json;

/// A detection as COCO's results have it.
#[derive(Deserialize)]
struct CocoResult {
    image_id: i64,
    category_id: i64,
    score: f64,
    bbox: Option<[f64; 4]>,
    segmentation: Option<CodedMask>,
    #[serde(default)]
    keypoints: Vec<f64>,
}

#[derive(Deserialize)]
struct CodedMask {
    size: [u32; 2],
    counts: String,
}

/// An image with its size, labels and detections.
struct ImageCase {
    size: (u32, u32),
    labels: LabelledImage,
    found: Vec<FoundObject>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [labels, found, task, times] = words.as_slice() else {
        return Err("usage: evaluate LABELS FOUND boxes|masks|keypoints TIMES".into());
    };
    let task: AccuracyTask = serde_json::from_value(json!(task))?;
    let begun = Instant::now();
    let (labels, cases) = read(labels, found)?;
    let read_s = begun.elapsed().as_secs_f64();
    let judge = Judge::new(task);
    let (mut least_s, mut result) = (f64::INFINITY, None);
    for _ in 0..times.parse::<u32>()?.max(1) {
        let begun = Instant::now();
        let images = Judge::images(cases.len(), |at| {
            let ImageCase { size, labels, found } = &cases[at];
            judge.image(*size, &labels.objects, found)
        });
        result = Some(judge.total(labels.classes(), &images));
        least_s = least_s.min(begun.elapsed().as_secs_f64());
    }
    println!("{}", json!({ "read_s": read_s, "evaluate_s": least_s, "accuracy": result }));
    Ok(())
}

fn read(path: &str, found: &str) -> Result<(LabelSet, Vec<ImageCase>), Box<dyn Error>> {
    let labels = LabelSet::read(Path::new(path), None)?;
    let sizes: serde_json::Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let mut sizes: Vec<(i64, (u32, u32))> = sizes["images"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|image| {
            let number = |key: &str| image[key].as_u64().unwrap_or_default() as u32;
            (image["id"].as_i64().unwrap_or_default(), (number("height"), number("width")))
        })
        .collect();
    sizes.sort_unstable();
    let classes: HashMap<i64, u32> =
        labels.classes().iter().zip(0..).map(|(class, at)| (class.id, at)).collect();
    let mut by_image: HashMap<i64, Vec<FoundObject>> = HashMap::new();
    let results: Vec<CocoResult> = serde_json::from_slice(&std::fs::read(found)?)?;
    for one in results {
        let Some(&class) = classes.get(&one.category_id) else { continue };
        by_image.entry(one.image_id).or_default().push(one.object(class)?);
    }
    let cases = sizes.into_iter().enumerate().map(|(at, (id, size))| {
        let labels = labels.image(&ImagePlace::Coco(at), size)?;
        Ok(ImageCase { size, labels, found: by_image.remove(&id).unwrap_or_default() })
    });
    let cases = cases.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    Ok((labels, cases))
}

impl CocoResult {
    fn object(self, class: u32) -> Result<FoundObject, Box<dyn Error>> {
        let mask = self.segmentation.map(|CodedMask { size: [rows, columns], counts }| {
            PixelRuns::from_text((rows, columns), counts.as_bytes())
        });
        Ok(FoundObject {
            class,
            score: self.score,
            bounds: self.bbox.unwrap_or_default(),
            mask: mask.transpose().map_err(|error| error.to_string())?,
            keypoints: self.keypoints.chunks_exact(3).map(|point| [point[0], point[1]]).collect(),
        })
    }
}
