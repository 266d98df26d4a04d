//! `plimsoll estimate MODEL --engine pytorch --exact`: by the model's own program.
//!
//! Python runs it on tensors without data (`python3 -m plimsoll.torch.estimate_model`) and says
//! what it would take; this starts that, and shows the answer. No GPU is needed and no weights are
//! read, but PyTorch and Transformers must be installed.

use std::path::Path;
use std::process::{Command, Output as ProcessOutput};

use anyhow::Context;
use plimsoll::{Bytes, ElementType};
use plimsoll_models::terms::Runner;
use serde::{Deserialize, Serialize};

use super::page::gib;
use crate::model_flags::ModelFlags;
use crate::outcome::{BadInput, Outcome};
use crate::output::{Answer, Output};
use crate::page::{TextCell, TextPage, TextTone};

/// What Python is started with.
const MODULE: &str = "plimsoll.torch.estimate_model";

/// What the program would take.
#[derive(Debug, Serialize, Deserialize)]
struct ExactEstimate {
    total_bytes: u64,
    range: ExactRange,
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    context_bytes: u64,
    limit_bytes: Option<u64>,
    fits: Option<bool>,
    peak: Option<ExactPeak>,
    lines: Vec<ExactLine>,
    /// The rest, as Python said it.
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ExactRange {
    low_bytes: u64,
    high_bytes: u64,
}

/// When the most was allocated.
#[derive(Debug, Serialize, Deserialize)]
struct ExactPeak {
    event: u64,
    operator: String,
    file: String,
    line: u64,
    function: String,
}

/// A line of the program, and what it held at the peak.
#[derive(Debug, Serialize, Deserialize)]
struct ExactLine {
    file: String,
    line: u64,
    function: String,
    bytes: u64,
    blocks: u64,
}

/// Why there is no answer.
#[derive(Debug, Deserialize)]
struct ExactRefusal {
    unavailable: Option<String>,
    error: Option<String>,
}

impl ExactLine {
    fn place(&self) -> String {
        let file = Path::new(&self.file)
            .file_name()
            .map_or(self.file.as_str().into(), |name| name.to_string_lossy());
        match self.line {
            0 => file.into_owned(),
            line => format!("{file}:{line} {}", self.function),
        }
    }
}

impl Answer for ExactEstimate {
    fn page(&self, page: &mut TextPage) {
        page.heading("by the model's own program, without a GPU");
        let term = |name: &str, bytes: u64, note: &str| {
            let note = TextCell::new(note.to_string(), TextTone::Faint);
            vec![name.into(), TextCell::figure(Some(gib(bytes))), note]
        };
        let cached = self.peak_reserved_bytes.saturating_sub(self.peak_allocated_bytes);
        page.table(&[
            term("allocated", self.peak_allocated_bytes, "tensors and workspaces at the peak"),
            term("cached", cached, "what the allocator holds besides"),
            term("context", self.context_bytes, "the driver and libraries, as on an H200"),
            term("total", self.total_bytes, &format!("at most {}", gib(self.range.high_bytes))),
        ]);
        page.heading("at the peak, by line");
        let lines: Vec<Vec<TextCell>> = self
            .lines
            .iter()
            .take(8)
            .map(|line| vec![TextCell::figure(Some(gib(line.bytes))), line.place().into()])
            .collect();
        page.table(&lines);
        if let (Some(limit), Some(fits)) = (self.limit_bytes, self.fits) {
            let words = if fits { "fits into" } else { "does not fit into" };
            page.advice(&format!("{words} {}", Bytes(limit)));
        }
    }

    fn bare(&self, page: &mut TextPage) {
        page.line(&gib(self.total_bytes));
    }
}

/// Estimates by running the program without data.
pub(super) fn run(model: &Path, args: &ModelFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    check(args)?;
    let python = std::env::var_os("PLIMSOLL_PYTHON").unwrap_or_else(|| "python3".into());
    let ran = Command::new(&python).args(["-m", MODULE]).args(words(model, args)).output();
    let ran = ran.map_err(|error| {
        let python = python.to_string_lossy();
        BadInput::new(format!(
            "--exact is not available: {python} did not start ({error}); install Python with \
             PyTorch, Transformers and this package, or name it in PLIMSOLL_PYTHON"
        ))
    })?;
    let answer = answer(&ran)?;
    let fits = answer.fits.unwrap_or(true);
    out.answer(&answer)?;
    Ok(Outcome::from(fits))
}

/// Refuses values that the program cannot have; flags that it has no use for are refused before.
fn check(args: &ModelFlags) -> Result<(), BadInput> {
    let has_type = |kind| matches!(kind, ElementType::F32 | ElementType::F16 | ElementType::Bf16);
    let why = match args.dtype {
        _ if args.engine != Some(Runner::PyTorch) => {
            "--exact runs PyTorch's program: add --engine pytorch"
        }
        _ if args.train.gpus.is_some_and(|gpus| gpus > 1) => {
            "--exact follows one GPU: leave --gpus out, or leave --exact out"
        }
        Some(_) if args.train.train => {
            "--exact trains with the types of --precision: leave --dtype out, or leave --exact out"
        }
        Some(kind) if !has_type(kind) => {
            "--exact runs PyTorch's program, which has f32, f16 and bf16: name one of them with \
             --dtype, or leave --exact out"
        }
        _ => return Ok(()),
    };
    Err(BadInput::new(why))
}

/// What Python is asked for.
fn words(model: &Path, args: &ModelFlags) -> Vec<std::ffi::OsString> {
    let mut words: Vec<std::ffi::OsString> = vec![model.into()];
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            words.extend([name.into(), value.into()]);
        }
    };
    option("--batch", Some(args.batch.to_string()));
    option("--context", args.context.map(|tokens| tokens.to_string()));
    option("--dtype", args.dtype.map(|kind| kind.to_string().to_lowercase()));
    let train = args.train.request();
    option("--optimizer", train.as_ref().map(|train| train.optimizer.to_string()));
    option("--precision", train.as_ref().map(|train| train.precision.to_string()));
    option("--lora", train.as_ref().and_then(|train| train.lora).map(|rank| rank.to_string()));
    let base = train.as_ref().and_then(|train| train.base_dtype);
    option("--base-dtype", base.map(|kind| kind.to_string()));
    option("--grad-accumulation", train.as_ref().map(|train| train.grad_accumulation.to_string()));
    option("--limit", args.limit.limit().map(|limit| limit.get().to_string()));
    let flags = [(args.train.train, "--train"), (args.train.checkpointing, "--checkpointing")];
    words.extend(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| (*flag).into()));
    words
}

fn answer(ran: &ProcessOutput) -> anyhow::Result<ExactEstimate> {
    let said = String::from_utf8_lossy(&ran.stdout);
    let last = said.lines().next_back().unwrap_or_default();
    if ran.status.success() {
        return serde_json::from_str(last)
            .context("Python's answer is not of this version; install the package again");
    }
    let refusal =
        serde_json::from_str(last).unwrap_or(ExactRefusal { unavailable: None, error: None });
    let why = match refusal {
        ExactRefusal { unavailable: Some(why), .. } => format!("--exact is not available: {why}"),
        ExactRefusal { error: Some(why), .. } => format!("the model's program did not run: {why}"),
        _ => {
            let heard = String::from_utf8_lossy(&ran.stderr);
            let heard = heard.lines().next_back().unwrap_or("no message");
            format!(
                "--exact is not available: {heard}; it needs Python with PyTorch, Transformers and \
                 this package (pip install torch transformers; pip install . in a checkout), or name one in PLIMSOLL_PYTHON"
            )
        }
    };
    Err(BadInput::new(why).into())
}
