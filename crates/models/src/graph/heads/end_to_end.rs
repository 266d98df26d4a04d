//! The choice of the best places, where a head's boxes need no suppression.

use super::super::super::pt::PtResult;
use super::super::build::{FLOAT, GraphBuilder, NodeAttribute};
use super::HeadExtents;

/// The most boxes of a frame, as Ultralytics has it.
const MOST: usize = 300;

/// From `[batch, 4 + classes + added, places]` to `output0`, `[batch, boxes, 6 + added]`: the best
/// places by their best class, and of those the best pairs of place and class.
pub(super) fn best(
    graph: &mut GraphBuilder,
    place: &str,
    all: &str,
    (classes, added, places): (usize, usize, Option<usize>),
) -> PtResult<HeadExtents> {
    let rows = graph.transpose(place, all, &[0, 2, 1])?;
    let scores = part(graph, place, &rows, 4, classes)?;
    let attributes = [("axes", NodeAttribute::Ints(vec![-1])), ("keepdims", NodeAttribute::Int(0))];
    let surest = graph.node(place, "ReduceMax", &[&scores], &attributes)?;
    let count = count(graph, place, &surest, places)?;
    let [_, index] = top(graph, place, &surest, &count)?;
    let rows = pick(graph, place, &rows, &index)?;
    let scores = part(graph, place, &rows, 4, classes)?;
    let scores = graph.reshape(place, &scores, &[0, -1])?;
    let [sure, index] = top(graph, place, &scores, &count)?;
    let each = graph.ints(place, &[classes as i64])?;
    let row = graph.node(place, "Div", &[&index, &each], &[])?;
    let class = graph.node(place, "Mod", &[&index, &each], &[])?;
    let class = graph.node(place, "Cast", &[&class], &[("to", NodeAttribute::Int(FLOAT))])?;
    let rows = pick(graph, place, &rows, &row)?;
    let last = graph.ints(place, &[-1])?;
    let mut parts = vec![part(graph, place, &rows, 0, 4)?];
    for column in [&sure, &class] {
        parts.push(graph.node(place, "Unsqueeze", &[column, &last], &[])?);
    }
    if added > 0 {
        parts.push(part(graph, place, &rows, 4 + classes, added)?);
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let node = format!("/{}/output", place.replace('.', "/"));
    let axis = [("axis", NodeAttribute::Int(-1))];
    graph.raw_node(&node, "Concat", &parts, &["output0".to_string()], &axis)?;
    let boxes = places.map_or(Err("boxes"), |places| Ok(places.min(MOST) as i64));
    Ok(vec![Err("batch"), boxes, Ok(6 + added as i64)])
}

/// How many are chosen: all places where they are fewer.
fn count(
    graph: &mut GraphBuilder,
    place: &str,
    surest: &str,
    places: Option<usize>,
) -> PtResult<String> {
    if let Some(places) = places {
        return graph.ints(place, &[places.min(MOST) as i64]);
    }
    let (from, to) = (graph.ints(place, &[1])?, graph.ints(place, &[2])?);
    let shape = graph.node(place, "Shape", &[surest], &[])?;
    let places = graph.node(place, "Slice", &[&shape, &from, &to], &[])?;
    let most = graph.ints(place, &[MOST as i64])?;
    graph.node(place, "Min", &[&places, &most], &[])
}

/// Columns of rows.
fn part(
    graph: &mut GraphBuilder,
    place: &str,
    rows: &str,
    first: usize,
    columns: usize,
) -> PtResult<String> {
    let from = graph.ints(place, &[first as i64])?;
    let to = graph.ints(place, &[(first + columns) as i64])?;
    let axis = graph.ints(place, &[2])?;
    graph.node(place, "Slice", &[rows, &from, &to, &axis], &[])
}

/// The largest of each row and where they stand.
pub(super) fn top(
    graph: &mut GraphBuilder,
    place: &str,
    values: &str,
    count: &str,
) -> PtResult<[String; 2]> {
    let attributes = [
        ("axis", NodeAttribute::Int(-1)),
        ("largest", NodeAttribute::Int(1)),
        ("sorted", NodeAttribute::Int(1)),
    ];
    let mut names = graph.node_with(place, "TopK", &[values, count], &attributes, 2)?;
    let index = names.pop().unwrap_or_default();
    Ok([names.pop().unwrap_or_default(), index])
}

/// Rows by their numbers: from `[batch, n, width]` and `[batch, k]` to `[batch, k, width]`.
pub(super) fn pick(
    graph: &mut GraphBuilder,
    place: &str,
    rows: &str,
    index: &str,
) -> PtResult<String> {
    let last = graph.ints(place, &[-1])?;
    let index = graph.node(place, "Unsqueeze", &[index, &last], &[])?;
    let batch = [("batch_dims", NodeAttribute::Int(1))];
    graph.node(place, "GatherND", &[rows, &index], &batch)
}
