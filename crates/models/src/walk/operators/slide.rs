//! Operators that slide over images: convolutions, pools, resizing.

use super::{Dim, OperatorCall, OperatorShapes, ShapeRefusal, computed};

/// Channels in a block of ONNX Runtime's own layout, on machines with 512-bit vectors.
pub(in crate::walk) const BLOCK: u64 = 16;

/// Settings of a window over the axes behind the channels.
struct SlidingWindow {
    kernel: Vec<u64>,
    strides: Vec<u64>,
    dilations: Vec<u64>,
    pads: Vec<i64>,
    auto: u8,
    ceil: bool,
}

const NOT: u8 = 0;
const SAME: u8 = 1;
const VALID: u8 = 2;

impl SlidingWindow {
    fn new(call: &OperatorCall<'_>, kernel: Vec<u64>) -> Result<SlidingWindow, ShapeRefusal> {
        let axes = kernel.len();
        let list = |name: &str, usual: u64| -> Result<Vec<u64>, ShapeRefusal> {
            let Some(list) = call.node.ints(name) else { return Ok(vec![usual; axes]) };
            let list: Option<Vec<u64>> =
                list.iter().map(|&n| u64::try_from(n).ok().filter(|&n| n > 0)).collect();
            list.filter(|list| list.len() == axes)
                .ok_or_else(|| ShapeRefusal::Impossible(format!("{name} for {axes} axes")))
        };
        let pads = call.node.ints("pads").map_or_else(|| vec![0; 2 * axes], <[i64]>::to_vec);
        if pads.len() != 2 * axes {
            return Err(ShapeRefusal::Impossible(format!("pads for {axes} axes")));
        }
        let auto = match call.node.text("auto_pad") {
            Some("SAME_UPPER" | "SAME_LOWER") => SAME,
            Some("VALID") => VALID,
            _ => NOT,
        };
        let ceil = call.node.int("ceil_mode").unwrap_or(0) != 0;
        let (strides, dilations) = (list("strides", 1)?, list("dilations", 1)?);
        Ok(SlidingWindow { kernel, strides, dilations, pads, auto, ceil })
    }

    /// How often the window fits on an axis.
    fn count(&self, axis: usize, dim: Dim) -> Result<Dim, ShapeRefusal> {
        let stride = self.strides[axis];
        let n = dim.n as i64;
        let reach = (self.kernel[axis].saturating_sub(1)).saturating_mul(self.dilations[axis]) + 1;
        let out = match self.auto {
            SAME => n.div_euclid(stride as i64) + i64::from(n % stride as i64 != 0),
            auto => {
                let pads = if auto == VALID {
                    0
                } else {
                    self.pads[axis].saturating_add(self.pads[axis + self.kernel.len()])
                };
                let room = n.saturating_add(pads) - i64::try_from(reach).unwrap_or(i64::MAX);
                if room < 0 {
                    return Err(ShapeRefusal::Impossible(format!("a window of {reach} over {n}")));
                }
                let steps = room / stride as i64;
                let more = self.ceil && room % stride as i64 != 0
                    // A window that begins in the padding behind the end is left out.
                    && (steps + 1) * (stride as i64) < n + self.pads[axis];
                steps + 1 + i64::from(more)
            }
        };
        Ok(dim.from(out.max(0) as u64))
    }

    fn over(&self, shape: &[Dim]) -> Result<Vec<Dim>, ShapeRefusal> {
        if shape.len() != self.kernel.len() + 2 {
            return Err(ShapeRefusal::Impossible(format!(
                "{} axes for a kernel of {}",
                shape.len(),
                self.kernel.len()
            )));
        }
        shape[2..].iter().enumerate().map(|(axis, &dim)| self.count(axis, dim)).collect()
    }
}

/// The kernel's extents: a setting, or those of the weight.
fn kernel(call: &OperatorCall<'_>, weight: Option<&[Dim]>) -> Result<Vec<u64>, ShapeRefusal> {
    if let Some(list) = call.node.ints("kernel_shape") {
        return Ok(list.iter().map(|&n| n.max(0) as u64).collect());
    }
    let weight = weight.filter(|shape| shape.len() > 2);
    let weight = weight.ok_or_else(|| ShapeRefusal::Impossible("no kernel".to_string()))?;
    Ok(weight[2..].iter().map(|dim| dim.n).collect())
}

pub(super) fn conv(call: &OperatorCall<'_>) -> OperatorShapes {
    let quantized = call.node.op == "QLinearConv";
    let (shape, weight) = (call.shape(0)?, call.shape(if quantized { 3 } else { 1 })?);
    let window = SlidingWindow::new(call, kernel(call, Some(weight))?)?;
    let mut out = vec![shape[0], *weight.first().unwrap_or(&Dim::fixed(0))];
    out.extend(window.over(shape)?);
    let element = match call.node.op.as_str() {
        "QLinearConv" => call.element(7),
        "ConvInteger" => 6,
        _ => call.element(0),
    };
    call.typed(out, element)
}

pub(super) fn conv_transpose(call: &OperatorCall<'_>) -> OperatorShapes {
    let (shape, weight) = (call.shape(0)?, call.shape(1)?);
    let window = SlidingWindow::new(call, kernel(call, Some(weight))?)?;
    let axes = window.kernel.len();
    if shape.len() != axes + 2 || weight.len() < 2 {
        return Err(ShapeRefusal::Impossible("a ConvTranspose of another rank".to_string()));
    }
    let group = call.node.int("group").unwrap_or(1).max(1) as u64;
    let mut out = vec![shape[0], Dim::fixed(weight[1].n.saturating_mul(group))];
    let extra = call.node.ints("output_padding").unwrap_or_default();
    for axis in 0..axes {
        let dim = shape[axis + 2];
        if let Some(n) = call.node.ints("output_shape").and_then(|list| list.get(axis)) {
            out.push(Dim::fixed((*n).max(0) as u64));
            continue;
        }
        let stride = window.strides[axis] as i64;
        let reach = (window.kernel[axis] as i64 - 1) * window.dilations[axis] as i64 + 1;
        let more = extra.get(axis).copied().unwrap_or(0);
        let n = match window.auto {
            SAME => dim.n as i64 * stride,
            _ => {
                let pads = window.pads[axis] + window.pads[axis + axes];
                stride.saturating_mul(dim.n as i64 - 1) + more + reach - pads
            }
        };
        out.push(dim.from(n.max(0) as u64));
    }
    call.one(out)
}

pub(super) fn pool(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = call.shape(0)?;
    let window = SlidingWindow::new(call, kernel(call, None)?)?;
    let mut out = shape.get(..2).unwrap_or_default().to_vec();
    out.extend(window.over(shape)?);
    let indices = super::OperatorOutput { shape: out.clone(), element: super::I64 };
    Ok(vec![super::OperatorOutput { shape: out, element: call.element(0) }, indices])
}

pub(super) fn global(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = call.shape(0)?;
    let one = |(n, dim): (usize, &Dim)| if n < 2 { *dim } else { Dim::fixed(1) };
    call.one(shape.iter().enumerate().map(one).collect())
}

pub(super) fn resize(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = call.shape(0)?;
    let full = |list: &[f64]| -> Vec<Option<f64>> {
        match call.node.ints("axes") {
            None => list.iter().map(|&n| Some(n)).collect(),
            Some(axes) => (0..shape.len() as i64)
                .map(|axis| {
                    let place =
                        axes.iter().position(|&n| n == axis || n + shape.len() as i64 == axis);
                    place.and_then(|place| list.get(place)).copied()
                })
                .collect(),
        }
    };
    let upsample = call.node.op == "Upsample" || call.opset < 11;
    let scales = if upsample { 1 } else { 2 };
    let given =
        |n: usize| call.has(n).then(|| call.list(n)).flatten().filter(|list| !list.is_empty());
    let out: Option<Vec<Dim>> = if let (false, Some(sizes)) = (upsample, given(3)) {
        let sizes = full(sizes);
        let pairs = shape.iter().zip(sizes.into_iter().chain(std::iter::repeat(None)));
        Some(pairs.map(|(dim, size)| size.map_or(*dim, |n| dim.from(n.max(0.0) as u64))).collect())
    } else if let Some(scales) = given(scales) {
        let scales = full(scales);
        let pairs = shape.iter().zip(scales.into_iter().chain(std::iter::repeat(None)));
        let scaled = |(dim, scale): (&Dim, Option<f64>)| match scale {
            Some(scale) if scale != 1.0 => dim.from((dim.n as f64 * scale).floor().max(0.0) as u64),
            _ => *dim,
        };
        Some(pairs.map(scaled).collect())
    } else {
        None
    };
    call.one(out.ok_or_else(|| call.data("size"))?)
}

pub(super) fn stft(call: &OperatorCall<'_>) -> OperatorShapes {
    let signal = call.shape(0)?;
    let one = |n: usize| call.list(n).and_then(|list| list.first().copied());
    let step = one(1).ok_or_else(|| call.data("step"))? as u64;
    let frame = match (one(3), call.shapes.get(2).copied().flatten()) {
        (Some(n), _) => n as u64,
        (None, Some([window])) => window.n,
        _ => return Err(call.data("frame")),
    };
    let length = signal.get(1).map_or(0, |dim| dim.n);
    let frames = length.saturating_sub(frame).checked_div(step).unwrap_or(0) + 1;
    let bins = if call.node.int("onesided").unwrap_or(1) != 0 { frame / 2 + 1 } else { frame };
    let batch = *signal.first().unwrap_or(&Dim::fixed(1));
    call.one(vec![batch, computed(frames, signal), Dim::fixed(bins), Dim::fixed(2)])
}

pub(super) fn grid_sample(call: &OperatorCall<'_>) -> OperatorShapes {
    let (image, grid) = (call.shape(0)?, call.shape(1)?);
    let mut out = image.get(..2).unwrap_or_default().to_vec();
    out.extend(grid.get(1..grid.len().saturating_sub(1)).unwrap_or_default());
    call.one(out)
}

pub(super) fn roi_align(call: &OperatorCall<'_>) -> OperatorShapes {
    let (image, rois) = (call.shape(0)?, call.shape(1)?);
    let side = |name| Dim::fixed(call.node.int(name).unwrap_or(1).max(0) as u64);
    let (Some(count), Some(channels)) = (rois.first(), image.get(1)) else {
        return Err(ShapeRefusal::Impossible("a RoiAlign of another rank".to_string()));
    };
    call.one(vec![*count, *channels, side("output_height"), side("output_width")])
}

/// ONNX Runtime's own: channels in whole blocks.
pub(super) fn reorder_input(call: &OperatorCall<'_>) -> OperatorShapes {
    let mut shape = call.shape(0)?.to_vec();
    if let Some(channels) = shape.get_mut(1) {
        *channels = channels.from(channels.n.next_multiple_of(BLOCK));
    }
    call.one(shape)
}

/// ONNX Runtime's own: back to the channels that there are.
pub(super) fn reorder_output(call: &OperatorCall<'_>) -> OperatorShapes {
    let mut shape = call.shape(0)?.to_vec();
    if let (Some(channels), Some(n)) = (shape.get_mut(1), call.node.int("channels")) {
        *channels = Dim::fixed(n.max(0) as u64);
    }
    if call.node.int("channels_last").unwrap_or(0) != 0 && shape.len() > 2 {
        let channels = shape.remove(1);
        shape.push(channels);
    }
    call.one(shape)
}

/// ONNX Runtime's own: whole numbers of times larger.
pub(super) fn nchwc_upsample(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = call.shape(0)?;
    let scales = call.node.ints("scales").unwrap_or_default();
    let scaled =
        |(dim, scale): (&Dim, &i64)| dim.from(dim.n.saturating_mul((*scale).max(0) as u64));
    if scales.len() != shape.len() {
        return Err(ShapeRefusal::Impossible("scales for another rank".to_string()));
    }
    call.one(shape.iter().zip(scales).map(scaled).collect())
}
