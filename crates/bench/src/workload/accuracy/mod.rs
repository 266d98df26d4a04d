//! How accurate a slot is: its detections against labels, after it was measured.
//!
//! The labelled pictures are read again, once, and run through the same engine and the same
//! decoding. Nothing of that is timed, so no figure of speed, memory or energy changes. Here
//! detections count from a score of 0.001 on, at most 300 a picture, as in Ultralytics'
//! validation, because average precision needs the doubtful ones too; what the report lists as
//! detections has the user's own `--conf`.

mod fusion;
mod predictions;
mod score;
mod truth;

use std::time::{Duration, Instant};

use plimsoll_accuracy::{FoundObject, LabelClass, LabelledObject, TaskAccuracy};
use plimsoll_infer::source::{self, SourceOptions};
use plimsoll_infer::{Frame, InferError, Thresholds};

pub(super) use fusion::fuse;
use predictions::Predictions;
use score::{SlotScores, class_map, found};
use truth::FrameTruth;
pub(super) use truth::SlotTruth;

use super::event::SlotEvent;
use super::job::SlotJob;
use super::load::LoadedSlot;

/// The least score of a detection that is judged.
const LEAST_SCORE: f32 = 0.001;
/// The most detections of a picture that are judged.
const MOST_FOUND: usize = 300;

/// Where a run has a most time, judging takes at most this part of it.
const JUDGING: u32 = 3;

/// How accurate a slot is.
#[derive(Debug)]
pub(super) struct SlotJudged {
    /// At the model's task.
    pub(super) accuracy: TaskAccuracy,
    /// Of its boxes, where the task is another.
    pub(super) boxes: Option<TaskAccuracy>,
    /// The classes of the labels.
    classes: Vec<LabelClass>,
    /// What was there and what was found, for fusion with another camera.
    views: Vec<SceneView>,
    /// Why the detections that were judged could not be written.
    pub(super) unwritten: Option<String>,
}

/// One picture: what is there and what was found, boxes alone.
#[derive(Debug)]
struct SceneView {
    /// When it was taken; pictures of two folders have the same time at the same place.
    time: Duration,
    /// Columns and rows.
    size: (u32, u32),
    truths: Vec<LabelledObject>,
    found: Vec<FoundObject>,
}

impl SlotJob<'_> {
    /// Judges the slot's detections, where the truth is known, and sends the result.
    pub(super) fn judge(&self, loaded: &mut LoadedSlot<'_>) {
        let Some(truth) = self.truth else { return };
        let slot = self.slot;
        self.send(SlotEvent::Judging { slot, images: 0, of: truth.images(self.plan) });
        let kept = *loaded.pipeline.thresholds();
        loaded.pipeline.set_thresholds(Thresholds {
            confidence: LEAST_SCORE,
            max_detections: MOST_FOUND,
            ..kept
        });
        let judged = self.judge_all(loaded, truth).map(Box::new);
        loaded.pipeline.set_thresholds(kept);
        self.send(SlotEvent::Judged { slot, judged });
    }

    fn judge_all(
        &self,
        loaded: &mut LoadedSlot<'_>,
        truth: &SlotTruth,
    ) -> Result<SlotJudged, String> {
        let decoder = loaded.pipeline.decoder();
        let classes = class_map(decoder.names(), truth.classes())?;
        let mut scores = SlotScores::new(decoder.task())?;
        let mut options = SourceOptions::default();
        options.scenes = truth.scenes();
        let wrong = |error: InferError| error.to_string();
        let mut source = source::open_all(truth.specs(), &options).map_err(wrong)?;
        let most = truth.images(self.plan).unwrap_or(u64::MAX);
        let number = truth.several().then_some(self.slot);
        let predictions = self.plan.predictions.as_deref();
        let mut predictions = predictions.map(|path| Predictions::create(path, number));
        let until = self.plan.most_time.map(|time| Instant::now() + time / JUDGING);
        let mut views = Vec::new();
        let mut images = 0;
        while images < most {
            if images > 0 && until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            if self.stopped() {
                return Err("the run was stopped before it was judged".to_string());
            }
            let frame = match source.next_frame() {
                Some(Ok(frame)) => frame,
                // It was counted when the slot was measured.
                Some(Err(InferError::Frame { .. })) => continue,
                Some(Err(error)) => return Err(error.to_string()),
                None => break,
            };
            let Some(there) = truth.of(&frame)? else { continue };
            let detections = match loaded.pipeline.step(&frame, &mut ()) {
                Ok(detections) => detections,
                Err(InferError::Frame { .. }) => continue,
                Err(error) => return Err(error.to_string()),
            };
            let size = (frame.height as u32, frame.width as u32);
            let found: Vec<FoundObject> =
                detections.iter().filter_map(|one| found(one, &classes, size)).collect();
            if let Some(predictions) = &mut predictions {
                predictions.add(&there.id, &found, truth.classes());
            }
            scores.add(size, &there, &found);
            views.extend(truth.paired().then(|| view(&frame, &there, &found)));
            images += 1;
            self.send(SlotEvent::Judging { slot: self.slot, images, of: truth.images(self.plan) });
        }
        let unwritten = predictions.and_then(|predictions| predictions.end().err());
        let (accuracy, boxes) = scores.total(truth)?;
        let classes = truth.classes().to_vec();
        Ok(SlotJudged { accuracy, boxes, classes, views, unwritten })
    }
}

/// Boxes alone: masks would fill the memory.
fn view(frame: &Frame, there: &FrameTruth, found: &[FoundObject]) -> SceneView {
    let truths = there.objects.iter().map(|object| LabelledObject {
        class: object.class,
        bounds: object.bounds,
        area: object.area,
        crowd: object.crowd,
        ..LabelledObject::default()
    });
    let found = found.iter().map(|one| FoundObject {
        class: one.class,
        score: one.score,
        bounds: one.bounds,
        ..FoundObject::default()
    });
    SceneView {
        time: frame.timestamp,
        size: (frame.width as u32, frame.height as u32),
        truths: truths.collect(),
        found: found.collect(),
    }
}
