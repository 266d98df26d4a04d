//! The head of a detector: boxes from distributions of distances, and how sure it is.

use super::super::pt::{MOST_NAMES, PtError, PtModule, PtResult};
use super::blocks::run;
use super::build::{FLOAT, GraphBuilder, ImageValue, NodeAttribute};

/// What a head gives.
pub(super) struct Detected {
    /// The name of the output, `[1, 4 + classes, places]`.
    pub(super) name: String,
    pub(super) classes: usize,
    /// Places that boxes are looked for at; `None` where that is only known when it runs.
    pub(super) places: Option<usize>,
    /// The greatest step between places.
    pub(super) stride: usize,
}

/// Runs the head on the images of every scale.
///
/// The distances and the boxes are computed in 32 bits even in a graph of half precision:
/// sixteen bits cannot tell pixels 512 and 512.4 apart.
pub(super) fn detect(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    inputs: &[ImageValue],
    image: Option<(usize, usize)>,
) -> PtResult<Detected> {
    refuse_other_heads(module)?;
    let (classes, bins) = (module.count("nc")?, module.count("reg_max")?);
    if classes > MOST_NAMES {
        return Err(module.odd(format!("{classes} classes")));
    }
    let strides = strides(module, inputs.len())?;
    check_scales(module, inputs, &strides, image)?;
    let distances = branch(graph, module, "cv2", inputs, bins.checked_mul(4))?;
    let sure = branch(graph, module, "cv3", inputs, Some(classes))?;
    let (distances, sure) = match graph.full_precision() {
        true => {
            (graph.cast(&module.place, &distances, true)?, graph.cast(&module.place, &sure, true)?)
        }
        false => (distances, sure),
    };
    let distances = if bins > 1 { expect(graph, module, &distances, bins)? } else { distances };
    let sizes: Option<Vec<_>> = inputs.iter().map(|input| input.size).collect();
    let grid = match &sizes {
        Some(sizes) => fixed_grid(graph, &module.place, sizes, &strides)?,
        None => found_grid(graph, &module.place, inputs, &strides)?,
    };
    let boxes = boxes(graph, &module.place, &distances, &grid)?;
    let sure = graph.node(&module.place, "Sigmoid", &[&sure], &[])?;
    let name = "output0".to_string();
    let axis = [("axis", NodeAttribute::Int(1))];
    let node = format!("/{}/output", module.place.replace('.', "/"));
    graph.raw_node(&node, "Concat", &[&boxes, &sure], std::slice::from_ref(&name), &axis)?;
    let places = sizes.map(|sizes| sizes.iter().map(|(rows, columns)| rows * columns).sum());
    let stride = strides.iter().fold(1.0f32, |most, &stride| most.max(stride)) as usize;
    Ok(Detected { name, classes, places, stride })
}

fn refuse_other_heads(module: &PtModule<'_>) -> PtResult<()> {
    match module.class.of_ultralytics() {
        Some("Detect") => {}
        Some(name) => {
            return Err(match name {
                "Segment" | "Segment26" | "YOLOESegment" => PtError::Task("segment".into()),
                "Pose" | "Pose26" => PtError::Task("pose".into()),
                "OBB" | "OBB26" => PtError::Task("obb".into()),
                "Classify" => PtError::Task("classify".into()),
                _ => module.unsupported(),
            });
        }
        None => return Err(module.unsupported()),
    }
    if module.flag("end2end") || module.flag("_end2end") {
        return Err(module.odd("an end-to-end head, which is not supported yet,"));
    }
    match module.flag("xyxy") {
        true => Err(module.odd("boxes by their corners, which is not supported yet,")),
        false => Ok(()),
    }
}

/// Pixels between places, for every scale.
fn strides(module: &PtModule<'_>, scales: usize) -> PtResult<Vec<f32>> {
    let strides = module.array("stride")?.ok_or_else(|| module.odd("no stride"))?.data;
    let sane =
        strides.iter().all(|&stride| stride.fract() == 0.0 && (1.0..=1024.0).contains(&stride));
    match sane && strides.len() == scales {
        true => Ok(strides),
        false => Err(module.odd(format!("strides {strides:?} for {scales} scales"))),
    }
}

/// Every scale has as many places as its stride says: no more of them can be asked for than
/// the image has pixels.
fn check_scales(
    module: &PtModule<'_>,
    inputs: &[ImageValue],
    strides: &[f32],
    image: Option<(usize, usize)>,
) -> PtResult<()> {
    let Some((rows, columns)) = image else { return Ok(()) };
    for (input, &stride) in inputs.iter().zip(strides) {
        let wanted = (rows / stride as usize, columns / stride as usize);
        if input.size != Some(wanted) {
            return Err(module.odd(format!(
                "a scale of {:?} places for a stride of {stride} on {rows}x{columns}",
                input.size.unwrap_or_default()
            )));
        }
    }
    Ok(())
}

/// One branch at every scale, its images made flat and put in a row: `[1, channels, places]`.
fn branch(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    name: &str,
    inputs: &[ImageValue],
    channels: Option<usize>,
) -> PtResult<String> {
    let children = module.child(name)?.children()?;
    if children.len() != inputs.len() || inputs.is_empty() {
        return Err(module.odd(format!("{} scales for {name}", inputs.len())));
    }
    let mut flat = Vec::new();
    for (child, input) in children.iter().zip(inputs) {
        let value = run(graph, child, input)?;
        if channels != Some(value.channels) || value.size != input.size || value.channels == 0 {
            return Err(child.odd(format!("{} channels at the end", value.channels)));
        }
        let shape = graph.ints(&module.place, &[0, value.channels as i64, -1])?;
        flat.push(graph.node(&module.place, "Reshape", &[&value.name, &shape], &[])?);
    }
    let flat: Vec<&str> = flat.iter().map(String::as_str).collect();
    graph.node(&module.place, "Concat", &flat, &[("axis", NodeAttribute::Int(2))])
}

/// The mean of each distribution of distances.
fn expect(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    input: &str,
    bins: usize,
) -> PtResult<String> {
    let dfl = module.child("dfl")?;
    if dfl.class.of_ultralytics() != Some("DFL") {
        return Err(dfl.unsupported());
    }
    let place = dfl.place.clone();
    let conv = dfl.child("conv")?;
    let weight = conv.array("weight")?.ok_or_else(|| conv.odd("no weights"))?;
    if weight.shape != [1, bins, 1, 1] {
        return Err(conv.odd(format!("weights of shape {:?} for {bins} bins", weight.shape)));
    }
    let shape = graph.ints(&place, &[0, 4, bins as i64, -1])?;
    let value = graph.node(&place, "Reshape", &[input, &shape], &[])?;
    let swap = [("perm", NodeAttribute::Ints(vec![0, 2, 1, 3]))];
    let value = graph.node(&place, "Transpose", &[&value], &swap)?;
    let value = graph.node(&place, "Softmax", &[&value], &[("axis", NodeAttribute::Int(1))])?;
    let weight = graph.weight(format!("{}.weight", conv.place), &weight)?;
    // Spelt out: rten does not know what their absence means.
    let attributes = [
        ("kernel_shape", NodeAttribute::Ints(vec![1, 1])),
        ("strides", NodeAttribute::Ints(vec![1, 1])),
        ("pads", NodeAttribute::Ints(vec![0; 4])),
        ("dilations", NodeAttribute::Ints(vec![1, 1])),
        ("group", NodeAttribute::Int(1)),
    ];
    let value = graph.node(&conv.place, "Conv", &[&value, &weight], &attributes)?;
    let shape = graph.ints(&place, &[0, 4, -1])?;
    graph.node(&place, "Reshape", &[&value, &shape], &[])
}

/// The places that boxes are looked for at, and the pixels between them.
struct AnchorGrid {
    places: String,
    strides: String,
}

fn fixed_grid(
    graph: &mut GraphBuilder,
    place: &str,
    sizes: &[(usize, usize)],
    strides: &[f32],
) -> PtResult<AnchorGrid> {
    let cells = || {
        sizes.iter().zip(strides).flat_map(|(&(rows, columns), &stride)| {
            (0..rows).flat_map(move |y| (0..columns).map(move |x| (x, y, stride)))
        })
    };
    let (across, down) = (cells().map(|cell| cell.0), cells().map(|cell| cell.1));
    let places: Vec<f32> = across.chain(down).map(|at| at as f32 + 0.5).collect();
    let steps: Vec<f32> = cells().map(|cell| cell.2).collect();
    let count = steps.len() as i64;
    Ok(AnchorGrid {
        places: graph.floats(place, &[1, 2, count], &places)?,
        strides: graph.floats(place, &[1, count], &steps)?,
    })
}

/// The same, from the sizes that the images turn out to have.
fn found_grid(
    graph: &mut GraphBuilder,
    place: &str,
    inputs: &[ImageValue],
    strides: &[f32],
) -> PtResult<AnchorGrid> {
    let (mut places, mut steps) = (Vec::new(), Vec::new());
    let (zero, one, middle) = (
        graph.floats(place, &[], &[0.0])?,
        graph.floats(place, &[], &[1.0])?,
        graph.floats(place, &[], &[0.5])?,
    );
    let flat = graph.ints(place, &[1, 1, -1])?;
    for (input, &stride) in inputs.iter().zip(strides) {
        let shape = graph.node(place, "Shape", &[&input.name], &[])?;
        let (from, to) = (graph.ints(place, &[2])?, graph.ints(place, &[4])?);
        let size = graph.node(place, "Slice", &[&shape, &from, &to], &[])?;
        let mut axes = Vec::new();
        for (axis, line) in [(1, [1, -1]), (0, [-1, 1])] {
            let index = graph.index(place, axis)?;
            let extent = graph.node(place, "Gather", &[&size, &index], &[])?;
            let to = [("to", NodeAttribute::Int(FLOAT))];
            let extent = graph.node(place, "Cast", &[&extent], &to)?;
            let steps = graph.node(place, "Range", &[&zero, &extent, &one], &[])?;
            let steps = graph.node(place, "Add", &[&steps, &middle], &[])?;
            let line = graph.ints(place, &line)?;
            let steps = graph.node(place, "Reshape", &[&steps, &line], &[])?;
            let steps = graph.node(place, "Expand", &[&steps, &size], &[])?;
            axes.push(graph.node(place, "Reshape", &[&steps, &flat], &[])?);
        }
        let along = [("axis", NodeAttribute::Int(1))];
        places.push(graph.node(place, "Concat", &[&axes[0], &axes[1]], &along)?);
        let stride = graph.floats(place, &[1, 1], &[stride])?;
        let all = graph.node(place, "Expand", &[&stride, &size], &[])?;
        let row = graph.ints(place, &[1, -1])?;
        steps.push(graph.node(place, "Reshape", &[&all, &row], &[])?);
    }
    let join = |graph: &mut GraphBuilder, list: &[String]| {
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        graph.node(place, "Concat", &list, &[("axis", NodeAttribute::Int(-1))])
    };
    Ok(AnchorGrid { places: join(graph, &places)?, strides: join(graph, &steps)? })
}

/// Left, top, right and bottom distances to centres and extents in pixels.
fn boxes(
    graph: &mut GraphBuilder,
    place: &str,
    distances: &str,
    grid: &AnchorGrid,
) -> PtResult<String> {
    let along = [("axis", NodeAttribute::Int(1))];
    let sizes = graph.ints(place, &[2, 2])?;
    let parts = graph.node_with(place, "Split", &[distances, &sizes], &along, 2)?;
    let first = graph.node(place, "Sub", &[&grid.places, &parts[0]], &[])?;
    let second = graph.node(place, "Add", &[&grid.places, &parts[1]], &[])?;
    let sum = graph.node(place, "Add", &[&first, &second], &[])?;
    let two = graph.floats(place, &[], &[2.0])?;
    let centre = graph.node(place, "Div", &[&sum, &two], &[])?;
    let extent = graph.node(place, "Sub", &[&second, &first], &[])?;
    let both = graph.node(place, "Concat", &[&centre, &extent], &along)?;
    graph.node(place, "Mul", &[&both, &grid.strides], &[])
}
