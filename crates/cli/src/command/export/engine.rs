//! `--to FILE.engine`: TensorRT builds it, where it is installed.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use plimsoll::{Bytes, LIMIT_PROFILES};
use plimsoll_infer::engine::tensorrt::build::{self, BuildOptions, Built};
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
    if let Some(folder) = args.calibration.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(
            BadInput::new(format!("--calibration {} is no folder", folder.display())).into()
        );
    }
    let mut options = BuildOptions::default();
    options.half = args.half;
    options.calibration.clone_from(&args.calibration);
    options.library.clone_from(&args.library);
    options.workspace = workspace(args);
    // Both precisions are ready before the build, which may ask for either.
    let full = onnx(args, model, false)?;
    let half = if args.half { onnx(args, model, true).ok() } else { None };
    let exported = describe(args, model, &full);
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
    if !place.write(&built.file)? {
        return Ok(None);
    }
    Ok(Some(Exported {
        format: "engine",
        bytes: built.file.len() as u64,
        half: args.half,
        int8: args.int8,
        built_by: Some(format!("{}, workspace {}", built.by, workspace(args))),
        warnings: vec![BOUND.to_string()],
        ..exported
    }))
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
        // The machine lacks something, or the model is wrong: both are for the user to mend.
        Err(error @ (InferError::Unavailable { .. } | InferError::Source { .. })) => {
            Err(error).or_bad_input(|| "the engine cannot be built here")
        }
        Err(error) => Err(error).context("the engine could not be built"),
    }
}
