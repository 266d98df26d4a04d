//! The elements of small tensors that are known before a graph runs: extents on their way from
//! `Shape` to `Reshape`. As numbers with 53 bits, which is more than any extent needs.

use super::operators::OperatorCall;
use crate::onnx::OnnxAttribute;

/// More elements than this are no extents.
const MOST: usize = 1024;

/// The elements of the first output, where they follow from known inputs.
pub(super) fn evaluate(call: &OperatorCall<'_>) -> Option<Vec<f64>> {
    if !call.node.domain.is_empty() {
        return None;
    }
    let made = match call.node.op.as_str() {
        "Constant" => constant(call)?,
        "Shape" => shape_of(call)?,
        "Size" => vec![call.shapes.first()?.as_ref()?.iter().map(|dim| dim.n as f64).product()],
        "Identity" | "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" => call.list(0)?.to_vec(),
        "Cast" => cast(call)?,
        "Concat" => {
            (0..call.known.len()).map(|n| call.list(n)).collect::<Option<Vec<_>>>()?.concat()
        }
        "Gather" => gather(call)?,
        "Slice" => slice(call)?,
        "Range" => range(call)?,
        "ConstantOfShape" => constant_of_shape(call)?,
        "Where" => select(call)?,
        "Add" => binary(call, |a, b| a + b)?,
        "Sub" => binary(call, |a, b| a - b)?,
        "Mul" => binary(call, |a, b| a * b)?,
        "Div" => divide(call)?,
        "Mod" => binary(call, |a, b| if b == 0.0 { 0.0 } else { a.rem_euclid(b) })?,
        "Equal" => binary(call, |a, b| f64::from(u8::from(a == b)))?,
        "Greater" => binary(call, |a, b| f64::from(u8::from(a > b)))?,
        "Less" => binary(call, |a, b| f64::from(u8::from(a < b)))?,
        "Max" => binary(call, f64::max)?,
        "Min" => binary(call, f64::min)?,
        "Floor" => unary(call, f64::floor)?,
        "Ceil" => unary(call, f64::ceil)?,
        "Neg" => unary(call, |a| -a)?,
        "Sqrt" => unary(call, f64::sqrt)?,
        "Not" => unary(call, |a| f64::from(u8::from(a == 0.0)))?,
        "ReduceProd" => vec![call.list(0)?.iter().product()],
        "ReduceSum" => vec![call.list(0)?.iter().sum()],
        "ReduceMax" => vec![call.list(0)?.iter().copied().fold(f64::MIN, f64::max)],
        "ReduceMin" => vec![call.list(0)?.iter().copied().fold(f64::MAX, f64::min)],
        _ => return None,
    };
    (made.len() <= MOST && made.iter().all(|n| n.is_finite())).then_some(made)
}

fn constant(call: &OperatorCall<'_>) -> Option<Vec<f64>> {
    let node = call.node;
    match node.attributes.get("value") {
        Some(OnnxAttribute::Tensor(tensor)) => tensor.elements.clone(),
        _ => node
            .int("value_int")
            .map(|n| vec![n as f64])
            .or_else(|| Some(node.ints("value_ints")?.iter().map(|&n| n as f64).collect())),
    }
}

fn shape_of(call: &OperatorCall<'_>) -> Option<Vec<f64>> {
    let shape = call.shapes.first()?.as_ref()?;
    let rank = shape.len() as i64;
    let place = |n: i64| if n < 0 { (n + rank).max(0) } else { n.min(rank) } as usize;
    let start = place(call.node.int("start").unwrap_or(0));
    let end = place(call.node.int("end").unwrap_or(rank)).max(start);
    Some(shape[start..end].iter().map(|dim| dim.n as f64).collect())
}

fn cast(call: &OperatorCall<'_>) -> Option<Vec<f64>> {
    let list = call.list(0)?;
    let whole = !matches!(call.node.int("to"), Some(1 | 10 | 11 | 16));
    Some(list.iter().map(|&n| if whole { n.trunc() } else { n }).collect())
}

fn gather(call: &OperatorCall<'_>) -> Option<Vec<f64>> {
    let (data, indices) = (call.list(0)?, call.list(1)?);
    // Of lists alone; a table of rows is no list of extents.
    if call.shapes[0].as_ref()?.len() != 1 {
        return None;
    }
    let at = |n: f64| if n < 0.0 { n + data.len() as f64 } else { n } as usize;
    indices.iter().map(|&n| data.get(at(n)).copied()).collect()
}

fn slice(call: &OperatorCall<'_>) -> Option<Vec<f64>> {
    let data = call.list(0)?;
    if call.shapes[0].as_ref()?.len() != 1 {
        return None;
    }
    let attribute = |name| call.node.ints(name).and_then(|list| list.first()).map(|&n| n as f64);
    let one = |n: usize, name| match call.list(n) {
        Some(list) => list.first().copied(),
        None => attribute(name),
    };
    let (start, end) = (one(1, "starts")?, one(2, "ends")?);
    let step = one(4, "steps").unwrap_or(1.0);
    let length = data.len() as f64;
    let place = |n: f64| if n < 0.0 { (n + length).max(0.0) } else { n.min(length) } as usize;
    if step == 1.0 {
        return Some(data.get(place(start)..place(end)).unwrap_or_default().to_vec());
    }
    (step == -1.0).then(|| data.iter().rev().copied().collect())
}

fn range(call: &OperatorCall<'_>) -> Option<Vec<f64>> {
    let one = |n| call.list(n)?.first().copied();
    let (start, limit, step) = (one(0)?, one(1)?, one(2)?);
    let count = ((limit - start) / step).ceil().max(0.0);
    (count <= MOST as f64).then(|| (0..count as usize).map(|n| start + n as f64 * step).collect())
}

fn constant_of_shape(call: &OperatorCall<'_>) -> Option<Vec<f64>> {
    let count: f64 = call.list(0)?.iter().product();
    let value = match call.node.attributes.get("value") {
        Some(OnnxAttribute::Tensor(tensor)) => *tensor.elements.as_ref()?.first()?,
        _ => 0.0,
    };
    (count <= MOST as f64).then(|| vec![value; count.max(0.0) as usize])
}

fn select(call: &OperatorCall<'_>) -> Option<Vec<f64>> {
    let (condition, yes, no) = (call.list(0)?, call.list(1)?, call.list(2)?);
    let length = condition.len().max(yes.len()).max(no.len());
    let at =
        |list: &[f64], n: usize| if list.len() == 1 { Some(list[0]) } else { list.get(n).copied() };
    (0..length).map(|n| if at(condition, n)? != 0.0 { at(yes, n) } else { at(no, n) }).collect()
}

fn unary(call: &OperatorCall<'_>, f: impl Fn(f64) -> f64) -> Option<Vec<f64>> {
    Some(call.list(0)?.iter().map(|&n| f(n)).collect())
}

fn binary(call: &OperatorCall<'_>, f: impl Fn(f64, f64) -> f64) -> Option<Vec<f64>> {
    let (a, b) = (call.list(0)?, call.list(1)?);
    match (a.len(), b.len()) {
        (_, 1) => Some(a.iter().map(|&n| f(n, b[0])).collect()),
        (1, _) => Some(b.iter().map(|&n| f(a[0], n)).collect()),
        (n, m) if n == m => Some(a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()),
        _ => None,
    }
}

fn divide(call: &OperatorCall<'_>) -> Option<Vec<f64>> {
    let whole = matches!(call.elements.first(), Some(2..=7 | 12 | 13));
    binary(call, |a, b| match (whole, b == 0.0) {
        (_, true) => 0.0,
        (true, _) => (a / b).trunc(),
        (false, _) => a / b,
    })
}
