//! `plimsoll estimate`: will it fit?
//!
//! What is estimated is a word of its own (`llm`: a language model from its shape), so
//! that a model file can be named in that place as well once files are read.

mod advice;
mod llm;
mod page;

use crate::outcome::Outcome;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  plimsoll estimate llm --hidden 4096 --intermediate 14336 --layers 32 --vocab 32000 \\
      --heads 32 --kv-heads 8 --context 4096 --limit 16GiB
  plimsoll estimate llm --help    all of its flags";

/// Say how much memory a model takes, term by term, and whether it fits
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

/// What to estimate.
#[derive(Debug, clap::Subcommand)]
enum What {
    Llm(llm::Args),
}

/// Estimates.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    match &args.what {
        What::Llm(args) => llm::run(args, out),
    }
}
