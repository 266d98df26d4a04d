//! From a detector's output to boxes in frame pixels.
//!
//! Three steps, each a file: recognise the [layout](Layout) once, search for boxes above the
//! confidence threshold (`rows`, `scan`), and drop the less confident of two that overlap
//! (`suppress`, and `oriented` for turned boxes). What the model's task adds to a box comes last:
//! masks (`paint`), keypoints, angles. The results equal those of Ultralytics for a YOLO's output,
//! including the order of the boxes. Outputs are not trusted: NaN values are dropped.

mod describe;
mod detection;
mod layout;
mod mask;
mod names;
mod oriented;
pub(crate) mod paint;
mod rows;
pub(crate) mod scan;
mod suppress;

pub use detection::{Detail, Detection, Keypoint, OrientedBox, Task};
pub use layout::Layout;
pub use mask::Mask;
pub use names::parse_names;

use crate::engine::{InferenceEngine, ModelInfo};
use crate::error::{InferError, InferResult};
use crate::prepare::{Framing, Letterbox};
use crate::tensor::Tensor;
use describe::{added, best_classes};
use layout::{Hints, Told};
use oriented::TurnedBoxes;
use paint::Painter;
use rows::{READY, Search};
use scan::ScanBlock;
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
    turned: TurnedBoxes,
    painter: Painter,
    chosen: Vec<Candidate>,
    /// Whether the last output held a confidence that is a number.
    numbers: bool,
}

/// What was told of the outputs.
#[derive(Debug)]
struct Settled {
    output: usize,
    shape: Vec<usize>,
    layout: Layout,
    /// How many numbers the task adds to a box.
    extra: usize,
}

impl Decoder {
    /// For a model whose outputs have these shapes; 0 stands for an extent that is not
    /// fixed. What they leave open, the first output settles.
    ///
    /// # Errors
    ///
    /// [`InferError::Model`] where the model says that it has another task, or none of its
    /// outputs can be those of its task.
    pub fn new(model: &ModelInfo, shapes: &[Vec<usize>]) -> InferResult<Decoder> {
        if let Some(task) = model.metadata.get("task").map(|task| task.trim())
            && Task::named(task).is_none()
        {
            let why = format!(
                "its metadata says that its task is `{task}`; detect, segment, pose, obb and \
                 classify are read here"
            );
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
            turned: TurnedBoxes::default(),
            painter: Painter::default(),
            chosen: Vec::new(),
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

    /// What the model answers.
    #[must_use]
    pub fn task(&self) -> Task {
        self.hints.task
    }

    /// How the model wants frames brought to its size.
    #[must_use]
    pub fn framing(&self) -> Framing {
        match self.hints.task {
            Task::Classify => Framing::Crop,
            _ if self.hints.queries => Framing::Fill,
            _ => Framing::Letterbox,
        }
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
        if let Some(Settled { output, shape, layout: Layout::ByClass { classes }, extra: 0 }) =
            &self.settled
            && let &[_, _, places] = &shape[..]
            && engine.search(*output, *classes)?
        {
            let (shape, layout) = (vec![1, 6, places], Layout::Best { classes: *classes });
            self.settled = Some(Settled { output: 0, shape, layout, extra: 0 });
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
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.clear();
        let found = self.find(outputs, thresholds, |candidate| chosen.push(*candidate));
        let described = found.and_then(|(at, layout, extra)| {
            self.describe(outputs, (at, layout, extra), letterbox, &chosen, out)
        });
        self.chosen = chosen;
        described
    }

    /// The same in tensor pixels, not clipped and without what the task adds. Says which output
    /// was read, how, and how many numbers are added to each box.
    fn find(
        &mut self,
        outputs: &[Tensor],
        thresholds: &Thresholds,
        found: impl FnMut(&Candidate),
    ) -> InferResult<(usize, Layout, usize)> {
        if self.known(outputs).is_none() {
            let shapes: Vec<&[usize]> = outputs.iter().map(|output| &*output.shape).collect();
            if !matches!(self.settle(&shapes), Told::Is(_)) {
                return Err(self.no_detector(&shapes, |_| ""));
            }
        }
        // Settled, and so known, unless its numbers are not as many as its shape says.
        let Some((at, layout, extra)) = self.known(outputs) else {
            let shape = self.settled.as_ref().map_or(&[][..], |settled| &settled.shape);
            let why = format!("its output of shape {shape:?} has another count of numbers");
            return Err(InferError::Model { model: self.model.clone(), why });
        };
        self.read(&outputs[at], (layout, extra), thresholds, found);
        Ok((at, layout, extra))
    }

    /// The output that holds the boxes, where it is as it was told.
    fn known(&self, outputs: &[Tensor]) -> Option<(usize, Layout, usize)> {
        let settled = self.settled.as_ref()?;
        let tensor = outputs.get(settled.output)?;
        let numbers = tensor.shape.iter().try_fold(1, |all: usize, &one| all.checked_mul(one));
        let whole = tensor.shape == settled.shape && numbers == Some(tensor.data.len());
        whole.then_some((settled.output, settled.layout, settled.extra))
    }

    /// Looks for the output that holds the boxes.
    fn settle(&mut self, shapes: &[&[usize]]) -> Told {
        self.settled = None;
        // Prototypes of masks: without metadata nothing else tells a segmenter.
        if self.names.is_empty() && shapes.iter().any(|shape| shape.len() == 4) {
            return Told::No;
        }
        let Some(extra) = self.hints.extra(shapes) else {
            let open = self.hints.task == Task::Segment
                && shapes.iter().any(|shape| shape.contains(&0) || shape.is_empty());
            return if open || shapes.is_empty() { Told::NotYet } else { Told::No };
        };
        let mut open = shapes.is_empty();
        for (output, shape) in shapes.iter().enumerate() {
            match self.hints.tell(shape, extra) {
                Told::Is(layout) => {
                    self.settled = Some(Settled { output, shape: shape.to_vec(), layout, extra });
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
        let wanted = match self.hints.task {
            Task::Detect => "[1, 4 + classes, n], [1, n, 5 + classes] or [1, n, 6]",
            Task::Segment => {
                "[1, 4 + classes + k, n] or [1, n, 6 + k], and prototypes [1, k, height, width]"
            }
            Task::Pose => {
                "[1, 4 + classes + numbers, n] or [1, n, 6 + numbers], and `kpt_shape` in its \
                 metadata"
            }
            Task::Oriented => "[1, 5 + classes, n] or [1, n, 7]",
            Task::Classify => "[1, classes]",
        };
        let why = format!(
            "it is no detector that can be read: its outputs are {}, with {names}; for the task \
             `{}` a model has {wanted}",
            if outputs.is_empty() { "none".to_owned() } else { outputs.join(", ") },
            self.hints.task
        );
        InferError::Model { model: self.model.clone(), why }
    }

    fn read(
        &mut self,
        tensor: &Tensor,
        (layout, extra): (Layout, usize),
        thresholds: &Thresholds,
        mut found: impl FnMut(&Candidate),
    ) {
        let centred = self.hints.task == Task::Oriented;
        let (least, most) = (thresholds.confidence, thresholds.max_detections);
        let Decoder { block, suppress, turned, .. } = self;
        let mut search =
            Search { block, suppress, least, centred, numbers: tensor.data.is_empty() };
        search.suppress.start(match layout {
            Layout::ByClass { classes }
            | Layout::ByPlace { classes }
            | Layout::Objectness { classes }
            | Layout::Best { classes } => classes,
            _ => 0,
        });
        match layout {
            Layout::ByClass { classes } => search.by_class(tensor, classes),
            Layout::ByPlace { classes } => search.by_place(tensor, classes, extra),
            Layout::Objectness { classes } => search.objectness(tensor, classes),
            Layout::Best { .. } => search.searched(tensor),
            Layout::EndToEnd | Layout::Queries => {
                let rows = || tensor.data.chunks_exact(READY + extra);
                self.numbers =
                    search.numbers || rows().any(|row| row.iter().all(|number| number.is_finite()));
                let ready = rows().enumerate().filter_map(|(at, row)| rows::ready(at, row, least));
                return ready.take(most).for_each(|one| found(&one));
            }
            Layout::QueryScores { classes } => {
                let rows = || tensor.data.chunks_exact(4 + classes);
                self.numbers =
                    search.numbers || rows().any(|row| row.iter().all(|number| number.is_finite()));
                let ready = rows().enumerate().filter_map(|(at, row)| rows::query(at, row, least));
                return ready.take(most).for_each(|one| found(&one));
            }
            Layout::Classes { classes } => {
                self.numbers = search.numbers || tensor.data.iter().any(|sure| sure.is_finite());
                return best_classes(&tensor.data[..classes], most).for_each(|one| found(&one));
            }
        }
        self.numbers = search.numbers;
        if centred {
            let angle = |one: &Candidate| added(tensor, layout, extra, one.place, extra - 1);
            return turned.keep(suppress, thresholds, angle, found);
        }
        suppress.keep(thresholds, found);
    }
}

#[cfg(test)]
mod tests;
