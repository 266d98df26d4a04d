//! The stages of YOLOv9, v10, v12 and RT-DETR: as `blocks`, one function for each module.

use super::super::pt::{PtModule, PtResult};
use super::blocks::{add, concat, halves, run};
use super::build::{GraphBuilder, ImageValue, NodeAttribute};
use super::torch_layers::{NEAREST, pool};

/// ELAN1 and RepNCSPELAN4: halves, and two branches one behind the other.
pub(super) fn elan(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let value = run(graph, &module.child("cv1")?, input)?;
    let [kept, last] = halves(graph, module, &value)?;
    let first = run(graph, &module.child("cv2")?, &last)?;
    let second = run(graph, &module.child("cv3")?, &first)?;
    let all = [kept, last, first, second];
    let joined = concat(graph, &module.place, &all, |why| module.odd(why))?;
    run(graph, &module.child("cv4")?, &joined)
}

/// A mean of four pixels, then a convolution with a step of two.
pub(super) fn aconv(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let value = pool(graph, module, input, "AveragePool", [2, 1, 0])?;
    run(graph, &module.child("cv1")?, &value)
}

/// The same, with half of the channels pooled.
pub(super) fn adown(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let value = pool(graph, module, input, "AveragePool", [2, 1, 0])?;
    let [first, second] = halves(graph, module, &value)?;
    let first = run(graph, &module.child("cv1")?, &first)?;
    let second = pool(graph, module, &second, "MaxPool", [3, 2, 1])?;
    let second = run(graph, &module.child("cv2")?, &second)?;
    concat(graph, &module.place, &[first, second], |why| module.odd(why))
}

pub(super) fn sppelan(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let mut parts = vec![run(graph, &module.child("cv1")?, input)?];
    for name in ["cv2", "cv3", "cv4"] {
        let value = run(graph, &module.child(name)?, &parts[parts.len() - 1])?;
        parts.push(value);
    }
    let joined = concat(graph, &module.place, &parts, |why| module.odd(why))?;
    run(graph, &module.child("cv5")?, &joined)
}

pub(super) fn scdown(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let value = run(graph, &module.child("cv1")?, input)?;
    run(graph, &module.child("cv2")?, &value)
}

pub(super) fn cib(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let value = run(graph, &module.child("cv1")?, input)?;
    if module.flag("add") { add(graph, module, input, &value) } else { Ok(value) }
}

/// Half of the channels attend to each other.
pub(super) fn psa(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let value = run(graph, &module.child("cv1")?, input)?;
    let [kept, mut attended] = halves(graph, module, &value)?;
    for part in ["attn", "ffn"] {
        let after = run(graph, &module.child(part)?, &attended)?;
        attended = add(graph, module, &attended, &after)?;
    }
    let joined = concat(graph, &module.place, &[kept, attended], |why| module.odd(why))?;
    run(graph, &module.child("cv2")?, &joined)
}

/// YOLOv12's stage: its blocks one behind the other, and all of them joined.
pub(super) fn a2c2f(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let mut parts = vec![run(graph, &module.child("cv1")?, input)?];
    for child in module.child("m")?.children()? {
        let value = run(graph, &child, &parts[parts.len() - 1])?;
        parts.push(value);
    }
    let joined = concat(graph, &module.place, &parts, |why| module.odd(why))?;
    let value = run(graph, &module.child("cv2")?, &joined)?;
    let Some(mut gamma) = module.array("gamma")? else { return Ok(value) };
    if gamma.shape != [value.channels] {
        return Err(module.odd("a factor of another size"));
    }
    gamma.shape = vec![1, value.channels, 1, 1];
    let gamma = graph.weight(format!("{}.gamma", module.place), &gamma)?;
    let scaled = graph.node(&module.place, "Mul", &[&gamma, &value.name], &[])?;
    add(graph, module, input, &value.with(scaled, value.channels))
}

/// Attention over areas, then two convolutions, each added to what it was made from.
pub(super) fn ablock(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let mut value = input.clone();
    for part in ["attn", "mlp"] {
        let after = run(graph, &module.child(part)?, &value)?;
        value = add(graph, module, &value, &after)?;
    }
    Ok(value)
}

pub(super) fn rep_c3(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let long = run(graph, &module.child("cv1")?, input)?;
    let long = run(graph, &module.child("m")?, &long)?;
    let short = run(graph, &module.child("cv2")?, input)?;
    let sum = add(graph, module, &long, &short)?;
    run(graph, &module.child("cv3")?, &sum)
}

pub(super) fn hg_stem(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let value = run(graph, &module.child("stem1")?, input)?;
    let value = pad_end(graph, module, &value)?;
    let long = run(graph, &module.child("stem2a")?, &value)?;
    let long = pad_end(graph, module, &long)?;
    let long = run(graph, &module.child("stem2b")?, &long)?;
    let short = run(graph, &module.child("pool")?, &value)?;
    let joined = concat(graph, &module.place, &[short, long], |why| module.odd(why))?;
    let value = run(graph, &module.child("stem3")?, &joined)?;
    run(graph, &module.child("stem4")?, &value)
}

/// One more row and column of zeros, below and to the right.
fn pad_end(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let pads = graph.ints(&module.place, &[0, 0, 0, 0, 0, 0, 1, 1])?;
    let name = graph.node(&module.place, "Pad", &[&input.name, &pads], &[])?;
    let size = input.size.map(|(rows, columns)| (rows + 1, columns + 1));
    Ok(ImageValue { name, channels: input.channels, size })
}

pub(super) fn hg_block(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let mut parts = vec![input.clone()];
    for child in module.child("m")?.children()? {
        let value = run(graph, &child, &parts[parts.len() - 1])?;
        parts.push(value);
    }
    let joined = concat(graph, &module.place, &parts, |why| module.odd(why))?;
    let value = run(graph, &module.child("sc")?, &joined)?;
    let value = run(graph, &module.child("ec")?, &value)?;
    if module.flag("add") { add(graph, module, &value, input) } else { Ok(value) }
}

pub(super) fn light_conv(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let value = run(graph, &module.child("conv1")?, input)?;
    run(graph, &module.child("conv2")?, &value)
}

pub(super) fn resnet_block(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let mut value = input.clone();
    for name in ["cv1", "cv2", "cv3"] {
        value = run(graph, &module.child(name)?, &value)?;
    }
    let short = run(graph, &module.child("shortcut")?, input)?;
    let sum = add(graph, module, &value, &short)?;
    let name = graph.node(&module.place, "Relu", &[&sum.name], &[])?;
    Ok(sum.with(name, sum.channels))
}

/// Several values from one convolution: YOLOv9's second backbone is fed from the first by them.
pub(super) fn cb_linear(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<Vec<ImageValue>> {
    let value = run(graph, &module.child("conv")?, input)?;
    let widths = module.field("c2s").and_then(|list| list.items());
    let widths: Option<Vec<usize>> = widths.and_then(|list| {
        list.take(64).map(|width| width.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
    });
    let widths = widths.unwrap_or_default();
    let sum = widths.iter().fold(0usize, |all, &width| all.saturating_add(width));
    if sum != value.channels || widths.contains(&0) {
        return Err(module.odd(format!("parts {widths:?} of {} channels", value.channels)));
    }
    if widths.len() == 1 {
        return Ok(vec![value]);
    }
    let sizes: Vec<i64> = widths.iter().map(|&width| width as i64).collect();
    let names = graph.split(&module.place, &value.name, 1, &sizes)?;
    Ok(names.into_iter().zip(widths).map(|(name, width)| value.with(name, width)).collect())
}

/// The sum of one part of each, brought to the size of the last.
pub(super) fn cb_fuse(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    inputs: &[Vec<ImageValue>],
) -> PtResult<ImageValue> {
    let chosen = module.field("idx").and_then(|list| list.items());
    let chosen: Option<Vec<usize>> = chosen.and_then(|list| {
        list.take(64).map(|part| part.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
    });
    let (Some(chosen), Some((last, first))) = (chosen, inputs.split_last()) else {
        return Err(module.odd("nothing to sum"));
    };
    let [target] = &last[..] else { return Err(module.odd("a last input of several parts")) };
    let mut sum: Option<ImageValue> = None;
    for (at, parts) in first.iter().enumerate() {
        let part = chosen.get(at).and_then(|&part| parts.get(part));
        let part = part.ok_or_else(|| module.odd("a part that is not there"))?;
        let part = resized(graph, module, part, target)?;
        sum = Some(match sum {
            Some(sum) => add(graph, module, &sum, &part)?,
            None => part,
        });
    }
    match sum {
        Some(sum) => add(graph, module, &sum, target),
        None => Err(module.odd("nothing to sum")),
    }
}

/// Brought to the size of another by repeating or leaving out pixels.
fn resized(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
    target: &ImageValue,
) -> PtResult<ImageValue> {
    let place = &module.place;
    let sizes = match target.size {
        Some((rows, columns)) => {
            graph.ints(place, &[1, input.channels as i64, rows as i64, columns as i64])?
        }
        None => {
            let (zero, two, four) =
                (graph.ints(place, &[0])?, graph.ints(place, &[2])?, graph.ints(place, &[4])?);
            let own = graph.node(place, "Shape", &[&input.name], &[])?;
            let own = graph.node(place, "Slice", &[&own, &zero, &two], &[])?;
            let wanted = graph.node(place, "Shape", &[&target.name], &[])?;
            let wanted = graph.node(place, "Slice", &[&wanted, &two, &four], &[])?;
            let axis = [("axis", NodeAttribute::Int(0))];
            graph.node(place, "Concat", &[&own, &wanted], &axis)?
        }
    };
    let name = graph.node(place, "Resize", &[&input.name, "", "", &sizes], &NEAREST)?;
    Ok(ImageValue { name, channels: input.channels, size: target.size })
}
