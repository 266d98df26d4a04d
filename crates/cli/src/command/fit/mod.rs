//! `plimsoll fit`: the largest setting that fits.
//!
//! ```text
//! model file ─→ formula ─→ FitAnswer           estimated, without a GPU
//! program    ─→ search ⇄ attempt ─→ FitAnswer   tried under the guard
//!                 └─→ kept (results for the next call)
//! ```
//!
//! Where both are given, the formula's answer is where the tries begin.

mod answer;
mod attempt;
mod formula;
mod kept;
mod paste;
mod proof;
mod search;
mod setting;
mod vary;
mod watchdog;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use answer::FitAnswer;
use formula::FormulaRequest;
use plimsoll::Bytes;
use plimsoll_guard::launch;
use proof::ProofRequest;
use search::FitRange;
use vary::VaryFlag;

use crate::duration::timeout;
use crate::limit::size;
use crate::model_flags::ModelFlags;
use crate::outcome::{BadInput, Outcome};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  plimsoll fit llama-3-8b.Q4_K_M.gguf --limit 8GiB --vary context      llama.cpp's command line
  plimsoll fit Mistral-7B/ --limit 24GiB --vary batch --context 2048   how many sequences
  plimsoll fit yolo11n.onnx --engine ort --limit 2GiB --vary imgsz
  plimsoll fit --limit 8GiB --vary batch=1..4096 -- python train.py --batch {batch}
  plimsoll fit gpt2/ --train --limit 8GiB --vary batch=1..512 -- python train.py --batch {batch}

With a program, each try is a `plimsoll run` under the limit. A try fails when the program fails
after it was refused memory; a program that recovers counts as run. Results are kept for the next
call of the same command. Exits 1 when nothing fits or when it cannot be known, and says why.";

/// Default of `--reserve`, as `run` has it.
const RESERVE: Bytes = Bytes(launch::RESERVE);
/// What `--reserve` is for.
const RESERVE_REASON: &str =
    "for what the driver takes for itself while a program runs (--reserve)";

/// Find the largest batch, context, image or type that fits into a limit
///
/// From a model file alone, without a GPU: the largest setting whose estimate fits with the upper
/// end of its range. With a program behind `--`: by running it under the limit.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to choose: batch, context, imgsz, gpu-layers or dtype, and between which values
    /// (batch=1..4096); with a program any name that its arguments have in braces
    #[arg(long, value_name = "NAME[=LOW..HIGH]", value_parser = str::parse::<VaryFlag>)]
    vary: VaryFlag,
    /// The distance of the values; without it 1, but 256 tokens or 32 pixels for a model file,
    /// whose largest value is considered too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    step: Option<u64>,
    /// What must stay free below the limit for the driver (128MiB unless you say otherwise)
    #[arg(long, value_name = "SIZE", default_value_t = RESERVE, hide_default_value = true, value_parser = size)]
    reserve: Bytes,
    /// The value to try first; the estimate of the model where one is named
    #[arg(long, value_name = "N", requires = "program", value_parser = clap::value_parser!(u64).range(1..))]
    guess: Option<u64>,
    /// The longest that a try may take
    #[arg(long, value_name = "TIME", default_value = "10m", requires = "program", value_parser = timeout)]
    timeout: Duration,
    /// Do not use the kept results of this command: try all anew
    #[arg(long, requires = "program")]
    forget: bool,
    // Behind the others: it ends with a heading of its own.
    #[command(flatten)]
    model: ModelFlags,
    /// The program to try, with a place for the value as in {batch}
    #[arg(last = true, value_name = "PROGRAM", help_heading = "Program")]
    program: Vec<OsString>,
}

/// Finds the largest setting.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let limit = args.model.limit.limit();
    let limit = limit.ok_or_else(|| BadInput::new("give the limit to fit into: --limit SIZE"))?;
    if limit <= args.reserve {
        let reserve = args.reserve;
        let text = format!(
            "a limit of {limit} leaves nothing above the reserve of {reserve}; raise it, or lower --reserve"
        );
        return Err(BadInput::new(text).into());
    }
    if args.model.has(&args.vary.name) {
        let name = &args.vary.name;
        let text = format!("--{name} and --vary {name} contradict each other; leave one out");
        return Err(BadInput::new(text).into());
    }
    let estimated = match &args.model.model {
        Some(model) => Some(args.formula(model, limit).answer()?),
        None => None,
    };
    match (estimated, args.program.is_empty()) {
        (estimated, false) => prove(args, limit, estimated, out),
        (Some(answer), true) => {
            out.answer(&answer)?;
            Ok(Outcome::from(answer.largest.is_some()))
        }
        (None, true) => Err(BadInput::new("name a model file, or a program behind `--`").into()),
    }
}

impl Args {
    fn formula<'a>(&'a self, model: &'a Path, limit: Bytes) -> FormulaRequest<'a> {
        let (flags, vary, step, reserve) = (&self.model, &self.vary, self.step, self.reserve);
        FormulaRequest { model, flags, vary, step, limit, reserve }
    }
}

fn prove(
    args: &Args,
    limit: Bytes,
    estimated: Option<FitAnswer>,
    out: &mut Output,
) -> anyhow::Result<Outcome> {
    let (vary, name) = (&args.vary, &args.vary.name);
    if !vary.is_in(&args.program) {
        let place = vary.place();
        let text = format!("the program has no place for the value; write {place} where it goes");
        return Err(BadInput::new(text).into());
    }
    let (low, high) = vary.ends.ok_or_else(|| {
        BadInput::new(format!("give the values to try, as in --vary {name}=1..4096"))
    })?;
    let range = FitRange::new(low, high, args.step.unwrap_or(1)).map_err(BadInput::new)?;
    if let Some(guess) = args.guess.filter(|guess| !(low..=high).contains(guess)) {
        let text = format!("--guess {guess} is not among the values from {low} to {high}");
        return Err(BadInput::new(text).into());
    }
    let guess = args.guess.or_else(|| formula::number(estimated.as_ref()?));
    let request = ProofRequest {
        words: &args.program,
        vary,
        range,
        guess: guess.map(|guess| guess.clamp(low, range.high())),
        estimate: estimated.and_then(|answer| answer.estimate),
        limit,
        reserve: args.reserve,
        timeout: args.timeout,
        forget: args.forget,
    };
    proof::run(&request, out)
}
