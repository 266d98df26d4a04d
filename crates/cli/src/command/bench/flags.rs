//! The flags of `plimsoll bench`, and the plan that they make.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll::Bytes;
use plimsoll_bench::workload::{BenchPlan, RowPlan, SlotMode};
use plimsoll_infer::{EngineChoice, EngineDevice, ModelSource};

use super::words::BenchWords;
use crate::duration::{duration, in_units};
use crate::limit::{LimitArgs, size_above_zero};
use crate::outcome::BadInput;

const USAGE: &str = "\
plimsoll bench [OPTIONS] MODEL… [SOURCE…]    a row for each model and engine
       plimsoll bench [OPTIONS] [--model0 FILE] [--model1 FILE] [--rgb-source SOURCE] \
[--thermal-source SOURCE]
                                                    two slots, for two cameras; without a model, \
the demo";

/// The most that measuring a slot of the demo takes, where nothing else is asked for: with loading
/// and judging, which takes a third of it, both slots take less than half a minute.
const FIRST_RUN: Duration = Duration::from_secs(9);

const EXAMPLES: &str = "\
Examples:
  plimsoll bench                                     the embedded demo, some seconds
  plimsoll bench yolo11n.onnx frames/                a model on pictures
  plimsoll bench yolo11n.pt yolo11s.pt clip.mp4 --engine ort,rten
                                                     a row for each model and engine
  plimsoll bench yolo11n.onnx                        without a source: drawn scenes
  plimsoll bench --rgb-source image_dir=rgb --thermal-source image_dir=thermal \\
    --model0 rgb.onnx --model1 thermal.onnx          both, paired by time
  plimsoll bench --rate 30 --duration 10m            offered load

Exit codes:
  0 fine, 1 over the limit with --fail-on-violation, 2 bad usage or all slots skipped,
  3 one failed and none completed, or a file that was asked for could not be written,
  130 stopped; the report is written in every case but 2, if it can be";

/// Measure detectors: speed, memory, accuracy and energy, in one report
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub(crate) struct Args {
    /// Weights (.onnx, .pt, .engine) and sources (a folder of pictures, pictures, videos,
    /// camera=N, rtsp://…, gst='PIPELINE', synthetic), told apart by what they are
    #[arg(value_name = "MODEL|SOURCE")]
    words: Vec<String>,
    /// Which slots run: rgb (slot 0), thermal (slot 1) or dual
    #[arg(long, value_name = "MODE")]
    mode: Option<SlotMode>,
    /// image_dir=D, video=F, camera=N, rtsp://…, gst='PIPELINE', synthetic, or a path; the same
    /// as SOURCE
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
    /// The RGB source of dual mode
    #[arg(long, value_name = "SOURCE")]
    rgb_source: Option<String>,
    /// The thermal source of dual mode
    #[arg(long, value_name = "SOURCE")]
    thermal_source: Option<String>,
    /// Labels of the pictures, for accuracy: a COCO file (.json) or the data.yaml of a YOLO data
    /// set; of two cameras those of the RGB source
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Labels of the thermal source of dual mode; with both, the cameras are also judged together
    #[arg(long, value_name = "FILE")]
    thermal_labels: Option<PathBuf>,
    /// How far apart frames of a pair may be
    #[arg(long, value_name = "MS", default_value = "33", value_parser = milliseconds)]
    sync_tolerance_ms: Duration,
    /// Weights of slot 0: a file, or a stem (.engine, .onnx, .pt)
    #[arg(long, value_name = "FILE")]
    model0: Option<PathBuf>,
    /// Weights of slot 1
    #[arg(long, value_name = "FILE")]
    model1: Option<PathBuf>,
    /// auto, rten, ort, tensorrt or echo; several, such as ort,rten, give a row each
    #[arg(long, default_value = "auto", value_delimiter = ',')]
    engine: Vec<EngineChoice>,
    /// auto, cpu or cuda:N
    #[arg(long, default_value = "auto")]
    device: EngineDevice,
    /// ONNX Runtime's library, or ours for TensorRT (`plimsoll generate --tensorrt` builds it);
    /// without it, it is looked for
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Fail where something is not done as asked: an engine falls back, a model gives no numbers,
    /// a source vanishes, labels cannot be used, output cannot be written
    #[arg(long)]
    strict: bool,
    /// The longest that a model may take to be loaded and run once, in a process of its own
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    load_timeout: Duration,
    #[command(flatten)]
    work: BenchWork,
    #[command(flatten)]
    limit: LimitArgs,
    /// The machine whose memory the limit is clamped to; without it a limit is not clamped,
    /// and the default is that of orin-nano-8gb
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// What must stay free where the GPU shares the system's memory
    #[arg(long, value_name = "SIZE", value_parser = size_above_zero)]
    keep_free: Option<Bytes>,
    /// Do not restart under the guard, which makes the limit of GPU memory hard and counts what
    /// each slot allocates
    #[arg(long)]
    no_guard: bool,
    /// Exit 1 where memory passed the limit
    #[arg(long)]
    pub(super) fail_on_violation: bool,
    /// Seconds between samples of the machine
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    metrics_interval: Duration,
    /// Where runs are kept
    #[arg(long, value_name = "DIR", default_value = "outputs")]
    output_dir: PathBuf,
    /// The name of the run's folder, numbered where it is taken; without it, the time
    #[arg(long, value_name = "NAME")]
    run_name: Option<String>,
    /// Write the detections that are judged, from a score of 0.001 on, as COCO's results; with
    /// several models a file each, numbered
    #[arg(long, value_name = "FILE")]
    predictions: Option<PathBuf>,
    /// Write what was found, one JSON object a frame: of each detection left, top, right, bottom, confidence, class, and what the task adds
    #[arg(long, value_name = "FILE")]
    detections: Option<PathBuf>,
}

/// How much is done, and how.
#[derive(Debug, clap::Args)]
struct BenchWork {
    /// Side of the models' input; without it as each model has it, or 640 where it takes any
    #[arg(long, value_name = "PIXELS")]
    imgsz: Option<u32>,
    /// The least confidence of a detection
    #[arg(long, default_value_t = 0.25)]
    conf: f64,
    /// The overlap above which the lesser of two boxes is dropped
    #[arg(long, default_value_t = 0.45)]
    iou: f64,
    /// The most detections a frame
    #[arg(long, value_name = "N", default_value_t = 300)]
    max_det: u32,
    /// The most frames a slot or row; 300 (in the bare demo at most 9 s), or no end where a
    /// duration is given
    #[arg(long, value_name = "N")]
    max_frames: Option<u64>,
    /// Frames before measuring begins
    #[arg(long, value_name = "N", default_value_t = 10)]
    warmup: u64,
    /// Offer this many frames a second; latency counts from the time that a frame is due
    #[arg(long, value_name = "FPS")]
    rate: Option<f64>,
    /// Run each slot for this time: 10m, 90s; a source that ends starts over
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Start a source over that ends before there are enough frames
    #[arg(long = "loop")]
    loop_source: bool,
    /// Both slots at once, each on its own thread
    #[arg(long)]
    parallel: bool,
    /// Repeat the whole run this many times, and give intervals over the repeats
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat: u32,
}

impl Args {
    /// Whether the run may use CUDA, and may be guarded.
    pub(super) fn wants_guard(&self) -> bool {
        let host_only = self.engine.iter().all(|engine| engine.is_host_only());
        let on_host = matches!(self.device, EngineDevice::Cpu) || host_only;
        !self.no_guard && !on_host
    }

    /// The plan.
    pub(super) fn plan(&self) -> anyhow::Result<BenchPlan> {
        let work = &self.work;
        let BenchWords { models, mut sources } = BenchWords::read(&self.words)?;
        sources.extend(self.source.clone());
        let rows = self.rows(models)?;
        let mut source = None;
        if rows.is_empty() {
            source = self.only_source(&mut sources)?;
        }
        let plan = BenchPlan {
            rows,
            row_sources: sources,
            loop_source: work.loop_source,
            most_time: self.is_bare().then_some(FIRST_RUN),
            mode: self.mode,
            source,
            sources: [self.rgb_source.clone(), self.thermal_source.clone()],
            models: [self.model0.clone(), self.model1.clone()],
            engine: self.engine.first().copied().unwrap_or_default(),
            device: self.device,
            library: self.library.clone(),
            strict: self.strict,
            imgsz: work.imgsz,
            conf: work.conf,
            iou: work.iou,
            max_det: work.max_det,
            max_frames: work.max_frames,
            warmup: work.warmup,
            rate: work.rate,
            duration: work.duration,
            parallel: work.parallel,
            repeat: work.repeat,
            sync_tolerance: self.sync_tolerance_ms,
            limit: self.limit.limit(),
            profile: self.profile.clone(),
            keep_free: self.keep_free,
            load_timeout: self.load_timeout,
            metrics_interval: self.metrics_interval,
            output_dir: self.output_dir.clone(),
            run_name: self.run_name.clone(),
            labels: self.labels.clone(),
            thermal_labels: self.thermal_labels.clone(),
            predictions: self.predictions.clone(),
            detections: self.detections.clone(),
            command_line: std::env::args_os()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            ..BenchPlan::default()
        };
        plan.check().map_err(BadInput::new)?;
        Ok(plan)
    }
}

impl Args {
    /// Whether nothing is said about what to measure and how much: the first command that a user
    /// tries, which must not keep them waiting on a slow or busy machine.
    fn is_bare(&self) -> bool {
        let work = &self.work;
        let sources = [&self.source, &self.rgb_source, &self.thermal_source];
        let models = [&self.model0, &self.model1];
        self.words.is_empty()
            && self.mode.is_none()
            && sources.into_iter().all(Option::is_none)
            && models.into_iter().all(Option::is_none)
            && work.max_frames.is_none()
            && work.duration.is_none()
            && work.rate.is_none()
            && work.repeat == 1
    }

    /// A row for each model and engine; none where the two slots are used.
    fn rows(&self, models: Vec<PathBuf>) -> Result<Vec<RowPlan>, BadInput> {
        let slots = [
            ("--model0", self.model0.is_some()),
            ("--model1", self.model1.is_some()),
            ("--rgb-source", self.rgb_source.is_some()),
            ("--thermal-source", self.thermal_source.is_some()),
            ("--mode", self.mode.is_some()),
        ];
        let slot_flag = slots.into_iter().find_map(|(flag, given)| given.then_some(flag));
        match (models.first(), slot_flag) {
            (Some(model), Some(flag)) => Err(BadInput::new(format!(
                "{flag} is of the form with two slots, where {} is --model0 or --model1; without \
                 {flag}, each model is a row",
                model.display()
            ))),
            (None, _) if self.engine.len() > 1 => Err(BadInput::new(
                "several engines need a model: plimsoll bench MODEL… --engine A,B",
            )),
            _ => Ok(models
                .into_iter()
                .flat_map(|model| {
                    let weights = ModelSource::path(model);
                    self.engine
                        .iter()
                        .map(move |&engine| RowPlan { weights: weights.clone(), engine })
                })
                .collect()),
        }
    }

    /// The source of the form with two slots, which takes one word at most.
    fn only_source(&self, sources: &mut Vec<String>) -> Result<Option<String>, BadInput> {
        let source = sources.pop();
        let Some(source) = source else { return Ok(None) };
        if !sources.is_empty() {
            let text = "several sources need a model: plimsoll bench MODEL… SOURCE…; for two \
                        cameras use --rgb-source and --thermal-source";
            return Err(BadInput::new(text));
        }
        let drawn = source == "synthetic" || source.starts_with("synthetic:");
        let word = self.words.contains(&source) && !drawn;
        if word && self.model0.is_none() && self.model1.is_none() {
            return Err(BadInput::new(format!(
                "{source} is a source, and no model was named: plimsoll bench model.onnx {source}"
            )));
        }
        Ok(Some(source))
    }
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    in_units(text, 1e-3).ok_or_else(|| "it must be milliseconds, such as 33".to_string())
}

fn seconds(text: &str) -> Result<Duration, String> {
    in_units(text, 1.0).ok_or_else(|| "it must be seconds, such as 0.5".to_string())
}
