//! What some heads add to a box: coefficients of masks, keypoints, an angle.

use super::super::super::pt::{PtModule, PtResult};
use super::super::blocks::{add, run};
use super::super::build::{GraphBuilder, ImageValue, NodeAttribute};
use super::super::torch_layers::enlarge;
use super::HeadExtents;
use super::detect::{AnchorGrid, HeadKind};

/// The most numbers beside a box.
const MOST: usize = 4096;

/// How many numbers the head adds to a box; `None` where it adds none.
pub(super) fn numbers(module: &PtModule<'_>, kind: HeadKind) -> PtResult<Option<usize>> {
    let numbers = match kind {
        HeadKind::Detect => return Ok(None),
        HeadKind::Segment => module.count("nm")?,
        HeadKind::Oriented => module.count("ne")?,
        HeadKind::Pose => {
            let [points, each] = module.pair("kpt_shape")?;
            if !(2..=3).contains(&each) {
                return Err(module.odd(format!("keypoints of {each} numbers")));
            }
            points.saturating_mul(each)
        }
    };
    match (1..=MOST).contains(&numbers) && (kind != HeadKind::Oriented || numbers == 1) {
        true => Ok(Some(numbers)),
        false => Err(module.odd(format!("{numbers} numbers beside each box"))),
    }
}

/// What the branch gives, as it stands in the output: `[batch, numbers, places]`.
pub(super) fn read(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    kind: HeadKind,
    (raw, numbers): (&str, usize),
    grid: &AnchorGrid,
) -> PtResult<String> {
    let newer = module.class.name().ends_with("26");
    match kind {
        HeadKind::Detect | HeadKind::Segment => Ok(raw.to_string()),
        // The newer head gives the angle itself.
        HeadKind::Oriented if newer => Ok(raw.to_string()),
        HeadKind::Oriented => angle(graph, &module.place, raw),
        HeadKind::Pose => keypoints(graph, module, (raw, numbers), grid, newer),
    }
}

/// From −π/4 to 3π/4.
fn angle(graph: &mut GraphBuilder, place: &str, raw: &str) -> PtResult<String> {
    let (quarter, pi) =
        (graph.floats(place, &[], &[0.25])?, graph.floats(place, &[], &[std::f32::consts::PI])?);
    let value = graph.node(place, "Sigmoid", &[raw], &[])?;
    let value = graph.node(place, "Sub", &[&value, &quarter], &[])?;
    graph.node(place, "Mul", &[&value, &pi], &[])
}

/// Distances along the sides of a turned box to its centre and extents in pixels.
pub(super) fn turned_boxes(
    graph: &mut GraphBuilder,
    place: &str,
    distances: &str,
    angle: &str,
    grid: &AnchorGrid,
) -> PtResult<String> {
    let along = [("axis", NodeAttribute::Int(1))];
    let ends = graph.split(place, distances, 1, &[2, 2])?;
    let (cos, sin) =
        (graph.node(place, "Cos", &[angle], &[])?, graph.node(place, "Sin", &[angle], &[])?);
    let half = graph.floats(place, &[], &[2.0])?;
    let shift = graph.node(place, "Sub", &[&ends[1], &ends[0]], &[])?;
    let shift = graph.node(place, "Div", &[&shift, &half], &[])?;
    let shift = graph.split(place, &shift, 1, &[1, 1])?;
    let mut product = |a: &str, b: &str| graph.node(place, "Mul", &[a, b], &[]);
    let (x_cos, y_sin) = (product(&shift[0], &cos)?, product(&shift[1], &sin)?);
    let (x_sin, y_cos) = (product(&shift[0], &sin)?, product(&shift[1], &cos)?);
    let x = graph.node(place, "Sub", &[&x_cos, &y_sin], &[])?;
    let y = graph.node(place, "Add", &[&x_sin, &y_cos], &[])?;
    let centre = graph.node(place, "Concat", &[&x, &y], &along)?;
    let centre = graph.node(place, "Add", &[&centre, &grid.places], &[])?;
    let extent = graph.node(place, "Add", &[&ends[0], &ends[1]], &[])?;
    let both = graph.node(place, "Concat", &[&centre, &extent], &along)?;
    graph.node(place, "Mul", &[&both, &grid.strides], &[])
}

/// Offsets from the place to pixels; how sure, where the head says.
fn keypoints(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    (raw, numbers): (&str, usize),
    grid: &AnchorGrid,
    newer: bool,
) -> PtResult<String> {
    let [points, each] = module.pair("kpt_shape")?;
    let place = &module.place;
    let value = graph.reshape(place, raw, &[0, points as i64, each as i64, -1])?;
    let along = [("axis", NodeAttribute::Int(2))];
    let (offsets, seen) = match each {
        3 => {
            let mut parts = graph.split(place, &value, 2, &[2, 1])?;
            let seen = parts.pop().unwrap_or_default();
            (parts.pop().unwrap_or_default(), Some(seen))
        }
        _ => (value, None),
    };
    let at = match newer {
        true => graph.node(place, "Add", &[&offsets, &grid.places], &[])?,
        false => {
            let (two, half) =
                (graph.floats(place, &[], &[2.0])?, graph.floats(place, &[], &[0.5])?);
            let doubled = graph.node(place, "Mul", &[&offsets, &two], &[])?;
            let corner = graph.node(place, "Sub", &[&grid.places, &half], &[])?;
            graph.node(place, "Add", &[&doubled, &corner], &[])?
        }
    };
    let mut value = graph.node(place, "Mul", &[&at, &grid.strides], &[])?;
    if let Some(seen) = seen {
        let seen = graph.node(place, "Sigmoid", &[&seen], &[])?;
        value = graph.node(place, "Concat", &[&value, &seen], &along)?;
    }
    graph.reshape(place, &value, &[0, numbers as i64, -1])
}

/// The prototypes that masks are sums of.
pub(super) fn proto(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    inputs: &[ImageValue],
) -> PtResult<ImageValue> {
    let proto = module.child("proto")?;
    let Some(mut value) = inputs.first().cloned() else { return Err(module.odd("no input")) };
    match proto.class.of_ultralytics() {
        Some("Proto") => {}
        Some("Proto26") => {
            let refine = proto.child("feat_refine")?.children()?;
            for (at, (child, input)) in refine.iter().zip(&inputs[1..]).enumerate() {
                let up = run(graph, child, input)?;
                let times = 2 << at.min(8);
                let up = enlarge(graph, child, &up, [times, times])?;
                value = add(graph, &proto, &value, &up)?;
            }
            value = run(graph, &proto.child("feat_fuse")?, &value)?;
        }
        _ => return Err(proto.unsupported()),
    }
    for name in ["cv1", "upsample", "cv2", "cv3"] {
        value = run(graph, &proto.child(name)?, &value)?;
    }
    match value.channels == module.count("nm")? {
        true => Ok(value),
        false => Err(proto.odd(format!("{} prototypes", value.channels))),
    }
}

/// The prototypes as the second output.
pub(super) fn prototypes(
    graph: &mut GraphBuilder,
    place: &str,
    value: &ImageValue,
) -> PtResult<HeadExtents> {
    let node = format!("/{}/prototypes", place.replace('.', "/"));
    graph.raw_node(&node, "Identity", &[&value.name], &["output1".to_string()], &[])?;
    let size = |extent: Option<usize>, name| extent.map_or(Err(name), |n| Ok(n as i64));
    let rows = size(value.size.map(|size| size.0), "mask_height");
    let columns = size(value.size.map(|size| size.1), "mask_width");
    Ok(vec![Err("batch"), Ok(value.channels as i64), rows, columns])
}
