//! `plimsoll generate`: the files that a package ships beside the program.
//!
//! Hidden, as only packagers need it. Everything comes from the clap tree, so that a
//! man page cannot say anything that `--help` does not.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Command, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;
use serde::Serialize;

use crate::args;
use crate::outcome::Outcome;
use crate::output::{Answer, Output};
use crate::page::Page;

const EXAMPLES: &str = "\
Examples:
  plimsoll generate --man target/man --completions target/completions";

/// Write man pages and completion scripts, for packagers
#[derive(Debug, clap::Args)]
#[command(hide = true, after_help = EXAMPLES)]
#[group(id = "what", required = true, multiple = true)]
pub(crate) struct Args {
    /// Write a man page for plimsoll and for each verb into this folder
    #[arg(long, value_name = "DIR", group = "what")]
    man: Option<PathBuf>,
    /// Write the completion script of every shell into this folder
    #[arg(long, value_name = "DIR", group = "what")]
    completions: Option<PathBuf>,
}

#[derive(Serialize)]
struct Written {
    written: Vec<PathBuf>,
}

impl Answer for Written {
    fn page(&self, page: &mut Page) {
        for path in &self.written {
            page.raw(&format!("{}\n", path.display()));
        }
    }
}

/// Writes the files.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let mut written = Vec::new();
    if let Some(folder) = &args.man {
        written.extend(in_folder(folder, man_pages)?);
    }
    if let Some(folder) = &args.completions {
        written.extend(in_folder(folder, scripts)?);
    }
    out.answer(&Written { written })?;
    Ok(Outcome::Yes)
}

fn in_folder(
    folder: &Path,
    write: fn(&Path) -> io::Result<Vec<PathBuf>>,
) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder)
        .and_then(|()| write(folder))
        .with_context(|| format!("cannot write into {}", folder.display()))
}

fn man_pages(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut command = args::command().disable_help_subcommand(true);
    command.build();
    let mut written = Vec::new();
    man_page(&command, folder, &mut written)?;
    Ok(written)
}

fn man_page(command: &Command, folder: &Path, written: &mut Vec<PathBuf>) -> io::Result<()> {
    written.push(Man::new(command.clone()).generate_to(folder)?);
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        man_page(verb, folder, written)?;
    }
    Ok(())
}

fn scripts(folder: &Path) -> io::Result<Vec<PathBuf>> {
    Shell::value_variants()
        .iter()
        .map(|shell| clap_complete::generate_to(*shell, &mut args::command(), "plimsoll", folder))
        .collect()
}
