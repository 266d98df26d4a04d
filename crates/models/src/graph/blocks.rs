//! The modules of networks, each as the nodes that it stands for.
//!
//! Here are those of YOLOv5, v8 and 11; `stages` has those of YOLOv9, v10, 12 and RT-DETR,
//! `attention` those that attend, `reparameterized` those that become one convolution. One
//! function for each, named as Ultralytics names the module. [`run`] chooses among them by
//! class; to add one, write its function and give it an arm there. A module that is not here is
//! an error that names it and its place. The order of operations is that of Ultralytics' own
//! export, so that the same runtime gives the same bits.

use super::super::pt::{PtError, PtModule, PtResult};
use super::build::{GraphBuilder, ImageValue, NodeAttribute};
use super::torch_layers::{activation, conv_transpose, conv2d, max_pool, upsample};
use super::{attention, reparameterized, stages};

/// The most channels of an image: YOLOv8x has 1,280. Joining one to itself doubles them, so a
/// few lines could ask for any number.
const MOST_CHANNELS: usize = 1 << 20;

/// Runs a module on one input.
pub(super) fn run(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    graph.visit()?;
    if let Some(name) = module.class.of_torch() {
        return match name {
            "Conv2d" => conv2d(graph, module, None, input),
            "Sequential" => sequential(graph, module, input),
            "MaxPool2d" => max_pool(graph, module, input),
            "Upsample" => upsample(graph, module, input),
            "ConvTranspose2d" => conv_transpose(graph, module, input),
            // What it drops, it drops in training.
            "Identity" | "Dropout" => Ok(input.clone()),
            _ => activation(graph, module, input),
        };
    }
    match module.class.of_ultralytics() {
        Some("Conv" | "DWConv") => conv(graph, module, input),
        Some("Bottleneck" | "RepBottleneck") => bottleneck(graph, module, input),
        Some("C2f" | "C3k2" | "C2fCIB" | "C2fPSA") => c2f(graph, module, input),
        Some("C3" | "C3k" | "RepCSP") => c3(graph, module, input),
        Some("SPPF") => sppf(graph, module, input),
        Some("C2PSA") => c2psa(graph, module, input),
        Some("PSABlock") => psa_block(graph, module, input),
        Some("Attention") => attention::attention(graph, module, input),
        Some("AAttn") => attention::area_attention(graph, module, input),
        Some("AIFI") => attention::aifi(graph, module, input),
        Some("RepConv") => reparameterized::rep_conv(graph, module, input),
        Some("RepVGGDW") => reparameterized::rep_vgg(graph, module, input),
        Some("ELAN1" | "RepNCSPELAN4") => stages::elan(graph, module, input),
        Some("AConv") => stages::aconv(graph, module, input),
        Some("ADown") => stages::adown(graph, module, input),
        Some("SPPELAN") => stages::sppelan(graph, module, input),
        Some("SCDown") => stages::scdown(graph, module, input),
        Some("CIB") => stages::cib(graph, module, input),
        Some("PSA") => stages::psa(graph, module, input),
        Some("A2C2f") => stages::a2c2f(graph, module, input),
        Some("ABlock") => stages::ablock(graph, module, input),
        Some("RepC3") => stages::rep_c3(graph, module, input),
        Some("HGStem") => stages::hg_stem(graph, module, input),
        Some("HGBlock") => stages::hg_block(graph, module, input),
        Some("LightConv") => stages::light_conv(graph, module, input),
        Some("ResNetBlock") => stages::resnet_block(graph, module, input),
        Some("ResNetLayer") => run(graph, &module.child("layer")?, input),
        _ => Err(module.unsupported()),
    }
}

fn sequential(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let mut value = input.clone();
    for child in module.children()? {
        value = run(graph, &child, &value)?;
    }
    Ok(value)
}

/// Convolution, batch norm where it is not folded in yet, activation.
fn conv(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let norm = module.find_child("bn")?;
    let value = conv2d(graph, &module.child("conv")?, norm.as_ref(), input)?;
    match module.find_child("act")? {
        Some(act) => activation(graph, &act, &value),
        None => Ok(value),
    }
}

/// Joins images along their channels.
pub(super) fn concat(
    graph: &mut GraphBuilder,
    place: &str,
    values: &[ImageValue],
    odd: impl Fn(String) -> PtError,
) -> PtResult<ImageValue> {
    let first = values.first().ok_or_else(|| odd("nothing to join".into()))?;
    if values.iter().any(|value| value.size != first.size) {
        let sizes: Vec<_> = values.iter().map(|value| value.size).collect();
        return Err(odd(format!("images of different sizes to join: {sizes:?}")));
    }
    let channels = values.iter().fold(0usize, |all, value| all.saturating_add(value.channels));
    if channels > MOST_CHANNELS {
        return Err(odd(format!("more than {MOST_CHANNELS} channels to join")));
    }
    let names: Vec<&str> = values.iter().map(|value| value.name.as_str()).collect();
    let name = graph.node(place, "Concat", &names, &[("axis", NodeAttribute::Int(1))])?;
    Ok(first.with(name, channels))
}

/// Cuts images into two halves of their channels.
pub(super) fn halves(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<[ImageValue; 2]> {
    if input.channels < 2 || !input.channels.is_multiple_of(2) {
        return Err(module.odd(format!("{} channels to halve", input.channels)));
    }
    let half = input.channels / 2;
    let mut names = graph.split(&module.place, &input.name, 1, &[half as i64; 2])?;
    let second = names.pop().unwrap_or_default();
    let first = names.pop().unwrap_or_default();
    Ok([input.with(first, half), input.with(second, half)])
}

/// The sum of two values of one shape.
pub(super) fn add(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    a: &ImageValue,
    b: &ImageValue,
) -> PtResult<ImageValue> {
    if (a.channels, a.size) != (b.channels, b.size) {
        return Err(module.odd("two values of different shapes to add"));
    }
    let name = graph.node(&module.place, "Add", &[&a.name, &b.name], &[])?;
    Ok(a.with(name, a.channels))
}

fn bottleneck(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let value = run(graph, &module.child("cv1")?, input)?;
    let value = run(graph, &module.child("cv2")?, &value)?;
    if module.flag("add") { add(graph, module, input, &value) } else { Ok(value) }
}

fn c2f(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let value = run(graph, &module.child("cv1")?, input)?;
    let mut parts = halves(graph, module, &value)?.to_vec();
    for child in module.child("m")?.children()? {
        let value = run(graph, &child, &parts[parts.len() - 1])?;
        parts.push(value);
    }
    let joined = concat(graph, &module.place, &parts, |why| module.odd(why))?;
    run(graph, &module.child("cv2")?, &joined)
}

fn c3(graph: &mut GraphBuilder, module: &PtModule<'_>, input: &ImageValue) -> PtResult<ImageValue> {
    let long = run(graph, &module.child("cv1")?, input)?;
    let long = run(graph, &module.child("m")?, &long)?;
    let short = run(graph, &module.child("cv2")?, input)?;
    let joined = concat(graph, &module.place, &[long, short], |why| module.odd(why))?;
    run(graph, &module.child("cv3")?, &joined)
}

fn sppf(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let times = if module.field("n").is_some() { module.count("n")? } else { 3 };
    if !(1..=16).contains(&times) {
        return Err(module.odd(format!("{times} poolings")));
    }
    let pool = module.child("m")?;
    let mut parts = vec![run(graph, &module.child("cv1")?, input)?];
    for _ in 0..times {
        let value = run(graph, &pool, &parts[parts.len() - 1])?;
        parts.push(value);
    }
    let joined = concat(graph, &module.place, &parts, |why| module.odd(why))?;
    let value = run(graph, &module.child("cv2")?, &joined)?;
    if module.flag("add") { add(graph, module, &value, input) } else { Ok(value) }
}

fn c2psa(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let value = run(graph, &module.child("cv1")?, input)?;
    let [kept, attended] = halves(graph, module, &value)?;
    let attended = run(graph, &module.child("m")?, &attended)?;
    let joined = concat(graph, &module.place, &[kept, attended], |why| module.odd(why))?;
    run(graph, &module.child("cv2")?, &joined)
}

fn psa_block(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let mut value = input.clone();
    for part in ["attn", "ffn"] {
        let after = run(graph, &module.child(part)?, &value)?;
        value = if module.flag("add") { add(graph, module, &value, &after)? } else { after };
    }
    Ok(value)
}
