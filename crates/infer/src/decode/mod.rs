//! From a detector's output to boxes in frame pixels.
//!
//! Three steps, each a file: recognise the [layout](Layout) once, search for boxes above the
//! confidence threshold (`scan`), and drop the less confident of two that overlap (`suppress`).
//! The results equal those of Ultralytics for a YOLO's output, including the order of the boxes.
//! Outputs are not trusted: NaN values are dropped.

mod detection;
mod layout;
mod mask;
mod names;
pub(crate) mod scan;
mod suppress;

pub use detection::{Detail, Detection, Keypoint, OrientedBox, Task};
pub use layout::Layout;
pub use mask::Mask;
pub use names::parse_names;

use crate::engine::{InferenceEngine, ModelInfo};
use crate::error::{InferError, InferResult};
use crate::prepare::Letterbox;
use crate::simd;
use crate::tensor::Tensor;
use layout::{Hints, Told};
use scan::{BLOCK, GROUP, Group, ScanBlock};
use suppress::{Candidate, Suppress};

/// What counts as found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// The least confidence.
    pub confidence: f32,
    /// The overlap (intersection over union) above which the lesser of two boxes of one
    /// class is dropped. In 64 bits, unlike what it is compared with: so does torchvision, and
    /// a limit such as 0.6, which lies between two numbers of 32 bits, tells them apart.
    pub iou: f64,
    /// The most detections a frame.
    pub max_detections: usize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds { confidence: 0.25, iou: 0.45, max_detections: 300 }
    }
}

/// Reads the outputs of one model.
#[derive(Debug)]
pub struct Decoder {
    model: String,
    names: Vec<String>,
    stride: Option<usize>,
    hints: Hints,
    /// Which output holds the boxes, and how; `None` until a shape has told.
    settled: Option<Settled>,
    block: Box<ScanBlock>,
    suppress: Suppress,
    /// Whether the last output held a confidence that is a number.
    numbers: bool,
}

/// What was told of the outputs.
#[derive(Debug)]
struct Settled {
    output: usize,
    shape: Vec<usize>,
    layout: Layout,
}

impl Decoder {
    /// For a model whose outputs have these shapes; 0 stands for an extent that is not
    /// fixed. What they leave open, the first output settles.
    ///
    /// # Errors
    ///
    /// [`InferError::Model`] where the model says that it has another task, or none of its
    /// outputs can be a detector's.
    pub fn new(model: &ModelInfo, shapes: &[Vec<usize>]) -> InferResult<Decoder> {
        if let Some(task) = model.metadata.get("task").map(|task| task.trim())
            && task != "detect"
        {
            let why = format!("its metadata says that its task is `{task}`, not `detect`");
            return Err(InferError::Model { model: model.name.clone(), why });
        }
        let names = model.metadata.get("names").and_then(|text| parse_names(text));
        if names.is_none() && model.metadata.contains_key("names") {
            tracing::warn!(model = model.name, "the names in its metadata cannot be read");
        }
        let mut decoder = Decoder {
            model: model.name.clone(),
            hints: Hints::read(model, names.as_ref().map(Vec::len)),
            names: names.unwrap_or_default(),
            stride: model.metadata.get("stride").and_then(|text| text.trim().parse().ok()),
            settled: None,
            block: Box::new(ScanBlock::new()),
            suppress: Suppress::default(),
            numbers: true,
        };
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let named = |at: usize| model.outputs.get(at).map_or("", |(name, _)| name.as_str());
        match decoder.settle(&shapes) {
            Told::No => Err(decoder.no_detector(&shapes, named)),
            Told::Is(_) | Told::NotYet => Ok(decoder),
        }
    }

    /// The names of the classes; empty where the model does not say.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The greatest step between places of the input, where the model says.
    #[must_use]
    pub fn stride(&self) -> Option<usize> {
        self.stride
    }

    /// The layout of the output; `None` until a shape has told.
    #[must_use]
    pub fn layout(&self) -> Option<Layout> {
        self.settled.as_ref().map(|settled| settled.layout)
    }

    /// Whether the last output was of no use because its confidences, or the boxes of all that was
    /// sure enough, are not numbers (NaN or infinite): nothing could be found in it, whatever the
    /// frame shows.
    #[must_use]
    pub fn gave_no_number(&self) -> bool {
        !self.numbers || self.suppress.only_refused()
    }

    /// Lets an engine search its output itself, where it can and the layout is known.
    ///
    /// # Errors
    ///
    /// What the engine says.
    pub fn delegate(&mut self, engine: &mut dyn InferenceEngine) -> InferResult<()> {
        if let Some(Settled { output, shape, layout: Layout::ByClass { classes } }) = &self.settled
            && let &[_, _, places] = &shape[..]
            && engine.search(*output, *classes)?
        {
            let (shape, layout) = (vec![1, 6, places], Layout::Best { classes: *classes });
            self.settled = Some(Settled { output: 0, shape, layout });
        }
        Ok(())
    }

    /// Writes what was found into `out`, the surest first, in frame pixels.
    ///
    /// # Errors
    ///
    /// [`InferError::Model`] where no output can be a detector's, or one has not as many
    /// numbers as its shape says.
    pub fn decode(
        &mut self,
        outputs: &[Tensor],
        letterbox: &Letterbox,
        thresholds: &Thresholds,
        out: &mut Vec<Detection>,
    ) -> InferResult<()> {
        out.clear();
        self.find(outputs, thresholds, |candidate| {
            let bounds = letterbox.to_frame(candidate.bounds);
            out.push(Detection::boxed(bounds, candidate.confidence, candidate.class));
        })
    }

    /// The same in tensor pixels, not clipped.
    fn find(
        &mut self,
        outputs: &[Tensor],
        thresholds: &Thresholds,
        found: impl FnMut(&Candidate),
    ) -> InferResult<()> {
        if self.known(outputs).is_none() {
            let shapes: Vec<&[usize]> = outputs.iter().map(|output| &*output.shape).collect();
            if !matches!(self.settle(&shapes), Told::Is(_)) {
                return Err(self.no_detector(&shapes, |_| ""));
            }
        }
        // Settled, and so known, unless its numbers are not as many as its shape says.
        let Some((tensor, layout)) = self.known(outputs) else {
            let shape = self.settled.as_ref().map_or(&[][..], |settled| &settled.shape);
            let why = format!("its output of shape {shape:?} has another count of numbers");
            return Err(InferError::Model { model: self.model.clone(), why });
        };
        self.read(tensor, layout, thresholds, found);
        Ok(())
    }

    /// The output that holds the boxes, where it is as it was told.
    fn known<'out>(&self, outputs: &'out [Tensor]) -> Option<(&'out Tensor, Layout)> {
        let settled = self.settled.as_ref()?;
        let tensor = outputs.get(settled.output)?;
        let numbers = tensor.shape.iter().try_fold(1, |all: usize, &one| all.checked_mul(one));
        let whole = tensor.shape == settled.shape && numbers == Some(tensor.data.len());
        whole.then_some((tensor, settled.layout))
    }

    /// Looks for the output that holds the boxes.
    fn settle(&mut self, shapes: &[&[usize]]) -> Told {
        self.settled = None;
        // Prototypes of masks: without metadata nothing else tells a segmenter.
        if self.names.is_empty() && shapes.iter().any(|shape| shape.len() == 4) {
            return Told::No;
        }
        let mut open = shapes.is_empty();
        for (output, shape) in shapes.iter().enumerate() {
            match self.hints.tell(shape) {
                Told::Is(layout) => {
                    self.settled = Some(Settled { output, shape: shape.to_vec(), layout });
                    return Told::Is(layout);
                }
                Told::NotYet => open = true,
                Told::No => {}
            }
        }
        if open { Told::NotYet } else { Told::No }
    }

    fn no_detector<'name>(
        &self,
        shapes: &[&[usize]],
        named: impl Fn(usize) -> &'name str,
    ) -> InferError {
        let outputs: Vec<String> = shapes
            .iter()
            .enumerate()
            .map(|(at, shape)| format!("{} {shape:?}", named(at)).trim().to_owned())
            .collect();
        let names = match self.names.len() {
            0 => "no class names".to_owned(),
            count => format!("{count} class names"),
        };
        let why = format!(
            "it is no detector that can be read: its outputs are {}, with {names}; a detector \
             has [1, 4 + classes, n], [1, n, 5 + classes] or [1, n, 6]",
            if outputs.is_empty() { "none".to_owned() } else { outputs.join(", ") }
        );
        InferError::Model { model: self.model.clone(), why }
    }

    fn read(
        &mut self,
        tensor: &Tensor,
        layout: Layout,
        thresholds: &Thresholds,
        mut found: impl FnMut(&Candidate),
    ) {
        let least = thresholds.confidence;
        self.numbers = tensor.data.is_empty();
        match layout {
            Layout::ByClass { classes } => self.by_class(tensor, classes, least),
            Layout::ByPlace { classes } => self.by_place(tensor, classes, least),
            Layout::Objectness { classes } => self.objectness(tensor, classes, least),
            Layout::Best { classes } => self.searched(tensor, classes, least),
            Layout::EndToEnd => {
                let rows = || tensor.data.chunks_exact(6);
                self.suppress.start(0);
                self.numbers |= rows().any(|row| row.iter().all(|number| number.is_finite()));
                let ready = rows().filter_map(|row| ready(row, least));
                return ready.take(thresholds.max_detections).for_each(|one| found(&one));
            }
        }
        self.suppress.keep(thresholds, found);
    }

    fn by_class(&mut self, tensor: &Tensor, classes: usize, least: f32) {
        self.suppress.start(classes);
        let places = tensor.shape.last().copied().unwrap_or(0);
        let (boxes, scores) = tensor.data.split_at(4 * places);
        for first in (0..places).step_by(BLOCK) {
            self.block.start(places - first);
            simd::maxima(scores, places, first, &mut self.block);
            let best = &self.block.best[..self.block.length];
            self.numbers = self.numbers || best.iter().any(|best| best.is_finite());
            for start in (0..self.block.length).step_by(GROUP) {
                let end = (start + GROUP).min(self.block.length);
                let best = &self.block.best[start..end];
                if best.iter().any(|&confidence| confidence > least) {
                    let mut group = Group::new();
                    simd::owners(scores, places, first + start, best, &mut group);
                    offer(&mut self.suppress, boxes, first + start, best, &group, least);
                }
            }
        }
    }

    fn searched(&mut self, tensor: &Tensor, classes: usize, least: f32) {
        self.suppress.start(classes);
        let places = tensor.shape.last().copied().unwrap_or(0);
        let (boxes, best) = tensor.data.split_at(4 * places);
        let (best, class) = best.split_at(places);
        self.numbers |= best.iter().any(|best| best.is_finite());
        for (at, &confidence) in best.iter().enumerate() {
            if confidence > least {
                let bounds = corners(std::array::from_fn(|row| boxes[row * places + at]));
                let class = class[at] as u32;
                self.suppress.offer(Candidate { bounds, confidence, class });
            }
        }
    }

    fn by_place(&mut self, tensor: &Tensor, classes: usize, least: f32) {
        self.suppress.start(classes);
        for row in tensor.data.chunks_exact(4 + classes) {
            let Some((&place, scores)) = row.split_first_chunk::<4>() else { return };
            let Some((confidence, class)) = best(scores, 1.0) else { continue };
            self.numbers = true;
            if confidence > least {
                let bounds = corners(place);
                self.suppress.offer(Candidate { bounds, confidence, class });
            }
        }
    }

    fn objectness(&mut self, tensor: &Tensor, classes: usize, least: f32) {
        self.suppress.start(classes);
        for row in tensor.data.chunks_exact(5 + classes) {
            let Some((&[x, y, w, h, sure], scores)) = row.split_first_chunk::<5>() else { return };
            self.numbers |= sure.is_finite() && scores.iter().any(|score| score.is_finite());
            if sure > least
                && let Some((confidence, class)) = best(scores, sure)
                && confidence > least
            {
                let bounds = corners([x, y, w, h]);
                self.suppress.offer(Candidate { bounds, confidence, class });
            }
        }
    }
}

/// Offers what of a group is sure enough.
fn offer(
    suppress: &mut Suppress,
    boxes: &[f32],
    first: usize,
    best: &[f32],
    group: &Group,
    least: f32,
) {
    let places = boxes.len() / 4;
    for (at, &confidence) in best.iter().enumerate() {
        if confidence <= least {
            continue;
        }
        if !group.sum[at].is_finite() {
            suppress.refuse();
        } else {
            let part = |row: usize| boxes[row * places + first + at];
            let bounds = corners([part(0), part(1), part(2), part(3)]);
            suppress.offer(Candidate { bounds, confidence, class: group.class[at] });
        }
    }
}

/// The best of a place's scores, each times `factor`, and whose it is; `None` where one of
/// them is no number.
fn best(scores: &[f32], factor: f32) -> Option<(f32, u32)> {
    let (mut most, mut class, mut sum) = (f32::NEG_INFINITY, 0, 0.0);
    for (index, score) in scores.iter().map(|score| score * factor).enumerate() {
        sum += score;
        if score > most {
            (most, class) = (score, index as u32);
        }
    }
    (sum.is_finite() && most.is_finite()).then_some((most, class))
}

/// From centre and size to left, top, right, bottom.
fn corners([x, y, width, height]: [f32; 4]) -> [f32; 4] {
    let (half_width, half_height) = (width / 2.0, height / 2.0);
    [x - half_width, y - half_height, x + half_width, y + half_height]
}

/// A box that the model has made ready, where it is sure enough.
fn ready(row: &[f32], least: f32) -> Option<Candidate> {
    let &[left, top, right, bottom, confidence, class] = row.first_chunk::<6>()?;
    let bounds = [left, top, right, bottom];
    let finite = row.iter().all(|number| number.is_finite());
    // Cut off like a tensor's conversion; what no class number can be is dropped.
    let class = class.trunc();
    (finite && confidence > least && (0.0..=16_777_216.0).contains(&class)).then_some(Candidate {
        bounds,
        confidence,
        class: class as u32,
    })
}

#[cfg(test)]
mod tests;
