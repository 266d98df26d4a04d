//! Language models: GGUF files, and safetensors with their `config.json`.

use std::path::Path;

use crate::families::style::DecoderStyle;
use crate::{ElementType, ModelShape, WeightTerms};

use super::super::{gguf as gguf_file, safetensors as safetensors_file};
use super::{EstimateRequest, Runner, Terms, WeightsOfType, pytorch};

/// llama.cpp rounds the context up to a multiple of this.
const CELLS: u64 = 256;
/// Contexts longer than this must be asked for.
const USUAL_CONTEXT: u64 = 4096;

pub(super) fn gguf(path: &Path, request: &EstimateRequest) -> Result<Terms, String> {
    let model = gguf_file::open(path).map_err(|error| error.to_string())?;
    let mut found = Terms { format: "GGUF", ..Terms::default() };
    found.model = Some(model.name.clone().unwrap_or_else(|| model.architecture.clone()));
    found.family = Some(model.architecture.clone());
    let parts = model.tensors.by_type.iter().map(|(kind, &(bytes, elements))| WeightsOfType {
        kind: (*kind).to_string(),
        bytes,
        elements,
    });
    let parts: Vec<WeightsOfType> = parts.collect();
    let is_packed = |part: &WeightsOfType| {
        part.kind.parse::<ElementType>().is_ok_and(ElementType::is_quantised)
    };
    let unpacked = EstimateRequest { dtype: Some(ElementType::F16), ..request.clone() };
    found.notes = model.notes;
    let of_pytorch = request.runner == Some(Runner::PyTorch) && request.dtype.is_none();
    if of_pytorch && parts.iter().any(is_packed) {
        found.set_weights(parts, &unpacked);
        let note = "Transformers unpacks GGUF as it loads it: weights count as f16, unless --dtype says f32 or bf16";
        found.notes.push(note.to_string());
    } else {
        found.set_weights(parts, request);
    }
    found.trained_context = model.trained_context;
    // llama.cpp asks for all weights of a device at once.
    found.largest_single_bytes = found.weights_bytes;
    if let Some(shape) = model.shape {
        let style = DecoderStyle::of_gguf(&model.architecture);
        run(&mut found, shape, request, (&[], &style))?;
    }
    if let Some(layers) = request.gpu_layers {
        offload(&mut found, &model.tensors, layers);
    }
    Ok(found)
}

pub(super) fn safetensors(path: &Path, request: &EstimateRequest) -> Result<Terms, String> {
    let (tensors, config) = safetensors_file::open(path).map_err(|error| error.to_string())?;
    let mut found = Terms { format: "safetensors", ..Terms::default() };
    let parts = tensors.by_type.iter().map(|(kind, &(bytes, elements))| WeightsOfType {
        kind: kind.clone(),
        bytes,
        elements,
    });
    found.set_weights(parts.collect(), request);
    found.largest_single_bytes = tensors.largest_bytes;
    match config {
        None => found.notes.push(
            "no config.json beside it: only weights are counted; put it there for cache and activations"
                .to_string(),
        ),
        Some(config) => {
            found.family = Some(config.model_type.clone());
            found.model = Some(config.model_type);
            found.trained_context = config.trained_context;
            found.notes = config.notes;
            if let Some(shape) = config.shape {
                if let Some(runner @ (Runner::Ort | Runner::Rten | Runner::TensorRt)) = request.runner {
                    let runner = runner.name();
                    return Err(format!(
                        "{runner} runs no language model in safetensors; pytorch does, and llama.cpp \
                         where it is converted to GGUF"
                    ));
                }
                run(&mut found, shape, request, (&tensors.sizes, &config.style))?;
            }
        }
    }
    Ok(found)
}

/// Cache and activations of a shape, as it is to be run. `sizes` are those of its tensors,
/// where they are known, and `style` is how Transformers runs it.
fn run(
    found: &mut Terms,
    shape: ModelShape,
    request: &EstimateRequest,
    (sizes, style): (&[u64], &DecoderStyle),
) -> Result<(), String> {
    let usual = found.trained_context.map_or(USUAL_CONTEXT, |trained| trained.min(USUAL_CONTEXT));
    let context = request.context.unwrap_or(usual.max(1));
    let kinds = request.kv_dtype.unwrap_or_else(|| cache_type(found, request.runner).into());
    let padded = match found.format {
        "GGUF" => context.checked_next_multiple_of(CELLS).unwrap_or(context),
        _ => context,
    };
    let mut shape = shape
        .with_context(padded)
        .with_micro_batch(request.micro_batch)
        .with_flash_attention(request.flash_attention)
        .with_cache_types(kinds.keys, kinds.values)
        .with_sequences(request.batch)
        .with_separate_caches(request.separate_caches);
    if request.full_windows {
        shape.caches.iter_mut().flatten().for_each(|cache| cache.window = None);
    }
    let weights = WeightTerms {
        mlp_bytes: plimsoll_machine::Bytes(found.weights_bytes),
        ..WeightTerms::default()
    };
    let estimate = shape.estimate_with(weights).map_err(|error| error.to_string())?;
    found.context = Some(context);
    found.kv_dtype = Some(kinds.to_string());
    found.layers = Some(shape.layers);
    if let Some(Runner::PyTorch) = request.runner {
        pytorch::run(found, &shape, style, sizes, request)?;
    } else {
        found.cache_by_layer =
            shape.cache_by_layer().into_iter().map(|bytes| bytes.get()).collect();
        found.kv_cache_bytes = estimate.kv_cache_bytes.get();
        found.activation_bytes = estimate.activation_bytes.get();
        found.host_bytes = estimate.host_compute_bytes.get();
        found.compute = Some(estimate.compute);
    }
    let caches = shape.caches.iter().flatten();
    let modelled = request.runner == Some(Runner::PyTorch);
    if !modelled && caches.clone().any(|cache| cache.state_bytes.get() > 0) {
        found.notes.push("activations inside of recurrent layers are not modelled".to_string());
    }
    if request.batch > 1 && !request.separate_caches && found.compute.is_some() {
        found.notes.push(format!(
            "{} sequences share one cache; --no-kv-unified gives each its own, as llama.cpp does \
             with --parallel and a number",
            request.batch
        ));
    }
    if padded != context {
        found.notes.push(format!("the cache has room for {padded} tokens, a multiple of {CELLS}"));
    }
    if found.trained_context.is_some_and(|trained| context > trained) {
        found.notes.push(format!(
            "{context} tokens are more than the model was trained for ({})",
            found.trained_context.unwrap_or(0)
        ));
    }
    Ok(())
}

/// As engines choose it: llama.cpp, which GGUF files are for, has f16 whatever the weights are;
/// others the weights' own type where those are plain floats, else f16.
pub(super) fn cache_type(found: &Terms, runner: Option<Runner>) -> ElementType {
    if found.format == "GGUF" && runner != Some(Runner::PyTorch) {
        return ElementType::F16;
    }
    match found.weights.first().map(|part| part.kind.as_str()) {
        Some("f32") if found.weights.len() == 1 => ElementType::F32,
        Some("bf16") if found.format == "safetensors" => ElementType::Bf16,
        _ => ElementType::F16,
    }
}

/// Only this many layers, from the last one on, are on the device; one more than there are means
/// the output matrix as well.
fn offload(found: &mut Terms, tensors: &gguf_file::GgufTensors, layers: u64) {
    let count = tensors.by_layer.len();
    let first = count.saturating_sub(usize::try_from(layers).unwrap_or(usize::MAX));
    let whole = found.weights_bytes;
    let on_device =
        |list: &[u64]| list.iter().skip(first).fold(0, |sum: u64, &n| sum.saturating_add(n));
    let mut device = on_device(&tensors.by_layer);
    if layers > count as u64 {
        let in_layers = tensors.by_layer.iter().fold(0, |sum: u64, &n| sum.saturating_add(n));
        device = device.saturating_add(tensors.bytes().saturating_sub(in_layers));
        // The embedding stays on the host, where it is looked up; the device has a copy where it
        // is the output matrix too.
        if tensors.output_bytes > 0 {
            device = device.saturating_sub(tensors.embedding_bytes);
        } else {
            found.host_bytes = found.host_bytes.saturating_add(tensors.embedding_bytes);
        }
    }
    // A type that was asked for changes all parts alike.
    if let Some(share) =
        device.checked_mul(1 << 10).and_then(|n| n.checked_div(tensors.bytes().max(1)))
    {
        let exact = tensors.bytes() == whole;
        device = if exact { device } else { whole / (1 << 10) * share };
    }
    let cache = on_device(&found.cache_by_layer);
    found.host_bytes = found
        .host_bytes
        .saturating_add(whole.saturating_sub(device))
        .saturating_add(found.kv_cache_bytes.saturating_sub(cache));
    found.weights_bytes = device;
    found.largest_single_bytes = device;
    found.kv_cache_bytes = cache;
    found.notes.push(format!(
        "{} of {count} layers on the device; the rest is on the host",
        layers.min(count as u64)
    ));
}
