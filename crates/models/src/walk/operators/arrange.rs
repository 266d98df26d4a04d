//! Operators that arrange elements anew: reshape, slice, gather, tile.

use super::{
    Dim, I64, Known, OperatorCall, OperatorOutput, OperatorShapes, ShapeRefusal, computed,
};
use crate::onnx::OnnxAttribute;

pub(super) fn infer(call: &OperatorCall<'_>) -> OperatorShapes {
    match call.node.op.as_str() {
        "Reshape" => reshape(call),
        "Flatten" => flatten(call),
        "Transpose" => transpose(call),
        "Squeeze" => squeeze(call),
        "Unsqueeze" => unsqueeze(call),
        "Concat" => concat(call),
        "Split" => split(call),
        "Slice" => slice(call),
        "Gather" => gather(call),
        "GatherElements" => call.one(call.shape(1)?.to_vec()),
        "GatherND" => gather_nd(call),
        "Expand" => expand(call),
        "Tile" => tile(call),
        "Pad" => pad(call),
        "Shape" => call.typed(vec![Dim::fixed(call.shape(0)?.len() as u64)], I64),
        "Size" => call.typed(Vec::new(), I64),
        "ConstantOfShape" => constant_of_shape(call),
        "Range" => range(call),
        "OneHot" => one_hot(call),
        "EyeLike" => call.one(call.shape(0)?.to_vec()),
        "DepthToSpace" => depth_to_space(call),
        "SpaceToDepth" => space_to_depth(call),
        _ => Err(ShapeRefusal::Unknown),
    }
}

fn elements(shape: &[Dim]) -> u64 {
    shape.iter().fold(1, |all: u64, dim| all.saturating_mul(dim.n))
}

fn reshape(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = call.shape(0)?;
    let wanted = call.numbers(1, "shape")?.ok_or_else(|| call.data("shape"))?;
    let all = elements(shape);
    let zero_is_copied = call.node.int("allowzero").unwrap_or(0) == 0;
    let mut out: Vec<Dim> = Vec::new();
    let mut open = None;
    for (axis, &n) in wanted.iter().enumerate() {
        out.push(match n {
            -1 => {
                open = Some(axis);
                Dim::fixed(1)
            }
            0 if zero_is_copied => shape.get(axis).copied().unwrap_or(Dim::fixed(0)),
            n => Dim::fixed(n.max(0) as u64),
        });
    }
    // Numbers that came from the extents of an input are not fixed.
    let from_inputs = call.has(1) && !call.node.attributes.contains_key("shape") && !fixed(shape);
    if let Some(axis) = open {
        let others = elements(&out);
        let n = all.checked_div(others).unwrap_or(0);
        out[axis] = computed(n, shape);
    }
    if elements(&out) != all {
        return Err(ShapeRefusal::Impossible(format!("{all} elements into {wanted:?}")));
    }
    if from_inputs {
        let given = shape.iter().filter(|dim| dim.known != Known::Fixed);
        let given: Vec<u64> = given.map(|dim| dim.n).collect();
        for dim in &mut out {
            if dim.known == Known::Fixed && given.contains(&dim.n) && dim.n > 1 {
                dim.known = Known::Given;
            }
        }
    }
    call.one(out)
}

fn fixed(shape: &[Dim]) -> bool {
    shape.iter().all(|dim| dim.known == Known::Fixed)
}

fn flatten(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = call.shape(0)?;
    let axis = call.node.int("axis").unwrap_or(1);
    let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
    let axis = (axis.max(0) as usize).min(shape.len());
    let part = |dims: &[Dim]| match dims {
        [one] => *one,
        dims => computed(elements(dims), dims),
    };
    call.one(vec![part(&shape[..axis]), part(&shape[axis..])])
}

fn transpose(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = call.shape(0)?;
    let order = match call.node.ints("perm") {
        Some(order) => order.to_vec(),
        None => (0..shape.len() as i64).rev().collect(),
    };
    let out: Result<Vec<Dim>, _> =
        order.iter().map(|&n| call.axis(n, shape.len()).map(|n| shape[n])).collect();
    let out = out?;
    if out.len() != shape.len() {
        return Err(ShapeRefusal::Impossible(format!(
            "an order of {} for {} axes",
            out.len(),
            shape.len()
        )));
    }
    call.one(out)
}

fn squeeze(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = call.shape(0)?;
    let axes = match call.numbers(1, "axes")? {
        Some(axes) => {
            axes.iter().map(|&n| call.axis(n, shape.len())).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..shape.len()).filter(|&n| shape[n].n == 1).collect(),
    };
    let kept = shape.iter().enumerate().filter(|(n, _)| !axes.contains(n));
    call.one(kept.map(|(_, dim)| *dim).collect())
}

fn unsqueeze(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = call.shape(0)?;
    let axes = call.numbers(1, "axes")?.ok_or_else(|| call.data("axes"))?;
    let rank = shape.len() + axes.len();
    let axes = axes.iter().map(|&n| call.axis(n, rank)).collect::<Result<Vec<_>, _>>()?;
    let mut rest = shape.iter();
    let out = (0..rank).map(|n| {
        if axes.contains(&n) {
            Dim::fixed(1)
        } else {
            rest.next().copied().unwrap_or(Dim::fixed(1))
        }
    });
    call.one(out.collect())
}

fn concat(call: &OperatorCall<'_>) -> OperatorShapes {
    let mut out = call.shape(0)?.to_vec();
    let axis = call.axis(call.node.int("axis").unwrap_or(1), out.len())?;
    if out.is_empty() {
        return Err(ShapeRefusal::Impossible("scalars put together".to_string()));
    }
    for n in 1..call.node.inputs.len() {
        let other = call.shape(n)?;
        if other.len() != out.len() {
            return Err(ShapeRefusal::Impossible(
                "tensors of different rank put together".to_string(),
            ));
        }
        let sum = out[axis].n.saturating_add(other[axis].n);
        out[axis] = computed(sum, &[out[axis], other[axis]]);
    }
    call.one(out)
}

fn split(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = call.shape(0)?;
    let axis = call.axis(call.node.int("axis").unwrap_or(0), shape.len())?;
    let whole = *shape.get(axis).ok_or(ShapeRefusal::Follows)?;
    let parts = match call.numbers(1, "split")? {
        Some(parts) => parts.iter().map(|&n| n.max(0) as u64).collect(),
        None => {
            let count = call.node.outputs.len() as u64;
            let each = whole.n.div_ceil(count.max(1));
            (0..count).map(|n| each.min(whole.n.saturating_sub(n * each))).collect::<Vec<_>>()
        }
    };
    let part = |n: &u64| {
        let mut shape = shape.to_vec();
        shape[axis] = whole.from(*n);
        OperatorOutput { shape, element: call.element(0) }
    };
    Ok(parts.iter().map(part).collect())
}

fn slice(call: &OperatorCall<'_>) -> OperatorShapes {
    let mut out = call.shape(0)?.to_vec();
    let need = |list: Option<Vec<i64>>| list.ok_or_else(|| call.data("range"));
    let starts = need(call.numbers(1, "starts")?)?;
    let ends = need(call.numbers(2, "ends")?)?;
    let axes = call.numbers(3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = call.numbers(4, "steps")?.unwrap_or_else(|| vec![1; starts.len()]);
    for (place, &axis) in axes.iter().enumerate() {
        let axis = call.axis(axis, out.len())?;
        let (Some(&start), Some(&end), Some(&step)) =
            (starts.get(place), ends.get(place), steps.get(place))
        else {
            return Err(ShapeRefusal::Impossible("a range without an end".to_string()));
        };
        let dim = *out.get(axis).ok_or(ShapeRefusal::Follows)?;
        let n = dim.n as i64;
        let turn = |at: i64| if at < 0 { at.saturating_add(n) } else { at };
        let count = match step {
            0 => return Err(ShapeRefusal::Impossible("a step of nothing".to_string())),
            1.. => {
                let (start, end) = (turn(start).clamp(0, n), turn(end).clamp(0, n));
                (end - start).max(0) as u64
            }
            _ => {
                let (start, end) = (turn(start).clamp(0, n - 1), turn(end).clamp(-1, n - 1));
                (start - end).max(0) as u64
            }
        };
        let count = count.div_ceil(step.unsigned_abs());
        out[axis] = if count == dim.n { dim } else { dim.from(count) };
    }
    call.one(out)
}

fn gather(call: &OperatorCall<'_>) -> OperatorShapes {
    let (shape, indices) = (call.shape(0)?, call.shape(1)?);
    let axis = call.axis(call.node.int("axis").unwrap_or(0), shape.len())?;
    if shape.is_empty() {
        return Err(ShapeRefusal::Impossible("a scalar to gather from".to_string()));
    }
    call.one([&shape[..axis], indices, &shape[axis + 1..]].concat())
}

fn gather_nd(call: &OperatorCall<'_>) -> OperatorShapes {
    let (shape, indices) = (call.shape(0)?, call.shape(1)?);
    let batch = call.node.int("batch_dims").unwrap_or(0).max(0) as usize;
    let (Some((last, front)), Some(rest)) = (
        indices.split_last(),
        indices.last().and_then(|last| shape.get(batch + last.n as usize..)),
    ) else {
        return Err(ShapeRefusal::Impossible("indices beyond the rank".to_string()));
    };
    let _ = last;
    call.one([front, rest].concat())
}

fn expand(call: &OperatorCall<'_>) -> OperatorShapes {
    let list = call.list(1).ok_or_else(|| call.data("shape"))?;
    let wanted: Vec<Dim> = list.iter().map(|&n| Dim::fixed(n.max(0.0) as u64)).collect();
    call.one(super::combine::join(call.shape(0)?, &wanted)?)
}

fn tile(call: &OperatorCall<'_>) -> OperatorShapes {
    let list = call.list(1).ok_or_else(|| call.data("repeats"))?;
    let times = |(dim, n): (&Dim, &f64)| {
        if *n == 1.0 { *dim } else { dim.from(dim.n.saturating_mul(n.max(0.0) as u64)) }
    };
    call.one(call.shape(0)?.iter().zip(list).map(times).collect())
}

fn pad(call: &OperatorCall<'_>) -> OperatorShapes {
    let mut out = call.shape(0)?.to_vec();
    let pads = call.numbers(1, "pads")?.ok_or_else(|| call.data("padding"))?;
    let axes = call.numbers(3, "axes")?.unwrap_or_else(|| (0..out.len() as i64).collect());
    for (place, &axis) in axes.iter().enumerate() {
        let axis = call.axis(axis, out.len())?;
        let (Some(before), Some(after)) = (pads.get(place), pads.get(place + axes.len())) else {
            return Err(ShapeRefusal::Impossible("padding for another rank".to_string()));
        };
        let more = before.saturating_add(*after);
        if let (true, Some(dim)) = (more != 0, out.get_mut(axis)) {
            *dim = dim.from((dim.n as i64).saturating_add(more).max(0) as u64);
        }
    }
    call.one(out)
}

fn constant_of_shape(call: &OperatorCall<'_>) -> OperatorShapes {
    let list = call.list(0).ok_or_else(|| call.data("shape"))?;
    let shape = list.iter().map(|&n| Dim::fixed(n.max(0.0) as u64)).collect();
    let element = match call.node.attributes.get("value") {
        Some(OnnxAttribute::Tensor(tensor)) => tensor.element,
        _ => super::F32,
    };
    call.typed(shape, element)
}

fn range(call: &OperatorCall<'_>) -> OperatorShapes {
    let one = |n| call.list(n).and_then(|list: &[f64]| list.first().copied());
    let (Some(start), Some(limit), Some(step)) = (one(0), one(1), one(2)) else {
        return Err(call.data("range"));
    };
    let count = ((limit - start) / step).ceil().clamp(0.0, 1e15);
    call.one(vec![Dim { n: count as u64, known: Known::Given }])
}

fn one_hot(call: &OperatorCall<'_>) -> OperatorShapes {
    let mut out = call.shape(0)?.to_vec();
    let depth = call.list(1).and_then(|list| list.first().copied());
    let depth = depth.ok_or_else(|| call.data("depth"))?;
    let axis = call.axis(call.node.int("axis").unwrap_or(-1), out.len() + 1)?;
    out.insert(axis, Dim::fixed(depth.max(0.0) as u64));
    call.typed(out, call.element(2))
}

fn depth_to_space(call: &OperatorCall<'_>) -> OperatorShapes {
    let block = call.node.int("blocksize").unwrap_or(1).clamp(1, 1 << 16) as u64;
    let [batch, channels, rows, columns] = call.shape(0)? else {
        return Err(ShapeRefusal::Unknown);
    };
    let larger = |dim: &Dim| dim.from(dim.n.saturating_mul(block));
    call.one(vec![
        *batch,
        channels.from(channels.n / (block * block)),
        larger(rows),
        larger(columns),
    ])
}

fn space_to_depth(call: &OperatorCall<'_>) -> OperatorShapes {
    let block = call.node.int("blocksize").unwrap_or(1).clamp(1, 1 << 16) as u64;
    let [batch, channels, rows, columns] = call.shape(0)? else {
        return Err(ShapeRefusal::Unknown);
    };
    let smaller = |dim: &Dim| dim.from(dim.n / block);
    let channels = channels.from(channels.n.saturating_mul(block * block));
    call.one(vec![*batch, channels, smaller(rows), smaller(columns)])
}
