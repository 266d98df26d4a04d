//! `plimsoll completions SHELL`: what a shell needs to complete our flags.
//!
//! The script is made in memory first: the generator panics when its writer fails, and
//! a closed pipe must not become a bug report.

use clap_complete::Shell;
use serde::Serialize;

use crate::args;
use crate::outcome::Outcome;
use crate::output::{Answer, Output};
use crate::page::TextPage;

const EXAMPLES: &str = "\
Examples:
  plimsoll completions bash > ~/.local/share/bash-completion/completions/plimsoll
  plimsoll completions zsh > ~/.zfunc/_plimsoll
  plimsoll completions fish > ~/.config/fish/completions/plimsoll.fish";

/// Print the completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

#[derive(Serialize)]
struct Script {
    shell: String,
    script: String,
}

impl Answer for Script {
    fn page(&self, page: &mut TextPage) {
        page.raw(&self.script);
    }
}

/// Prints the script.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::shown(), "plimsoll", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    out.answer(&Script { shell: args.shell.to_string(), script })?;
    Ok(Outcome::Yes)
}
