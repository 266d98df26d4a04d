//! What is known about the frames of a slot: labels, or the scenes that the demo draws.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use plimsoll_accuracy::labels::ImagePlace;
use plimsoll_accuracy::{LabelClass, LabelSet, LabelledObject};
use plimsoll_infer::Frame;
use plimsoll_infer::source::synthetic::{CLASSES, SceneKind};
use plimsoll_infer::source::{self, Spec};

use serde_json::Value;

use super::super::BenchError;
use super::super::plan::BenchPlan;
use super::super::slots::Input;

/// How many scenes the demo is judged on, where the user asks for no other number of frames.
const SCENES: u64 = 200;

/// What is known about the frames of an input, and how they are read again.
#[derive(Debug)]
pub(in super::super) struct SlotTruth {
    specs: Vec<String>,
    scenes: SceneKind,
    classes: Vec<LabelClass>,
    origin: TruthOrigin,
    /// Whether another camera looks at the same scenes.
    paired: bool,
    /// Whether several models are judged.
    several: bool,
}

#[derive(Debug)]
enum TruthOrigin {
    /// Labels, and where in them the pictures are, by the names of their files.
    Labels { labels: LabelSet, places: HashMap<String, ImagePlace> },
    /// The frames know what is drawn in them.
    Drawn,
}

/// What is in one frame.
#[derive(Debug)]
pub(super) struct FrameTruth {
    /// Its place among the images.
    pub(super) order: ImageOrder,
    /// Its id in COCO's labels; else its name without an ending.
    pub(super) id: Value,
    pub(super) objects: Vec<LabelledObject>,
}

/// In which order images are added up: of detections of one score the first counts first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ImageOrder {
    Labels(ImagePlace),
    Drawn(std::time::Duration),
}

impl SlotTruth {
    /// For each input. Labels are read now, so that a wrong file ends the run before it begins.
    pub(in super::super) fn resolve(
        plan: &BenchPlan,
        demo: bool,
        inputs: &[Input],
    ) -> Result<Vec<Option<SlotTruth>>, BenchError> {
        let paired = inputs.len() == 2;
        let several = inputs.iter().map(|input| input.slots.len()).sum::<usize>() > 1;
        if plan.thermal_labels.is_some() && !paired {
            let text = "--thermal-labels is for two cameras (--rgb-source and --thermal-source); \
                        for one use --labels";
            return Err(BenchError::Plan(text.to_string()));
        }
        if plan.predictions.is_some() && plan.labels.is_none() && !demo {
            let text = "--predictions are the detections that are judged, and nothing is without \
                        --labels; for all detections use --detections";
            return Err(BenchError::Plan(text.to_string()));
        }
        if let Some(path) = plan.predictions.as_ref().filter(|_| several)
            && path.exists()
            && !path.is_file()
        {
            let why =
                "several slots are judged, and each needs a file of its own; name a plain file";
            let text = format!("cannot write --predictions {}: {why}", path.display());
            return Err(BenchError::Plan(text));
        }
        if plan.labels.is_some() && inputs.is_empty() {
            let text = "--labels: no slot runs, so there is nothing to judge";
            return Err(BenchError::Plan(text.to_string()));
        }
        let of_input = |(at, input): (usize, &Input)| {
            let path = if at == 0 { &plan.labels } else { &plan.thermal_labels };
            let truth = match path {
                Some(path) => Some(SlotTruth::labelled(path, input)?),
                None if demo => Some(SlotTruth::drawn(input)),
                None => None,
            };
            Ok(truth.map(|truth| SlotTruth { paired, several, ..truth }))
        };
        inputs.iter().enumerate().map(of_input).collect()
    }

    fn drawn(input: &Input) -> SlotTruth {
        let classes = CLASSES.iter().zip(0..);
        SlotTruth {
            specs: input.specs.clone(),
            scenes: input.scenes,
            classes: classes
                .map(|(name, id)| LabelClass { id, name: (*name).to_string() })
                .collect(),
            origin: TruthOrigin::Drawn,
            paired: false,
            several: false,
        }
    }

    fn labelled(path: &Path, input: &Input) -> Result<SlotTruth, BenchError> {
        let wrong = |why: String| BenchError::Plan(why);
        let mut pictures: Vec<PathBuf> = Vec::new();
        for spec in &input.specs {
            let parsed =
                Spec::parse(spec, input.scenes).map_err(|error| wrong(error.to_string()))?;
            if !matches!(parsed, Spec::ImageDir(_)) {
                return Err(wrong(format!(
                    "--labels {}: labels belong to pictures by their file names, and {} has \
                     none; give a folder of pictures",
                    path.display(),
                    source::redact(spec)
                )));
            }
            pictures.extend(source::files(&parsed));
        }
        let folder = pictures.first().and_then(|picture| picture.parent());
        let labels = LabelSet::read(path, folder).map_err(|error| wrong(error.to_string()))?;
        let mut places = HashMap::new();
        for picture in &pictures {
            let name = picture.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.unwrap_or_default();
            let place = labels.find(&name).map_err(|error| wrong(error.to_string()))?;
            places.extend(place.map(|place| (name, place)));
        }
        if places.is_empty() {
            let example = pictures.first().and_then(|picture| picture.file_name());
            let example = example.map_or_else(String::new, |name| name.to_string_lossy().into());
            return Err(wrong(format!(
                "--labels {}: it has none of the {} pictures of {}, such as {example}; labels \
                 belong to pictures of the same file name",
                path.display(),
                pictures.len(),
                input.specs.join(", ")
            )));
        }
        Ok(SlotTruth {
            specs: input.specs.clone(),
            scenes: input.scenes,
            classes: labels.classes().to_vec(),
            origin: TruthOrigin::Labels { labels, places },
            paired: false,
            several: false,
        })
    }

    pub(super) fn specs(&self) -> &[String] {
        &self.specs
    }

    pub(super) fn scenes(&self) -> SceneKind {
        self.scenes
    }

    pub(super) fn classes(&self) -> &[LabelClass] {
        &self.classes
    }

    pub(super) fn several(&self) -> bool {
        self.several
    }

    pub(super) fn paired(&self) -> bool {
        self.paired
    }

    /// How many images are judged: all that are labelled, unless the user asks for fewer frames.
    pub(super) fn images(&self, plan: &BenchPlan) -> Option<u64> {
        let all = match &self.origin {
            TruthOrigin::Labels { places, .. } => places.len() as u64,
            TruthOrigin::Drawn => SCENES,
        };
        Some(plan.max_frames.map_or(all, |most| most.min(all)))
    }

    /// Where the truth comes from, for the report.
    pub(super) fn name(&self) -> String {
        match &self.origin {
            TruthOrigin::Labels { labels, .. } => labels.path().display().to_string(),
            TruthOrigin::Drawn => "the synthetic scenes".to_string(),
        }
    }

    /// Pictures of a YOLO data set without a text file.
    pub(super) fn empty_images(&self) -> usize {
        match &self.origin {
            TruthOrigin::Labels { places, .. } => {
                places.values().filter(|place| matches!(place, ImagePlace::Empty(_))).count()
            }
            TruthOrigin::Drawn => 0,
        }
    }

    /// What is in a frame; `None` where nobody knows.
    pub(super) fn of(&self, frame: &Frame) -> Result<Option<FrameTruth>, String> {
        match &self.origin {
            TruthOrigin::Labels { labels, places } => {
                let Some(place) = places.get(&frame.name) else { return Ok(None) };
                let size = (frame.height as u32, frame.width as u32);
                let image = labels.image(place, size).map_err(|error| error.to_string())?;
                let order = ImageOrder::Labels(place.clone());
                let id = image.id.map_or_else(|| stem(&frame.name), Value::from);
                Ok(Some(FrameTruth { order, id, objects: image.objects }))
            }
            TruthOrigin::Drawn => Ok(frame.truth.as_ref().map(|all| {
                let objects = all.iter().map(|one| {
                    let [left, top, right, bottom] = one.bounds.map(f64::from);
                    LabelledObject {
                        class: one.class,
                        bounds: [left, top, right - left, bottom - top],
                        area: (right - left) * (bottom - top),
                        without_keypoints: true,
                        ..LabelledObject::default()
                    }
                });
                let order = ImageOrder::Drawn(frame.timestamp);
                FrameTruth { order, id: stem(&frame.name), objects: objects.collect() }
            })),
        }
    }
}

/// The name of a picture without its ending.
fn stem(name: &str) -> Value {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem).into()
}
