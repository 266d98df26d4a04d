//! `--to FILE.engine`: TensorRT builds it, where it is installed.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use plimsoll::{Bytes, LIMIT_PROFILES};
use plimsoll_infer::engine::tensorrt::build::{self, BuildOptions, Built};
use plimsoll_infer::source::{self, synthetic::SceneKind};
use plimsoll_infer::{InferError, ModelSource};

use super::{Args, Exported, describe, graph, place::ExportPlace};
use crate::outcome::{BadInput, OrBadInput};
use crate::output::ProgressLine;

/// What everybody should know of an engine.
const BOUND: &str = "an engine runs only on the kind of GPU and the version of TensorRT that it \
                     was built with; build it on the machine that it is for";

pub(super) fn build(
    args: &Args,
    model: &Path,
    place: ExportPlace,
    progress: &mut ProgressLine,
) -> anyhow::Result<Option<Exported>> {
    if args.dynamic {
        let why = "--dynamic is for .onnx files: an engine is built for one image size";
        return Err(BadInput::new(why).into());
    }
    let caches = CachePlaces::new(args)?;
    let options = options(args)?;
    // Both precisions are ready before the build, which may ask for either.
    let full = onnx(args, model, false)?;
    let half = if args.half { onnx(args, model, true).ok() } else { None };
    let exported = describe(args, model, &full);
    let ranges = if options.ranges.is_some() { args.calibration_cache.as_ref() } else { None };
    let ranges = ranges.map(|path| path.display().to_string());
    let built = wait(model, progress, {
        let name = model.display().to_string();
        move || {
            let mut graph = |narrow: bool| match (narrow, &half) {
                (false, _) => Ok(full.clone()),
                (true, Some(half)) => Ok(half.clone()),
                (true, None) => Err(InferError::Unavailable {
                    what: "half precision".into(),
                    why: "TensorRT 11 takes it from the graph; give the .pt file".into(),
                }),
            };
            build::build(&name, &mut graph, &options)
        }
    })?;
    // First, as they cost the most.
    if !caches.write(&built)? || !place.write(&built.file)? {
        return Ok(None);
    }
    let ranges = match (&args.calibration, ranges) {
        (_, Some(file)) => format!(", ranges of {file}"),
        (Some(source), None) => format!(", ranges by {} frames of {source}", built.pictures),
        (None, None) => String::new(),
    };
    Ok(Some(Exported {
        format: "engine",
        bytes: built.file.len() as u64,
        half: args.half,
        int8: args.int8,
        built_by: Some(format!("{}, workspace {}{ranges}", built.by, workspace(args))),
        warnings: vec![BOUND.to_string()],
        ..exported
    }))
}

fn options(args: &Args) -> anyhow::Result<BuildOptions> {
    let mut options = BuildOptions::default();
    options.half = args.half;
    options.library.clone_from(&args.library);
    options.workspace = workspace(args);
    options.timings = read_cache("--timing-cache", args.timing_cache.as_deref())?;
    options.ranges = read_cache("--calibration-cache", args.calibration_cache.as_deref())?;
    match (&args.calibration, &options.ranges) {
        (Some(source), None) => {
            source::check(source, SceneKind::Rgb).or_bad_input(|| {
                format!("--calibration {source} is no folder of pictures or other source")
            })?;
            options.calibration = Some(source.clone());
        }
        (None, None) if args.int8 => {
            let why = "the file of --calibration-cache is not there yet: --calibration DIR finds \
                       the ranges that are kept in it";
            return Err(BadInput::new(why).into());
        }
        _ => {}
    }
    Ok(options)
}

/// A cache, where it was named and is there.
fn read_cache(flag: &str, path: Option<&Path>) -> anyhow::Result<Option<Vec<u8>>> {
    let Some(path) = path.filter(|path| path.exists()) else { return Ok(None) };
    let bytes = std::fs::read(path);
    let bytes = bytes.or_bad_input(|| format!("cannot read {flag} {}", path.display()))?;
    if bytes.is_empty() {
        return Err(BadInput::new(format!("{flag} {} is empty; delete it", path.display())).into());
    }
    Ok(Some(bytes))
}

/// Where what a build found out is kept for the next one.
struct CachePlaces {
    ranges: Option<ExportPlace>,
    timings: Option<ExportPlace>,
}

impl CachePlaces {
    fn new(args: &Args) -> anyhow::Result<CachePlaces> {
        let place = |path: &Option<PathBuf>| path.as_deref().map(ExportPlace::new).transpose();
        Ok(CachePlaces {
            ranges: place(&args.calibration_cache)?,
            timings: place(&args.timing_cache)?,
        })
    }

    /// `false` where a signal stopped it.
    fn write(self, built: &Built) -> anyhow::Result<bool> {
        for (place, bytes) in [(self.ranges, &built.ranges), (self.timings, &built.timings)] {
            if let (Some(place), Some(bytes)) = (place, bytes)
                && !place.write(bytes)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Half of the limit, which is the first profile's where none is given.
fn workspace(args: &Args) -> Bytes {
    let profile = LIMIT_PROFILES[0].size.unwrap_or(Bytes::gib(8));
    Bytes(args.limit.limit().unwrap_or(profile).get() / 2)
}

/// The ONNX file that an engine is built from.
fn onnx(args: &Args, model: &Path, half: bool) -> anyhow::Result<Vec<u8>> {
    if model.extension().is_none_or(|extension| extension != "onnx") {
        return graph(args, model, half);
    }
    if half {
        return Err(BadInput::new("a graph has the precision that it has").into());
    }
    let name = model.display();
    let file =
        ModelSource::path(model).read_raw().or_bad_input(|| format!("cannot read {name}"))?;
    Ok(file.to_vec())
}

/// A build takes minutes: says so while it runs.
fn wait(
    model: &Path,
    progress: &mut ProgressLine,
    work: impl FnOnce() -> Result<Built, InferError> + Send + 'static,
) -> anyhow::Result<Built> {
    let (done, ended) = channel();
    let begun = Instant::now();
    std::thread::spawn(move || done.send(work()));
    let built = loop {
        match ended.recv_timeout(Duration::from_millis(500)) {
            Ok(built) => break built,
            Err(RecvTimeoutError::Timeout) => {
                let seconds = begun.elapsed().as_secs();
                progress.show(&format!("TensorRT builds {} ({seconds} s)", model.display()));
            }
            Err(RecvTimeoutError::Disconnected) => {
                anyhow::bail!("the build ended without an error message")
            }
        }
    };
    match built {
        Ok(built) => Ok(built),
        Err(error @ InferError::Source { .. }) => {
            Err(error).or_bad_input(|| "the engine cannot be built of this")
        }
        Err(error @ InferError::Unavailable { .. }) => {
            Err(error).context("the engine cannot be built here")
        }
        Err(error) => Err(error).context("the engine could not be built"),
    }
}
