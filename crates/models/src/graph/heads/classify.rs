//! The head of a classifier: the image's mean, and a probability for each class.

use super::super::super::pt::{MOST_NAMES, PtModule, PtResult};
use super::super::attention::{Tokens, linear};
use super::super::blocks::run;
use super::super::build::{GraphBuilder, ImageValue, NodeAttribute};
use super::HeadOutput;

pub(super) fn classify(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    inputs: &[ImageValue],
) -> PtResult<HeadOutput> {
    let [input] = inputs else {
        return Err(module.odd("several images, which is not supported,"));
    };
    let place = &module.place;
    let value = run(graph, &module.child("conv")?, input)?;
    let pooled = graph.node(place, "GlobalAveragePool", &[&value.name], &[])?;
    let name = graph.reshape(place, &pooled, &[0, value.channels as i64])?;
    let scores = Tokens { name, width: value.channels };
    let mut scores = linear(graph, &module.child("linear")?, &scores)?;
    if scores.width > MOST_NAMES {
        return Err(module.odd(format!("{} classes", scores.width)));
    }
    if graph.full_precision() {
        scores.name = graph.cast(place, &scores.name, true)?;
    }
    let node = format!("/{}/output", place.replace('.', "/"));
    let axis = [("axis", NodeAttribute::Int(1))];
    graph.raw_node(&node, "Softmax", &[&scores.name], &["output0".to_string()], &axis)?;
    Ok(HeadOutput {
        outputs: vec![("output0".into(), vec![Err("batch"), Ok(scores.width as i64)])],
        classes: scores.width,
        stride: 1,
        task: "classify",
        head: module.class.name().to_string(),
        end_to_end: false,
        keypoints: None,
    })
}
