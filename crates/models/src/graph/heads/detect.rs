//! The heads that look for boxes at the places of a grid: `Detect`, and those made from it, which
//! add masks, keypoints or an angle to each box.

use super::super::super::pt::{MOST_NAMES, PtModule, PtResult};
use super::super::blocks::run;
use super::super::build::{FLOAT, GraphBuilder, ImageValue, NodeAttribute};
use super::{HeadExtents, HeadOutput, end_to_end, extras};

/// What a head adds to a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadKind {
    Detect,
    Segment,
    Pose,
    Oriented,
}

impl HeadKind {
    pub(super) fn task(self) -> &'static str {
        match self {
            HeadKind::Detect => "detect",
            HeadKind::Segment => "segment",
            HeadKind::Pose => "pose",
            HeadKind::Oriented => "obb",
        }
    }
}

/// What the branches of a head give at all places, `[batch, numbers, places]`.
struct Branches {
    distances: String,
    sure: String,
    /// What is beside boxes and classes, and how many numbers that is.
    extra: Option<(String, usize)>,
    prototypes: Option<ImageValue>,
}

/// Runs the head on the images of every scale.
///
/// The distances and the boxes are computed in 32 bits even in a graph of half precision:
/// sixteen bits cannot tell pixels 512 and 512.4 apart.
pub(super) fn detect(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    kind: HeadKind,
    inputs: &[ImageValue],
    (image, nms_free): (Option<(usize, usize)>, bool),
) -> PtResult<HeadOutput> {
    if module.flag("xyxy") {
        return Err(module.odd("boxes by their corners, which is not supported yet,"));
    }
    let (classes, bins) = (module.count("nc")?, module.count("reg_max")?);
    if classes > MOST_NAMES {
        return Err(module.odd(format!("{classes} classes")));
    }
    // Of two heads, the one whose boxes need no suppression is asked for, or is the only one left.
    let alone = module.find_child("one2one_cv2")?.is_some();
    let free = alone && (nms_free || module.find_child("cv2")?.is_none());
    let strides = strides(module, inputs.len())?;
    check_scales(module, inputs, &strides, image)?;
    let parts = branches(graph, module, kind, inputs, (classes, bins, free))?;
    let place = &module.place;
    let distances =
        if bins > 1 { expect(graph, module, &parts.distances, bins)? } else { parts.distances };
    let sizes: Option<Vec<_>> = inputs.iter().map(|input| input.size).collect();
    let grid = match &sizes {
        Some(sizes) => fixed_grid(graph, place, sizes, &strides)?,
        None => found_grid(graph, place, inputs, &strides)?,
    };
    let sure = graph.node(place, "Sigmoid", &[&parts.sure], &[])?;
    let extra = match &parts.extra {
        Some((raw, numbers)) => {
            let raw = (raw.as_str(), *numbers);
            Some(extras::read(graph, module, kind, raw, &grid)?)
        }
        None => None,
    };
    let boxes = match (kind, &extra) {
        (HeadKind::Oriented, Some(angle)) => {
            extras::turned_boxes(graph, place, &distances, angle, &grid)?
        }
        _ => boxes(graph, place, &distances, &grid, free)?,
    };
    let all: Vec<&str> = [&boxes, &sure].into_iter().chain(&extra).map(String::as_str).collect();
    let added = parts.extra.as_ref().map_or(0, |(_, numbers)| *numbers);
    let places = sizes.map(|sizes| sizes.iter().map(|(rows, columns)| rows * columns).sum());
    let extents = join(graph, module, &all, (classes, added, places), free)?;
    let mut outputs = vec![("output0".to_string(), extents)];
    if let Some(prototypes) = parts.prototypes {
        outputs.push(("output1".to_string(), extras::prototypes(graph, place, &prototypes)?));
    }
    let stride = strides.iter().fold(1.0f32, |most, &stride| most.max(stride)) as usize;
    let keypoints = (kind == HeadKind::Pose).then(|| module.pair("kpt_shape")).transpose()?;
    let head = module.class.name().to_string();
    Ok(HeadOutput {
        outputs,
        classes,
        stride,
        task: kind.task(),
        head,
        end_to_end: free,
        keypoints,
    })
}

/// The branches, in the graph's precision, and then in 32 bits.
fn branches(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    kind: HeadKind,
    inputs: &[ImageValue],
    (classes, bins, free): (usize, usize, bool),
) -> PtResult<Branches> {
    let named = |name: &str| format!("{}{name}", if free { "one2one_" } else { "" });
    let distances = branch(graph, module, &[named("cv2")], inputs, bins.checked_mul(4))?;
    let sure = branch(graph, module, &[named("cv3")], inputs, Some(classes))?;
    let extra = match extras::numbers(module, kind)? {
        Some(numbers) => {
            let mut chain = vec![named("cv4")];
            // The newer pose head shares a trunk with what is only trained.
            chain.extend(module.find_child(&named("cv4_kpts"))?.map(|_| named("cv4_kpts")));
            Some((branch(graph, module, &chain, inputs, Some(numbers))?, numbers))
        }
        None => None,
    };
    let prototypes = match kind {
        HeadKind::Segment => Some(extras::proto(graph, module, inputs)?),
        _ => None,
    };
    let mut parts = Branches { distances, sure, extra, prototypes };
    if graph.full_precision() {
        let mut cast = |name: &mut String| -> PtResult<()> {
            *name = graph.cast(&module.place, name, true)?;
            Ok(())
        };
        cast(&mut parts.distances)?;
        cast(&mut parts.sure)?;
        parts.extra.as_mut().map_or(Ok(()), |(name, _)| cast(name))?;
        parts.prototypes.as_mut().map_or(Ok(()), |value| cast(&mut value.name))?;
    }
    Ok(parts)
}

/// The output: all numbers of all places, or those of the best places where no suppression is
/// to follow.
fn join(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    parts: &[&str],
    (classes, added, places): (usize, usize, Option<usize>),
    free: bool,
) -> PtResult<HeadExtents> {
    let axis = [("axis", NodeAttribute::Int(1))];
    if free {
        let all = graph.node(&module.place, "Concat", parts, &axis)?;
        return end_to_end::best(graph, &module.place, &all, (classes, added, places));
    }
    let node = format!("/{}/output", module.place.replace('.', "/"));
    graph.raw_node(&node, "Concat", parts, &["output0".to_string()], &axis)?;
    let places = places.map_or(Err("anchors"), |places| Ok(places as i64));
    Ok(vec![Err("batch"), Ok((4 + classes + added) as i64), places])
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

/// One branch at every scale, by the modules that follow each other in it, its images made flat and put in a row: `[1, channels, places]`.
fn branch(
    graph: &mut GraphBuilder,
    module: &PtModule<'_>,
    chain: &[String],
    inputs: &[ImageValue],
    channels: Option<usize>,
) -> PtResult<String> {
    let mut links = Vec::new();
    for name in chain {
        let children = module.child(name)?.children()?;
        if children.len() != inputs.len() || inputs.is_empty() {
            return Err(module.odd(format!("{} scales for {name}", inputs.len())));
        }
        links.push(children);
    }
    let mut flat = Vec::new();
    for (scale, input) in inputs.iter().enumerate() {
        let (mut value, mut child) = (input.clone(), module);
        for link in &links {
            child = &link[scale];
            value = run(graph, child, &value)?;
        }
        if channels != Some(value.channels) || value.size != input.size || value.channels == 0 {
            return Err(child.odd(format!("{} channels at the end", value.channels)));
        }
        flat.push(graph.reshape(&module.place, &value.name, &[0, value.channels as i64, -1])?);
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
    let value = graph.reshape(&place, input, &[0, 4, bins as i64, -1])?;
    let value = graph.transpose(&place, &value, &[0, 2, 1, 3])?;
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
    graph.reshape(&place, &value, &[0, 4, -1])
}

/// The places that boxes are looked for at, and the pixels between them.
pub(super) struct AnchorGrid {
    pub(super) places: String,
    pub(super) strides: String,
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

/// Left, top, right and bottom distances to centres and extents in pixels, or to corners.
fn boxes(
    graph: &mut GraphBuilder,
    place: &str,
    distances: &str,
    grid: &AnchorGrid,
    corners: bool,
) -> PtResult<String> {
    let along = [("axis", NodeAttribute::Int(1))];
    let parts = graph.split(place, distances, 1, &[2, 2])?;
    let first = graph.node(place, "Sub", &[&grid.places, &parts[0]], &[])?;
    let second = graph.node(place, "Add", &[&grid.places, &parts[1]], &[])?;
    if corners {
        let both = graph.node(place, "Concat", &[&first, &second], &along)?;
        return graph.node(place, "Mul", &[&both, &grid.strides], &[]);
    }
    let sum = graph.node(place, "Add", &[&first, &second], &[])?;
    let two = graph.floats(place, &[], &[2.0])?;
    let centre = graph.node(place, "Div", &[&sum, &two], &[])?;
    let extent = graph.node(place, "Sub", &[&second, &first], &[])?;
    let both = graph.node(place, "Concat", &[&centre, &extent], &along)?;
    graph.node(place, "Mul", &[&both, &grid.strides], &[])
}
