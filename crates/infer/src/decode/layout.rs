//! Which of the layouts an output has, told by its shape and the model's metadata.
//!
//! Shapes alone are ambiguous where few classes are concerned: `[1, n, 6]` may be boxes
//! ready to use, or YOLOv5 with one class, or a turned YOLOv8 with two. The number of
//! names, what the metadata says of suppression, and the number of places that a grid over
//! the input has, settle it. Without any of them the commonest reading is taken.

use crate::engine::ModelInfo;

/// Numbers of a box that is ready to use: its bounds, confidence and class.
const READY: usize = 6;

/// The steps between places of the heads that are in use.
const GRIDS: [&[usize]; 4] = [&[8, 16, 32], &[4, 8, 16, 32], &[8, 16, 32, 64], &[16, 32]];

/// How a detector's output is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// `[1, 4 + classes, places]`: YOLOv8 and 11.
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
    /// `[1, boxes, 6]`: suppression was done in the model.
    EndToEnd,
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
        Hints { names, end_to_end, input: model.input_size }
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

    /// Says which layout a shape is; an extent of 0 is not fixed.
    pub(super) fn tell(&self, shape: &[usize]) -> Told {
        let &[batch, middle, inner] = shape else {
            return if shape.is_empty() { Told::NotYet } else { Told::No };
        };
        if batch > 1 {
            return Told::No;
        }
        if self.end_to_end == Some(true) {
            return match inner {
                READY => Told::Is(Layout::EndToEnd),
                0 => Told::NotYet,
                _ => Told::No,
            };
        }
        match self.names.filter(|&names| names > 0) {
            Some(classes) => self.tell_named(classes, middle, inner),
            None => self.tell_nameless(middle, inner),
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

#[cfg(test)]
mod tests {
    use super::*;

    const INPUT: Option<(usize, usize)> = Some((640, 640));

    fn hints(names: Option<usize>) -> Hints {
        Hints { names, end_to_end: None, input: INPUT }
    }

    #[test]
    fn the_usual_shapes_are_told_with_and_without_names() {
        use Layout::{ByClass, ByPlace, EndToEnd, Objectness};
        for names in [Some(80), None] {
            let tell = |shape: &[usize]| hints(names).tell(shape);
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
        let tell = |names, shape: &[usize]| hints(Some(names)).tell(shape);
        assert_eq!(tell(1, &[1, 25_200, 6]), Told::Is(Layout::Objectness { classes: 1 }));
        assert_eq!(tell(1, &[1, 300, 6]), Told::Is(Layout::EndToEnd));
        assert_eq!(tell(2, &[1, 8400, 6]), Told::Is(Layout::ByPlace { classes: 2 }));
        assert_eq!(tell(2, &[1, 6, 8400]), Told::Is(Layout::ByClass { classes: 2 }));
    }

    #[test]
    fn the_metadata_overrules() {
        let told = |end_to_end, shape: &[usize]| {
            Hints { end_to_end: Some(end_to_end), ..hints(Some(2)) }.tell(shape)
        };
        assert_eq!(told(true, &[1, 8400, 6]), Told::Is(Layout::EndToEnd));
        assert_eq!(told(false, &[1, 300, 6]), Told::Is(Layout::ByPlace { classes: 2 }));
    }

    #[test]
    fn open_extents_wait_unless_the_rest_tells() {
        let tell = |shape: &[usize]| hints(Some(80)).tell(shape);
        assert_eq!(tell(&[0, 84, 0]), Told::Is(Layout::ByClass { classes: 80 }));
        assert_eq!(tell(&[0, 0, 85]), Told::Is(Layout::Objectness { classes: 80 }));
        assert_eq!(tell(&[0, 0, 0]), Told::NotYet);
        assert_eq!(hints(None).tell(&[1, 84, 0]), Told::NotYet);
    }
}
