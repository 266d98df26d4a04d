//! `plimsoll estimate MODEL`: from a file.

use std::path::{Path, PathBuf};

use plimsoll::backend::{BackendKind, DeviceId};
use plimsoll::{Bytes, CacheTypes, ElementType, WeightType};
use plimsoll_models::terms::{EstimateRequest, Runner, Terms, estimate};

use super::answer::{FileEstimate, FitVerdict};
use super::train::TrainArgs;
use super::{fleet, remedy, room, tokens};
use crate::limit::LimitArgs;
use crate::outcome::{OrBadInput, Outcome};
use crate::output::Output;

/// A model file and how it is to be run.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// The model: ONNX, .pt, GGUF, safetensors, or a folder with shards and config.json
    pub(super) model: Option<PathBuf>,
    /// Size of images, N or ROWSxCOLUMNS; as the file has it, else 640
    #[arg(long, value_name = "SIZE", value_parser = image)]
    pub(super) imgsz: Option<(u64, u64)>,
    /// Images or sequences at once
    #[arg(long, visible_alias = "parallel", value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub(super) batch: u64,
    /// Tokens of context: of each sequence with --engine pytorch, over all sequences otherwise;
    /// 4096 or what the model was trained for, if less
    #[arg(long, value_name = "N", value_parser = tokens)]
    pub(super) context: Option<u64>,
    /// The weights as if they were stored so: f32, f16, bf16, q8_0, q4_k_m, …
    #[arg(long, value_name = "TYPE", value_parser = weights)]
    pub(super) dtype: Option<ElementType>,
    /// How the cache is stored: f16, q8_0, q4_0, …; two for keys and values: q8_0,q4_0
    #[arg(long, value_name = "TYPE")]
    pub(super) kv_dtype: Option<CacheTypes>,
    /// Tokens processed at once
    #[arg(long, visible_alias = "micro-batch", value_name = "N", default_value = "512", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) ubatch: u64,
    /// Attention runs without storing its scores
    #[arg(long)]
    pub(super) flash_attn: bool,
    /// Layers with a window keep the whole context, as with llama.cpp's flag of that name
    #[arg(long)]
    pub(super) swa_full: bool,
    /// Each sequence has a cache of its own, for its part of the context (llama.cpp)
    #[arg(long)]
    pub(super) no_kv_unified: bool,
    /// Layers on the device, the last ones; the rest stays on the host (GGUF)
    #[arg(long, value_name = "N")]
    pub(super) gpu_layers: Option<u64>,
    /// An extent of an input that the graph leaves open, such as tokens:1=256
    #[arg(long, value_name = "NAME:AXIS=N", value_parser = extent)]
    pub(super) input: Vec<(String, u64)>,
    /// Who runs it: ort, rten, tensorrt, llama.cpp or pytorch
    #[arg(long, value_name = "NAME", value_parser = str::parse::<Runner>)]
    pub(super) engine: Option<Runner>,
    /// By running the model's own program without data (Python with PyTorch and Transformers)
    #[arg(long)]
    pub(super) exact: bool,
    /// Where it runs: cpu, cuda:N, rocm:N, …; its memory is then what counts
    #[arg(long, value_name = "NAME")]
    pub(super) device: Option<DeviceId>,
    /// The model against a table of boards and GPUs
    #[arg(long)]
    pub(super) fleet: bool,
    #[command(flatten)]
    pub(super) limit: LimitArgs,
    #[command(flatten)]
    pub(super) train: TrainArgs,
}

/// N, or ROWSxCOLUMNS.
fn image(text: &str) -> Result<(u64, u64), String> {
    let (rows, columns) = text.split_once(['x', 'X', ',']).unwrap_or((text, text));
    match (rows.trim().parse(), columns.trim().parse()) {
        (Ok(rows @ 1..=65_536), Ok(columns @ 1..=65_536)) => Ok((rows, columns)),
        _ => Err("it must be a number of pixels such as 640, or two as in 480x640".to_string()),
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

impl Args {
    /// The same as the library takes it.
    pub(super) fn request(&self) -> EstimateRequest {
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
        request.inputs.clone_from(&self.input);
        request.train = self.train.request();
        if request.train.is_some() {
            // Training is on a GPU.
            request.on_gpu = Some(true);
        }
        request
    }

    /// What it takes, if it can be read.
    pub(super) fn terms(&self, model: &Path) -> plimsoll_models::ModelResult<Terms> {
        estimate(model, &self.request())
    }
}

/// Estimates the file.
pub(super) fn run(model: &Path, args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    args.train.check(args.engine)?;
    let terms = args.terms(model).or_bad_input(|| "cannot estimate it")?;
    let room = args.device.map(room::of);
    let limit = match (args.limit.limit(), room.as_ref().and_then(|room| room.available)) {
        (Some(limit), Some(room)) => Some(limit.min(room)),
        (limit, room) => limit.or(room),
    };
    let verdict = limit.map(|limit| {
        let largest = room.as_ref().and_then(|room| room.largest_single);
        let ends = (Bytes(terms.total_bytes), Bytes(terms.range.high_bytes));
        FitVerdict::of(ends, limit, Bytes(terms.largest_single_bytes), largest)
    });
    let no = verdict.is_some_and(|verdict| !verdict.fits());
    let advice = match limit.filter(|_| no) {
        Some(limit) => remedy::what_fits(model, args, &terms, limit),
        None => Vec::new(),
    };
    let fleet = if args.fleet { fleet::against(&terms)? } else { Vec::new() };
    let mut answer = FileEstimate::new(model, args, terms);
    answer.set_verdict(limit, verdict, room);
    answer.advice = advice;
    answer.fleet = fleet;
    out.answer(&answer)?;
    Ok(Outcome::from(!no))
}
