//! `plimsoll guard`: the library that `run` loads into programs, as a file, for containers and
//! clusters that start programs by themselves. To start a program under the guard: `run`.

use std::path::PathBuf;

use anyhow::bail;
use serde::Serialize;

use crate::outcome::{BadInput, OrBadInput, Outcome};
use crate::output::{Answer, Output};
use crate::page::TextPage;
use crate::shell::quoted;
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
    /// The file to write; its path must be without spaces, colons and dollar signs
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
        let library = self.library.display().to_string();
        page.raw(&format!("{library}\n"));
        page.advice("Start programs with it and a limit:");
        let library = quoted(&library);
        page.advice(&format!("  LD_PRELOAD={library} PLIMSOLL_GPU_MEM_LIMIT=8GiB PROGRAM"));
    }
}

/// Writes the library.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    if plimsoll_guard::LIBRARY.is_empty() {
        bail!("the guard needs Linux on x86-64 or aarch64: it is not in this build");
    }
    whole_file::check_place("--to", &args.to)?;
    let library = std::path::absolute(&args.to).or_bad_input(|| {
        let to = args.to.display();
        format!("cannot write --to {to}: the folder that this was started in is gone")
    })?;
    // The loader cuts its list at spaces and colons, and replaces words such as $LIB and $ORIGIN.
    let text = library.to_str().filter(|text| !text.contains([' ', ':', '$', '\n', '\t']));
    if text.is_none() {
        let text = format!(
            "{} is not valid in LD_PRELOAD: give a path without spaces, colons and dollar signs",
            library.display()
        );
        return Err(BadInput::new(text).into());
    }
    // Programs may be loading the one that is there.
    whole_file::write(&library, plimsoll_guard::LIBRARY)?;
    out.answer(&GuardAnswer { library, library_bytes: plimsoll_guard::LIBRARY.len() })?;
    Ok(Outcome::Yes)
}
