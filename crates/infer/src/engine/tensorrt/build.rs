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
    /// Eight bits where that is faster, with ranges found by the pictures of this folder.
    pub calibration: Option<PathBuf>,
    /// The most memory that a layer may take to try things out.
    pub workspace: Bytes,
    /// The GPU.
    pub device: u32,
    /// The file of our shim; it is then looked for nowhere else.
    pub library: Option<PathBuf>,
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions {
            half: false,
            calibration: None,
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
    if options.library.is_some() || options.calibration.is_some() {
        // trtexec takes no pictures.
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
    if typed && options.calibration.is_some() {
        let why = "TensorRT 11 finds no ranges by pictures; quantise the graph instead";
        return Err(InferError::Unavailable { what: "--int8".into(), why: why.into() });
    }
    let onnx = graph(typed && options.half)?;
    let header = OnnxHeader::parse(&onnx).map_err(|why| refuse(why.to_string()))?;
    let mut pictures = match &options.calibration {
        Some(folder) => Some(CalibrationPictures::open(folder, &header)?),
        None => None,
    };
    let mut show =
        |image: &mut [u8]| pictures.as_mut().is_some_and(|pictures| pictures.next(image));
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| value == "1");
    let build = sys::BuildRequest {
        fp16: options.half && !typed,
        // For machines without cuBLAS and cuDNN of the right version, and for quick builds.
        no_tactic_sources: set("PLIMSOLL_TENSORRT_NO_TACTICS"),
        quick: set("PLIMSOLL_TENSORRT_QUICK"),
        workspace: options.workspace.get(),
        calibrate: options.calibration.as_ref().map(|_| &mut show as _),
    };
    let plan = shim.build(&onnx, options.device, build).map_err(&refuse)?;
    if let (Some(pictures), Some(folder)) = (&pictures, &options.calibration)
        && pictures.shown == 0
    {
        let why = "no picture of the calibration folder could be read".into();
        return Err(InferError::Source { source_name: folder.display().to_string(), why });
    }
    let mut file = plan::header(&header.metadata);
    file.extend_from_slice(&plan);
    Ok(Built { file, by: format!("TensorRT {}", shim.version_text()) })
}

/// Pictures by which TensorRT finds the ranges of values, prepared as they are when it runs.
struct CalibrationPictures {
    frames: Box<dyn source::Source>,
    prepare: Prepare,
    input: Tensor,
    shown: usize,
}

impl CalibrationPictures {
    fn open(folder: &Path, header: &OnnxHeader) -> InferResult<CalibrationPictures> {
        let shape = header.inputs.first().and_then(|input| input.shape.clone()).unwrap_or_default();
        let [_, _, Some(rows), Some(columns)] = shape[..] else {
            let why = "eight bits need an image size that is fixed: leave --dynamic out";
            return Err(InferError::Unavailable { what: "--int8".into(), why: why.into() });
        };
        let spec = format!("image_dir={}", folder.display());
        let frames = source::open(&spec, &SourceOptions::default())?;
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
    let (from, to) = (folder.path().join("model.onnx"), folder.path().join("model.plan"));
    std::fs::write(&from, onnx).map_err(failed)?;
    let mut command = Command::new(program);
    command
        .arg(format!("--onnx={}", from.display()))
        .arg(format!("--saveEngine={}", to.display()))
        .arg(format!("--memPoolSize=workspace:{}", options.workspace.get() >> 20))
        .arg(format!("--device={}", options.device))
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
    Ok(Built { file, by: format!("{}", program.display()) })
}
