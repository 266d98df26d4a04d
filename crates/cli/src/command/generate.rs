//! `plimsoll generate`: the files that a package ships beside the program.
//!
//! Man pages and completions come from the clap tree, so that a man page cannot say anything
//! that `--help` does not. The library for TensorRT is compiled here, from source that the
//! program carries, because it must be compiled with the headers of the TensorRT that will run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Command, ValueEnum};
use clap_complete::{Generator, Shell};
use clap_mangen::Man;
use plimsoll_infer::engine::tensorrt::find;
use serde::Serialize;

use crate::args;
use crate::outcome::{BadInput, Outcome};
use crate::output::{Answer, Output};
use crate::page::TextPage;
use crate::whole_file;

const EXAMPLES: &str = "\
Examples:
  plimsoll generate --tensorrt              on the machine that will run .engine files
  plimsoll generate --man target/man --completions target/completions

--tensorrt needs a C++ compiler (or $CXX) and the headers of TensorRT and CUDA; where they
are not in the usual places, TENSORRT_INCLUDE names their folders.";

/// Build the library that .engine files need (--tensorrt); write man pages and completions
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[group(id = "what", required = true, multiple = true)]
pub(crate) struct Args {
    /// Write a man page for plimsoll and for each verb into this folder
    #[arg(long, value_name = "DIR", group = "what")]
    man: Option<PathBuf>,
    /// Write the completion script of every shell into this folder
    #[arg(long, value_name = "DIR", group = "what")]
    completions: Option<PathBuf>,
    /// Build our library for TensorRT, from source that is kept beside it; without DIR into
    /// ~/.local/lib, where it is looked for
    #[arg(long, value_name = "DIR", group = "what", num_args = 0..=1)]
    tensorrt: Option<Option<PathBuf>>,
}

#[derive(Serialize)]
struct GenerateAnswer {
    written: Vec<PathBuf>,
    /// The version that the new library loads; null where none was built or nothing was loaded.
    tensorrt: Option<String>,
    warnings: Vec<String>,
}

impl Answer for GenerateAnswer {
    fn page(&self, page: &mut TextPage) {
        for path in &self.written {
            page.line(&path.display().to_string());
        }
        if let Some(version) = &self.tensorrt {
            page.advice(&format!("it loads TensorRT {version}"));
        }
        for warning in &self.warnings {
            page.advice(&format!("warning: {warning}"));
        }
    }
}

/// Writes the files.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let (mut written, mut tensorrt, mut warnings) = (Vec::new(), None, Vec::new());
    if let Some(folder) = &args.man {
        written.extend(in_folder(folder, man_pages)?);
    }
    if let Some(folder) = &args.completions {
        written.extend(in_folder(folder, scripts)?);
    }
    if let Some(folder) = &args.tensorrt {
        let folder = folder.clone().or_else(find::user_folder);
        let folder = folder
            .ok_or_else(|| BadInput::new("HOME is not set; name a folder: --tensorrt DIR"))?;
        let [source, library] = shim(&folder)?;
        match find::version(&library) {
            Ok(version) => tensorrt = Some(version),
            Err(why) => warnings.push(format!("it cannot load TensorRT here: {why}")),
        }
        written.extend([source, library]);
    }
    out.answer(&GenerateAnswer { written, tensorrt, warnings })?;
    Ok(Outcome::Yes)
}

fn in_folder(
    folder: &Path,
    write: fn(&Path) -> anyhow::Result<Vec<PathBuf>>,
) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder)
        .map_err(anyhow::Error::from)
        .and_then(|()| write(folder))
        .with_context(|| format!("cannot write into {}", folder.display()))
}

/// Writes the source of the shim and compiles it; the source stays where that fails.
fn shim(folder: &Path) -> anyhow::Result<[PathBuf; 2]> {
    let source = folder.join("plimsoll_tensorrt.cpp");
    let library = folder.join(find::FILE);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&source, find::SOURCE))
        .with_context(|| format!("cannot write into {}", folder.display()))?;
    let words = find::build_command(&source, &library);
    let command = words.join(" ");
    let (program, rest) = words.split_first().context("no compiler")?;
    let remedy = "it needs a C++ compiler and the headers of TensorRT and CUDA (NvInfer.h, \
                  NvOnnxParser.h, cuda_runtime_api.h: libnvinfer-dev, libnvonnxparsers-dev, \
                  cuda-cudart-dev); set TENSORRT_INCLUDE to their folders";
    let failed = format!(
        "the library for TensorRT was not built from {}, which stays there; {remedy}",
        source.display()
    );
    let ran = std::process::Command::new(program).args(rest).output();
    let ran = ran.with_context(|| command.clone()).with_context(|| failed.clone())?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        let first = said.lines().find(|line| line.contains("error")).unwrap_or("no message");
        return Err(anyhow::anyhow!("{command}: {first}").context(failed));
    }
    Ok([source, library])
}

fn man_pages(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut command = args::command().disable_help_subcommand(true);
    command.build();
    let mut written = Vec::new();
    man_page(&command, folder, &mut written)?;
    Ok(written)
}

fn man_page(command: &Command, folder: &Path, written: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let (page, mut text) = (Man::new(command.clone()), Vec::new());
    page.render(&mut text)?;
    let path = folder.join(page.get_filename());
    whole_file::write(&path, &text)?;
    written.push(path);
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        man_page(verb, folder, written)?;
    }
    Ok(())
}

fn scripts(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    Shell::value_variants()
        .iter()
        .map(|shell| {
            // Into memory first: the generator panics where a file cannot be written.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut args::shown(), "plimsoll", &mut script);
            let path = folder.join(shell.file_name("plimsoll"));
            whole_file::write(&path, &script).map(|()| path)
        })
        .collect()
}
