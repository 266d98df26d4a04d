//! `plimsoll estimate`: will it fit?
//!
//! A model file is named, or a language model is described by its numbers (`llm`). Both
//! answers have the same terms under the same names; a file says more, because its header
//! was read.

mod advice;
mod answer;
mod exact;
mod file;
mod fleet;
mod llm;
mod page;
mod remedy;
mod room;
mod show;
mod train;

use crate::outcome::{BadInput, Outcome};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  plimsoll estimate yolo11n.onnx --limit 8GiB
  plimsoll estimate yolo11n.onnx --engine ort --device cuda:0
  plimsoll estimate llama-3-8b.Q4_K_M.gguf --context 8192 --limit 8GiB
  plimsoll estimate Mistral-7B/ --engine pytorch --device cuda:0      a folder of safetensors
  plimsoll estimate Mistral-7B/ --engine pytorch --exact              by its own program
  plimsoll estimate Mistral-7B/ --engine pytorch --train --batch 4 --context 1024 --lora 16 \\
      --base-dtype nf4 --checkpointing                                a training step
  plimsoll estimate llama-3-8b.Q4_K_M.gguf --fleet                    on which boards it fits
  plimsoll estimate llm --hidden 4096 --intermediate 14336 --layers 32 --vocab 32000 \\
      --heads 32 --kv-heads 8 --context 4096 --limit 16GiB            without a file

Only headers and graphs are read: a file of 70 GB takes milliseconds. Every estimate has a
range; exits 0 when its upper end fits, 1 when it does not, with commands that would make it fit.";

/// Say how much memory a model takes, term by term, and whether it fits
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    file: file::Args,
}

/// What to estimate without a file.
#[derive(Debug, clap::Subcommand)]
enum What {
    Llm(Box<llm::Args>),
}

/// A number of tokens.
fn tokens(text: &str) -> Result<u64, String> {
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

/// Estimates.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    match (&args.what, &args.file.model) {
        (Some(What::Llm(args)), _) => llm::run(args, out),
        (None, Some(model)) if args.file.exact => exact::run(model, &args.file, out),
        (None, Some(model)) => file::run(model, &args.file, out),
        (None, None) => Err(BadInput::new(
            "name a model file, or `llm` and its numbers; `plimsoll estimate --help` has examples",
        )
        .into()),
    }
}
