//! A model file and how it is to be run, as `estimate` and `fit` take it.

use std::path::{Path, PathBuf};

use plimsoll::backend::{BackendKind, DeviceId};
use plimsoll::{CacheTypes, ElementType, WeightType};
use plimsoll_models::terms::{EstimateRequest, Runner, Terms, estimate};

use crate::limit::LimitArgs;
use crate::train_flags::TrainFlags;

/// A model file and how it is to be run.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub(crate) struct ModelFlags {
    /// The model: ONNX, .pt, GGUF, safetensors, or a folder with shards and config.json
    pub(crate) model: Option<PathBuf>,
    /// Size of images, N or ROWSxCOLUMNS; as the file has it, else 640
    #[arg(long, value_name = "SIZE", value_parser = image)]
    pub(crate) imgsz: Option<(u64, u64)>,
    /// Images or sequences at once
    #[arg(long, visible_alias = "parallel", value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub(crate) batch: u64,
    /// Tokens of context: of each sequence with --engine pytorch, over all sequences otherwise;
    /// 4096 or what the model was trained for, if less
    #[arg(long, value_name = "N", value_parser = tokens)]
    pub(crate) context: Option<u64>,
    /// The weights as if they were stored so: f32, f16, bf16, q8_0, q4_k_m, …
    #[arg(long, value_name = "TYPE", value_parser = weights)]
    pub(crate) dtype: Option<ElementType>,
    /// How the cache is stored: f16, q8_0, q4_0, …; two for keys and values: q8_0,q4_0
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_dtype: Option<CacheTypes>,
    /// Tokens processed at once
    #[arg(long, visible_alias = "micro-batch", value_name = "N", default_value = "512", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ubatch: u64,
    /// Attention runs without storing its scores
    #[arg(long)]
    pub(crate) flash_attn: bool,
    /// Layers with a window keep the whole context, as with llama.cpp's flag of that name
    #[arg(long)]
    pub(crate) swa_full: bool,
    /// Each sequence has a cache of its own, for its part of the context (llama.cpp)
    #[arg(long)]
    pub(crate) no_kv_unified: bool,
    /// Layers on the device, the last ones; the rest stays on the host (GGUF)
    #[arg(long, value_name = "N")]
    pub(crate) gpu_layers: Option<u64>,
    /// An extent of an input that the graph leaves open, such as tokens:1=256
    #[arg(long, value_name = "NAME:AXIS=N", value_parser = extent)]
    pub(crate) input: Vec<(String, u64)>,
    /// Who runs it: ort, rten, tensorrt, llama.cpp or pytorch
    #[arg(long, value_name = "NAME", value_parser = str::parse::<Runner>)]
    pub(crate) engine: Option<Runner>,
    /// Where it runs: cpu, cuda:N, rocm:N, …; its memory is then what counts
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<DeviceId>,
    /// Whether it is for a GPU that is not named.
    #[arg(skip)]
    pub(crate) for_any_gpu: bool,
    #[command(flatten)]
    pub(crate) limit: LimitArgs,
    #[command(flatten)]
    pub(crate) train: TrainFlags,
}

/// A number of tokens.
pub(crate) fn tokens(text: &str) -> Result<u64, String> {
    match text.trim().parse() {
        Ok(tokens @ 1..) => Ok(tokens),
        _ => Err(match thousands(text) {
            Some(n) => {
                let (decimal, binary) = (n.saturating_mul(1000), n.saturating_mul(1024));
                format!("it must be the number of tokens in digits: {binary}, or {decimal}")
            }
            None => "it must be a number of tokens above 0, such as 4096".to_string(),
        }),
    }
}

/// `4k`, which means one of two numbers.
fn thousands(text: &str) -> Option<u64> {
    text.trim().strip_suffix(['k', 'K'])?.trim().parse().ok()
}

/// N, or ROWSxCOLUMNS.
fn image(text: &str) -> Result<(u64, u64), String> {
    let (rows, columns) = text.split_once(['x', 'X', ',']).unwrap_or((text, text));
    match (rows.trim().parse(), columns.trim().parse()) {
        (Ok(rows @ 1..=65_536), Ok(columns @ 1..=65_536)) => Ok((rows, columns)),
        _ => Err("it must be a number of pixels from 1 to 65536 such as 640, or two as in 480x640"
            .to_string()),
    }
}

/// A type, or the name of a file's mix by what most of it is.
fn weights(text: &str) -> Result<ElementType, String> {
    let mix = text.parse::<WeightType>().map(WeightType::base);
    mix.or_else(|error| text.parse::<ElementType>().map_err(|_| error.to_string()))
}

fn extent(text: &str) -> Result<(String, u64), String> {
    let parts = text.split_once('=').filter(|(place, _)| place.contains(':'));
    match parts.map(|(place, n)| (place.to_string(), n.parse())) {
        Some((place, Ok(n))) => Ok((place, n)),
        _ => Err("it must be an input, an axis and a number, as in tokens:1=256".to_string()),
    }
}

impl ModelFlags {
    /// The same as the library takes it.
    pub(crate) fn request(&self) -> EstimateRequest {
        let mut request = EstimateRequest::default();
        request.image = self.imgsz;
        request.batch = self.batch;
        request.context = self.context;
        request.dtype = self.dtype;
        request.kv_dtype = self.kv_dtype;
        request.micro_batch = self.ubatch;
        request.flash_attention = self.flash_attn;
        request.full_windows = self.swa_full;
        request.separate_caches = self.no_kv_unified;
        request.gpu_layers = self.gpu_layers;
        request.runner = self.engine;
        request.on_gpu =
            self.device.map(|device| !matches!(device.kind, BackendKind::Host | BackendKind::Sim));
        request.on_gpu = request.on_gpu.or(self.for_any_gpu.then_some(true));
        request.inputs.clone_from(&self.input);
        request.train = self.train.request();
        if request.train.is_some() || self.engine == Some(Runner::TensorRt) {
            // Training is on a GPU, and TensorRT runs nowhere else.
            request.on_gpu = Some(true);
        }
        request
    }

    /// Whether it was said to run on the CPU.
    pub(crate) fn is_on_cpu(&self) -> bool {
        self.device.is_some_and(|device| device.kind == BackendKind::Host)
    }

    /// That an estimate is for the CPU, where the engine takes more on a GPU and none is named.
    pub(crate) fn note_of_place(&self) -> Option<String> {
        let engine = self.engine.filter(|one| matches!(one, Runner::Ort | Runner::PyTorch))?;
        let flag = "no --device is named, so this is for the CPU";
        let note = format!("{flag}; on a GPU {engine} takes more: --device cuda:0");
        self.request().on_gpu.is_none().then_some(note)
    }

    /// Whether the setting of this name was given.
    pub(crate) fn has(&self, name: &str) -> bool {
        match name {
            "batch" => self.batch != 1,
            "context" => self.context.is_some(),
            "imgsz" => self.imgsz.is_some(),
            "gpu-layers" => self.gpu_layers.is_some(),
            "dtype" => self.dtype.is_some(),
            _ => false,
        }
    }

    /// What it takes, if it can be read.
    pub(crate) fn terms(&self, model: &Path) -> plimsoll_models::ModelResult<Terms> {
        estimate(model, &self.request())
    }
}
