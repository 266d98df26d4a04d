//! Will it fit? What a model file takes to run, term by term, whatever its format.
//!
//! ```text
//! path ─→ format ─→ graph │ language ─→ Terms
//! ```
//!
//! Files are read by their headers alone ([`gguf`](super::gguf),
//! [`safetensors`](super::safetensors), [`walk`](super::walk)); shapes become bytes in the
//! memory library. What is left for here is to ask the right one, and to say in words where
//! each figure came from.

mod eager;
mod graph;
mod language;
mod overhead;
mod pages;
mod pytorch;
mod range;
mod training;

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::{CacheTypes, ComputeTerms, ElementType, EstimateRange};
use plimsoll_machine::files;

pub use overhead::EngineOverhead;
pub use pytorch::StoredScores;
pub use training::{
    BaseDtype, Optimizer, TrainingPrecision, TrainingRequest, TrainingShard, TrainingTerms,
};

use super::walk::{Peak, ort::Arenas, torch::TorchMemory};
use crate::{ModelError, ModelResult};

/// Who is to run the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Runner {
    /// ONNX Runtime.
    Ort,
    /// rten.
    Rten,
    /// TensorRT.
    TensorRt,
    /// llama.cpp.
    LlamaCpp,
    /// PyTorch, with Transformers for language models.
    PyTorch,
}

impl Runner {
    /// All of them.
    pub const ALL: [Runner; 5] =
        [Runner::Ort, Runner::Rten, Runner::TensorRt, Runner::LlamaCpp, Runner::PyTorch];

    /// As users name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Runner::Ort => "ort",
            Runner::Rten => "rten",
            Runner::TensorRt => "tensorrt",
            Runner::LlamaCpp => "llama.cpp",
            Runner::PyTorch => "pytorch",
        }
    }
}

impl fmt::Display for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Runner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = Runner::ALL.into_iter();
        all.clone().find(|runner| runner.name() == text).ok_or_else(|| {
            let names: Vec<&str> = all.map(Runner::name).collect();
            format!("the engines are {}", names.join(", "))
        })
    }
}

/// How a model is to be run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EstimateRequest {
    /// Rows and columns of images; what the file says, else 640, unless given.
    pub image: Option<(u64, u64)>,
    /// Images or sequences at once.
    pub batch: u64,
    /// Tokens of context: of each sequence in PyTorch, over all sequences elsewhere.
    pub context: Option<u64>,
    /// The weights as if they were stored so.
    pub dtype: Option<ElementType>,
    /// How the cache is stored.
    pub kv_dtype: Option<CacheTypes>,
    /// Tokens processed at once.
    pub micro_batch: u64,
    /// Whether attention runs without storing its scores.
    pub flash_attention: bool,
    /// Whether layers with a window keep the whole context all the same.
    pub full_windows: bool,
    /// Whether each sequence has a cache of its own, for its part of the context.
    pub separate_caches: bool,
    /// Layers on the device; the rest stays on the host.
    pub gpu_layers: Option<u64>,
    /// Who runs it.
    pub runner: Option<Runner>,
    /// Whether it runs on a GPU; `None` where no device is named.
    pub on_gpu: Option<bool>,
    /// Extents of inputs by `input:axis`.
    pub inputs: Vec<(String, u64)>,
    /// How it is trained, where it is.
    pub train: Option<TrainingRequest>,
    /// What PyTorch's allocator may hold at most; what it holds beyond what lives it then gives back
    /// when it must. Whether that is enough is in [`Terms::held`].
    pub allocator_room: Option<u64>,
}

impl Default for EstimateRequest {
    fn default() -> Self {
        EstimateRequest {
            image: None,
            batch: 1,
            context: None,
            dtype: None,
            kv_dtype: None,
            micro_batch: 512,
            flash_attention: false,
            full_windows: false,
            separate_caches: false,
            gpu_layers: None,
            runner: None,
            on_gpu: None,
            inputs: Vec::new(),
            train: None,
            allocator_room: None,
        }
    }
}

/// Weights of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightsOfType {
    /// The type.
    pub kind: String,
    /// Bytes.
    pub bytes: u64,
    /// Elements.
    pub elements: u64,
}

/// What running a model takes.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Terms {
    /// `GGUF`, `safetensors`, `ONNX` or `PyTorch checkpoint`.
    pub format: &'static str,
    /// What the model calls itself, or its family.
    pub model: Option<String>,
    /// Its architecture as the file names it, for a language model.
    pub family: Option<String>,
    /// The weights by type, as they are to be run.
    pub weights: Vec<WeightsOfType>,
    /// All weights.
    pub weights_bytes: u64,
    /// What each layer keeps.
    pub cache_by_layer: Vec<u64>,
    /// What all layers keep.
    pub kv_cache_bytes: u64,
    /// What lives beside weights and cache at the worst moment, the workspace among it.
    pub activation_bytes: u64,
    /// Of the activations: what the engine holds beyond what lives.
    pub workspace_bytes: u64,
    /// What the engine and the driver take for themselves.
    pub overhead: EngineOverhead,
    /// Weights, cache, activations and overhead.
    pub total_bytes: u64,
    /// What a measured peak is expected to lie between; *fits* needs the upper end to fit.
    pub range: EstimateRange,
    /// What stays on the host beside a device; not in the total.
    pub host_bytes: u64,
    /// The largest piece that is asked for at once.
    pub largest_single_bytes: u64,
    /// Tokens of context that were counted.
    pub context: Option<u64>,
    /// Tokens that the model was trained for.
    pub trained_context: Option<u64>,
    /// How the cache is stored.
    pub kv_dtype: Option<String>,
    /// Layers, for a language model.
    pub layers: Option<u64>,
    /// The worst moment of a graph.
    pub peak: Option<Peak>,
    /// ONNX Runtime's arena.
    pub arena: Option<Arenas>,
    /// What PyTorch may take more for attention's scores; the upper end of the range has it.
    pub stored_scores: Option<StoredScores>,
    /// What PyTorch's allocator holds on a GPU.
    pub held: Option<TorchMemory>,
    /// Gradients and states, where the model is trained; they are in the total.
    pub training: Option<TrainingTerms>,
    /// The moments that compete for a language model's compute buffer.
    pub compute: Option<ComputeTerms>,
    /// Rows and columns that images were taken to have; `None` where the file fixes them.
    pub open_image: Option<(u64, u64)>,
    /// Whether the batch can be chosen.
    pub open_batch: bool,
    /// What was taken for granted or left out.
    pub notes: Vec<String>,
}

impl Terms {
    /// Whether nothing but the weights is known: there is neither a graph nor what a cache takes.
    #[must_use]
    pub fn only_weights(&self) -> bool {
        self.context.is_none() && self.peak.is_none() && self.training.is_none()
    }

    /// What has to fit: the upper end of the range, and what is to stay free for an engine and a driver of
    /// which nothing is on record.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        self.range.high_bytes.saturating_add(self.overhead.kept_free)
    }

    fn settle(mut self, request: &EstimateRequest) -> Terms {
        self.overhead = EngineOverhead::of(request.runner, request.on_gpu);
        if self.held.as_ref().is_some_and(|held| held.products == 0) {
            self.overhead = self.overhead.without_products();
        }
        if self.training.is_some() {
            self.overhead = self.overhead.with_training();
        }
        if request.train.is_some_and(|train| train.base_dtype == Some(BaseDtype::Int8)) {
            self.overhead = self.overhead.with_int8_products();
        }
        let training = self.training.unwrap_or_default();
        let parts = [
            self.weights_bytes,
            self.kv_cache_bytes,
            self.activation_bytes,
            training.gradient_bytes,
            training.optimizer_bytes,
            self.overhead.bytes,
        ];
        self.total_bytes = parts.into_iter().fold(0, u64::saturating_add);
        self.range = range::of(&self, request);
        self
    }

    /// Takes what PyTorch's allocator holds for activations, instead of what lives.
    fn hold(&mut self, held: TorchMemory) {
        let known = self.weights_bytes.saturating_add(self.kv_cache_bytes);
        self.activation_bytes = held.reserved.saturating_sub(known).max(held.live);
        self.workspace_bytes = self.activation_bytes - held.live;
        self.largest_single_bytes = held.largest_segment;
        self.held = Some(held);
    }

    /// Takes the weights as training has them.
    fn set_trained(&mut self, bytes: u64, width: u64) {
        let elements =
            self.weights.iter().fold(0, |sum: u64, part| sum.saturating_add(part.elements));
        let kind = match width {
            _ if bytes < elements.saturating_mul(2) => "packed",
            2 => "bf16",
            _ => "f32",
        };
        self.weights = vec![WeightsOfType { kind: kind.to_string(), bytes, elements }];
        self.weights_bytes = bytes;
    }

    /// Takes the weights as they are, or as if they were stored otherwise.
    fn set_weights(&mut self, by_type: Vec<WeightsOfType>, request: &EstimateRequest) {
        let convert = |mut part: WeightsOfType| {
            let float = matches!(part.kind.as_str(), "f32" | "f16" | "bf16" | "f64")
                || part.kind.parse::<ElementType>().is_ok_and(ElementType::is_quantised);
            if let (Some(kind), true) = (request.dtype, float && part.elements > 0) {
                part.bytes = kind.bytes_for(part.elements).get();
                part.kind = kind.to_string();
            }
            part
        };
        let mut weights: Vec<WeightsOfType> = Vec::new();
        for part in by_type.into_iter().map(convert) {
            match weights.iter_mut().find(|known| known.kind == part.kind) {
                Some(known) => {
                    known.bytes = known.bytes.saturating_add(part.bytes);
                    known.elements = known.elements.saturating_add(part.elements);
                }
                None => weights.push(part),
            }
        }
        weights.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        self.weights_bytes = weights.iter().fold(0, |sum, part| sum.saturating_add(part.bytes));
        self.weights = weights;
    }
}

/// What running the model of a path takes: a file, or a folder with a model's files.
///
/// # Errors
/// [`ModelError`] when the file is missing, of another format, truncated or damaged, or
/// when the request does not fit it.
pub fn estimate(path: &Path, request: &EstimateRequest) -> ModelResult<Terms> {
    let refuse = |why: String| ModelError { model: path.display().to_string(), why };
    let format = format_of(path).map_err(refuse)?;
    let trainable = matches!(format, ModelFormat::Safetensors | ModelFormat::Checkpoint);
    if request.train.is_some() && !trainable {
        return Err(refuse(UNTRAINED.to_string()));
    }
    request.suits(format).map_err(refuse)?;
    let terms = match format {
        ModelFormat::Gguf => language::gguf(path, request),
        ModelFormat::Safetensors => language::safetensors(path, request),
        ModelFormat::Onnx => graph::onnx(path, request),
        ModelFormat::Checkpoint => graph::checkpoint(path, request),
    };
    terms.map(|terms| terms.settle(request)).map_err(refuse)
}

/// What running an ONNX graph in memory takes.
///
/// # Errors
/// As [`estimate`].
pub fn estimate_onnx(name: &str, bytes: &[u8], request: &EstimateRequest) -> ModelResult<Terms> {
    let terms = graph::onnx_bytes(bytes, request).map(|terms| terms.settle(request));
    terms.map_err(|why| ModelError { model: name.to_string(), why })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ModelFormat {
    Gguf,
    Safetensors,
    Onnx,
    Checkpoint,
}

impl EstimateRequest {
    /// Refuses what says nothing about a model in this format: it would seem to be counted.
    fn suits(&self, format: ModelFormat) -> Result<(), String> {
        let usual = EstimateRequest::default();
        let graph = matches!(format, ModelFormat::Onnx | ModelFormat::Checkpoint);
        if graph && self.runner == Some(Runner::LlamaCpp) {
            return Err("llama.cpp runs language models in GGUF; this one runs in ort, rten, \
                        tensorrt or pytorch"
                .to_string());
        }
        let of_graph = [
            ("a size of images (--imgsz)", self.image.is_some()),
            ("an extent of an input (--input)", !self.inputs.is_empty()),
        ];
        if let Some((what, _)) = of_graph.into_iter().find(|(_, given)| *given && !graph) {
            let has = "a language model has --batch and --context";
            return Err(format!("{what} can be chosen for ONNX and .pt alone; {has}"));
        }
        let of_language = [
            ("a type of the cache (--kv-dtype)", self.kv_dtype.is_some()),
            ("a number of tokens at once (--ubatch)", self.micro_batch != usual.micro_batch),
            ("flash attention (--flash-attn)", self.flash_attention),
            ("full windows (--swa-full)", self.full_windows),
            ("separate caches (--no-kv-unified)", self.separate_caches),
        ];
        let layers = ("a number of layers (--gpu-layers)", self.gpu_layers.is_some());
        let wrong = match format {
            ModelFormat::Gguf => None,
            ModelFormat::Safetensors => Some(layers).filter(|(_, given)| *given),
            _ => of_language.into_iter().chain([layers]).find(|(_, given)| *given),
        };
        if let Some((what, _)) = wrong {
            let kind = if format == ModelFormat::Safetensors { " in GGUF" } else { "" };
            return Err(format!("{what} can be chosen for language models{kind} alone"));
        }
        if graph { Ok(()) } else { self.suits_language(format) }
    }

    /// Refuses what the engine that is named does not do with a language model.
    fn suits_language(&self, format: ModelFormat) -> Result<(), String> {
        match self.runner {
            Some(runner @ (Runner::Ort | Runner::Rten | Runner::TensorRt))
                if format == ModelFormat::Gguf =>
            {
                let runner = runner.name();
                Err(format!("{runner} does not read GGUF; llama.cpp does, and pytorch"))
            }
            Some(Runner::PyTorch) => {
                let caches = self.kv_dtype.into_iter().flat_map(|kinds| [kinds.keys, kinds.values]);
                let quantised =
                    self.dtype.into_iter().chain(caches).find(|kind| kind.is_quantised());
                let usual = EstimateRequest::default();
                let of_llama_cpp = [
                    (
                        "a number of tokens at once (--ubatch)",
                        self.micro_batch != usual.micro_batch,
                    ),
                    ("full windows (--swa-full)", self.full_windows),
                    ("separate caches (--no-kv-unified)", self.separate_caches),
                    ("a number of layers (--gpu-layers)", self.gpu_layers.is_some()),
                ];
                let given = of_llama_cpp.into_iter().find(|(_, given)| *given);
                match (quantised, given) {
                    (Some(kind), _) => Err(format!(
                        "{} is a type of llama.cpp's; PyTorch is estimated with f32, f16 and bf16",
                        kind.name()
                    )),
                    (None, Some((what, _))) => {
                        Err(format!("{what} can be chosen for llama.cpp alone"))
                    }
                    (None, None) => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Why training is not estimated.
const UNTRAINED: &str = "training is estimated for language models in safetensors with their \
                         config.json, and for detectors in .pt files";

/// How the name of the list of a sharded model's files ends.
const INDEX: &str = ".index.json";

/// The format of a file, by its first bytes and its name.
fn format_of(path: &Path) -> Result<ModelFormat, String> {
    if path.is_dir() {
        return Ok(ModelFormat::Safetensors);
    }
    let mut start = Vec::new();
    files::open(path)
        .and_then(|file| file.take(16).read_to_end(&mut start))
        .map_err(|error| error.to_string())?;
    let extension = PathBuf::from(path.file_name().unwrap_or_default());
    let extension = extension.extension().and_then(|text| text.to_str()).unwrap_or_default();
    match (start.as_slice(), extension) {
        ([b'G', b'G', b'U', b'F', ..], _) | (_, "gguf") => Ok(ModelFormat::Gguf),
        (_, "safetensors") => Ok(ModelFormat::Safetensors),
        (_, "json") if path.to_string_lossy().ends_with(INDEX) => Ok(ModelFormat::Safetensors),
        (_, "json") => Err("it names no weights; give the folder that it is in, with its \
                            .safetensors files, or tell the numbers of a config.json to \
                            `plimsoll estimate llm`"
            .to_string()),
        (_, "onnx") => Ok(ModelFormat::Onnx),
        ([b'P', b'K', ..], _) | (_, "pt" | "pth") => Ok(ModelFormat::Checkpoint),
        (_, "engine" | "plan") => Err("a TensorRT engine does not tell what it takes; give the \
                                       .onnx file that it was built from"
            .to_string()),
        ([], _) => Err("the file is empty".to_string()),
        _ => Err("neither GGUF, safetensors, ONNX nor a PyTorch checkpoint, by its name and its \
                  first bytes"
            .to_string()),
    }
}

#[cfg(test)]
mod tests;
