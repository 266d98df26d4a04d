//! Which of the layouts an output has, told by its shape and the model's metadata.
//!
//! Shapes alone are ambiguous where few classes are concerned: `[1, n, 6]` may be boxes
//! ready to use, or YOLOv5 with one class, or a turned YOLOv8 with two. The number of
//! names, what the metadata says of suppression, and the number of places that a grid over
//! the input has, settle it. Without any of them the commonest reading is taken.

use super::detection::Task;
use crate::engine::ModelInfo;

/// Numbers of a box that is ready to use: its bounds, confidence and class; what the task adds
/// comes behind them.
const READY: usize = 6;

/// The steps between places of the heads that are in use.
const GRIDS: [&[usize]; 4] = [&[8, 16, 32], &[4, 8, 16, 32], &[8, 16, 32, 64], &[16, 32]];

/// How a detector's output is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// `[1, 4 + classes, places]`: YOLOv8 and 11. What the task adds to a box (coefficients of
    /// masks, keypoints, an angle) are further rows behind the classes.
    ByClass {
        /// How many classes.
        classes: usize,
    },
    /// `[1, places, 4 + classes]`: the same, turned.
    ByPlace {
        /// How many classes.
        classes: usize,
    },
    /// `[1, places, 5 + classes]`: YOLOv5, with a score for there being anything at all.
    Objectness {
        /// How many classes.
        classes: usize,
    },
    /// `[1, boxes, 6]`: suppression was done in the model, or is not needed. What the task adds
    /// to a box are further columns.
    EndToEnd,
    /// `[1, queries, 6]`: RT-DETR, whose boxes are fractions of the image, by centre and extent.
    Queries,
    /// `[1, queries, 4 + classes]`: the same, of older exports.
    QueryScores {
        /// How many classes.
        classes: usize,
    },
    /// `[1, classes]`: probabilities of the whole frame.
    Classes {
        /// How many classes.
        classes: usize,
    },
    /// `[1, 6, places]`: box, best score and its class, where an engine has searched
    /// [`Layout::ByClass`] itself.
    Best {
        /// How many classes.
        classes: usize,
    },
}

/// What can be said of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// It is a detector's.
    Is(Layout),
    /// It is not.
    No,
    /// Its extents are not fixed; the first output will tell.
    NotYet,
}

/// What the metadata says that helps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hints {
    /// How many classes have names.
    pub(super) names: Option<usize>,
    /// Whether the model suppresses overlaps itself.
    pub(super) end_to_end: Option<bool>,
    /// Rows and columns of the input.
    pub(super) input: Option<(usize, usize)>,
    /// Whether the head is RT-DETR's.
    pub(super) queries: bool,
    /// What the model answers.
    pub(super) task: Task,
    /// How many numbers a keypoint has and how many there are, for a pose.
    pub(super) keypoints: Option<[usize; 2]>,
}

impl Hints {
    /// Reads them from what a model says of itself.
    pub(super) fn read(model: &ModelInfo, names: Option<usize>) -> Hints {
        let says = |key: &str| model.metadata.get(key).map(|text| text.trim().to_lowercase());
        let mut end_to_end = says("end2end").map(|text| text == "true");
        // Exports with suppression built in say so among their arguments only.
        if says("args").is_some_and(|text| text.contains("'nms': true")) {
            end_to_end = Some(true);
        }
        // The first exports of it do not name the head.
        let queries = says("head").is_some_and(|head| head == "rtdetrdecoder")
            || says("description").is_some_and(|text| text.contains("rtdetr"));
        let task = says("task").and_then(|task| Task::named(&task)).unwrap_or_default();
        let keypoints = says("kpt_shape").and_then(|text| pair(&text));
        Hints { names, end_to_end, input: model.input_size, queries, task, keypoints }
    }

    /// How many numbers the task adds to a box, where the outputs have these shapes; `None` where
    /// that cannot be told yet.
    pub(super) fn extra(&self, shapes: &[&[usize]]) -> Option<usize> {
        match self.task {
            Task::Detect | Task::Classify => Some(0),
            Task::Oriented => Some(1),
            Task::Pose => self.keypoints.map(|[points, each]| points.saturating_mul(each)),
            Task::Segment => {
                let prototypes = shapes.iter().find(|shape| shape.len() == 4)?;
                Some(prototypes[1]).filter(|&count| count > 0)
            }
        }
    }

    /// Whether a grid over the input has this many places, `anchors` at each; `None` where
    /// the input has no fixed size.
    fn grid(&self, places: usize, anchors: usize) -> Option<bool> {
        let (height, width) = self.input?;
        let cells = |step: &usize| height.div_ceil(*step).saturating_mul(width.div_ceil(*step));
        Some(GRIDS.iter().any(|steps| {
            let all = steps.iter().map(cells).fold(0, usize::saturating_add);
            all.saturating_mul(anchors) == places
        }))
    }

    /// Says which layout a shape is, `extra` numbers being added to each box; an extent of 0 is
    /// not fixed.
    pub(super) fn tell(&self, shape: &[usize], extra: usize) -> Told {
        if self.task == Task::Classify {
            return match *shape {
                [] | [_, 0] => Told::NotYet,
                [0 | 1, classes] => Told::Is(Layout::Classes { classes }),
                _ => Told::No,
            };
        }
        let &[batch, middle, inner] = shape else {
            return if shape.is_empty() { Told::NotYet } else { Told::No };
        };
        if batch > 1 {
            return Told::No;
        }
        if self.queries {
            return match (inner, self.names) {
                (0, _) => Told::NotYet,
                (READY, names) if names != Some(2) => Told::Is(Layout::Queries),
                (_, Some(classes)) if inner == 4 + classes => {
                    Told::Is(Layout::QueryScores { classes })
                }
                _ => Told::No,
            };
        }
        if self.end_to_end == Some(true) {
            return match inner {
                0 => Told::NotYet,
                _ if inner == READY + extra => Told::Is(Layout::EndToEnd),
                _ => Told::No,
            };
        }
        match self.names.filter(|&names| names > 0) {
            Some(classes) if extra > 0 => self.tell_extended(classes, extra, middle, inner),
            Some(classes) => self.tell_named(classes, middle, inner),
            // What is added to a box cannot be told from classes without their number.
            None if extra > 0 => Told::No,
            None => self.tell_nameless(middle, inner),
        }
    }

    fn tell_extended(&self, classes: usize, extra: usize, middle: usize, inner: usize) -> Told {
        let wide = 4 + classes + extra;
        if middle == wide {
            Told::Is(Layout::ByClass { classes })
        } else if inner == wide && self.grid(middle, 1) != Some(false) {
            Told::Is(Layout::ByPlace { classes })
        } else if inner == READY + extra && self.end_to_end != Some(false) {
            Told::Is(Layout::EndToEnd)
        } else if middle == 0 || inner == 0 {
            Told::NotYet
        } else {
            Told::No
        }
    }

    fn tell_named(&self, classes: usize, middle: usize, inner: usize) -> Told {
        let ready = inner == READY && self.end_to_end != Some(false);
        let grid = |anchors| self.grid(middle, anchors) == Some(true);
        if middle == 4 + classes {
            Told::Is(Layout::ByClass { classes })
        } else if inner == 5 + classes && (!ready || grid(3)) {
            Told::Is(Layout::Objectness { classes })
        } else if inner == 4 + classes && (!ready || grid(1)) {
            Told::Is(Layout::ByPlace { classes })
        } else if ready {
            Told::Is(Layout::EndToEnd)
        } else if middle == 0 || inner == 0 {
            Told::NotYet
        } else {
            Told::No
        }
    }

    fn tell_nameless(&self, middle: usize, inner: usize) -> Told {
        let on_grid = |places, anchors| self.grid(places, anchors).unwrap_or(true);
        if middle == 0 || inner == 0 {
            Told::NotYet
        } else if inner == READY && self.grid(middle, 3) != Some(true) {
            Told::Is(Layout::EndToEnd)
        } else if middle > 4 && middle < inner && on_grid(inner, 1) {
            Told::Is(Layout::ByClass { classes: middle - 4 })
        } else if inner > 5 && inner < middle && on_grid(middle, 3) {
            Told::Is(Layout::Objectness { classes: inner - 5 })
        } else if inner > 4 && inner < middle && on_grid(middle, 1) {
            Told::Is(Layout::ByPlace { classes: inner - 4 })
        } else {
            Told::No
        }
    }
}

/// Two numbers in brackets, as Python writes them.
fn pair(text: &str) -> Option<[usize; 2]> {
    let inner = text.trim().strip_prefix(['[', '('])?.strip_suffix([']', ')'])?;
    let (first, second) = inner.split_once(',')?;
    let pair = [first.trim().parse().ok()?, second.trim().parse().ok()?];
    let sane = (1..=1024).contains(&pair[0]) && (2..=3).contains(&pair[1]);
    sane.then_some(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUT: Option<(usize, usize)> = Some((640, 640));

    fn hints(names: Option<usize>) -> Hints {
        Hints { names, input: INPUT, ..Hints::default() }
    }

    #[test]
    fn the_usual_shapes_are_told_with_and_without_names() {
        use Layout::{ByClass, ByPlace, EndToEnd, Objectness};
        for names in [Some(80), None] {
            let tell = |shape: &[usize]| hints(names).tell(shape, 0);
            assert_eq!(tell(&[1, 84, 8400]), Told::Is(ByClass { classes: 80 }));
            assert_eq!(tell(&[1, 8400, 84]), Told::Is(ByPlace { classes: 80 }));
            assert_eq!(tell(&[1, 25_200, 85]), Told::Is(Objectness { classes: 80 }));
            assert_eq!(tell(&[1, 300, 6]), Told::Is(EndToEnd));
            assert_eq!(tell(&[1, 1000]), Told::No);
            assert_eq!(tell(&[1, 32, 160, 160]), Told::No);
            assert_eq!(tell(&[1, 128, 768]), Told::No);
            assert_eq!(tell(&[2, 84, 8400]), Told::No);
        }
    }

    #[test]
    fn six_numbers_are_told_by_the_grid() {
        let tell = |names, shape: &[usize]| hints(Some(names)).tell(shape, 0);
        assert_eq!(tell(1, &[1, 25_200, 6]), Told::Is(Layout::Objectness { classes: 1 }));
        assert_eq!(tell(1, &[1, 300, 6]), Told::Is(Layout::EndToEnd));
        assert_eq!(tell(2, &[1, 8400, 6]), Told::Is(Layout::ByPlace { classes: 2 }));
        assert_eq!(tell(2, &[1, 6, 8400]), Told::Is(Layout::ByClass { classes: 2 }));
    }

    #[test]
    fn the_metadata_overrules() {
        let told = |end_to_end, shape: &[usize]| {
            Hints { end_to_end: Some(end_to_end), ..hints(Some(2)) }.tell(shape, 0)
        };
        assert_eq!(told(true, &[1, 8400, 6]), Told::Is(Layout::EndToEnd));
        assert_eq!(told(false, &[1, 300, 6]), Told::Is(Layout::ByPlace { classes: 2 }));
    }

    #[test]
    fn open_extents_wait_unless_the_rest_tells() {
        let tell = |shape: &[usize]| hints(Some(80)).tell(shape, 0);
        assert_eq!(tell(&[0, 84, 0]), Told::Is(Layout::ByClass { classes: 80 }));
        assert_eq!(tell(&[0, 0, 85]), Told::Is(Layout::Objectness { classes: 80 }));
        assert_eq!(tell(&[0, 0, 0]), Told::NotYet);
        assert_eq!(hints(None).tell(&[1, 84, 0], 0), Told::NotYet);
    }

    #[test]
    fn what_a_task_adds_is_counted() {
        let of = |task, keypoints| Hints { task, keypoints, ..hints(Some(80)) };
        let segment = of(Task::Segment, None);
        let shapes: [&[usize]; 2] = [&[1, 116, 8400], &[1, 32, 160, 160]];
        assert_eq!(segment.extra(&shapes), Some(32));
        assert_eq!(segment.extra(&shapes[..1]), None);
        assert_eq!(segment.tell(shapes[0], 32), Told::Is(Layout::ByClass { classes: 80 }));
        assert_eq!(segment.tell(&[1, 300, 38], 32), Told::Is(Layout::EndToEnd));
        assert_eq!(segment.tell(&[1, 117, 8400], 32), Told::No);
        let pose = of(Task::Pose, pair("[17, 3]"));
        assert_eq!(pose.extra(&[]), Some(51));
        assert_eq!(of(Task::Oriented, None).extra(&[]), Some(1));
        let classify = of(Task::Classify, None);
        assert_eq!(classify.tell(&[1, 1000], 0), Told::Is(Layout::Classes { classes: 1000 }));
        assert_eq!(classify.tell(&[1, 84, 8400], 0), Told::No);
        for text in ["", "[17]", "[17, 4]", "[0, 2]", "(17, 3", "17, 3", "[-1, 2]"] {
            assert_eq!(pair(text), None, "{text}");
        }
    }

    #[test]
    fn queries_are_told_by_the_head() {
        let rtdetr = Hints { queries: true, ..hints(Some(80)) };
        assert_eq!(rtdetr.tell(&[1, 300, 6], 0), Told::Is(Layout::Queries));
        let older = Told::Is(Layout::QueryScores { classes: 80 });
        assert_eq!(rtdetr.tell(&[1, 300, 84], 0), older);
    }
}
