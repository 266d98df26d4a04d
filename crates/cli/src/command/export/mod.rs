//! `plimsoll export`: a checkpoint as an ONNX file, or as an engine of TensorRT.
//!
//! The work is the library's; the verb says what came of it and puts it where it was
//! asked for, whole or not at all ([`place`]).

mod engine;
mod place;

use std::path::{Path, PathBuf};

use plimsoll::Bytes;
use plimsoll_infer::ModelSource;
use plimsoll_infer::decode::parse_names;
use plimsoll_infer::source::synthetic::SceneKind;
use plimsoll_infer::source::{self, Spec};
use plimsoll_models::{GraphOptions, find_weights, onnx::OnnxHeader, pt};
use serde::Serialize;

use crate::limit::LimitArgs;
use crate::outcome::{BadInput, OrBadInput, Outcome};
use crate::output::{Answer, Output};
use crate::output_conflicts;
use crate::page::{TextPage, or_unknown};
use crate::stop::STOPPED;

const EXAMPLES: &str = "\
Examples:
  plimsoll export yolo11n.pt --to yolo11n.onnx
  plimsoll export yolo11n.pt --to wide.onnx --imgsz 384x640
  plimsoll export yolo11n.pt --to any.onnx --dynamic
  plimsoll export yolo11n.pt --to yolo11n.engine --half --limit 8GiB
  plimsoll export yolo11n.onnx --to yolo11n.engine --int8 --calibration frames/
  plimsoll generate --tensorrt          once, before the first engine, where TensorRT is

Exit codes:
  0 written, 2 the model or the flags are wrong, 3 it could not be built or written, 130
  stopped; a file that was there before is kept unless the new one is whole";

/// Write a checkpoint (.pt) as .onnx, without Python, or as .engine where TensorRT is
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group(clap::ArgGroup::new("ranges").multiple(true)))]
pub(crate) struct Args {
    /// The model: a .pt file, or a .onnx file for an engine
    model: PathBuf,
    /// The file to write; its ending says what: .onnx or .engine
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Side of the image, or rows x columns
    #[arg(long, value_name = "640|HxW", default_value = "640", value_parser = size)]
    imgsz: (usize, usize),
    /// Take any batch and image size (.onnx)
    #[arg(long)]
    dynamic: bool,
    /// Compute in sixteen bits; input and output stay in 32. Without it numbers are those of
    /// the .onnx file, and an engine of them is slower
    #[arg(long, visible_alias = "fp16")]
    half: bool,
    /// Compute in eight bits where that is faster (.engine); needs --calibration or its cache
    #[arg(long, requires = "ranges")]
    int8: bool,
    /// Frames like those to come, to find the ranges of eight bits: a folder of pictures, a video
    /// or `synthetic`; at most 500 are looked at
    #[arg(long, value_name = "DIR|SOURCE", requires = "int8", group = "ranges")]
    calibration: Option<String>,
    /// Keep the ranges in this file; where it exists they are read from it, and no frame is
    /// looked at. One file for each model
    #[arg(long, value_name = "FILE", requires = "int8", group = "ranges")]
    calibration_cache: Option<PathBuf>,
    /// Keep in this file how fast each way to compute a layer was on this GPU: the next build
    /// need not time it again (.engine)
    #[arg(long, value_name = "FILE")]
    timing_cache: Option<PathBuf>,
    #[command(flatten)]
    limit: LimitArgs,
    /// Our library for TensorRT (`plimsoll generate --tensorrt` builds it); without it, it is
    /// looked for (.engine)
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

fn size(text: &str) -> Result<(usize, usize), String> {
    let side = |text: &str| text.trim().parse::<usize>().ok().filter(|side| *side > 0);
    let found = match text.split_once(['x', 'X', ',']) {
        Some((rows, columns)) => side(rows).zip(side(columns)),
        None => side(text).map(|both| (both, both)),
    };
    found.ok_or_else(|| "it must be a side or rows x columns, such as 640 or 384x640".to_string())
}

/// What was written.
#[derive(Debug, Serialize)]
struct Exported {
    from: String,
    to: String,
    /// `onnx` or `engine`.
    format: &'static str,
    bytes: u64,
    /// Rows and columns; null where any will do.
    imgsz: Option<[usize; 2]>,
    half: bool,
    int8: bool,
    task: Option<String>,
    stride: Option<u64>,
    classes: Option<usize>,
    /// What built it and how; null for ONNX, which is our own work.
    built_by: Option<String>,
    warnings: Vec<String>,
}

/// What `--to` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExportFormat {
    Onnx,
    Engine,
}

impl ExportFormat {
    fn of(path: &Path) -> anyhow::Result<ExportFormat> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("onnx") => Ok(ExportFormat::Onnx),
            Some("engine" | "plan") => Ok(ExportFormat::Engine),
            _ => Err(BadInput::new(format!(
                "--to {} must end in .onnx or .engine, which says what is written",
                path.display()
            ))
            .into()),
        }
    }
}

/// Exports.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let format = ExportFormat::of(&args.to)?;
    let place = place::ExportPlace::new(&args.to)?;
    let model = find(&args.model).or_bad_input(|| "there is nothing to export")?;
    if format == ExportFormat::Onnx {
        check_checkpoint(&model)?;
    }
    check_apart(args, &model)?;
    let mut progress = out.progress();
    progress.show(&format!("reading {}", model.display()));
    let exported = match format {
        ExportFormat::Onnx => to_onnx(args, &model, place)?,
        ExportFormat::Engine => engine::build(args, &model, place, &mut progress)?,
    };
    drop(progress);
    let Some(exported) = exported else { return Ok(Outcome::Code(STOPPED)) };
    out.answer(&exported)?;
    Ok(Outcome::Yes)
}

fn check_apart(args: &Args, model: &Path) -> anyhow::Result<()> {
    let caches =
        [("--calibration-cache", &args.calibration_cache), ("--timing-cache", &args.timing_cache)];
    let caches = caches.into_iter().filter_map(|(flag, path)| Some((flag, path.clone()?)));
    let outputs: Vec<_> = [("--to", args.to.clone())].into_iter().chain(caches).collect();
    output_conflicts::check(&outputs, || {
        let pictures = args.calibration.iter().flat_map(|text| Spec::parse(text, SceneKind::Rgb));
        let pictures = pictures.flat_map(|spec| source::files(&spec));
        let library = args.library.iter().map(|path| ("--library", path.clone()));
        let read = [("the model", model.to_path_buf())].into_iter();
        read.chain(pictures.map(|path| ("a picture of --calibration", path)))
            .chain(library)
            .collect::<Vec<_>>()
    })
}

/// A stem is first its checkpoint: what lies beside that was most often made from it.
fn find(model: &Path) -> plimsoll_models::ModelResult<PathBuf> {
    let mut checkpoint = model.as_os_str().to_os_string();
    checkpoint.push(".pt");
    let checkpoint = PathBuf::from(checkpoint);
    find_weights(if !model.is_file() && checkpoint.is_file() { &checkpoint } else { model })
}

/// `None` where a signal stopped it.
fn to_onnx(
    args: &Args,
    model: &Path,
    place: place::ExportPlace,
) -> anyhow::Result<Option<Exported>> {
    for (given, flag) in [(args.int8, "--int8"), (args.timing_cache.is_some(), "--timing-cache")] {
        if given {
            return Err(BadInput::new(format!("{flag} is for engines: --to FILE.engine")).into());
        }
    }
    let graph = graph(args, model, args.half)?;
    if !place.write(&graph)? {
        return Ok(None);
    }
    let mut exported = describe(args, model, &graph);
    exported.half = args.half;
    exported.bytes = graph.len() as u64;
    Ok(Some(exported))
}

fn check_checkpoint(model: &Path) -> anyhow::Result<()> {
    if ExportFormat::of(model).is_err() {
        return Ok(());
    }
    let name = model.display();
    let why = format!("{name} is no checkpoint (.pt); only those become .onnx files");
    Err(BadInput::new(why).into())
}

/// The ONNX file of a checkpoint, for the flags.
fn graph(args: &Args, model: &Path, half: bool) -> anyhow::Result<Vec<u8>> {
    check_checkpoint(model)?;
    let name = model.display();
    let file =
        ModelSource::path(model).read_raw().or_bad_input(|| format!("cannot read {name}"))?;
    let mut options = GraphOptions::sized(args.imgsz);
    options.dynamic = args.dynamic;
    options.half = half;
    pt::to_onnx(&file, &options).or_bad_input(|| format!("cannot export {name}"))
}

/// What the graph says of itself.
fn describe(args: &Args, model: &Path, graph: &[u8]) -> Exported {
    let header = OnnxHeader::parse(graph).unwrap_or_default();
    let text = |key: &str| header.metadata.get(key).cloned();
    // The graph's own: one that was given as .onnx was not made for this --imgsz.
    let imgsz = match header.inputs.first().and_then(|input| input.shape.as_deref()) {
        Some(&[_, _, Some(rows), Some(columns)]) => Some([rows, columns]),
        _ => None,
    };
    Exported {
        from: model.display().to_string(),
        to: args.to.display().to_string(),
        format: "onnx",
        bytes: 0,
        imgsz,
        half: false,
        int8: false,
        task: text("task"),
        stride: text("stride").and_then(|stride| stride.parse().ok()),
        classes: text("names").and_then(|names| parse_names(&names)).map(|names| names.len()),
        built_by: None,
        warnings: Vec::new(),
    }
}

impl Answer for Exported {
    fn bare(&self, page: &mut TextPage) {
        page.raw(&format!("{}\n", self.to));
    }

    fn page(&self, page: &mut TextPage) {
        let imgsz =
            self.imgsz.map_or("any".to_string(), |[rows, columns]| format!("{rows}x{columns}"));
        let bits = match (self.int8, self.half) {
            (true, _) => "8 bits where that is faster",
            (false, true) => "16 bits",
            (false, false) => "32 bits",
        };
        page.line(&self.to);
        let row = |name: &str, value: String| vec![name.into(), value.into()];
        let mut rows = vec![
            row("from", self.from.clone()),
            row("size", Bytes(self.bytes).to_string()),
            row("images", imgsz),
            row("numbers", bits.to_string()),
            row("classes", or_unknown(self.classes)),
            row("stride", or_unknown(self.stride)),
        ];
        rows.extend(self.built_by.clone().map(|by| row("built by", by)));
        page.table(&rows);
        for warning in &self.warnings {
            page.advice(&format!("warning: {warning}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_a_side_or_rows_and_columns() {
        assert_eq!(size("640"), Ok((640, 640)));
        assert_eq!(size("384x640"), Ok((384, 640)));
        assert_eq!(size("384, 640"), Ok((384, 640)));
        for text in ["", "x", "0", "-1", "640x", "640x0", "a"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
