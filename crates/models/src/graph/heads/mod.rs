//! The heads of networks: what their last layer makes of the images that it is given.
//!
//! `detect` has those that look for boxes at the places of a grid, `extras` what some of them add
//! to a box, `end_to_end` the choice of the best places where no suppression is to follow;
//! `classify` and `rtdetr` are heads of their own.

mod classify;
mod detect;
mod end_to_end;
mod extras;
mod rtdetr;

use super::super::pt::{PtModule, PtResult};
use super::build::{GraphBuilder, ImageValue};
use detect::HeadKind;

/// The extents of an output, each a number or the name of one that is only known when it runs.
/// The first is the batch, which `Err("batch")` stands for even where it is one.
pub(super) type HeadExtents = Vec<Result<i64, &'static str>>;

/// What a head gives.
pub(super) struct HeadOutput {
    /// The outputs by name.
    pub(super) outputs: Vec<(String, HeadExtents)>,
    pub(super) classes: usize,
    /// The greatest step between places.
    pub(super) stride: usize,
    /// What Ultralytics calls the task.
    pub(super) task: &'static str,
    /// The head's class.
    pub(super) head: String,
    /// Whether its boxes need no suppression.
    pub(super) end_to_end: bool,
    /// How many keypoints, and numbers of each.
    pub(super) keypoints: Option<[usize; 2]>,
}

/// Runs the head of a network on what it is given. `image` is the size of the image where it is
/// fixed; `nms_free` asks for the boxes that need no suppression, where the head has such.
pub(super) fn run(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    inputs: &[ImageValue],
    image: Option<(usize, usize)>,
    nms_free: bool,
) -> PtResult<HeadOutput> {
    let kind = match module.class.of_ultralytics() {
        Some("Detect" | "v10Detect") => HeadKind::Detect,
        Some("Segment" | "Segment26") => HeadKind::Segment,
        Some("Pose" | "Pose26") => HeadKind::Pose,
        Some("OBB" | "OBB26") => HeadKind::Oriented,
        Some("Classify") => return classify::classify(graph, module, inputs),
        Some("RTDETRDecoder") => return rtdetr::decoder(graph, module, inputs),
        _ => return Err(module.unsupported()),
    };
    detect::detect(graph, module, kind, inputs, (image, nms_free))
}
