//! Operators that combine tensors: broadcasting, products, reductions, recurrences.

use super::{Dim, F32, I64, OperatorCall, OperatorOutput, OperatorShapes, ShapeRefusal};

/// Two shapes as one, each axis as long as the longer.
pub(super) fn join(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, ShapeRefusal> {
    let rank = a.len().max(b.len());
    let at = |list: &[Dim], n: usize| {
        (n + list.len()).checked_sub(rank).map_or(Dim::fixed(1), |place| list[place])
    };
    (0..rank)
        .map(|n| match (at(a, n), at(b, n)) {
            (a, b) if a == b => Ok(a),
            // One that is given is stretched; one that is only asked for stays open.
            (one, other) if one == Dim::fixed(1) => Ok(other),
            (other, one) if one == Dim::fixed(1) => Ok(other),
            (one, other) if one.n == 1 => Ok(other),
            (other, one) if one.n == 1 => Ok(other),
            // A name and a number for the same: the number is known.
            (a, b) if a.n == b.n => Ok(if a.known == super::Known::Fixed { a } else { b }),
            (a, b) => Err(ShapeRefusal::Impossible(format!("extents {} and {}", a.n, b.n))),
        })
        .collect()
}

pub(super) fn broadcast(call: &OperatorCall<'_>, element: Option<u64>) -> OperatorShapes {
    let mut shape = call.shape(0)?.to_vec();
    for n in 1..call.node.inputs.len() {
        shape = join(&shape, call.shape(n)?)?;
    }
    call.typed(shape, element.unwrap_or_else(|| call.element(0)))
}

pub(super) fn select(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = join(call.shape(0)?, &join(call.shape(1)?, call.shape(2)?)?)?;
    call.typed(shape, call.element(1))
}

fn product(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, ShapeRefusal> {
    let (Some((&last, rows)), Some((&column, _))) = (a.split_last(), b.split_last()) else {
        return Err(ShapeRefusal::Impossible("a product with a scalar".to_string()));
    };
    let inner = if b.len() == 1 { column } else { b[b.len() - 2] };
    if inner.n != last.n {
        return Err(ShapeRefusal::Impossible(format!("inner extents {} and {}", last.n, inner.n)));
    }
    let batch = |list: &[Dim]| list[..list.len().saturating_sub(2)].to_vec();
    let mut shape = join(&batch(a), &batch(b))?;
    if a.len() > 1 {
        shape.extend(rows.last());
    }
    if b.len() > 1 {
        shape.push(column);
    }
    Ok(shape)
}

pub(super) fn matmul(call: &OperatorCall<'_>) -> OperatorShapes {
    let turned = |n: usize, name: &str| -> Result<Vec<Dim>, ShapeRefusal> {
        let mut shape = call.shape(n)?.to_vec();
        let rank = shape.len();
        if rank > 1 && call.node.int(name).unwrap_or(0) != 0 {
            shape.swap(rank - 1, rank - 2);
        }
        Ok(shape)
    };
    let shape = product(&turned(0, "transA")?, &turned(1, "transB")?)?;
    let element = if call.node.op == "MatMulInteger" { 6 } else { call.element(0) };
    call.typed(shape, element)
}

pub(super) fn quantized_matmul(call: &OperatorCall<'_>) -> OperatorShapes {
    call.typed(product(call.shape(0)?, call.shape(3)?)?, call.element(7))
}

pub(super) fn nbits(call: &OperatorCall<'_>) -> OperatorShapes {
    let mut shape = call.shape(0)?.to_vec();
    let columns = call.node.int("N").unwrap_or(0);
    if let Some(last) = shape.last_mut() {
        *last = Dim::fixed(columns.max(0) as u64);
    }
    call.one(shape)
}

pub(super) fn gemm(call: &OperatorCall<'_>) -> OperatorShapes {
    let (a, b) = (call.shape(0)?, call.shape(1)?);
    let ([first, second], [third, fourth]) = (a, b) else {
        return Err(ShapeRefusal::Impossible("a Gemm of tensors that are no matrices".to_string()));
    };
    let flag = |name| call.node.int(name).unwrap_or(0) != 0;
    let rows = if flag("transA") { *second } else { *first };
    let columns = if flag("transB") { *third } else { *fourth };
    call.one(vec![rows, columns])
}

pub(super) fn einsum(call: &OperatorCall<'_>) -> OperatorShapes {
    let text: String =
        call.node.text("equation").unwrap_or_default().chars().filter(|c| *c != ' ').collect();
    let Some((left, right)) = text.split_once("->") else { return Err(ShapeRefusal::Unknown) };
    if text.contains('.') {
        return Err(ShapeRefusal::Unknown);
    }
    let mut extents = std::collections::HashMap::new();
    for (n, letters) in left.split(',').enumerate() {
        let shape = call.shape(n)?;
        if letters.chars().count() != shape.len() {
            return Err(ShapeRefusal::Impossible(format!("{letters} for {} axes", shape.len())));
        }
        for (letter, dim) in letters.chars().zip(shape) {
            extents.entry(letter).or_insert(*dim);
        }
    }
    let shape: Option<Vec<Dim>> = right.chars().map(|c| extents.get(&c).copied()).collect();
    call.one(shape.ok_or_else(|| ShapeRefusal::Impossible(format!("equation {text}")))?)
}

pub(super) fn reduce(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = call.shape(0)?;
    let axes = call.numbers(1, "axes")?;
    let keep = call.node.int("keepdims").unwrap_or(1) != 0;
    let nothing = call.node.int("noop_with_empty_axes").unwrap_or(0) != 0;
    let axes = match axes {
        Some(axes) if !axes.is_empty() => {
            axes.iter().map(|&n| call.axis(n, shape.len())).collect::<Result<Vec<_>, _>>()?
        }
        _ if nothing => return call.one(shape.to_vec()),
        _ => (0..shape.len()).collect(),
    };
    call.one(without(shape, &axes, keep))
}

fn without(shape: &[Dim], axes: &[usize], keep: bool) -> Vec<Dim> {
    shape
        .iter()
        .enumerate()
        .filter(|(n, _)| keep || !axes.contains(n))
        .map(|(n, dim)| if axes.contains(&n) { Dim::fixed(1) } else { *dim })
        .collect()
}

pub(super) fn arg(call: &OperatorCall<'_>) -> OperatorShapes {
    let shape = call.shape(0)?;
    let axis = call.axis(call.node.int("axis").unwrap_or(0), shape.len())?;
    let keep = call.node.int("keepdims").unwrap_or(1) != 0;
    call.typed(without(shape, &[axis], keep), I64)
}

pub(super) fn top(call: &OperatorCall<'_>) -> OperatorShapes {
    let mut shape = call.shape(0)?.to_vec();
    let axis = call.axis(call.node.int("axis").unwrap_or(-1), shape.len())?;
    let k = call.list(1).and_then(|list| list.first().copied());
    let k = k.or(call.node.int("k").map(|k| k as f64)).ok_or_else(|| call.data("count"))?;
    shape[axis] = Dim::fixed(k.max(0.0) as u64);
    let indices = OperatorOutput { shape: shape.clone(), element: I64 };
    Ok(vec![OperatorOutput { shape, element: call.element(0) }, indices])
}

pub(super) fn recurrent(call: &OperatorCall<'_>) -> OperatorShapes {
    let (input, recurrence) = (call.shape(0)?, call.shape(2)?);
    let ([sequence, batch, _], [directions, _, hidden]) = (input, recurrence) else {
        return Err(ShapeRefusal::Impossible("a recurrence of another rank".to_string()));
    };
    let element = if call.element(0) == 0 { F32 } else { call.element(0) };
    let by_batch = call.node.int("layout").unwrap_or(0) == 1;
    let (all, last) = if by_batch {
        (
            vec![*input.first().unwrap_or(sequence), *batch, *directions, *hidden],
            vec![*sequence, *directions, *hidden],
        )
    } else {
        (vec![*sequence, *directions, *batch, *hidden], vec![*directions, *batch, *hidden])
    };
    let made = |shape: &[Dim]| OperatorOutput { shape: shape.to_vec(), element };
    Ok(vec![made(&all), made(&last), made(&last)])
}
