//! The plan of a run: every option, checked before anything starts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::{Bytes, LimitRequest};
use plimsoll_infer::engine::EchoOptions;
use plimsoll_infer::{EngineChoice, EngineDevice, EngineOptions, ModelSource, Thresholds};

use super::{BenchError, Guarded, Level, Logged, Trial};
use crate::record::BenchConfig;

/// Which slots run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotMode {
    /// Slot 0.
    Rgb,
    /// Slot 1.
    Thermal,
    /// Both.
    Dual,
}

impl SlotMode {
    /// The name that users write.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SlotMode::Rgb => "rgb",
            SlotMode::Thermal => "thermal",
            SlotMode::Dual => "dual",
        }
    }

    /// Whether a slot runs.
    #[must_use]
    pub fn has(self, slot: usize) -> bool {
        matches!((self, slot), (SlotMode::Dual, _) | (SlotMode::Rgb, 0) | (SlotMode::Thermal, 1))
    }
}

impl std::str::FromStr for SlotMode {
    type Err = String;

    fn from_str(text: &str) -> Result<SlotMode, String> {
        [SlotMode::Rgb, SlotMode::Thermal, SlotMode::Dual]
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| format!("{text:?} is not a mode; the modes are rgb, thermal and dual"))
    }
}

/// One row of a run: a model on an engine. All rows see the same frames, one after the other.
#[derive(Debug, Clone)]
pub struct RowPlan {
    /// The weights.
    pub weights: ModelSource,
    /// The engine that runs them.
    pub engine: EngineChoice,
}

/// The plan of a run. [`BenchPlan::default`] is the embedded demo.
#[derive(Debug, Clone)]
pub struct BenchPlan {
    /// The rows; with any, the run has no slots, and `mode`, `sources`, `models` and `engine` are
    /// not used.
    pub rows: Vec<RowPlan>,
    /// The sources of rows, read one after the other; without one, synthetic scenes.
    pub row_sources: Vec<String>,
    /// Whether a source that ends starts over until there are enough frames.
    pub loop_source: bool,
    /// Which slots run; with `None` the sources and the weights decide.
    pub mode: Option<SlotMode>,
    /// The one source of a single-stream mode.
    pub source: Option<String>,
    /// The sources of dual mode: RGB and thermal.
    pub sources: [Option<String>; 2],
    /// The weights of the slots.
    pub models: [Option<PathBuf>; 2],
    /// The engine that runs them.
    pub engine: EngineChoice,
    /// The device that it runs on.
    pub device: EngineDevice,
    /// The file of ONNX Runtime's library.
    pub library: Option<PathBuf>,
    /// Makes these an error: a fallback, output of a model that is not a number, a source that
    /// disappears, files that cannot be written.
    pub strict: bool,
    /// Side of the models' input; `None` runs each model at its own size, or at 640 where it
    /// takes any.
    pub imgsz: Option<u32>,
    /// The least confidence.
    pub conf: f64,
    /// The overlap (IoU) above which the less confident of two boxes is dropped.
    pub iou: f64,
    /// The most detections per frame.
    pub max_det: u32,
    /// The most frames per slot; `None` for 300, or for no limit where a duration is given.
    pub max_frames: Option<u64>,
    /// Frames before measuring begins.
    pub warmup: u64,
    /// Offered frames per second.
    pub rate: Option<f64>,
    /// How long each slot runs.
    pub duration: Option<Duration>,
    /// Ends a slot after this time, also where it has fewer frames than it should; for a first run
    /// on a machine of any speed.
    pub most_time: Option<Duration>,
    /// Both slots at once.
    pub parallel: bool,
    /// How often the whole run is repeated.
    pub repeat: u32,
    /// How far apart frames of a pair may be.
    pub sync_tolerance: Duration,
    /// The limit.
    pub limit: Option<Bytes>,
    /// The profile that clamps it; without one the limit is not clamped.
    pub profile: Option<String>,
    /// What must stay free on unified memory.
    pub keep_free: Option<Bytes>,
    /// Time between samples of the machine.
    pub metrics_interval: Duration,
    /// Time between reports while it runs.
    pub report_interval: Duration,
    /// Where runs are kept.
    pub output_dir: PathBuf,
    /// The name of the run; without one it is named after the time.
    pub run_name: Option<String>,
    /// Labels of the frames: a COCO file, or the data.yaml of a YOLO data set. In dual mode those
    /// of the RGB frames.
    pub labels: Option<PathBuf>,
    /// In dual mode, labels of the thermal frames.
    pub thermal_labels: Option<PathBuf>,
    /// Where the detections that are judged are written, as COCO's results.
    pub predictions: Option<PathBuf>,
    /// Where detections are written, one JSON object per frame.
    pub detections: Option<PathBuf>,
    /// The least severe level in `run.log`.
    pub log_level: Level,
    /// What libraries log during the run, for `run.log`.
    pub logged: Option<Arc<dyn Logged>>,
    /// Whether the run is under the guard.
    pub guard: Guarded,
    /// Tries untrusted models before they are loaded; with `None` nothing does.
    pub trial: Option<Arc<dyn Trial>>,
    /// The timeout of that, for loading a model and its first run.
    pub load_timeout: Duration,
    /// The output of the `echo` engine.
    pub echo: EchoOptions,
    /// The command line.
    pub command_line: Vec<String>,
}

impl Default for BenchPlan {
    fn default() -> BenchPlan {
        BenchPlan {
            rows: Vec::new(),
            row_sources: Vec::new(),
            loop_source: false,
            mode: None,
            source: None,
            sources: [None, None],
            models: [None, None],
            engine: EngineChoice::Auto,
            device: EngineDevice::Auto,
            library: None,
            strict: false,
            imgsz: None,
            conf: 0.25,
            iou: 0.45,
            max_det: 300,
            max_frames: None,
            warmup: 10,
            rate: None,
            duration: None,
            most_time: None,
            parallel: false,
            repeat: 1,
            sync_tolerance: Duration::from_millis(33),
            limit: None,
            profile: None,
            keep_free: None,
            metrics_interval: Duration::from_millis(500),
            report_interval: Duration::from_secs(3),
            output_dir: PathBuf::from("outputs"),
            run_name: None,
            labels: None,
            thermal_labels: None,
            predictions: None,
            detections: None,
            log_level: Level::default(),
            logged: None,
            guard: Guarded::No,
            trial: None,
            load_timeout: Duration::from_secs(60),
            echo: EchoOptions::default(),
            command_line: Vec::new(),
        }
    }
}

impl BenchPlan {
    /// The default number of frames per slot.
    pub const FRAMES: u64 = 300;

    /// How many frames a slot takes; `None` where only the duration ends it.
    #[must_use]
    pub fn frames(&self) -> Option<u64> {
        match (self.max_frames, self.duration) {
            (Some(frames), _) => Some(frames),
            (None, Some(_)) => None,
            (None, None) => Some(BenchPlan::FRAMES),
        }
    }

    /// Whether a source that ends starts over.
    pub(super) fn starts_over(&self) -> bool {
        self.duration.is_some() || self.loop_source
    }

    /// The engines as the user asked for them.
    pub(super) fn engines(&self) -> Vec<EngineChoice> {
        let mut all = match self.rows.is_empty() {
            true => vec![self.engine],
            false => self.rows.iter().map(|row| row.engine).collect(),
        };
        let mut seen = Vec::new();
        all.retain(|engine| {
            !seen.contains(engine) && {
                seen.push(*engine);
                true
            }
        });
        all
    }

    /// Checks that every number is valid.
    ///
    /// # Errors
    /// [`BenchError::Plan`], with the flag and its valid values.
    pub fn check(&self) -> Result<(), BenchError> {
        let share = |value: f64| (0.0..=1.0).contains(&value);
        let checks = [
            (
                self.imgsz.is_none_or(|side| (32..=8192).contains(&side) && side % 32 == 0),
                "--imgsz must be a multiple of 32 from 32 to 8192",
            ),
            (share(self.conf), "--conf must be from 0 to 1; 25 % is 0.25"),
            (share(self.iou), "--iou must be from 0 to 1; 45 % is 0.45"),
            ((1..=100_000).contains(&self.max_det), "--max-det must be from 1 to 100000"),
            (self.max_frames != Some(0), "--max-frames must be at least 1"),
            (self.warmup <= 1_000_000, "--warmup must be at most 1000000"),
            (
                self.rate.is_none_or(|rate| (1e-3..=1e6).contains(&rate)),
                "--rate must be from 0.001 to 1000000 frames a second",
            ),
            (
                self.duration.is_none_or(|time| !time.is_zero()),
                "--duration must be longer than nothing",
            ),
            (
                !self.load_timeout.is_zero() && self.load_timeout <= Duration::from_secs(86_400),
                "--load-timeout must be above 0 and at most a day",
            ),
            ((1..=1000).contains(&self.repeat), "--repeat must be from 1 to 1000"),
            (
                self.metrics_interval >= Duration::from_millis(10)
                    && self.metrics_interval <= Duration::from_secs(3600),
                "--metrics-interval must be from 0.01 to 3600 seconds",
            ),
            (
                self.source.is_none() || self.sources.iter().all(Option::is_none),
                "--source stands for itself; --rgb-source and --thermal-source are for dual mode",
            ),
            (
                self.rows.is_empty() || !self.parallel,
                "--parallel is for the two slots (--model0, --model1); rows take turns",
            ),
        ];
        match checks.into_iter().find(|(fine, _)| !fine) {
            Some((_, wrong)) => Err(BenchError::Plan(wrong.to_string())),
            None => Ok(()),
        }
    }

    /// Which detections count.
    pub(super) fn thresholds(&self) -> Thresholds {
        Thresholds {
            confidence: self.conf as f32,
            iou: self.iou,
            max_detections: self.max_det as usize,
        }
    }

    /// Rows and columns of the input that the user wants.
    pub(super) fn image(&self) -> Option<(usize, usize)> {
        self.imgsz.map(|side| (side as usize, side as usize))
    }

    /// The options of the engine.
    pub(super) fn engine_options(&self, limit: Bytes) -> EngineOptions {
        let mut options = EngineOptions::default();
        options.device = self.device;
        options.memory_limit = Some(limit);
        options.library.clone_from(&self.library);
        options.strict = self.strict;
        options.input_size = self.image();
        options.echo = self.echo.clone();
        options
    }

    /// The request to the memory manager, which detects itself whether memory is unified.
    pub(super) fn limit_request(&self) -> plimsoll::Result<LimitRequest> {
        let mut request = LimitRequest::new();
        if let Some(profile) = &self.profile {
            request = request.with_profile(profile)?;
        }
        request.limit = self.limit;
        request.keep_free = self.keep_free;
        Ok(request)
    }

    /// The plan as the record keeps it.
    pub(super) fn config(&self, mode: &str, paired: bool, limit: Bytes) -> BenchConfig {
        let engines: Vec<String> = self.engines().iter().map(ToString::to_string).collect();
        BenchConfig {
            mode: mode.to_string(),
            engine: engines.join(","),
            device: self.device.to_string(),
            imgsz: self.imgsz,
            conf: self.conf,
            iou: self.iou,
            max_det: self.max_det,
            max_frames: self.frames(),
            warmup: self.warmup,
            rate_fps: self.rate,
            duration_s: self.duration.map(|time| time.as_secs_f64()),
            loop_source: self.loop_source,
            parallel: self.parallel,
            strict: self.strict,
            repeat: self.repeat,
            gpu_mem_limit_gb: self.limit.unwrap_or(limit).as_gib(),
            profile: self.profile.clone(),
            keep_free_gb: self.keep_free.map(Bytes::as_gib),
            sync_tolerance_ms: paired.then_some(self.sync_tolerance.as_secs_f64() * 1e3),
            metrics_interval_s: self.metrics_interval.as_secs_f64(),
        }
    }
}
