//! Building an engine: by TensorRT's library through our shim, or by `trtexec`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use plimsoll::Bytes;

use super::{find, plan, sys};
use crate::error::{InferError, InferResult};
use crate::prepare::Prepare;
use crate::source::{self, SourceOptions};
use crate::tensor::Tensor;
use plimsoll_models::onnx::OnnxHeader;

/// The most pictures that ranges are found by; Ultralytics takes as many.
const MOST_PICTURES: usize = 500;
/// Where JetPack and NVIDIA's packages put trtexec.
const TRTEXEC: [&str; 3] =
    ["/usr/src/tensorrt/bin/trtexec", "/usr/local/tensorrt/bin/trtexec", "/usr/bin/trtexec"];

/// How an engine should be.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BuildOptions {
    /// Sixteen bits where that is faster.
    pub half: bool,
    /// Eight bits where that is faster, with ranges found by the frames of this source.
    pub calibration: Option<String>,
    /// Eight bits with ranges that were found before, as [`Built::ranges`] has them; then no frame
    /// is looked at.
    pub ranges: Option<Vec<u8>>,
    /// What was timed before on this GPU, as [`Built::timings`] has it: it is not timed again.
    pub timings: Option<Vec<u8>>,
    /// The most memory that a layer may take to try things out.
    pub workspace: Bytes,
    /// The GPU.
    pub device: u32,
    /// The file of our shim; it is then looked for nowhere else.
    pub library: Option<PathBuf>,
}

impl BuildOptions {
    fn int8(&self) -> bool {
        self.calibration.is_some() || self.ranges.is_some()
    }
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions {
            half: false,
            calibration: None,
            ranges: None,
            timings: None,
            workspace: Bytes::gib(4),
            device: 0,
            library: None,
        }
    }
}

/// An engine that was built.
#[derive(Debug)]
#[non_exhaustive]
pub struct Built {
    /// The engine's file: what Ultralytics puts before a plan, and the plan.
    pub file: Vec<u8>,
    /// Who built it: `TensorRT 8.5.1`, `trtexec`.
    pub by: String,
    /// Frames that ranges were found by.
    pub pictures: usize,
    /// The ranges that were found by them, as TensorRT writes them.
    pub ranges: Option<Vec<u8>>,
    /// How long each way to compute a layer took on this GPU, as TensorRT writes it.
    pub timings: Option<Vec<u8>>,
}

/// Builds an engine. `graph` gives the ONNX file for the options it is asked for: where
/// TensorRT takes the precision from the graph, it is asked for one in half precision.
///
/// # Errors
/// [`InferError::Unavailable`] where neither TensorRT's library nor trtexec is there, with the
/// remedy; [`InferError::Model`] with TensorRT's own reason where it fails.
pub fn build(
    name: &str,
    graph: &mut dyn FnMut(bool) -> InferResult<Vec<u8>>,
    options: &BuildOptions,
) -> InferResult<Built> {
    let refused = match find::shim(options.library.as_deref()) {
        Ok(shim) => return by_library(&shim, name, graph, options),
        Err(refused) => refused,
    };
    if options.library.is_some() || options.int8() {
        // trtexec takes no pictures, and knows nothing of what must stay in 32 bits.
        return Err(refused);
    }
    match trtexec() {
        Some(program) => by_trtexec(&program, name, &graph(false)?, options),
        None => Err(match refused {
            InferError::Unavailable { what, why } => InferError::Unavailable {
                what,
                why: format!("{why}; nor is trtexec there ({} and the path)", TRTEXEC.join(", ")),
            },
            other => other,
        }),
    }
}

fn by_library(
    shim: &sys::Shim,
    name: &str,
    graph: &mut dyn FnMut(bool) -> InferResult<Vec<u8>>,
    options: &BuildOptions,
) -> InferResult<Built> {
    let refuse = |why: String| InferError::Model { model: name.to_string(), why };
    // From 11 on the graph says what is computed in how many bits.
    let typed = shim.major() >= 11;
    if typed && options.int8() {
        let why = "TensorRT 11 finds no ranges by pictures; quantise the graph instead";
        return Err(InferError::Unavailable { what: "--int8".into(), why: why.into() });
    }
    let onnx = graph(typed && options.half)?;
    let header = OnnxHeader::parse(&onnx).map_err(|why| refuse(why.to_string()))?;
    let mut pictures = match (&options.calibration, &options.ranges) {
        (Some(source), None) => Some(CalibrationPictures::open(source, &header)?),
        _ => None,
    };
    let mut show =
        |image: &mut [u8]| pictures.as_mut().is_some_and(|pictures| pictures.next(image));
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| value == "1");
    let build = sys::BuildRequest {
        fp16: options.half && !typed,
        int8: options.int8(),
        // For machines without cuBLAS and cuDNN of the right version, and for quick builds.
        no_tactic_sources: set("PLIMSOLL_TENSORRT_NO_TACTICS"),
        quick: set("PLIMSOLL_TENSORRT_QUICK"),
        workspace: options.workspace.get(),
        timings: options.timings.as_deref().unwrap_or_default(),
        ranges: options.ranges.as_deref().unwrap_or_default(),
        calibrate: &mut show,
    };
    let built = shim.build(&onnx, options.device, build).map_err(&refuse)?;
    let shown = pictures.as_ref().map(|pictures| pictures.shown);
    if let (Some(0), Some(source)) = (shown, &options.calibration) {
        let why = "no picture for calibration could be read".into();
        return Err(InferError::Source { source_name: source.clone(), why });
    }
    let mut file = plan::header(&header.metadata);
    file.extend_from_slice(&built.plan);
    Ok(Built {
        file,
        by: format!("TensorRT {}", shim.version_text()),
        pictures: shown.unwrap_or(0),
        ranges: built.ranges,
        timings: built.timings,
    })
}

/// Pictures by which TensorRT finds the ranges of values, prepared as they are when it runs.
struct CalibrationPictures {
    frames: Box<dyn source::Source>,
    prepare: Prepare,
    input: Tensor,
    shown: usize,
}

impl CalibrationPictures {
    fn open(source: &str, header: &OnnxHeader) -> InferResult<CalibrationPictures> {
        let shape = header.inputs.first().and_then(|input| input.shape.clone()).unwrap_or_default();
        let [_, _, Some(rows), Some(columns)] = shape[..] else {
            let why = "eight bits need an image size that is fixed: leave --dynamic out";
            return Err(InferError::Unavailable { what: "--int8".into(), why: why.into() });
        };
        let frames = source::open(source, &SourceOptions::default())?;
        Ok(CalibrationPictures {
            frames,
            prepare: Prepare::new(rows, columns),
            input: Tensor::default(),
            shown: 0,
        })
    }

    /// Writes the next picture that can be read.
    fn next(&mut self, image: &mut [u8]) -> bool {
        while self.shown < MOST_PICTURES {
            let frame = match self.frames.next_frame() {
                None => return false,
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    tracing::warn!(%error, "a picture for calibration was skipped");
                    continue;
                }
            };
            if self.prepare.run(&frame, &mut self.input).is_err()
                || image.len() != size_of_val(&self.input.data[..])
            {
                continue;
            }
            for (to, from) in image.chunks_exact_mut(4).zip(&self.input.data) {
                to.copy_from_slice(&from.to_ne_bytes());
            }
            self.shown += 1;
            return true;
        }
        false
    }
}

fn trtexec() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("trtexec"));
    on_path.chain(TRTEXEC.map(PathBuf::from)).find(|file| file.is_file())
}

fn by_trtexec(
    program: &Path,
    name: &str,
    onnx: &[u8],
    options: &BuildOptions,
) -> InferResult<Built> {
    let refuse = |why: String| InferError::Model { model: name.to_string(), why };
    let failed = |error: std::io::Error| refuse(format!("{}: {error}", program.display()));
    let header = OnnxHeader::parse(onnx).map_err(|why| refuse(why.to_string()))?;
    let folder = tempfile::tempdir().map_err(failed)?;
    let [from, to, timings] =
        ["model.onnx", "model.plan", "timings"].map(|name| folder.path().join(name));
    std::fs::write(&from, onnx).map_err(failed)?;
    if let Some(known) = &options.timings {
        std::fs::write(&timings, known).map_err(failed)?;
    }
    let mut command = Command::new(program);
    command
        .arg(format!("--onnx={}", from.display()))
        .arg(format!("--saveEngine={}", to.display()))
        .arg(format!("--memPoolSize=workspace:{}", options.workspace.get() >> 20))
        .arg(format!("--device={}", options.device))
        .arg(format!("--timingCacheFile={}", timings.display()))
        // It would measure for seconds; the flag that forbids it has changed its name.
        .args(["--iterations=1", "--duration=0", "--warmUp=0"])
        .stdin(Stdio::null());
    // By default it would round f32 to ten bits where it multiplies.
    command.arg(if options.half { "--fp16" } else { "--noTF32" });
    let ran = command.output().map_err(failed)?;
    let plan = std::fs::read(&to).ok().filter(|plan| ran.status.success() && !plan.is_empty());
    let Some(plan) = plan else {
        let said = String::from_utf8_lossy(&ran.stdout).into_owned()
            + &String::from_utf8_lossy(&ran.stderr);
        let errors: Vec<&str> = said.lines().filter(|line| line.contains("[E]")).take(4).collect();
        return Err(refuse(format!("trtexec failed ({}): {}", ran.status, errors.join("; "))));
    };
    let mut file = plan::header(&header.metadata);
    file.extend_from_slice(&plan);
    let timings = std::fs::read(&timings).ok();
    let by = format!("{}", program.display());
    Ok(Built { file, by, pictures: 0, ranges: None, timings })
}
