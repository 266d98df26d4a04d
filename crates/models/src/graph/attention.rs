//! The modules that attend: of pixels to each other in an image, and of tokens in a sequence.
//!
//! Tokens are `[batch, tokens, width]`; an image becomes one by laying its pixels in a row.

use super::super::pt::{Array, PtModule, PtResult};
use super::blocks::{add, run};
use super::build::{GraphBuilder, ImageValue, NodeAttribute};
use super::torch_layers::activation;

/// The most numbers that say where pixels are: RT-DETR has 102,400 at 640x640.
const MOST_POSITIONS: usize = 1 << 25;

/// A value that flows along an edge: tokens of this width.
#[derive(Debug, Clone)]
pub(super) struct Tokens {
    pub(super) name: String,
    pub(super) width: usize,
}

/// Every pixel looks at every other: softmax(qᵀ·scale·k), applied to v, plus the places.
pub(super) fn attention(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let (heads, key) = (module.count("num_heads")?, module.count("key_dim")?);
    let head = module.count("head_dim")?;
    let scale = module.number("scale").ok_or_else(|| module.odd("no scale"))? as f32;
    let qkv = run(graph, &module.child("qkv")?, input)?;
    let each = key.checked_mul(2).and_then(|both| both.checked_add(head));
    let wanted = each.and_then(|each| each.checked_mul(heads));
    if heads == 0 || wanted != Some(qkv.channels) || head.checked_mul(heads) != Some(input.channels)
    {
        return Err(module.odd(format!("{heads} heads of {key} and {head} that do not fit")));
    }
    let place = &module.place;
    let shape = [0, heads as i64, (qkv.channels / heads) as i64, -1];
    let flat = graph.reshape(place, &qkv.name, &shape)?;
    let parts = graph.split(place, &flat, 2, &[key as i64, key as i64, head as i64])?;
    let qkv = [parts[0].as_str(), &parts[1], &parts[2]];
    let seen = attend(graph, place, qkv, scale, &[0, 1, 3, 2])?;
    let shape = shape_of(graph, place, input)?;
    let seen = graph.node(place, "Reshape", &[&seen, &shape], &[])?;
    let v = graph.node(place, "Reshape", &[&parts[2], &shape], &[])?;
    let places = run(graph, &module.child("pe")?, &input.with(v, input.channels))?;
    let sum = add(graph, module, &input.with(seen, input.channels), &places)?;
    run(graph, &module.child("proj")?, &sum)
}

/// The shape of an image, as a value for `Reshape`.
fn shape_of(graph: &mut GraphBuilder, place: &str, image: &ImageValue) -> PtResult<String> {
    match image.size {
        Some((rows, columns)) => {
            graph.ints(place, &[0, image.channels as i64, rows as i64, columns as i64])
        }
        None => graph.node(place, "Shape", &[&image.name], &[]),
    }
}

/// softmax(qᵀ·scale·k), applied to v, of values that lie as `[…, numbers, pixels]`.
fn attend(
    graph: &mut GraphBuilder,
    place: &str,
    [q, k, v]: [&str; 3],
    scale: f32,
    swap: &[i64],
) -> PtResult<String> {
    let factor = graph.scalar(place, scale)?;
    let q = graph.node(place, "Mul", &[q, &factor], &[])?;
    let q = graph.transpose(place, &q, swap)?;
    let scores = graph.node(place, "MatMul", &[&q, k], &[])?;
    let scores = graph.node(place, "Softmax", &[&scores], &[("axis", NodeAttribute::Int(-1))])?;
    let scores = graph.transpose(place, &scores, swap)?;
    graph.node(place, "MatMul", &[v, &scores], &[])
}

/// YOLOv12's attention: the pixels are cut into areas, and those of one area attend to each other.
pub(super) fn area_attention(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let (heads, head, areas) =
        (module.count("num_heads")?, module.count("head_dim")?, module.count("area")?);
    let qkv = run(graph, &module.child("qkv")?, input)?;
    let width = heads.checked_mul(head).filter(|width| *width > 0);
    let fits = width == Some(input.channels) && qkv.channels == 3 * input.channels;
    let pixels = input.size.map(|(rows, columns)| rows * columns);
    if !fits || areas == 0 || pixels.is_some_and(|pixels| !pixels.is_multiple_of(areas)) {
        return Err(module.odd(format!("{heads} heads of {head} in {areas} areas that do not fit")));
    }
    let (place, channels) = (&module.place, input.channels as i64);
    let flat = graph.reshape(place, &qkv.name, &[0, 3 * channels, -1])?;
    let flat = graph.transpose(place, &flat, &[0, 2, 1])?;
    // An area is a further axis, not a larger batch: the batch may be any.
    let cut = [0, areas as i64, -1, 3 * channels];
    let flat = graph.reshape(place, &flat, &cut)?;
    let split = [0, 0, -1, heads as i64, 3 * head as i64];
    let flat = graph.reshape(place, &flat, &split)?;
    let flat = graph.transpose(place, &flat, &[0, 1, 3, 4, 2])?;
    let parts = graph.split(place, &flat, 3, &[head as i64; 3])?;
    let scale = (head as f64).powf(-0.5) as f32;
    let qkv = [parts[0].as_str(), &parts[1], &parts[2]];
    let seen = attend(graph, place, qkv, scale, &[0, 1, 2, 4, 3])?;
    let shape = shape_of(graph, place, input)?;
    let mut images = Vec::new();
    for value in [&seen, &parts[2]] {
        let value = graph.transpose(place, value, &[0, 1, 4, 2, 3])?;
        let value = graph.reshape(place, &value, &[0, -1, channels])?;
        let value = graph.transpose(place, &value, &[0, 2, 1])?;
        let value = graph.node(place, "Reshape", &[&value, &shape], &[])?;
        images.push(input.with(value, input.channels));
    }
    let places = run(graph, &module.child("pe")?, &images[1])?;
    let sum = add(graph, module, &images[0], &places)?;
    run(graph, &module.child("proj")?, &sum)
}

/// A `Linear` layer of tokens.
pub(super) fn linear(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &Tokens,
) -> PtResult<Tokens> {
    if !matches!(module.class.of_torch(), Some("Linear" | "NonDynamicallyQuantizableLinear")) {
        return Err(module.unsupported());
    }
    let weight = module.array("weight")?.ok_or_else(|| module.odd("no weights"))?;
    let bias = module.array("bias")?;
    dense(graph, module, &module.place, (weight, bias), input)
}

/// x·wᵀ + b.
fn dense(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    place: &str,
    (weight, bias): (Array, Option<Array>),
    input: &Tokens,
) -> PtResult<Tokens> {
    let &[out, fan] = &weight.shape[..] else {
        return Err(module.odd(format!("weights of shape {:?}", weight.shape)));
    };
    if fan != input.width || out == 0 || bias.as_ref().is_some_and(|bias| bias.shape != [out]) {
        return Err(module.odd(format!("weights {:?} for {} numbers", weight.shape, input.width)));
    }
    let weight = graph.weight(format!("{place}.weight"), &turned(&weight, out, fan))?;
    let mut name = graph.node(place, "MatMul", &[&input.name, &weight], &[])?;
    if let Some(bias) = bias {
        let bias = graph.weight(format!("{place}.bias"), &bias)?;
        name = graph.node(place, "Add", &[&name, &bias], &[])?;
    }
    Ok(Tokens { name, width: out })
}

/// Rows become columns.
fn turned(array: &Array, rows: usize, columns: usize) -> Array {
    // Without numbers, where only shapes are asked for, there is nothing to turn.
    let whole = array.data.len() == rows * columns;
    let column = |column: usize| (0..rows).map(move |row| array.data[row * columns + column]);
    let data = if whole { (0..columns).flat_map(column).collect() } else { Vec::new() };
    Array { shape: vec![columns, rows], data }
}

pub(super) fn layer_norm(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &Tokens,
) -> PtResult<Tokens> {
    let (weight, bias) = (module.array("weight")?, module.array("bias")?);
    let (Some(weight), Some(bias)) = (weight, bias) else {
        return Err(module.odd("a norm without weights, which is not supported,"));
    };
    let fits = weight.shape == [input.width] && bias.shape == [input.width];
    if module.class.of_torch() != Some("LayerNorm") || !fits {
        return Err(module.unsupported());
    }
    let epsilon = module.number("eps").ok_or_else(|| module.odd("no eps"))? as f32;
    let place = &module.place;
    let weight = graph.weight(format!("{place}.weight"), &weight)?;
    let bias = graph.weight(format!("{place}.bias"), &bias)?;
    let attributes = [("axis", NodeAttribute::Int(-1)), ("epsilon", NodeAttribute::Float(epsilon))];
    let inputs = [input.name.as_str(), &weight, &bias];
    let name = graph.node(place, "LayerNormalization", &inputs, &attributes)?;
    Ok(Tokens { name, width: input.width })
}

/// The sum of two values of tokens.
pub(super) fn add_tokens(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    a: &Tokens,
    b: &Tokens,
) -> PtResult<Tokens> {
    if a.width != b.width {
        return Err(module.odd("tokens of different widths to add"));
    }
    let name = graph.node(&module.place, "Add", &[&a.name, &b.name], &[])?;
    Ok(Tokens { name, width: a.width })
}

/// An activation of tokens.
pub(super) fn activate(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &Tokens,
) -> PtResult<Tokens> {
    let value = ImageValue { name: input.name.clone(), channels: input.width, size: None };
    let name = activation(graph, module, &value)?.name;
    Ok(Tokens { name, width: input.width })
}

/// `MultiheadAttention`: what asks and what answers are `query`, what is said is `value`.
pub(super) fn multihead(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    query: &Tokens,
    value: &Tokens,
) -> PtResult<Tokens> {
    let (heads, width) = (module.count("num_heads")?, query.width);
    let weight = module.array("in_proj_weight")?.ok_or_else(|| module.odd("no weights"))?;
    let bias = module.array("in_proj_bias")?.ok_or_else(|| module.odd("no bias"))?;
    let fits = weight.shape == [3 * width, width] && bias.shape == [3 * width];
    if !fits || heads == 0 || !width.is_multiple_of(heads) || value.width != width {
        return Err(module.odd(format!("{heads} heads for {width} numbers that do not fit")));
    }
    let place = &module.place;
    let mut parts = Vec::new();
    for (third, input) in [query, query, value].into_iter().enumerate() {
        let rows = |array: &Array, each: usize| match array.data.is_empty() {
            true => Vec::new(),
            false => array.data[third * width * each..][..width * each].to_vec(),
        };
        let own = Array { shape: vec![width, width], data: rows(&weight, width) };
        let shift = Array { shape: vec![width], data: rows(&bias, 1) };
        let made = dense(graph, module, &format!("{place}.in{third}"), (own, Some(shift)), input)?;
        // To [batch, heads, numbers of a head, tokens].
        let split = [0, 0, heads as i64, (width / heads) as i64];
        let made = graph.reshape(place, &made.name, &split)?;
        parts.push(graph.transpose(place, &made, &[0, 2, 3, 1])?);
    }
    let scale = (1.0 / (width / heads) as f64).sqrt() as f32;
    let qkv = [parts[0].as_str(), &parts[1], &parts[2]];
    let seen = attend(graph, place, qkv, scale, &[0, 1, 3, 2])?;
    let seen = graph.transpose(place, &seen, &[0, 3, 1, 2])?;
    let name = graph.reshape(place, &seen, &[0, 0, width as i64])?;
    linear(graph, &module.child("out_proj")?, &Tokens { name, width })
}

/// RT-DETR's encoder layer: every pixel of the coarsest image attends to every other.
pub(super) fn aifi(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let Some((rows, columns)) = input.size else {
        return Err(super::fixed_size_only("RT-DETR"));
    };
    let width = input.channels;
    if rows.saturating_mul(columns).saturating_mul(width) > MOST_POSITIONS {
        return Err(module.odd("an image that is too large to attend to"));
    }
    if !width.is_multiple_of(4) || module.flag("normalize_before") {
        return Err(module.odd("a form of encoder that is not supported,"));
    }
    let place = &module.place;
    let flat = graph.reshape(place, &input.name, &[0, width as i64, -1])?;
    let source = Tokens { name: graph.transpose(place, &flat, &[0, 2, 1])?, width };
    let places = positions(rows, columns, width);
    let places = graph.weight(format!("{place}.positions"), &places)?;
    let asked = add_tokens(graph, module, &source, &Tokens { name: places, width })?;
    let seen = multihead(graph, &module.child("ma")?, &asked, &source)?;
    let value = add_tokens(graph, module, &source, &seen)?;
    let value = layer_norm(graph, &module.child("norm1")?, &value)?;
    let inner = linear(graph, &module.child("fc1")?, &value)?;
    let inner = activate(graph, &module.child("act")?, &inner)?;
    let inner = linear(graph, &module.child("fc2")?, &inner)?;
    let value = add_tokens(graph, module, &value, &inner)?;
    let value = layer_norm(graph, &module.child("norm2")?, &value)?;
    let image = graph.transpose(place, &value.name, &[0, 2, 1])?;
    let shape = shape_of(graph, place, input)?;
    let name = graph.node(place, "Reshape", &[&image, &shape], &[])?;
    Ok(input.with(name, width))
}

/// Sines and cosines of a pixel's row and column, at falling frequencies.
fn positions(rows: usize, columns: usize, width: usize) -> Array {
    let quarter = width / 4;
    let rates: Vec<f32> =
        (0..quarter).map(|at| 1.0 / 10000f32.powf(at as f32 / quarter as f32)).collect();
    let mut data = Vec::with_capacity(rows * columns * width);
    for row in 0..rows {
        for column in 0..columns {
            for at in [row as f32, column as f32] {
                data.extend(rates.iter().map(|rate| (at * rate).sin()));
                data.extend(rates.iter().map(|rate| (at * rate).cos()));
            }
        }
    }
    Array { shape: vec![1, rows * columns, width], data }
}
