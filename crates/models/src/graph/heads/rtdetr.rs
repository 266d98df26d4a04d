//! RT-DETR's head: a transformer that refines the boxes of the best places.
//!
//! Boxes are fractions of the image, and all shapes are fixed: the places and how many of them
//! become queries are part of the graph.

use super::super::super::pickle::PickleRef;
use super::super::super::pt::{Array, MOST_NAMES, PtModule, PtResult};
use super::super::attention::{Tokens, activate, add_tokens, layer_norm, linear, multihead};
use super::super::build::{FLOAT, GraphBuilder, ImageValue, NodeAttribute};
use super::super::fixed_size_only;
use super::super::torch_layers::conv2d;
use super::HeadOutput;
use super::end_to_end::{pick, top};

/// The side of a box that a place stands for, at the finest scale.
const SIDE: f32 = 0.05;
/// Places nearer to the border than this are left out.
const EDGE: f32 = 0.01;
/// The least that a logarithm is taken of.
const LEAST: f32 = 1e-5;

/// The images that are attended to, as tokens.
struct EncodedImages {
    tokens: Tokens,
    /// Rows and columns of each scale.
    sizes: Vec<(usize, usize)>,
    /// How many queries there are.
    queries: usize,
}

pub(super) fn decoder(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    inputs: &[ImageValue],
) -> PtResult<HeadOutput> {
    let classes = module.count("nc")?;
    if classes > MOST_NAMES || classes == 0 || module.flag("learnt_init_query") {
        return Err(module.odd("a form of decoder that is not supported,"));
    }
    let memory = memory(graph, module, inputs)?;
    let (mut value, boxes) = queries(graph, module, &memory)?;
    let place = &module.place;
    let mut boxes = graph.node(place, "Sigmoid", &[&boxes], &[])?;
    let decoder = module.child("decoder")?;
    let layers = decoder.child("layers")?.children()?;
    let last = decoder.count("eval_idx")?;
    let heads = module.child("dec_bbox_head")?.children()?;
    let scores = module.child("dec_score_head")?.children()?;
    if last >= layers.len().min(heads.len()).min(scores.len()) {
        return Err(decoder.odd(format!("layer {last} of {} to answer", layers.len())));
    }
    for (layer, head) in layers.iter().zip(&heads).take(last + 1) {
        let at = Tokens { name: boxes.clone(), width: 4 };
        let position = mlp(graph, &module.child("query_pos_head")?, &at)?;
        value = refine(graph, layer, &value, &position, &boxes, &memory)?;
        let shift = mlp(graph, head, &value)?;
        let before = inverse_sigmoid(graph, place, &boxes)?;
        let after = graph.node(place, "Add", &[&shift.name, &before], &[])?;
        boxes = graph.node(place, "Sigmoid", &[&after], &[])?;
    }
    let sure = linear(graph, &scores[last], &value)?;
    if sure.width != classes {
        return Err(module.odd(format!("{} scores for {classes} classes", sure.width)));
    }
    answer(graph, module, &boxes, &sure.name, (classes, memory.queries))
}

/// The images in one width, laid out as tokens, in 32 bits.
fn memory(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    inputs: &[ImageValue],
) -> PtResult<EncodedImages> {
    let place = &module.place;
    let projections = module.child("input_proj")?.children()?;
    if projections.len() != inputs.len() || inputs.is_empty() {
        return Err(module.odd(format!("{} images for input_proj", inputs.len())));
    }
    let width = module.count("hidden_dim")?;
    let (mut flat, mut sizes) = (Vec::new(), Vec::new());
    for (projection, input) in projections.iter().zip(inputs) {
        let norm = projection.child("1")?;
        let value = conv2d(graph, &projection.child("0")?, Some(&norm), input)?;
        let size = value.size.ok_or_else(|| fixed_size_only("RT-DETR"))?;
        if value.channels != width {
            return Err(projection.odd(format!("{} channels, not {width}", value.channels)));
        }
        let name = graph.reshape(place, &value.name, &[0, width as i64, -1])?;
        flat.push(graph.transpose(place, &name, &[0, 2, 1])?);
        sizes.push(size);
    }
    let names: Vec<&str> = flat.iter().map(String::as_str).collect();
    let mut name = graph.node(place, "Concat", &names, &[("axis", NodeAttribute::Int(1))])?;
    if graph.full_precision() {
        name = graph.cast(place, &name, true)?;
    }
    let places: usize = sizes.iter().map(|(rows, columns)| rows * columns).sum();
    let queries = module.count("num_queries")?.min(places);
    Ok(EncodedImages { tokens: Tokens { name, width }, sizes, queries })
}

/// The best places, as what asks and as the boxes (before their sigmoid) that it begins from.
fn queries(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    memory: &EncodedImages,
) -> PtResult<(Tokens, String)> {
    let place = &module.place;
    let (anchors, valid) = anchors(&memory.sizes);
    let anchors = kept_anchors(module, &memory.sizes)?.unwrap_or(anchors);
    let valid = graph.weight(format!("{place}.valid"), &valid)?;
    let anchors = graph.weight(format!("{place}.anchors"), &anchors)?;
    let width = memory.tokens.width;
    let name = graph.node(place, "Mul", &[&valid, &memory.tokens.name], &[])?;
    let output = module.child("enc_output")?;
    let value = linear(graph, &output.child("0")?, &Tokens { name, width })?;
    let value = layer_norm(graph, &output.child("1")?, &value)?;
    let scores = linear(graph, &module.child("enc_score_head")?, &value)?;
    let attributes = [("axes", NodeAttribute::Ints(vec![-1])), ("keepdims", NodeAttribute::Int(0))];
    let surest = graph.node(place, "ReduceMax", &[&scores.name], &attributes)?;
    let count = graph.ints(place, &[memory.queries as i64])?;
    let [_, index] = top(graph, place, &surest, &count)?;
    let name = pick(graph, place, &value.name, &index)?;
    let value = Tokens { name, width: value.width };
    let anchors = pick(graph, place, &anchors, &index)?;
    let boxes = mlp(graph, &module.child("enc_bbox_head")?, &value)?;
    let boxes = graph.node(place, "Add", &[&boxes.name, &anchors], &[])?;
    Ok((value, boxes))
}

/// The places as boxes before their sigmoid, and which of them count.
fn anchors(sizes: &[(usize, usize)]) -> (Array, Array) {
    let (mut boxes, mut valid) = (Vec::new(), Vec::new());
    for (level, &(rows, columns)) in sizes.iter().enumerate() {
        let side = SIDE * 2f32.powi(level as i32);
        for row in 0..rows {
            for column in 0..columns {
                let x = (column as f32 + 0.5) / columns as f32;
                let y = (row as f32 + 0.5) / rows as f32;
                let one = [x, y, side, side];
                let counts = one.iter().all(|&at| at > EDGE && at < 1.0 - EDGE);
                let before = |at: f32| if counts { (at / (1.0 - at)).ln() } else { f32::INFINITY };
                boxes.extend(one.map(before));
                valid.push(f32::from(u8::from(counts)));
            }
        }
    }
    let places = valid.len();
    let boxes = Array { shape: vec![1, places, 4], data: boxes };
    (boxes, Array { shape: vec![1, places, 1], data: valid })
}

/// The anchors that the checkpoint has for these sizes. Ultralytics keeps those of the size that
/// the network last saw, rounds them to 16 bits with the weights, and uses them for that size.
fn kept_anchors(module: &PtModule<'_>, sizes: &[(usize, usize)]) -> PtResult<Option<Array>> {
    let Some(kept) = module.field("shapes").and_then(PickleRef::items) else { return Ok(None) };
    let kept = kept.take(sizes.len() + 1).map(|size| {
        let mut extents = size.items()?.map(PickleRef::as_u64);
        Some((extents.next()??, extents.next()??))
    });
    let wanted = sizes.iter().map(|&(rows, columns)| Some((rows as u64, columns as u64)));
    if module.flag("dynamic") || !kept.eq(wanted) {
        return Ok(None);
    }
    let places = sizes.iter().map(|(rows, columns)| rows * columns).sum();
    Ok(module.array("anchors")?.filter(|anchors| anchors.shape == [1, places, 4]))
}

/// Linear layers with an activation between them.
fn mlp(graph: &mut GraphBuilder, module: &PtModule<'_>, input: &Tokens) -> PtResult<Tokens> {
    if module.class.of_ultralytics() != Some("MLP") || module.flag("sigmoid") {
        return Err(module.unsupported());
    }
    let layers = module.child("layers")?.children()?;
    let act = module.find_child("act")?;
    let mut value = input.clone();
    for (at, layer) in layers.iter().enumerate() {
        value = linear(graph, layer, &value)?;
        if at + 1 < layers.len() {
            value = match &act {
                Some(act) => activate(graph, act, &value)?,
                // The first releases had no module for it.
                None => {
                    let name = graph.node(&module.place, "Relu", &[&value.name], &[])?;
                    Tokens { name, width: value.width }
                }
            };
        }
    }
    Ok(value)
}

/// One layer: the queries attend to each other, then to the images around their boxes.
fn refine(
    graph: &mut GraphBuilder,
    layer: &PtModule<'_>,
    value: &Tokens,
    position: &Tokens,
    boxes: &str,
    memory: &EncodedImages,
) -> PtResult<Tokens> {
    let asked = add_tokens(graph, layer, value, position)?;
    let seen = multihead(graph, &layer.child("self_attn")?, &asked, value)?;
    let value = add_tokens(graph, layer, value, &seen)?;
    let value = layer_norm(graph, &layer.child("norm1")?, &value)?;
    let asked = add_tokens(graph, layer, &value, position)?;
    let seen = deformable(graph, &layer.child("cross_attn")?, &asked, boxes, memory)?;
    let value = add_tokens(graph, layer, &value, &seen)?;
    let value = layer_norm(graph, &layer.child("norm2")?, &value)?;
    let inner = linear(graph, &layer.child("linear1")?, &value)?;
    let inner = activate(graph, &layer.child("act")?, &inner)?;
    let inner = linear(graph, &layer.child("linear2")?, &inner)?;
    let value = add_tokens(graph, layer, &value, &inner)?;
    layer_norm(graph, &layer.child("norm3")?, &value)
}

/// Each query looks at a few points of every image, around its box.
fn deformable(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    query: &Tokens,
    boxes: &str,
    memory: &EncodedImages,
) -> PtResult<Tokens> {
    let (heads, points) = (module.count("n_heads")?, module.count("n_points")?);
    let width = memory.tokens.width;
    let all = memory.sizes.len().saturating_mul(points);
    let offsets = linear(graph, &module.child("sampling_offsets")?, query)?;
    let weights = linear(graph, &module.child("attention_weights")?, query)?;
    let fits = heads > 0
        && points > 0
        && width.is_multiple_of(heads)
        && heads.checked_mul(all) == Some(weights.width)
        && weights.width.checked_mul(2) == Some(offsets.width);
    if !fits {
        return Err(module.odd(format!("{heads} heads of {points} points that do not fit")));
    }
    let place = &module.place;
    let (heads, each) = (heads as i64, (width / heads) as i64);
    let (all, queries) = (all as i64, memory.queries as i64);
    let grids = grids(graph, place, &offsets.name, boxes, [heads, queries, points as i64, all])?;
    let values = linear(graph, &module.child("value_proj")?, &memory.tokens)?;
    let values = graph.reshape(place, &values.name, &[-1, heads, each])?;
    let values = graph.transpose(place, &values, &[1, 2, 0])?;
    let lengths: Vec<i64> = memory.sizes.iter().map(|&(h, w)| (h * w) as i64).collect();
    let values = graph.split(place, &values, 2, &lengths)?;
    let mut sampled = Vec::new();
    let grids = graph.split(place, &grids, 2, &vec![points as i64; lengths.len()])?;
    for ((value, grid), &(rows, columns)) in values.iter().zip(&grids).zip(&memory.sizes) {
        let image = [heads, each, rows as i64, columns as i64];
        let image = graph.reshape(place, value, &image)?;
        let attributes = [
            ("align_corners", NodeAttribute::Int(0)),
            ("mode", NodeAttribute::Text("bilinear")),
            ("padding_mode", NodeAttribute::Text("zeros")),
        ];
        sampled.push(graph.node(place, "GridSample", &[&image, grid], &attributes)?);
    }
    let sampled: Vec<&str> = sampled.iter().map(String::as_str).collect();
    let last = [("axis", NodeAttribute::Int(-1))];
    let sampled = graph.node(place, "Concat", &sampled, &last)?;
    let weights = graph.reshape(place, &weights.name, &[queries, heads, all])?;
    let weights = graph.node(place, "Softmax", &[&weights], &last)?;
    let weights = graph.transpose(place, &weights, &[1, 0, 2])?;
    let weights = graph.reshape(place, &weights, &[heads, 1, queries, all])?;
    let sum = graph.node(place, "Mul", &[&sampled, &weights], &[])?;
    let axes = graph.ints(place, &[-1])?;
    let keep = [("keepdims", NodeAttribute::Int(0))];
    let sum = graph.node(place, "ReduceSum", &[&sum, &axes], &keep)?;
    let sum = graph.reshape(place, &sum, &[1, width as i64, queries])?;
    let name = graph.transpose(place, &sum, &[0, 2, 1])?;
    linear(graph, &module.child("output_proj")?, &Tokens { name, width })
}

/// Where each query looks, from −1 to 1: `[heads, queries, points of all images, 2]`.
fn grids(
    graph: &mut GraphBuilder,
    place: &str,
    offsets: &str,
    boxes: &str,
    [heads, queries, points, all]: [i64; 4],
) -> PtResult<String> {
    let offsets = graph.reshape(place, offsets, &[queries, heads, all, 2])?;
    let boxes = graph.reshape(place, boxes, &[queries, 1, 1, 4])?;
    let ends = graph.split(place, &boxes, 3, &[2, 2])?;
    let points = graph.floats(place, &[], &[points as f32])?;
    let (half, two, one) = (
        graph.floats(place, &[], &[0.5])?,
        graph.floats(place, &[], &[2.0])?,
        graph.floats(place, &[], &[1.0])?,
    );
    let shift = graph.node(place, "Div", &[&offsets, &points], &[])?;
    let shift = graph.node(place, "Mul", &[&shift, &ends[1]], &[])?;
    let shift = graph.node(place, "Mul", &[&shift, &half], &[])?;
    let at = graph.node(place, "Add", &[&ends[0], &shift], &[])?;
    let at = graph.node(place, "Mul", &[&at, &two], &[])?;
    let at = graph.node(place, "Sub", &[&at, &one], &[])?;
    graph.transpose(place, &at, &[1, 0, 2, 3])
}

/// log(x / (1 − x)), kept finite.
fn inverse_sigmoid(graph: &mut GraphBuilder, place: &str, x: &str) -> PtResult<String> {
    let (least, most) = (graph.floats(place, &[], &[LEAST])?, graph.floats(place, &[], &[1.0])?);
    let rest = graph.node(place, "Sub", &[&most, x], &[])?;
    let above = graph.node(place, "Max", &[x, &least], &[])?;
    let below = graph.node(place, "Max", &[&rest, &least], &[])?;
    let ratio = graph.node(place, "Div", &[&above, &below], &[])?;
    graph.node(place, "Log", &[&ratio], &[])
}

/// The best pairs of query and class: `[1, queries, 6]`, boxes by centre and extent.
fn answer(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    boxes: &str,
    scores: &str,
    (classes, queries): (usize, usize),
) -> PtResult<HeadOutput> {
    let place = &module.place;
    let scores = graph.node(place, "Sigmoid", &[scores], &[])?;
    let flat = graph.reshape(place, &scores, &[0, -1])?;
    let count = graph.ints(place, &[queries as i64])?;
    let [sure, index] = top(graph, place, &flat, &count)?;
    let each = graph.ints(place, &[classes as i64])?;
    let row = graph.node(place, "Div", &[&index, &each], &[])?;
    let class = graph.node(place, "Mod", &[&index, &each], &[])?;
    let class = graph.node(place, "Cast", &[&class], &[("to", NodeAttribute::Int(FLOAT))])?;
    let boxes = pick(graph, place, boxes, &row)?;
    let last = graph.ints(place, &[-1])?;
    let sure = graph.node(place, "Unsqueeze", &[&sure, &last], &[])?;
    let class = graph.node(place, "Unsqueeze", &[&class, &last], &[])?;
    let node = format!("/{}/output", place.replace('.', "/"));
    let axis = [("axis", NodeAttribute::Int(-1))];
    let parts = [boxes.as_str(), &sure, &class];
    graph.raw_node(&node, "Concat", &parts, &["output0".to_string()], &axis)?;
    Ok(HeadOutput {
        outputs: vec![("output0".into(), vec![Err("batch"), Ok(queries as i64), Ok(6)])],
        classes,
        stride: 32,
        task: "detect",
        head: module.class.name().to_string(),
        end_to_end: false,
        keypoints: None,
    })
}
