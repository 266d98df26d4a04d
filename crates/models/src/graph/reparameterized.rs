//! Modules that were trained as several convolutions side by side and run as one.
//!
//! Convolutions of one input are sums of products, so that two of them are one whose weights are
//! the sum. The order of the roundings is that of Ultralytics' `fuse`.

use super::super::pt::{Array, PtModule, PtResult};
use super::blocks::run;
use super::build::{GraphBuilder, ImageValue};
use super::torch_layers::{Convolution, activation};

/// A 3x3 and a 1x1 convolution and, in some, a batch norm of the input itself.
pub(super) fn rep_conv(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let value = match module.find_child("conv")? {
        Some(fused) => run(graph, &fused, input)?,
        None => {
            if module.find_child("bn")?.is_some() {
                return Err(module.odd("a branch of the input itself, which is not supported,"));
            }
            let first = module.child("conv1")?;
            let mut wide = divided(&first)?;
            let narrow = divided(&module.child("conv2")?)?;
            add_centred(module, &mut wide, &narrow)?;
            wide.write(graph, &first.child("conv")?, input)?
        }
    };
    activation(graph, &module.child("act")?, &value)
}

/// A 7x7 and a 3x3 convolution of each channel by itself.
pub(super) fn rep_vgg(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &ImageValue,
) -> PtResult<ImageValue> {
    let first = module.child("conv")?;
    let value = match module.find_child("conv1")? {
        None => run(graph, &first, input)?,
        Some(second) => {
            let mut wide = folded(&first)?;
            let narrow = folded(&second)?;
            add_centred(module, &mut wide, &narrow)?;
            wide.write(graph, &first.child("conv")?, input)?
        }
    };
    activation(graph, &module.child("act")?, &value)
}

/// A `Conv` as one convolution, its batch norm folded as torch folds.
fn folded(module: &PtModule<'_>) -> PtResult<Convolution> {
    let norm = module.find_child("bn")?;
    Convolution::read(&module.child("conv")?, norm.as_ref())
}

/// The same folded as `RepConv` does: w·(γ/σ) and β − mean·γ/σ, with σ = √(var + ε).
fn divided(module: &PtModule<'_>) -> PtResult<Convolution> {
    let mut conv = Convolution::read(&module.child("conv")?, None)?;
    let norm = module.child("bn")?;
    let out = conv.weight.shape[0];
    let read = |name: &str| -> PtResult<Vec<f32>> {
        let array = norm.array(name)?.ok_or_else(|| norm.odd(format!("no {name}")))?;
        match array.shape == [out] {
            true => Ok(array.data),
            false => Err(norm.odd(format!("{name} of shape {:?}", array.shape))),
        }
    };
    let (mean, variance) = (read("running_mean")?, read("running_var")?);
    let (gamma, beta) = (read("weight")?, read("bias")?);
    let epsilon = norm.number("eps").ok_or_else(|| norm.odd("no eps"))? as f32;
    // Without numbers, where only shapes are asked for, the sums are empty.
    let columns = mean.iter().zip(&variance).zip(gamma.iter().zip(&beta));
    let bias = columns
        .map(|((mean, variance), (gamma, beta))| beta - mean * gamma / (variance + epsilon).sqrt());
    conv.bias = Some(Array { shape: vec![out], data: bias.collect() });
    let each = (conv.weight.data.len() / out).max(1);
    let scales = gamma.iter().zip(&variance).map(|(g, v)| g / (v + epsilon).sqrt());
    for (weights, scale) in conv.weight.data.chunks_exact_mut(each).zip(scales) {
        weights.iter_mut().for_each(|weight| *weight *= scale);
    }
    Ok(conv)
}

/// Adds a smaller kernel to the middle of a larger one.
fn add_centred(
    module: &PtModule<'_>,
    wide: &mut Convolution,
    narrow: &Convolution,
) -> PtResult<()> {
    let odd = || module.odd("two convolutions that do not fit together");
    let (&[out, fan, rows, columns], &[small_out, small_fan, small_rows, small_columns]) =
        (&wide.weight.shape[..], &narrow.weight.shape[..])
    else {
        return Err(odd());
    };
    let lead = |large: usize, small: usize| large.checked_sub(small).filter(|lead| lead % 2 == 0);
    let (Some(down), Some(across)) = (lead(rows, small_rows), lead(columns, small_columns)) else {
        return Err(odd());
    };
    if (out, fan) != (small_out, small_fan) {
        return Err(odd());
    }
    let (down, across) = (down / 2, across / 2);
    let kernels = wide.weight.data.chunks_exact_mut(rows * columns);
    for (kernel, small) in kernels.zip(narrow.weight.data.chunks_exact(small_rows * small_columns))
    {
        for (at, weight) in small.iter().enumerate() {
            let (row, column) = (at / small_columns + down, at % small_columns + across);
            kernel[row * columns + column] += weight;
        }
    }
    let (Some(bias), Some(other)) = (&mut wide.bias, &narrow.bias) else { return Err(odd()) };
    bias.data.iter_mut().zip(&other.data).for_each(|(bias, other)| *bias += other);
    Ok(())
}
