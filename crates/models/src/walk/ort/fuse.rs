//! The fusions that change what lives: operators that vanish into their neighbours.

use std::collections::HashMap;

use super::super::shapes::{Known, Shaped};
use super::lower::{Lowered, Step};

/// Rewrites the steps as the runtime's first two levels do.
pub(super) fn fuse(lowered: &mut Lowered, shaped: &Shaped) {
    drop_identities(lowered, shaped);
    lowered.settle();
    into_products(lowered, shaped);
    into_convolutions(lowered, shaped);
    quick_gelu(lowered);
    lowered.settle();
    gelu(lowered);
    lowered.settle();
}

/// Rewrites the steps as they were written: exporters take some operators apart.
pub(super) fn whole_operators(lowered: &mut Lowered, shaped: &Shaped) {
    drop_identities(lowered, shaped);
    lowered.settle();
    quick_gelu(lowered);
    lowered.settle();
    gelu(lowered);
    lowered.settle();
}

/// Steps that hand their input on.
fn drop_identities(lowered: &mut Lowered, shaped: &Shaped) {
    for n in 0..lowered.steps.len() {
        let step = &lowered.steps[n];
        let node = &shaped.graph.nodes[step.node];
        let (Some(&input), Some(&output)) = (step.inputs.first(), step.outputs.first()) else {
            continue;
        };
        let idle = match node.op.as_str() {
            "Identity" | "Dropout" => true,
            "Cast" => shaped.elements[input] == shaped.elements[output],
            "Slice" | "Expand" | "Tile" | "Pad" => {
                lowered.same_size(input, output) && step.inputs.len() == 1
            }
            _ => false,
        };
        if idle && !lowered.is_output[output] {
            lowered.steps[n].gone = true;
            lowered.redirect(output, input);
        }
    }
}

/// A bias or a scale behind a product of matrices that nobody else reads.
fn into_products(lowered: &mut Lowered, shaped: &Shaped) {
    let (makers, readers) = (lowered.makers(), lowered.readers());
    for n in 0..lowered.steps.len() {
        let step = &lowered.steps[n];
        let (true, &[input], &[output]) = (!step.gone, &step.inputs[..], &step.outputs[..]) else {
            continue;
        };
        let Some(&product) = makers.get(&input) else { continue };
        let maker = &lowered.steps[product];
        let alone =
            readers.get(&input).is_some_and(|all| all.len() == 1) && !lowered.is_output[input];
        if !alone || maker.gone || maker.op != "MatMul" {
            continue;
        }
        let fused = match step.op.as_str() {
            // One side is a weight, and every extent is fixed: only then is it rewritten.
            "Add" if maker.inputs.len() == 1 && is_fixed(shaped, output) => "Gemm",
            "Mul" | "Div" if maker.inputs.len() == 2 && is_scaled(shaped, step) => "FusedMatMul",
            _ => continue,
        };
        lowered.steps[n].gone = true;
        lowered.steps[product].op = fused.to_string();
        lowered.steps[product].outputs = vec![output];
    }
    lowered.settle();
}

fn is_fixed(shaped: &Shaped, id: usize) -> bool {
    let shape = shaped.shapes.get(id).and_then(Option::as_ref);
    shape.is_some_and(|shape| shape.iter().all(|dim| dim.known == Known::Fixed))
}

/// Whether the other operand is a constant of one number.
fn is_scaled(shaped: &Shaped, step: &Step) -> bool {
    let inputs = shaped.graph.nodes[step.node].inputs.iter().flatten();
    inputs.filter(|&&id| shaped.constant[id]).all(|&id| {
        let shape = shaped.shapes[id].as_ref();
        shape.is_some_and(|shape| shape.iter().all(|dim| dim.n == 1))
    })
}

/// Affine operators and activations behind a convolution that nobody else reads.
fn into_convolutions(lowered: &mut Lowered, shaped: &Shaped) {
    loop {
        let (makers, readers) = (lowered.makers(), lowered.readers());
        let next = (0..lowered.steps.len()).find_map(|n| {
            let step = &lowered.steps[n];
            let (true, [input], [output]) = (!step.gone, &step.inputs[..], &step.outputs[..])
            else {
                return None;
            };
            let conv = *makers.get(input)?;
            let alone =
                readers.get(input).is_some_and(|all| all.len() == 1) && !lowered.is_output[*input];
            let maker = &lowered.steps[conv];
            let fits = match step.op.as_str() {
                "BatchNormalization" => maker.op == "Conv",
                "Mul" | "Add" => maker.op == "Conv" && by_channel(shaped, step),
                "Relu" | "Sigmoid" | "Tanh" | "LeakyRelu" | "Clip" | "HardSigmoid"
                | "HardSwish" => {
                    matches!(maker.op.as_str(), "Conv" | "Gemm")
                }
                _ => false,
            };
            (alone && fits && maker.outputs.len() == 1).then_some((n, conv, *output))
        });
        let Some((n, conv, output)) = next else { return };
        lowered.steps[n].gone = true;
        lowered.steps[conv].outputs = vec![output];
        let affine = matches!(lowered.steps[n].op.as_str(), "BatchNormalization" | "Mul" | "Add");
        if !affine && lowered.steps[conv].op == "Conv" {
            // It takes one activation and no more.
            lowered.steps[conv].op = "FusedConv".to_string();
        }
    }
}

/// Whether the other operand is a constant with one number for each channel.
fn by_channel(shaped: &Shaped, step: &Step) -> bool {
    let node = &shaped.graph.nodes[step.node];
    let Some(channels) = step.outputs.first().and_then(|&id| shaped.shapes[id].as_ref()?.get(1))
    else {
        return false;
    };
    node.inputs.iter().flatten().filter(|&&id| shaped.constant[id]).all(|&id| {
        let Some(shape) = &shaped.shapes[id] else { return false };
        let elements: u64 = shape.iter().map(|dim| dim.n).product();
        elements == channels.n && shape.len() >= 3 && shape[shape.len() - 3].n == channels.n
    })
}

/// `x · sigmoid(x)` is one operator.
fn quick_gelu(lowered: &mut Lowered) {
    let (makers, readers) = (lowered.makers(), lowered.readers());
    for n in lowered.order() {
        let step = &lowered.steps[n];
        if step.gone || step.op != "Mul" {
            continue;
        }
        let &[one, other] = &step.inputs[..] else { continue };
        let sigmoid_of = |id: usize, of: usize| {
            let maker = *makers.get(&id)?;
            let sigmoid = &lowered.steps[maker];
            let alone =
                readers.get(&id).is_some_and(|all| all.len() == 1) && !lowered.is_output[id];
            (sigmoid.op == "Sigmoid" && sigmoid.inputs == [of] && alone).then_some(maker)
        };
        let found = sigmoid_of(one, other)
            .map(|sigmoid| (sigmoid, other))
            .or_else(|| sigmoid_of(other, one).map(|sigmoid| (sigmoid, one)));
        let Some((sigmoid, input)) = found else { continue };
        let fused = Step {
            op: "QuickGelu".to_string(),
            inputs: vec![input],
            in_place: Vec::new(),
            ..lowered.steps[n].clone()
        };
        lowered.steps[n].gone = true;
        lowered.steps[sigmoid].gone = true;
        lowered.add(fused);
    }
}

/// `x · ½ · (1 + erf(x / √2))`, as exporters write it, is one operator.
fn gelu(lowered: &mut Lowered) {
    let (makers, readers) = (lowered.makers(), lowered.readers());
    for erf in 0..lowered.steps.len() {
        let step = &lowered.steps[erf];
        if step.gone || step.op != "Erf" {
            continue;
        }
        let Some(Gelu { x, parts, last }) = gelu_around(lowered, &makers, &readers, erf) else {
            continue;
        };
        let fused = Step {
            op: "Gelu".to_string(),
            inputs: vec![x],
            in_place: Vec::new(),
            ..lowered.steps[last].clone()
        };
        for n in parts {
            lowered.steps[n].gone = true;
        }
        lowered.add(fused);
    }
}

/// A GELU that was found: of what, its steps, and the one that ends it.
struct Gelu {
    x: usize,
    parts: Vec<usize>,
    last: usize,
}

fn gelu_around(
    lowered: &Lowered,
    makers: &HashMap<usize, usize>,
    readers: &HashMap<usize, Vec<usize>>,
    erf: usize,
) -> Option<Gelu> {
    let next = |n: usize, op: &str| {
        let &id = lowered.steps[n].outputs.first()?;
        let &reader = readers.get(&id).filter(|all| all.len() == 1)?.first()?;
        (lowered.steps[reader].op == op && !lowered.is_output[id]).then_some(reader)
    };
    let scaled = *makers.get(lowered.steps[erf].inputs.first()?)?;
    let &[x] = &lowered.steps[scaled].inputs[..] else { return None };
    let add = next(erf, "Add")?;
    let product = next(add, "Mul")?;
    let sum = *lowered.steps[add].outputs.first()?;
    let &[one, other] = &lowered.steps[product].inputs[..] else { return None };
    let factor = if one == sum { other } else { one };
    let mut parts = vec![scaled, erf, add, product];
    if factor == x {
        // Halved at the end.
        let last = next(product, "Mul")?;
        parts.push(last);
        return (lowered.steps[last].inputs.len() == 1).then_some(Gelu { x, parts, last });
    }
    // Halved at the start.
    let halved = *makers.get(&factor)?;
    parts.push(halved);
    let of_x = lowered.steps[halved].inputs == [x] && lowered.steps[halved].op == "Mul";
    of_x.then_some(Gelu { x, parts, last: product })
}
