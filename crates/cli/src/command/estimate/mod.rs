//! `plimsoll estimate`: will it fit?
//!
//! A model file is named, or a language model is described by its numbers (`llm`). Both
//! answers have the same terms under the same names; a file says more, because its header
//! was read.

mod advice;
mod answer;
mod exact;
mod fleet;
mod llm;
mod page;
mod remedy;
mod room;
mod show;

use std::path::Path;

use answer::{FileEstimate, FitVerdict};

use crate::model_flags::ModelFlags;
use crate::outcome::{BadInput, OrBadInput, Outcome};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  plimsoll estimate yolo11n.onnx --limit 8GiB
  plimsoll estimate yolo11n.onnx --engine ort --device cuda:0
  plimsoll estimate llama-3-8b.Q4_K_M.gguf --context 8192 --limit 8GiB
  plimsoll estimate Mistral-7B/ --engine pytorch --device cuda:0      a folder of safetensors
  plimsoll estimate Mistral-7B/ --engine pytorch --train --batch 4 --context 1024 --lora 16 \\
      --base-dtype nf4 --checkpointing                                a training step
  plimsoll estimate Mistral-7B/ --engine pytorch --exact              by its own program
  plimsoll estimate llama-3-8b.Q4_K_M.gguf --fleet                    on which boards it fits
  plimsoll estimate llm --hidden 4096 --intermediate 14336 --layers 32 --vocab 32000 \\
      --heads 32 --kv-heads 8 --context 4096 --limit 16GiB            without a file

Only headers and graphs are read: a file of 70 GB takes milliseconds. Every estimate has a
range; exits 0 when its upper end fits, 1 when it does not, with commands that would make it fit.";

/// What the model's own program cannot be told: it runs language models as Transformers does, on a
/// GPU of its own.
const UNUSED_BY_EXACT: [&str; 10] = [
    "fleet",
    "device",
    "imgsz",
    "kv_dtype",
    "ubatch",
    "flash_attn",
    "swa_full",
    "no_kv_unified",
    "gpu_layers",
    "input",
];

/// Say how much memory a model takes, term by term, and whether it fits
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// By running the model's own program without data (Python with PyTorch and Transformers); it
    /// takes --batch, --context, --dtype, --limit and how to train
    #[arg(long, conflicts_with_all = UNUSED_BY_EXACT)]
    exact: bool,
    /// The model against a table of boards and GPUs; it is for a GPU then, also where no --device is named
    #[arg(long)]
    fleet: bool,
    // Behind the others: it ends with a heading of its own.
    #[command(flatten)]
    file: ModelFlags,
}

/// What to estimate without a file.
#[derive(Debug, clap::Subcommand)]
enum What {
    Llm(Box<llm::Args>),
}

/// Estimates.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    match (&args.what, &args.file.model) {
        (Some(What::Llm(args)), _) => llm::run(args, out),
        (None, Some(model)) if args.exact => exact::run(model, &args.file, out),
        (None, Some(model)) => from_file(model, args, out),
        (None, None) => Err(BadInput::new(
            "name a model file, or `llm` and its numbers; `plimsoll estimate --help` has examples",
        )
        .into()),
    }
}

/// Estimates the file.
fn from_file(model: &Path, args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    if args.fleet && args.file.request().on_gpu == Some(false) {
        let why = "--fleet compares with GPUs: leave --device out, or leave --fleet out";
        return Err(BadInput::new(why).into());
    }
    let flags = &ModelFlags { for_any_gpu: args.fleet, ..args.file.clone() };
    flags.train.check(flags.engine)?;
    let terms = flags.terms(model).or_bad_input(|| "cannot estimate it")?;
    let room = flags.device.map(room::of);
    let limit = match (flags.limit.limit(), room.as_ref().and_then(|room| room.available)) {
        (Some(limit), Some(room)) => Some(limit.min(room)),
        (limit, room) => limit.or(room),
    };
    let verdict = limit.map(|limit| {
        let largest = room.as_ref().and_then(|room| room.largest_single);
        FitVerdict::of_terms(&terms, limit, largest)
    });
    let no = verdict.is_some_and(|verdict| !verdict.fits());
    let advice = match limit.filter(|_| no && !terms.only_weights()) {
        Some(limit) => remedy::what_fits(model, flags, &terms, limit),
        None => Vec::new(),
    };
    let fleet = if args.fleet { fleet::against(&terms)? } else { Vec::new() };
    let mut answer = FileEstimate::new(model, flags, terms);
    answer.notes.extend(flags.note_of_place());
    answer.set_verdict(limit, verdict, room);
    answer.advice = advice;
    answer.fleet = fleet;
    out.answer(&answer)?;
    Ok(Outcome::from(!no))
}
