//! What running a model takes, from its file or from its shape.

use std::path::PathBuf;

use plimsoll::backend::BackendKind;
use plimsoll::{
    Biases, CacheTypes, Error, EstimateRange, InferenceMemoryEstimate, Mlp, ModelShape, WeightType,
};
use plimsoll_models::terms::{EstimateRequest, Runner, Terms, estimate};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::arguments::device;
use crate::errors::OrRaise;

/// A word of Python's as a type of the library's.
fn word<T: std::str::FromStr<Err = Error>>(text: Option<&str>) -> PyResult<Option<T>> {
    text.map(str::parse).transpose().or_raise()
}

/// What running the model of a file or folder takes, term by term.
#[pyfunction]
#[pyo3(signature = (
    path, *, image = None, batch = 1, context = None, dtype = None, kv_dtype = None, ubatch = 512,
    flash_attn = false, gpu_layers = None, engine = None, device = None, inputs = Vec::new(),
))]
#[expect(clippy::too_many_arguments, reason = "one for each flag of the command")]
pub(crate) fn estimate_file<'py>(
    py: Python<'py>,
    path: PathBuf,
    image: Option<(u64, u64)>,
    batch: u64,
    context: Option<u64>,
    dtype: Option<&str>,
    kv_dtype: Option<&str>,
    ubatch: u64,
    flash_attn: bool,
    gpu_layers: Option<u64>,
    engine: Option<&str>,
    device: Option<&Bound<'py, PyAny>>,
    inputs: Vec<(String, u64)>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut request = EstimateRequest::default();
    request.image = image;
    request.batch = batch;
    request.context = context;
    request.dtype = match dtype.map(str::parse::<WeightType>) {
        Some(Ok(mix)) => Some(mix.base()),
        _ => word(dtype)?,
    };
    request.kv_dtype = word::<CacheTypes>(kv_dtype)?;
    request.micro_batch = ubatch;
    request.flash_attention = flash_attn;
    request.gpu_layers = gpu_layers;
    let runner = engine.map(str::parse::<Runner>).transpose();
    request.runner = runner.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let named = device.map(|named| self::device(Some(named))).transpose()?;
    request.on_gpu =
        named.map(|device| !matches!(device.kind, BackendKind::Host | BackendKind::Sim));
    request.inputs = inputs;
    let terms = py.detach(|| estimate(&path, &request));
    of_terms(py, &terms.map_err(|error| PyValueError::new_err(error.to_string()))?)
}

fn of_terms<'py>(py: Python<'py>, terms: &Terms) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("format", terms.format)?;
    dict.set_item("model", terms.model.as_deref())?;
    dict.set_item("weights_bytes", terms.weights_bytes)?;
    dict.set_item("kv_cache_bytes", terms.kv_cache_bytes)?;
    dict.set_item("activation_bytes", terms.activation_bytes)?;
    dict.set_item("workspace_bytes", terms.workspace_bytes)?;
    dict.set_item("overhead_bytes", terms.overhead.known())?;
    dict.set_item("overhead_kept_free_bytes", terms.overhead.kept_free)?;
    dict.set_item("overhead_source", &terms.overhead.source)?;
    dict.set_item("total_bytes", terms.total_bytes)?;
    set_range(&dict, &terms.range)?;
    dict.set_item("host_bytes", terms.host_bytes)?;
    dict.set_item("largest_single_bytes", terms.largest_single_bytes)?;
    dict.set_item("context", terms.context)?;
    dict.set_item("kv_dtype", terms.kv_dtype.as_deref())?;
    dict.set_item("layers", terms.layers)?;
    dict.set_item("only_weights", terms.only_weights())?;
    let weights = PyList::empty(py);
    for part in &terms.weights {
        let row = PyDict::new(py);
        row.set_item("type", &part.kind)?;
        row.set_item("bytes", part.bytes)?;
        row.set_item("elements", part.elements)?;
        weights.append(row)?;
    }
    dict.set_item("weights", weights)?;
    dict.set_item("notes", &terms.notes)?;
    Ok(dict)
}

/// What a measured peak is expected to lie between, and on what that rests.
fn set_range(dict: &Bound<'_, PyDict>, range: &EstimateRange) -> PyResult<()> {
    let ends = PyDict::new(dict.py());
    ends.set_item("low_bytes", range.low_bytes)?;
    ends.set_item("high_bytes", range.high_bytes)?;
    dict.set_item("range", ends)?;
    dict.set_item("checked", range.checked)?;
    dict.set_item("basis", &range.basis)
}

fn biases(text: &str) -> PyResult<Biases> {
    match text {
        "none" => Ok(Biases::None),
        "attention" => Ok(Biases::Attention),
        "all" => Ok(Biases::All),
        other => Err(PyValueError::new_err(format!(
            "biases is {other:?}; it must be 'none', 'attention' or 'all'"
        ))),
    }
}

/// What a language model of a shape takes, term by term.
#[pyfunction]
#[pyo3(signature = (
    *, hidden, intermediate, layers, vocab, heads, kv_heads, context, head_dim = None,
    dtype = "f16", kv_dtype = None, mlp = "gated", biases = "none", ubatch = 512,
    flash_attn = false, tied_embeddings = false, parallel_residual = false, fused_qkv = false,
    experts = (1, 1),
))]
#[expect(clippy::too_many_arguments, reason = "one for each flag of the command")]
pub(crate) fn estimate_shape<'py>(
    py: Python<'py>,
    hidden: u64,
    intermediate: u64,
    layers: u64,
    vocab: u64,
    heads: u64,
    kv_heads: u64,
    context: u64,
    head_dim: Option<u64>,
    dtype: &str,
    kv_dtype: Option<&str>,
    mlp: &str,
    biases: &str,
    ubatch: u64,
    flash_attn: bool,
    tied_embeddings: bool,
    parallel_residual: bool,
    fused_qkv: bool,
    experts: (u64, u64),
) -> PyResult<Bound<'py, PyDict>> {
    let dtype: WeightType = dtype.parse().or_raise()?;
    let cache = word::<CacheTypes>(kv_dtype)?.unwrap_or_else(|| CacheTypes::beside(dtype));
    let mlp: Mlp = mlp.parse().or_raise()?;
    let mut shape = ModelShape::new(hidden, intermediate, layers, vocab, heads)
        .with_kv_heads(kv_heads)
        .with_context(context)
        .with_micro_batch(ubatch)
        .with_flash_attention(flash_attn)
        .with_weights(dtype)
        .with_cache_types(cache.keys, cache.values)
        .with_mlp(mlp)
        .with_biases(self::biases(biases)?)
        .with_tied_embeddings(tied_embeddings)
        .with_parallel_residual(parallel_residual)
        .with_fused_qkv(fused_qkv)
        .with_experts(experts.0, experts.1);
    if let Some(width) = head_dim {
        shape = shape.with_head_dim(width);
    }
    let dict = of_shape(py, &shape.estimate().or_raise()?)?;
    dict.set_item("context", context)?;
    dict.set_item("dtype", dtype.to_string())?;
    dict.set_item("kv_dtype", cache.to_string())?;
    dict.set_item("layers", layers)?;
    Ok(dict)
}

fn of_shape<'py>(
    py: Python<'py>,
    estimate: &InferenceMemoryEstimate,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("format", "shape")?;
    dict.set_item("weights_bytes", estimate.model_bytes.get())?;
    dict.set_item("kv_cache_bytes", estimate.kv_cache_bytes.get())?;
    dict.set_item("activation_bytes", estimate.activation_bytes.get())?;
    dict.set_item("overhead_bytes", None::<u64>)?;
    dict.set_item("overhead_kept_free_bytes", 0)?;
    dict.set_item("total_bytes", estimate.total_bytes.get())?;
    set_range(&dict, &estimate.range())?;
    dict.set_item("host_bytes", estimate.host_compute_bytes.get())?;
    Ok(dict)
}
