//! The layers of PyTorch itself (`torch.nn`): convolutions, pooling, upsampling, activations.

use super::super::pt::{Array, PtModule, PtResult, number};
use super::LONGEST_SIDE;
use super::build::{GraphBuilder, ImageValue, NodeAttribute};

pub(super) fn activation(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
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
            graph.node(place, "LeakyRelu", &[x], &[("alpha", NodeAttribute::Float(slope))])?
        }
        Some("GELU") => gelu(graph, module, x)?,
        _ => return Err(module.unsupported()),
    };
    Ok(input.with(name, input.channels))
}

/// x · (1 + erf(x / √2)) / 2, which opset 17 has no operator for.
fn gelu(graph: &mut GraphBuilder, module: &PtModule<'_>, x: &str) -> PtResult<String> {
    let rough = module.field("approximate").and_then(|how| how.as_str());
    if rough.is_some_and(|how| how != "none") {
        return Err(module.odd("an approximated GELU, which is not supported,"));
    }
    let place = &module.place;
    let root = graph.scalar(place, std::f32::consts::SQRT_2)?;
    let (one, half) = (graph.scalar(place, 1.0)?, graph.scalar(place, 0.5)?);
    let inner = graph.node(place, "Div", &[x, &root], &[])?;
    let inner = graph.node(place, "Erf", &[&inner], &[])?;
    let inner = graph.node(place, "Add", &[&inner, &one], &[])?;
    let inner = graph.node(place, "Mul", &[x, &inner], &[])?;
    graph.node(place, "Mul", &[&inner, &half], &[])
}

/// How the kernel of a convolution or a pooling layer moves over an image.
struct KernelWindow {
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

impl KernelWindow {
    fn read(module: &PtModule<'_>) -> PtResult<KernelWindow> {
        let window = KernelWindow {
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

    fn resize(
        &self,
        module: &PtModule<'_>,
        input: &ImageValue,
    ) -> PtResult<Option<(usize, usize)>> {
        let Some((rows, columns)) = input.size else { return Ok(None) };
        match (self.after(0, rows), self.after(1, columns)) {
            (Some(rows), Some(columns)) => Ok(Some((rows, columns))),
            _ => Err(module.odd("an image that is smaller than the window")),
        }
    }

    fn attributes(&self) -> [(&'static str, NodeAttribute); 4] {
        let ints = |pair: [usize; 2]| NodeAttribute::Ints(pair.map(|n| n as i64).to_vec());
        let pads =
            NodeAttribute::Ints(self.padding.repeat(2).into_iter().map(|n| n as i64).collect());
        [
            ("kernel_shape", ints(self.kernel)),
            ("strides", ints(self.stride)),
            ("pads", pads),
            ("dilations", ints(self.dilation)),
        ]
    }
}

/// A convolution with its numbers.
pub(super) struct Convolution {
    window: KernelWindow,
    groups: usize,
    pub(super) weight: Array,
    pub(super) bias: Option<Array>,
}

impl Convolution {
    /// Reads a `Conv2d`, a batch norm behind it folded in.
    pub(super) fn read(module: &PtModule<'_>, norm: Option<&PtModule<'_>>) -> PtResult<Self> {
        let mut read = Convolution::plain(module)?;
        if let Some(norm) = norm {
            let (weight, bias) = fold(norm, read.weight, read.bias)?;
            (read.weight, read.bias) = (weight, Some(bias));
        }
        Ok(read)
    }

    fn plain(module: &PtModule<'_>) -> PtResult<Self> {
        if module.class.of_torch() != Some("Conv2d") {
            return Err(module.unsupported());
        }
        let mode = module.field("padding_mode").and_then(|mode| mode.as_str());
        if mode.is_some_and(|mode| mode != "zeros") {
            return Err(
                module.odd("padding with something else than zeros, which is not supported,")
            );
        }
        let window = KernelWindow::read(module)?;
        let groups = module.count("groups")?;
        let weight = module.array("weight")?.ok_or_else(|| module.odd("no weights"))?;
        let &[out, fan, rows, columns] = &weight.shape[..] else {
            return Err(module.odd(format!("weights of shape {:?}", weight.shape)));
        };
        if [rows, columns] != window.kernel
            || groups == 0
            || fan == 0
            || !out.is_multiple_of(groups)
            || out == 0
        {
            return Err(
                module.odd(format!("weights of shape {:?} in {groups} groups", weight.shape))
            );
        }
        let bias = module.array("bias")?;
        if bias.as_ref().is_some_and(|bias| bias.shape != [out]) {
            return Err(module.odd("a bias of another size"));
        }
        Ok(Convolution { window, groups, weight, bias })
    }

    /// Adds its node.
    pub(super) fn write(
        &self,
        graph: &mut GraphBuilder,
        module: &PtModule<'_>,
        input: &ImageValue,
    ) -> PtResult<ImageValue> {
        let (out, fan) = (self.weight.shape[0], self.weight.shape[1]);
        if fan.checked_mul(self.groups) != Some(input.channels) {
            return Err(module.odd(format!(
                "weights of shape {:?} in {} groups for {} channels",
                self.weight.shape, self.groups, input.channels
            )));
        }
        let mut inputs = vec![input.name.clone()];
        inputs.push(graph.weight(format!("{}.weight", module.place), &self.weight)?);
        if let Some(bias) = &self.bias {
            inputs.push(graph.weight(format!("{}.bias", module.place), bias)?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let [a, b, c, d] = self.window.attributes();
        let attributes = [a, b, c, d, ("group", NodeAttribute::Int(self.groups as i64))];
        let name = graph.node(&module.place, "Conv", &inputs, &attributes)?;
        Ok(ImageValue { name, channels: out, size: self.window.resize(module, input)? })
    }
}

pub(super) fn conv2d(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    norm: Option<&PtModule<'_>>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    Convolution::read(module, norm)?.write(graph, module, input)
}

/// Convolution backwards, as prototypes of masks have it: no overlap, no padding.
pub(super) fn conv_transpose(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let window = KernelWindow::read(module)?;
    let weight = module.array("weight")?.ok_or_else(|| module.odd("no weights"))?;
    let plain = window.kernel == window.stride
        && window.padding == [0, 0]
        && window.dilation == [1, 1]
        && module.pair("output_padding")? == [0, 0]
        && module.count("groups")? == 1;
    let &[fan, out, rows, columns] = &weight.shape[..] else {
        return Err(module.odd(format!("weights of shape {:?}", weight.shape)));
    };
    if !plain || [rows, columns] != window.kernel || fan != input.channels || out == 0 {
        return Err(module.odd("a transposed convolution with overlap, which is not supported,"));
    }
    let mut inputs = vec![input.name.clone()];
    inputs.push(graph.weight(format!("{}.weight", module.place), &weight)?);
    if let Some(bias) = module.array("bias")? {
        if bias.shape != [out] {
            return Err(module.odd("a bias of another size"));
        }
        inputs.push(graph.weight(format!("{}.bias", module.place), &bias)?);
    }
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let [a, b, c, d] = window.attributes();
    let attributes = [a, b, c, d, ("group", NodeAttribute::Int(1))];
    let name = graph.node(&module.place, "ConvTranspose", &inputs, &attributes)?;
    let size = input.size.map(|(h, w)| (h * rows, w * columns));
    check_side(module, size)?;
    Ok(ImageValue { name, channels: out, size })
}

/// No side may grow past what an image may have.
fn check_side(module: &PtModule<'_>, size: Option<(usize, usize)>) -> PtResult<()> {
    match size.is_some_and(|(h, w)| h.max(w) > LONGEST_SIDE) {
        true => Err(module.odd(format!("an image with a side over {LONGEST_SIDE}"))),
        false => Ok(()),
    }
}

/// Folds a batch norm into the convolution before it, in the order in which torch does:
/// w·(γ·r) and (b − mean)·r·γ + β, with r = 1/√(var + ε), every step rounded to f32.
fn fold(norm: &PtModule<'_>, mut weight: Array, bias: Option<Array>) -> PtResult<(Array, Array)> {
    if norm.class.of_torch() != Some("BatchNorm2d") {
        return Err(norm.unsupported());
    }
    let out = weight.shape[0];
    if weight.data.is_empty() {
        return Ok((weight, Array { shape: vec![out], data: Vec::new() }));
    }
    let read = |name: &str, default: Option<f32>| -> PtResult<Vec<f32>> {
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

pub(super) fn max_pool(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let window = KernelWindow::read(module)?;
    // With a step of one nothing is left over that could be rounded up.
    if module.flag("ceil_mode") && window.stride != [1, 1] {
        return Err(module.odd("ceil_mode, which is not supported,"));
    }
    let name = graph.node(&module.place, "MaxPool", &[&input.name], &window.attributes())?;
    Ok(ImageValue { name, channels: input.channels, size: window.resize(module, input)? })
}

pub(super) fn upsample(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
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
    enlarge(graph, module, input, [rows as usize, columns as usize])
}

/// Repeats every pixel.
pub(super) fn enlarge(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
    [rows, columns]: [usize; 2],
) -> PtResult<ImageValue> {
    let place = &module.place;
    let scales = graph.floats(place, &[4], &[1.0, 1.0, rows as f32, columns as f32])?;
    let name = graph.node(place, "Resize", &[&input.name, "", &scales], &NEAREST)?;
    let size = input.size.map(|(h, w)| (h * rows, w * columns));
    check_side(module, size)?;
    Ok(ImageValue { name, channels: input.channels, size })
}

/// How torch takes the nearest pixel.
pub(super) const NEAREST: [(&str, NodeAttribute); 3] = [
    ("mode", NodeAttribute::Text("nearest")),
    ("coordinate_transformation_mode", NodeAttribute::Text("asymmetric")),
    ("nearest_mode", NodeAttribute::Text("floor")),
];

/// A pooling that a block has without a module: `kind` is the operator.
pub(super) fn pool(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
    kind: &str,
    [kernel, stride, padding]: [usize; 3],
) -> PtResult<ImageValue> {
    let window = KernelWindow {
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [padding; 2],
        dilation: [1, 1],
    };
    let [a, b, c, d] = window.attributes();
    let attributes = if kind == "MaxPool" { vec![a, b, c, d] } else { vec![a, b, c] };
    let name = graph.node(&module.place, kind, &[&input.name], &attributes)?;
    Ok(ImageValue { name, channels: input.channels, size: window.resize(module, input)? })
}
