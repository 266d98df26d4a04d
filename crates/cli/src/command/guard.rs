//! `plimsoll guard`: the library that `run` loads into programs, as a file, for containers and
//! clusters that start programs by themselves. To start a program under the guard: `run`.

use std::path::PathBuf;

use anyhow::bail;
use serde::Serialize;

use crate::outcome::{BadInput, Outcome};
use crate::output::{Answer, Output};
use crate::page::TextPage;
use crate::whole_file;

const EXAMPLES: &str = "\
Examples:
  plimsoll guard --to /opt/plimsoll/libplimsoll_guard.so
  LD_PRELOAD=/opt/plimsoll/libplimsoll_guard.so PLIMSOLL_GPU_MEM_LIMIT=8GiB python3 train.py
  PLIMSOLL_GUARD=/dev/shm/job …   programs that name the same folder share one limit";

/// Write the guard's library to a file, to limit programs without `plimsoll run`
///
/// Loaded by LD_PRELOAD, with a limit in PLIMSOLL_GPU_MEM_LIMIT, it limits the program and its
/// children by itself: for containers, job launchers and clusters.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file to write; its path must be without spaces and colons
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

#[derive(Serialize)]
struct GuardAnswer {
    library: PathBuf,
    library_bytes: usize,
}

impl Answer for GuardAnswer {
    fn page(&self, page: &mut TextPage) {
        let library = self.library.display();
        page.raw(&format!("{library}\n"));
        page.advice("Start programs with it and a limit:");
        page.advice(&format!("  LD_PRELOAD={library} PLIMSOLL_GPU_MEM_LIMIT=8GiB PROGRAM"));
    }
}

/// Writes the library.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    if plimsoll_guard::LIBRARY.is_empty() {
        bail!("the guard needs Linux on x86-64 or aarch64: it is not in this build");
    }
    let library = std::path::absolute(&args.to)?;
    let text = library.to_str().filter(|text| !text.contains([' ', ':', '\n', '\t']));
    if text.is_none() {
        let text = format!(
            "{} is not valid in LD_PRELOAD: give a path without spaces and colons",
            library.display()
        );
        return Err(BadInput::new(text).into());
    }
    // Programs may be loading the one that is there.
    whole_file::write(&library, plimsoll_guard::LIBRARY)?;
    out.answer(&GuardAnswer { library, library_bytes: plimsoll_guard::LIBRARY.len() })?;
    Ok(Outcome::Yes)
}
