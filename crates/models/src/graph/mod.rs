//! From the modules of a network to an ONNX file.
//!
//! The tree of modules says what is computed, the routes between its layers in which
//! order; both are in the checkpoint, so nothing is guessed from a name like `yolo11n`:
//! any scale, and any network of the same modules, comes out right. `blocks`, `stages`,
//! `attention` and `reparameterized` have Ultralytics' modules, `torch_layers` PyTorch's, `heads`
//! the last layers; `build` collects nodes and weights, `message` writes them as protobuf.
//!
//! Opset 17: the newest that TensorRT 8.5, the oldest runtime that engines are built for,
//! can read.
//!
//! # How to add a module of detectors
//!
//! A checkpoint is a tree of modules, each of a Python class.
//!
//! 1. `pt/allowed_names.rs`: the Python module of the class, unless the list has it. Add classes,
//!    never functions.
//! 2. `pt/module.rs`: `PtClass::of_torch` and `PtClass::of_ultralytics` recognise a class by the
//!    prefix of its Python module. A class of another package needs a test of its own prefix.
//! 3. `graph/stages.rs`, or `graph/attention.rs` where it attends: a function that writes its ONNX
//!    nodes, and an arm in `run` of `graph/blocks.rs`. Layers of PyTorch are in
//!    `graph/torch_layers.rs`.
//! 4. `route` here, if it has several inputs (`Concat`, `CBFuse`) or values (`CBLinear`). `run` takes
//!    one input.
//! 5. `training/families.py`: a small network with the module, whose output
//!    `crates/infer/tests/checkpoints.rs` compares with torch's. `fuzz/checkpoints.py`: a seed.
//!
//! # How to add a head
//!
//! The last layer of a network is its head.
//!
//! 1. `graph/heads/mod.rs`: `run` chooses by class; write the nodes of the new one in a file beside
//!    it. `HeadOutput` is what a head gives: the outputs with their shapes, the classes, the task,
//!    the stride.
//! 2. `crates/infer/src/decode/detection.rs`: a `Task` and a `Detail`, if it answers something new.
//! 3. `crates/infer/src/decode/layout.rs`: a variant of `Layout`, if the output has another layout.

mod attention;
mod blocks;
mod build;
mod heads;
mod message;
mod reparameterized;
mod stages;
mod torch_layers;

use std::fmt::Write;

use crate::pickle::PickleRef;

use self::build::{GraphBuilder, ImageValue, value_info};
use self::heads::{HeadExtents, HeadOutput};
use self::message::Message;
use super::pt::{About, PtError, PtModule, PtResult};

const OPSET: i64 = 17;
const IR_VERSION: i64 = 8;
/// The longest side of an image.
const LONGEST_SIDE: usize = 16_384;

/// What the graph should be like.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphOptions {
    /// Rows and columns of the image.
    pub size: (usize, usize),
    /// Any batch, rows and columns; `size` is then only what the metadata says.
    pub dynamic: bool,
    /// Weights and activations in sixteen bits. Input, boxes and output stay in 32.
    pub half: bool,
    /// The boxes that need no suppression, where the network has a head for them (YOLOv10 and
    /// YOLO26). Otherwise, as in Ultralytics, the head whose boxes are to be suppressed.
    pub nms_free: bool,
}

impl Default for GraphOptions {
    fn default() -> GraphOptions {
        GraphOptions { size: (640, 640), dynamic: false, half: false, nms_free: false }
    }
}

impl GraphOptions {
    /// For images of this size, in 32 bits.
    #[must_use]
    pub fn sized(size: (usize, usize)) -> GraphOptions {
        GraphOptions { size, ..GraphOptions::default() }
    }
}

/// The layers of a network, whose last one is its head, as an ONNX file.
pub(super) fn from_modules(
    layers: &PtModule<'_>,
    about: &About,
    options: &GraphOptions,
) -> PtResult<Vec<u8>> {
    let (rows, columns) = options.size;
    let mut graph = GraphBuilder::new(options.half);
    let channels = about.channels;
    let size = (!options.dynamic).then_some(options.size);
    let mut input = ImageValue { name: "images".into(), channels, size };
    if options.half {
        input.name = graph.cast("input", "images", false)?;
    }
    let layers = layers.children()?;
    check_size(layers.last(), options.size)?;
    let head = route(&mut graph, &layers, input, options.nms_free)?;
    let any = |number: usize, name: &'static str| match options.dynamic {
        true => Err(name),
        false => Ok(number as i64),
    };
    let images = value_info(
        "images",
        &[any(1, "batch"), Ok(channels as i64), any(rows, "height"), any(columns, "width")],
    );
    let batch = any(1, "batch");
    let output = |(name, extents): &(String, HeadExtents)| {
        let rest = extents.iter().skip(1).copied();
        value_info(name, &std::iter::once(batch).chain(rest).collect::<Vec<_>>())
    };
    let outputs: Vec<Message> = head.outputs.iter().map(output).collect();
    let metadata = metadata(about, options, &head);
    let mut model = Message::default();
    model.number(1, IR_VERSION).text(2, "plimsoll").text(3, env!("CARGO_PKG_VERSION"));
    graph.finish(&mut model, "main_graph", &[images], &outputs);
    describe(&mut model, &metadata);
    Ok(model.0)
}

/// Images must divide into the places of the coarsest scale, and Ultralytics never goes
/// below 32 pixels for those: said before a layer in the middle finds that it cannot join.
fn check_size(head: Option<&PtModule<'_>>, (rows, columns): (usize, usize)) -> PtResult<()> {
    let strides = head.map(|head| head.array("stride")).transpose()?.flatten();
    let strides = strides.map_or_else(Vec::new, |strides| strides.data);
    let stride = strides.iter().fold(32.0f32, |most, &stride| most.max(stride)) as usize;
    let fits = |side: &usize| (1..=LONGEST_SIDE).contains(side) && side.is_multiple_of(stride);
    if [rows, columns].iter().all(fits) {
        return Ok(());
    }
    Err(PtError::Options(format!(
        "images of {rows}x{columns}; this network takes sides that are multiples of {stride}, up \
         to {LONGEST_SIDE}"
    )))
}

/// Goes through the layers, each fed from the one before or from those that it names.
fn route(
    graph: &mut GraphBuilder,
    layers: &[PtModule<'_>],
    input: ImageValue,
    nms_free: bool,
) -> PtResult<HeadOutput> {
    // Almost every layer gives one value.
    let mut values: Vec<Vec<ImageValue>> = Vec::with_capacity(layers.len());
    for (index, layer) in layers.iter().enumerate() {
        let inputs = inputs(layer, &values, &input)?;
        let name = layer.class.of_ultralytics();
        if name == Some("CBFuse") {
            values.push(vec![stages::cb_fuse(graph, layer, &inputs)?]);
            continue;
        }
        if inputs.iter().any(|parts| parts.len() != 1) {
            return Err(layer.odd("a route from a layer of several values"));
        }
        let inputs = inputs.concat();
        if index + 1 == layers.len() {
            return heads::run(graph, layer, &inputs, input.size, nms_free);
        }
        values.push(match (name, &inputs[..]) {
            (Some("Concat"), inputs) => {
                if layer.field("d").and_then(PickleRef::as_i64).is_some_and(|axis| axis != 1) {
                    return Err(layer.odd("a join along another axis than the channels"));
                }
                vec![blocks::concat(graph, &layer.place, inputs, |why| layer.odd(why))?]
            }
            (Some("CBLinear"), [one]) => stages::cb_linear(graph, layer, one)?,
            (_, [one]) => vec![blocks::run(graph, layer, one)?],
            _ => return Err(layer.unsupported()),
        });
    }
    Err(PtError::NoModel("a network without layers".into()))
}

/// A network that cannot be written for any size of image.
fn fixed_size_only(network: &str) -> PtError {
    PtError::Options(format!(
        "{network} is exported for one size of image only; leave --dynamic out"
    ))
}

/// What a layer is fed: its field `f` has one place or several, −1 being the layer before.
fn inputs(
    layer: &PtModule<'_>,
    values: &[Vec<ImageValue>],
    input: &ImageValue,
) -> PtResult<Vec<Vec<ImageValue>>> {
    let from = layer.field("f").ok_or_else(|| layer.odd("no route to it"))?;
    let pick = |place: PickleRef<'_>| -> PtResult<Vec<ImageValue>> {
        let place = place.as_i64().ok_or_else(|| layer.odd("a route that is no number"))?;
        if place == -1 && values.is_empty() {
            return Ok(vec![input.clone()]);
        }
        let index = if place < 0 { values.len() as i64 + place } else { place };
        let value = usize::try_from(index).ok().and_then(|index| values.get(index));
        value.cloned().ok_or_else(|| layer.odd(format!("a route from layer {place}")))
    };
    match from.items() {
        Some(places) => places.take(64).map(pick).collect(),
        None => Ok(vec![pick(from)?]),
    }
}

/// What Ultralytics writes beside a graph, and reads back.
fn metadata(
    about: &About,
    options: &GraphOptions,
    head: &HeadOutput,
) -> Vec<(&'static str, String)> {
    let (rows, columns) = options.size;
    let shape = about.shape.as_deref().unwrap_or("detector");
    let shape = shape.rsplit(['/', '\\']).next().unwrap_or(shape);
    let shape = shape.trim_end_matches(".yaml").replace("yolo", "YOLO");
    let truth = |yes| if yes { "True" } else { "False" };
    let mut all = vec![
        ("description", format!("Ultralytics {shape} model, exported by plimsoll")),
        ("author", "Ultralytics".to_string()),
    ];
    all.extend(about.texts.iter().map(|(&key, text)| (key, text.clone())));
    all.extend([
        ("stride", head.stride.to_string()),
        ("task", head.task.to_string()),
        ("head", head.head.clone()),
        ("batch", "1".to_string()),
        ("imgsz", format!("[{rows}, {columns}]")),
        ("names", names(about, head.classes)),
        (
            "args",
            format!(
                "{{'batch': 1, 'half': {}, 'dynamic': {}, 'simplify': False, 'opset': {OPSET}, \
                 'nms': False}}",
                truth(options.half),
                truth(options.dynamic)
            ),
        ),
        ("channels", about.channels.to_string()),
        ("end2end", truth(head.end_to_end).to_string()),
    ]);
    all.extend(head.keypoints.map(|shape| ("kpt_shape", format!("{shape:?}"))));
    all
}

/// The names of the classes as Python writes a dict; a class without one has its number.
fn names(about: &About, classes: usize) -> String {
    let mut text = String::from("{");
    for class in 0..classes as u32 {
        let comma = if class > 0 { ", " } else { "" };
        let name = about.names.get(&class).cloned().unwrap_or_else(|| class.to_string());
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}{class}: {}", quoted(&name));
    }
    text + "}"
}

/// A text as Python's `repr` writes it.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            letter if letter == quote => out.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(out, "\\x{:02x}", letter as u32);
            }
            letter => out.push(letter),
        }
    }
    out.push(quote);
    out
}

/// What stands behind the graph: the version of its operators, and the metadata.
fn describe(model: &mut Message, metadata: &[(&str, String)]) {
    let mut opset = Message::default();
    opset.text(1, "").number(2, OPSET);
    model.message(8, &opset);
    for (key, value) in metadata {
        let mut entry = Message::default();
        entry.text(1, key).text(2, value);
        model.message(14, &entry);
    }
}
