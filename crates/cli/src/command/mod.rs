//! The verbs, one file or folder each.
//!
//! A verb is three things with the same names everywhere: `Args` (its flags, a clap
//! struct), an answer (a struct that is [`Answer`](crate::output::Answer): serde for
//! `--json`, a page for people) and `run(args, out)`, which works the answer out,
//! hands it to `out` and returns the [`Outcome`].
//!
//! To add a verb: write the file, then name it in [`Verb`] and in [`Verb::run`]. Give its `Args` a
//! constant `EXAMPLES` that begins with `Examples:` and has a line `  plimsoll <verb> …`, as
//! `#[command(after_help = EXAMPLES)]`: the test `every_verb_has_examples_and_the_shared_flags` in
//! `tests/cli.rs` expects it. Help, man page, completions and the snake_case spellings follow by
//! themselves. ARCHITECTURE.md ("To add a verb") lists the documents.

mod bench;
mod chunk;
mod compare;
mod completions;
mod cost;
mod doctor;
mod estimate;
mod export;
#[cfg(target_os = "linux")]
mod fit;
mod generate;
#[cfg(target_os = "linux")]
mod guard;
pub(crate) mod monitor;
mod replay;
mod report;
#[cfg(target_os = "linux")]
mod run;
mod voxelize;

use crate::outcome::Outcome;
use crate::output::Output;

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    // Large, as it has the most flags.
    Bench(Box<bench::Args>),
    Compare(compare::Args),
    Doctor(doctor::Args),
    Estimate(estimate::Args),
    Export(export::Args),
    // Large, as it has the flags of estimate.
    #[cfg(target_os = "linux")]
    Fit(Box<fit::Args>),
    Chunk(chunk::Args),
    // Large, as bench's.
    Voxelize(Box<voxelize::Args>),
    Cost(Box<cost::Args>),
    Monitor(Box<monitor::Args>),
    Replay(replay::Args),
    Report(report::Args),
    #[cfg(target_os = "linux")]
    Run(run::Args),
    #[cfg(target_os = "linux")]
    Guard(guard::Args),
    Completions(completions::Args),
    TryModel(bench::trial::Args),
    Generate(generate::Args),
}

impl Verb {
    /// Does it.
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<Outcome> {
        match self {
            Verb::Bench(args) => bench::run(&args, out),
            Verb::Compare(args) => compare::run(&args, out),
            Verb::Doctor(args) => doctor::run(&args, out),
            Verb::Estimate(args) => estimate::run(&args, out),
            Verb::Export(args) => export::run(&args, out),
            #[cfg(target_os = "linux")]
            Verb::Fit(args) => fit::run(&args, out),
            Verb::Chunk(args) => chunk::run(&args, out),
            Verb::Voxelize(args) => voxelize::run(&args, out),
            Verb::Cost(args) => cost::run(&args, out),
            Verb::Monitor(args) => monitor::run(&args, out),
            Verb::Replay(args) => replay::run(&args, out),
            Verb::Report(args) => report::run(&args, out),
            #[cfg(target_os = "linux")]
            Verb::Run(args) => run::run(&args, out),
            #[cfg(target_os = "linux")]
            Verb::Guard(args) => guard::run(&args, out),
            Verb::Completions(args) => completions::run(&args, out),
            Verb::TryModel(args) => bench::trial::run(&args),
            Verb::Generate(args) => generate::run(&args, out),
        }
    }
}
