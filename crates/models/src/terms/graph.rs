//! Graphs: ONNX files, and checkpoints as the graphs that they export to.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_machine::files;
use plimsoll_memory::Bytes;

use super::super::walk::{DeclaredExtent, InputExtents, OnnxGraph, Shaped, ort, torch};
use super::super::{GraphOptions, pt};
use super::{
    EstimateRequest, Optimizer, Runner, Terms, TrainingPrecision, TrainingRequest, TrainingTerms,
    WeightsOfType, pages,
};

pub(super) fn onnx(path: &Path, request: &EstimateRequest) -> Result<Terms, String> {
    let graph = OnnxGraph::open(path).map_err(|error| error.to_string())?;
    terms(graph, request, "ONNX")
}

pub(super) fn onnx_bytes(bytes: &[u8], request: &EstimateRequest) -> Result<Terms, String> {
    terms(OnnxGraph::parse(bytes).map_err(|error| error.to_string())?, request, "ONNX")
}

pub(super) fn checkpoint(path: &Path, request: &EstimateRequest) -> Result<Terms, String> {
    let file = files::open(path).map_err(|error| error.to_string())?;
    let (rows, columns) = request.image.unwrap_or((640, 640));
    let side = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let mut options = GraphOptions::sized((side(rows), side(columns)));
    options.dynamic = request.batch != 1;
    let bytes = match pt::outline(file, &options).map_err(|error| error.to_string())? {
        pt::Outline::Graph(bytes) => bytes,
        pt::Outline::Weights(weights) => return Ok(weights_alone(weights, request)),
    };
    let graph = OnnxGraph::parse(&bytes).map_err(|error| error.to_string())?;
    let mut terms = match &request.train {
        Some(train) => trained(graph, request, train)?,
        None => terms(graph, request, "PyTorch checkpoint")?,
    };
    terms.open_image = Some((rows, columns));
    terms.open_batch = true;
    Ok(terms)
}

/// Weights without the network that they are for.
fn weights_alone(weights: BTreeMap<&'static str, (u64, u64)>, request: &EstimateRequest) -> Terms {
    let mut found = Terms { format: "PyTorch checkpoint", ..Terms::default() };
    let parts = weights.into_iter().map(|(kind, (bytes, elements))| WeightsOfType {
        kind: kind.to_string(),
        bytes,
        elements,
    });
    found.set_weights(parts.collect(), request);
    found.notes.push(
        "weights alone (a state_dict): the network is not in the file, so only they are counted"
            .to_string(),
    );
    found
}

fn terms(
    graph: OnnxGraph,
    request: &EstimateRequest,
    format: &'static str,
) -> Result<Terms, String> {
    let mut found = Terms { format, ..Terms::default() };
    let weights = graph.weights().into_iter().map(|(kind, (bytes, elements))| WeightsOfType {
        kind: kind.to_string(),
        bytes,
        elements,
    });
    found.set_weights(weights.collect(), request);
    let extents = extents(&graph, request, &mut found)?;
    let shaped = graph.shape(&extents).map_err(|error| error.to_string())?;
    let peak = shaped.peak();
    found.activation_bytes = scaled(peak.bytes, request);
    found.largest_single_bytes = peak.tensors.first().map_or(0, |tensor| tensor.bytes);
    match (request.runner, request.on_gpu == Some(true)) {
        (Some(Runner::Ort), _) => by_arena(&shaped, request, &mut found),
        (Some(Runner::PyTorch), true) => {
            let held = torch::memory(&shaped, &|bytes| scaled(bytes, request));
            found.notes.push(format!("PyTorch needs the most at {}", held.operator));
            if held.copies > 0 {
                found.notes.push(
                    "what cuDNN takes for convolutions is an allowance: it chooses when it runs"
                        .to_string(),
                );
            }
            found.hold(held);
        }
        (None, true) => by_pages(&shaped, request, &mut found),
        _ => {}
    }
    found.notes.extend(shaped.notes);
    for (operator, count) in shaped.unknown {
        found.notes.push(format!(
            "{count} × {operator} is not known here: what it makes is counted only as far as the file declares it"
        ));
    }
    if request.dtype.is_some() && request.runner.is_none() {
        found.notes.push("activations are scaled as if all of them had that type".to_string());
    }
    found.peak = Some(peak);
    Ok(found)
}

/// What the loss of a detector holds, in multiples of what the network gives.
const LOSS: u64 = 8;
/// PyTorch's allocator holds this part more than is allocated while a detector is trained.
const CACHE: u64 = 8;

/// A detector's training: weights in 32 bits and their average, gradients, states, and every result
/// of the forward pass in the precision's type.
fn trained(
    graph: OnnxGraph,
    request: &EstimateRequest,
    train: &TrainingRequest,
) -> Result<Terms, String> {
    if train.lora.is_some() || train.gpus > 1 || train.checkpointing {
        return Err(
            "for a detector, adapters, checkpointing and several GPUs are not estimated".into()
        );
    }
    let mut found = Terms { format: "PyTorch checkpoint", ..Terms::default() };
    let weights = graph.weights().into_iter().map(|(kind, (bytes, elements))| WeightsOfType {
        kind: kind.to_string(),
        bytes,
        elements,
    });
    found.set_weights(weights.collect(), request);
    let count = found.weights.iter().fold(0, |sum: u64, part| sum.saturating_add(part.elements));
    let all = count.saturating_mul(4);
    let extents = extents(&graph, request, &mut found)?;
    let shaped = graph.shape(&extents).map_err(|error| error.to_string())?;
    let narrow = train.precision != TrainingPrecision::Fp32;
    let scale = |bytes: u64| if narrow { bytes / 2 } else { bytes };
    let (kept, largest) = torch::kept_for_backward(&shaped, &scale);
    found.set_trained(all.saturating_mul(2), 4);
    let states = match train.optimizer {
        Optimizer::AdamW | Optimizer::AdamWFused => all.saturating_mul(2),
        Optimizer::AdamW8Bit => count.saturating_mul(2),
        Optimizer::Sgd => all,
        Optimizer::Adafactor => 0,
    };
    found.training = Some(TrainingTerms {
        gradient_bytes: all,
        optimizer_bytes: states,
        ..TrainingTerms::default()
    });
    // Its loss has results of its own beside what the network gives, in 32 bits whatever the precision.
    let given = shaped.graph.outputs.iter().filter_map(|&id| shaped.bytes(id)).sum::<u64>();
    let live = kept.saturating_add(given.saturating_mul(LOSS));
    found.workspace_bytes = live / CACHE;
    found.activation_bytes = live.saturating_add(live / CACHE);
    found.largest_single_bytes = largest;
    found.notes.push(
        "as Ultralytics trains: an average of the weights beside them, and momentum with sgd; its loss and the \
         allocator's cache are allowances, for some 8 to 32 boxes an image"
            .to_string(),
    );
    Ok(found)
}

/// Activations in another type than the file's 32-bit floats.
fn scaled(bytes: u64, request: &EstimateRequest) -> u64 {
    match request.dtype {
        Some(kind) if !kind.is_quantised() => bytes / 4 * kind.bytes_for(1).get().min(4),
        _ => bytes,
    }
}

/// What ONNX Runtime holds for it.
fn by_arena(shaped: &Shaped, request: &EstimateRequest, found: &mut Terms) {
    let gpu = request.on_gpu == Some(true);
    let settings = if gpu { ort::OrtSettings::cuda() } else { ort::OrtSettings::cpu() };
    let (arena, operator) = ort::arena(shaped, settings);
    // Weights are counted already: on a GPU they are in the arena, on the CPU what it set aside
    // for them replaces the originals.
    let held = if gpu {
        arena.reserved.saturating_sub(found.weights_bytes)
    } else {
        arena.peak.saturating_sub(arena.loaded)
    };
    found.workspace_bytes = held.saturating_sub(arena.live);
    found.activation_bytes = held;
    found.largest_single_bytes = arena.pattern;
    found.notes.push(format!("ONNX Runtime needs the most at {operator}"));
    let (least, most) = arena.reserved_between;
    if most - least > arena.reserved / 20 {
        found.notes.push(format!(
            "ONNX Runtime loads weights in an order that differs from run to run: its arena holds {} to {}",
            Bytes(least),
            Bytes(most)
        ));
    }
    found.arena = Some(arena);
}

/// What our own pool holds for it.
fn by_pages(shaped: &Shaped, request: &EstimateRequest, found: &mut Terms) {
    let events = shaped.trace().into_iter();
    let events: Vec<_> = events.map(|(taken, id, n)| (taken, id, scaled(n, request))).collect();
    match pages::peak_reserved(&events) {
        Ok(held) => {
            let held = held.saturating_sub(found.weights_bytes).max(found.activation_bytes);
            found.workspace_bytes = held - found.activation_bytes;
            found.activation_bytes = held;
            let note = "no engine is named: as a pool of this library holds it, in whole pages";
            found.notes.push(note.to_string());
        }
        Err(why) => found.notes.push(format!("what a pool's pages would add is left out: {why}")),
    }
}

/// What open extents are, and whether the request fits those that are fixed.
fn extents(
    graph: &OnnxGraph,
    request: &EstimateRequest,
    found: &mut Terms,
) -> Result<InputExtents, String> {
    let mut extents = InputExtents::default();
    extents.batch = request.batch;
    extents.tokens = request.context.unwrap_or(extents.tokens);
    extents.image = request.image.unwrap_or(extents.image);
    extents.by_place = request.inputs.iter().cloned().collect();
    if request.context.is_some() && !extents.has_tokens(graph) {
        return Err(
            "no input of it has an open number of tokens: leave --context out, or name an extent \
                    with --input NAME:AXIS=N"
                .to_string(),
        );
    }
    for &input in &graph.inputs {
        let value = &graph.values[input];
        let Some([batch, _, rows, columns]) = value.declared.as_deref() else {
            found.open_batch |= value
                .declared
                .as_ref()
                .is_some_and(|dims| !matches!(dims.first(), Some(DeclaredExtent::Fixed(_))));
            continue;
        };
        match (rows, columns) {
            (DeclaredExtent::Fixed(rows), DeclaredExtent::Fixed(columns)) => {
                if let Some(image) = request.image.filter(|image| *image != (*rows, *columns)) {
                    return Err(format!(
                        "its input {} is fixed at {rows}x{columns}, not {}x{}; export it anew with \
                         that size (`plimsoll export` does for a .pt file)",
                        value.name, image.0, image.1
                    ));
                }
            }
            _ => found.open_image = Some(extents.image),
        }
        match batch {
            DeclaredExtent::Fixed(n) if *n != request.batch && request.batch != 1 => {
                return Err(format!(
                    "its input {} is fixed at a batch of {n}, not {}; export it anew with an open batch \
                     (`plimsoll export --dynamic` does for a .pt file)",
                    value.name, request.batch
                ));
            }
            DeclaredExtent::Fixed(_) => {}
            _ => found.open_batch = true,
        }
    }
    Ok(extents)
}
