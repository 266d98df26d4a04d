//! From candidates to detections: frame pixels, and what the model's task adds to a box.

use super::Decoder;
use super::detection::{Detail, Detection, Keypoint, Task};
use super::layout::Layout;
use super::paint::Prototypes;
use super::rows::{self, READY};
use super::suppress::Candidate;
use crate::error::{InferError, InferResult};
use crate::prepare::Letterbox;
use crate::tensor::Tensor;

/// How many classes of a whole frame are answered, as in Ultralytics' reports.
const BEST_CLASSES: usize = 5;

impl Decoder {
    /// From candidates in tensor pixels to detections in frame pixels, with what the task adds.
    pub(super) fn describe(
        &mut self,
        outputs: &[Tensor],
        (at, layout, extra): (usize, Layout, usize),
        letterbox: &Letterbox,
        chosen: &[Candidate],
        out: &mut Vec<Detection>,
    ) -> InferResult<()> {
        let tensor = &outputs[at];
        let prototypes = match self.hints.task {
            Task::Segment => Some(self.prototypes(outputs, extra)?),
            _ => None,
        };
        let mut numbers = vec![0.0; extra];
        for one in chosen {
            for (at, number) in numbers.iter_mut().enumerate() {
                *number = added(tensor, layout, extra, one.place, at);
            }
            if numbers.iter().any(|number| !number.is_finite()) {
                continue;
            }
            let Candidate { bounds, confidence, class, .. } = *one;
            let detail = match (self.hints.task, &prototypes) {
                (Task::Segment, Some(prototypes)) => {
                    let mask = self.painter.paint(prototypes, &numbers, bounds, letterbox);
                    // As in Ultralytics, what has no pixel is not there.
                    let Some(mask) = mask else { continue };
                    Detail::Mask(mask)
                }
                (Task::Pose, _) => Detail::Keypoints(self.keypoints(&numbers, letterbox)),
                (Task::Oriented, _) => {
                    Detail::Oriented(letterbox.turned_to_frame(bounds, numbers[0]))
                }
                (Task::Classify, _) => Detail::Frame,
                _ => Detail::Box,
            };
            let bounds = match (&detail, layout) {
                (Detail::Oriented(turned), _) => turned.around(),
                (Detail::Frame, _) => letterbox.frame(),
                (_, Layout::Queries | Layout::QueryScores { .. }) => {
                    letterbox.fraction_to_frame(rows::corners(bounds))
                }
                _ => letterbox.to_frame(bounds),
            };
            out.push(Detection { bounds, confidence, class, detail });
        }
        Ok(())
    }

    fn prototypes<'out>(
        &self,
        outputs: &'out [Tensor],
        count: usize,
    ) -> InferResult<Prototypes<'out>> {
        let found = outputs.iter().find(|output| output.shape.len() == 4);
        let read = found.and_then(|tensor| Prototypes::read(tensor, count, self.hints.input));
        read.ok_or_else(|| {
            let shape = found.map_or(&[][..], |tensor| &tensor.shape);
            let why =
                format!("its prototypes of masks have the shape {shape:?}, not [1, {count}, …]");
            InferError::Model { model: self.model.clone(), why }
        })
    }

    fn keypoints(&self, numbers: &[f32], letterbox: &Letterbox) -> Vec<Keypoint> {
        let each = self.hints.keypoints.map_or(3, |[_, each]| each);
        let point = |numbers: &[f32]| {
            let [x, y] = letterbox.point_to_frame([numbers[0], numbers[1]]);
            Keypoint { x, y, confidence: numbers.get(2).copied() }
        };
        numbers.chunks_exact(each).map(point).collect()
    }
}

/// A number that the task adds to a box, by its place in the output.
pub(super) fn added(
    tensor: &Tensor,
    layout: Layout,
    extra: usize,
    place: u32,
    number: usize,
) -> f32 {
    let place = place as usize;
    let at = match layout {
        Layout::ByClass { classes } => {
            let places = tensor.shape.last().copied().unwrap_or(0);
            (4 + classes + number) * places + place
        }
        Layout::ByPlace { classes } => place * (4 + classes + extra) + 4 + classes + number,
        _ => place * (READY + extra) + READY + number,
    };
    tensor.data.get(at).copied().unwrap_or(f32::NAN)
}

/// The best classes of a frame, the most probable first.
pub(super) fn best_classes(sure: &[f32], most: usize) -> impl Iterator<Item = Candidate> {
    let mut order: Vec<u32> = (0..sure.len() as u32).collect();
    let value = |class: u32| sure[class as usize];
    order.retain(|&class| value(class).is_finite());
    order.sort_by(|&a, &b| value(b).total_cmp(&value(a)));
    let best: Vec<Candidate> = order
        .into_iter()
        .take(most.min(BEST_CLASSES))
        .map(|class| Candidate { bounds: [0.0; 4], confidence: value(class), class, place: class })
        .collect();
    best.into_iter()
}
