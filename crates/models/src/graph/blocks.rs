//! The modules of YOLOv8 and YOLO11, each as the nodes that it stands for.
//!
//! One function for each, named as Ultralytics names the module, and one door, [`run`],
//! that tells them apart. What is not here is an error that names the module and its
//! place. The order of operations is that of Ultralytics' own export, so that the same
//! runtime gives the same bits.

use super::super::pt::{Array, Module, PtError, Result, number};
use super::LONGEST_SIDE;
use super::build::{Attribute, Builder, Value};

/// The most channels of an image: YOLOv8x has 1,280. Joining one to itself doubles them, so a
/// few lines could ask for any number.
const MOST_CHANNELS: usize = 1 << 20;

/// Runs a module on one input.
pub(super) fn run(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
    graph.visit()?;
    if let Some(name) = module.class.of_torch() {
        return match name {
            "Conv2d" => conv2d(graph, module, None, input),
            "Sequential" => sequential(graph, module, input),
            "MaxPool2d" => max_pool(graph, module, input),
            "Upsample" => upsample(graph, module, input),
            "Identity" => Ok(input.clone()),
            _ => activation(graph, module, input),
        };
    }
    match module.class.of_ultralytics() {
        Some("Conv" | "DWConv") => conv(graph, module, input),
        Some("Bottleneck") => bottleneck(graph, module, input),
        Some("C2f" | "C3k2") => c2f(graph, module, input),
        Some("C3" | "C3k") => c3(graph, module, input),
        Some("SPPF") => sppf(graph, module, input),
        Some("C2PSA") => c2psa(graph, module, input),
        Some("PSABlock") => psa_block(graph, module, input),
        Some("Attention") => attention(graph, module, input),
        _ => Err(module.unsupported()),
    }
}

fn sequential(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
    let mut value = input.clone();
    for child in module.children()? {
        value = run(graph, &child, &value)?;
    }
    Ok(value)
}

/// Convolution, batch norm where it is not folded in yet, activation.
fn conv(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
    let norm = module.find_child("bn")?;
    let value = conv2d(graph, &module.child("conv")?, norm.as_ref(), input)?;
    match module.find_child("act")? {
        Some(act) => activation(graph, &act, &value),
        None => Ok(value),
    }
}

fn activation(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
    let x = input.name.as_str();
    let place = &module.place;
    let name = match module.class.of_torch() {
        Some("Identity") => return Ok(input.clone()),
        Some("SiLU") => {
            let gate = graph.node(place, "Sigmoid", &[x], &[])?;
            graph.node(place, "Mul", &[x, &gate], &[])?
        }
        Some("ReLU") => graph.node(place, "Relu", &[x], &[])?,
        Some("LeakyReLU") => {
            let slope = module.number("negative_slope").unwrap_or(0.01) as f32;
            graph.node(place, "LeakyRelu", &[x], &[("alpha", Attribute::Float(slope))])?
        }
        _ => return Err(module.unsupported()),
    };
    Ok(input.with(name, input.channels))
}

/// How a window moves over an image.
struct Window {
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

impl Window {
    fn read(module: &Module<'_>) -> Result<Window> {
        let window = Window {
            kernel: module.pair("kernel_size")?,
            stride: module.pair("stride")?,
            padding: module.pair("padding")?,
            dilation: module.pair("dilation")?,
        };
        let all = [window.kernel, window.stride, window.dilation];
        let sane = all.iter().flatten().all(|&n| (1..=4096).contains(&n));
        if !sane || window.padding.iter().any(|&n| n > 4096) {
            return Err(module.odd("a window that cannot be"));
        }
        Ok(window)
    }

    /// One extent after the window went over it.
    fn after(&self, axis: usize, extent: usize) -> Option<usize> {
        let reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
        let room = (extent + 2 * self.padding[axis]).checked_sub(reach)?;
        Some(room / self.stride[axis] + 1)
    }

    fn resize(&self, module: &Module<'_>, input: &Value) -> Result<Option<(usize, usize)>> {
        let Some((rows, columns)) = input.size else { return Ok(None) };
        match (self.after(0, rows), self.after(1, columns)) {
            (Some(rows), Some(columns)) => Ok(Some((rows, columns))),
            _ => Err(module.odd("an image that is smaller than the window")),
        }
    }

    fn attributes(&self) -> [(&'static str, Attribute); 4] {
        let ints = |pair: [usize; 2]| Attribute::Ints(pair.map(|n| n as i64).to_vec());
        let pads = Attribute::Ints(self.padding.repeat(2).into_iter().map(|n| n as i64).collect());
        [
            ("kernel_shape", ints(self.kernel)),
            ("strides", ints(self.stride)),
            ("pads", pads),
            ("dilations", ints(self.dilation)),
        ]
    }
}

fn conv2d(
    graph: &mut Builder,
    module: &Module<'_>,
    norm: Option<&Module<'_>>,
    input: &Value,
) -> Result<Value> {
    if module.class.of_torch() != Some("Conv2d") {
        return Err(module.unsupported());
    }
    let mode = module.field("padding_mode").and_then(|mode| mode.as_str());
    if mode.is_some_and(|mode| mode != "zeros") {
        return Err(module.odd("padding with something else than zeros, which is not supported,"));
    }
    let window = Window::read(module)?;
    let groups = module.count("groups")?;
    let weight = module.array("weight")?.ok_or_else(|| module.odd("no weights"))?;
    let &[out, fan, rows, columns] = &weight.shape[..] else {
        return Err(module.odd(format!("weights of shape {:?}", weight.shape)));
    };
    if [rows, columns] != window.kernel
        || groups == 0
        || fan == 0
        || fan.checked_mul(groups) != Some(input.channels)
        || !out.is_multiple_of(groups)
        || out == 0
    {
        return Err(module.odd(format!(
            "weights of shape {:?} in {groups} groups for {} channels",
            weight.shape, input.channels
        )));
    }
    let bias = module.array("bias")?;
    if bias.as_ref().is_some_and(|bias| bias.shape != [out]) {
        return Err(module.odd("a bias of another size"));
    }
    let (weight, bias) = match norm {
        Some(norm) => {
            let (weight, bias) = fold(norm, weight, bias)?;
            (weight, Some(bias))
        }
        None => (weight, bias),
    };
    let mut inputs = vec![input.name.clone()];
    inputs.push(graph.weight(format!("{}.weight", module.place), &weight)?);
    if let Some(bias) = bias {
        inputs.push(graph.weight(format!("{}.bias", module.place), &bias)?);
    }
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let [a, b, c, d] = window.attributes();
    let attributes = [a, b, c, d, ("group", Attribute::Int(groups as i64))];
    let name = graph.node(&module.place, "Conv", &inputs, &attributes)?;
    Ok(Value { name, channels: out, size: window.resize(module, input)? })
}

/// Folds a batch norm into the convolution before it, in the order in which torch does:
/// w·(γ·r) and (b − mean)·r·γ + β, with r = 1/√(var + ε), every step rounded to f32.
fn fold(norm: &Module<'_>, mut weight: Array, bias: Option<Array>) -> Result<(Array, Array)> {
    if norm.class.of_torch() != Some("BatchNorm2d") {
        return Err(norm.unsupported());
    }
    let out = weight.shape[0];
    if weight.data.is_empty() {
        return Ok((weight, Array { shape: vec![out], data: Vec::new() }));
    }
    let read = |name: &str, default: Option<f32>| -> Result<Vec<f32>> {
        let data = match (norm.array(name)?, default) {
            (Some(array), _) => array.data,
            (None, Some(value)) => vec![value; out],
            (None, None) => return Err(norm.odd(format!("no {name}"))),
        };
        match data.len() == out {
            true => Ok(data),
            false => Err(norm.odd(format!("{} numbers in {name} for {out} channels", data.len()))),
        }
    };
    let (mean, variance) = (read("running_mean", None)?, read("running_var", None)?);
    let (gamma, beta) = (read("weight", Some(1.0))?, read("bias", Some(0.0))?);
    let epsilon = norm.number("eps").ok_or_else(|| norm.odd("no eps"))? as f32;
    let before = bias.map_or_else(|| vec![0.0; out], |bias| bias.data);
    let mut after = Vec::with_capacity(out);
    let each = weight.data.len() / out;
    for (channel, weights) in weight.data.chunks_exact_mut(each).enumerate() {
        let r = 1.0 / (variance[channel] + epsilon).sqrt();
        let scale = gamma[channel] * r;
        weights.iter_mut().for_each(|w| *w *= scale);
        after.push((before[channel] - mean[channel]) * r * gamma[channel] + beta[channel]);
    }
    Ok((weight, Array { shape: vec![out], data: after }))
}

fn max_pool(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
    if module.flag("ceil_mode") {
        return Err(module.odd("ceil_mode, which is not supported,"));
    }
    let window = Window::read(module)?;
    let name = graph.node(&module.place, "MaxPool", &[&input.name], &window.attributes())?;
    Ok(Value { name, channels: input.channels, size: window.resize(module, input)? })
}

fn upsample(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
    let mode = module.field("mode").and_then(|mode| mode.as_str());
    if mode != Some("nearest") {
        return Err(module.odd("an upsampling other than by the nearest pixel"));
    }
    let factor = module.field("scale_factor").and_then(|factor| match factor.items() {
        Some(mut items) => Some([number(items.next()?)?, number(items.next()?)?]),
        None => number(factor).map(|both| [both, both]),
    });
    let factor = factor
        .filter(|factor| factor.iter().all(|&by| by.fract() == 0.0 && (1.0..=64.0).contains(&by)));
    let [rows, columns] = factor.ok_or_else(|| module.odd("no whole scale_factor"))?;
    let place = &module.place;
    let scales = graph.floats(place, &[4], &[1.0, 1.0, rows as f32, columns as f32])?;
    let attributes = [
        ("mode", Attribute::Text("nearest")),
        ("coordinate_transformation_mode", Attribute::Text("asymmetric")),
        ("nearest_mode", Attribute::Text("floor")),
    ];
    let name = graph.node(place, "Resize", &[&input.name, "", &scales], &attributes)?;
    let size = input.size.map(|(h, w)| (h * rows as usize, w * columns as usize));
    if size.is_some_and(|(h, w)| h.max(w) > LONGEST_SIDE) {
        return Err(module.odd(format!("an image with a side over {LONGEST_SIDE}")));
    }
    Ok(Value { name, channels: input.channels, size })
}

/// Joins images along their channels.
pub(super) fn concat(
    graph: &mut Builder,
    place: &str,
    values: &[Value],
    odd: impl Fn(String) -> PtError,
) -> Result<Value> {
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
    let name = graph.node(place, "Concat", &names, &[("axis", Attribute::Int(1))])?;
    Ok(first.with(name, channels))
}

/// Cuts images into two halves of their channels.
fn halves(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<[Value; 2]> {
    if input.channels < 2 || !input.channels.is_multiple_of(2) {
        return Err(module.odd(format!("{} channels to halve", input.channels)));
    }
    let half = input.channels / 2;
    let sizes = graph.ints(&module.place, &[half as i64; 2])?;
    let axis = [("axis", Attribute::Int(1))];
    let mut names = graph.node_with(&module.place, "Split", &[&input.name, &sizes], &axis, 2)?;
    let second = names.pop().unwrap_or_default();
    let first = names.pop().unwrap_or_default();
    Ok([input.with(first, half), input.with(second, half)])
}

/// The sum of two values of one shape.
fn add(graph: &mut Builder, module: &Module<'_>, a: &Value, b: &Value) -> Result<Value> {
    if (a.channels, a.size) != (b.channels, b.size) {
        return Err(module.odd("two values of different shapes to add"));
    }
    let name = graph.node(&module.place, "Add", &[&a.name, &b.name], &[])?;
    Ok(a.with(name, a.channels))
}

fn bottleneck(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
    let value = run(graph, &module.child("cv1")?, input)?;
    let value = run(graph, &module.child("cv2")?, &value)?;
    if module.flag("add") { add(graph, module, input, &value) } else { Ok(value) }
}

fn c2f(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
    let value = run(graph, &module.child("cv1")?, input)?;
    let mut parts = halves(graph, module, &value)?.to_vec();
    for child in module.child("m")?.children()? {
        let value = run(graph, &child, &parts[parts.len() - 1])?;
        parts.push(value);
    }
    let joined = concat(graph, &module.place, &parts, |why| module.odd(why))?;
    run(graph, &module.child("cv2")?, &joined)
}

fn c3(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
    let long = run(graph, &module.child("cv1")?, input)?;
    let long = run(graph, &module.child("m")?, &long)?;
    let short = run(graph, &module.child("cv2")?, input)?;
    let joined = concat(graph, &module.place, &[long, short], |why| module.odd(why))?;
    run(graph, &module.child("cv3")?, &joined)
}

fn sppf(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
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

fn c2psa(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
    let value = run(graph, &module.child("cv1")?, input)?;
    let [kept, attended] = halves(graph, module, &value)?;
    let attended = run(graph, &module.child("m")?, &attended)?;
    let joined = concat(graph, &module.place, &[kept, attended], |why| module.odd(why))?;
    run(graph, &module.child("cv2")?, &joined)
}

fn psa_block(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
    let mut value = input.clone();
    for part in ["attn", "ffn"] {
        let after = run(graph, &module.child(part)?, &value)?;
        value = if module.flag("add") { add(graph, module, &value, &after)? } else { after };
    }
    Ok(value)
}

/// Every pixel looks at every other: softmax(qᵀ·scale·k), applied to v, plus the places.
fn attention(graph: &mut Builder, module: &Module<'_>, input: &Value) -> Result<Value> {
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
    let swap = [("perm", Attribute::Ints(vec![0, 1, 3, 2]))];
    let shape = graph.ints(place, &[0, heads as i64, (qkv.channels / heads) as i64, -1])?;
    let flat = graph.node(place, "Reshape", &[&qkv.name, &shape], &[])?;
    let sizes = graph.ints(place, &[key as i64, key as i64, head as i64])?;
    let axis = [("axis", Attribute::Int(2))];
    let parts = graph.node_with(place, "Split", &[&flat, &sizes], &axis, 3)?;
    let factor = graph.scalar(place, scale)?;
    let q = graph.node(place, "Mul", &[&parts[0], &factor], &[])?;
    let q = graph.node(place, "Transpose", &[&q], &swap)?;
    let scores = graph.node(place, "MatMul", &[&q, &parts[1]], &[])?;
    let scores = graph.node(place, "Softmax", &[&scores], &[("axis", Attribute::Int(-1))])?;
    let scores = graph.node(place, "Transpose", &[&scores], &swap)?;
    let seen = graph.node(place, "MatMul", &[&parts[2], &scores], &[])?;
    let shape = match input.size {
        Some((rows, columns)) => {
            graph.ints(place, &[0, input.channels as i64, rows as i64, columns as i64])?
        }
        None => graph.node(place, "Shape", &[&input.name], &[])?,
    };
    let seen = graph.node(place, "Reshape", &[&seen, &shape], &[])?;
    let v = graph.node(place, "Reshape", &[&parts[2], &shape], &[])?;
    let places = run(graph, &module.child("pe")?, &input.with(v, input.channels))?;
    let sum = add(graph, module, &input.with(seen, input.channels), &places)?;
    run(graph, &module.child("proj")?, &sum)
}
