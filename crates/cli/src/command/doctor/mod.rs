//! `plimsoll doctor`: what this machine is, what it can do, and what is missing.
//!
//! The doctor only looks: it reads files and loads no library, so it cannot hang in a
//! driver and says the same of a recorded tree (`--root`) as of the machine itself.
//! Every value carries where it came from; what could not be found out is null, and
//! where it was looked for stands beside it. What this version cannot do yet is said
//! as such, not as a fault of the machine.

mod files;
mod machine;
mod page;
mod root;

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;

use crate::outcome::{OrBadInput, Outcome};
use crate::output::Output;
use files::{Library, Tool};
use machine::{Machine, Memory};
use root::Root;

const EXAMPLES: &str = "\
Examples:
  plimsoll doctor                     what this machine is and can do
  plimsoll doctor --json              the same for programs
  plimsoll doctor --require host,sim  exit 1 unless these backends are available";

/// Say what this machine is and can do, and what is missing
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Exit 1 unless each of these backends is available (comma-separated)
    #[arg(long, value_name = "BACKEND", value_delimiter = ',')]
    require: Vec<BackendName>,
    /// Examine the recorded file tree of another machine
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// A value, and how it was obtained.
#[derive(Debug, Serialize)]
struct Fact<T> {
    /// The value; null where it is not known.
    value: Option<T>,
    /// How it was obtained; null where it was not.
    how: Option<How>,
    /// Where it was read, or looked for.
    source: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum How {
    /// Read from the running machine.
    Sampled,
    /// Read from the files of another machine.
    Recorded,
}

impl How {
    fn word(self) -> &'static str {
        match self {
            How::Sampled => "sampled",
            How::Recorded => "recorded",
        }
    }
}

/// The backends that Plimsoll has or will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum BackendName {
    #[value(alias = "cpu")]
    Host,
    Sim,
    Cuda,
    Rocm,
    Opencl,
    Metal,
}

impl BackendName {
    /// As it is written in flags and in JSON.
    fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }
}

#[derive(Debug, Serialize)]
struct Backend {
    name: BackendName,
    available: bool,
    /// What it is, or why it cannot be had.
    why: String,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    memory: Memory,
    backends: Vec<Backend>,
    libraries: Vec<Library>,
    tools: Vec<Tool>,
    /// What was required and cannot be had; it decides the exit code.
    lacks: Vec<BackendName>,
}

/// Examines the machine.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let root = Root::new(&args.root);
    std::fs::read_dir(root.folder())
        .or_bad_input(|| format!("--root {} cannot be read as a folder", args.root.display()))?;
    tracing::info!("examining {}", args.root.display());
    let mut report = examine(&root);
    let available =
        |name: &BackendName| report.backends.iter().any(|b| b.available && b.name == *name);
    report.lacks = args.require.iter().copied().filter(|name| !available(name)).collect();
    out.answer(&report)?;
    Ok(Outcome::from(report.lacks.is_empty()))
}

fn examine(root: &Root) -> Report {
    let machine = machine::machine(root);
    let libraries = files::libraries(root);
    Report {
        memory: machine::memory(root),
        backends: backends(&libraries),
        tools: files::tools(root, machine.jetson),
        libraries,
        machine,
        lacks: Vec::new(),
    }
}

fn backends(libraries: &[Library]) -> Vec<Backend> {
    let here = |name, why: &str| Backend { name, available: true, why: why.to_string() };
    let not_yet = |name, library: &str| Backend {
        name,
        available: false,
        why: match libraries.iter().find(|l| l.name == library).and_then(|l| l.path.as_ref()) {
            Some(path) => {
                format!("not looked for by this version, though {} is there", path.display())
            }
            None => format!("not looked for by this version, and no {library} was found"),
        },
    };
    vec![
        here(BackendName::Host, "system memory"),
        here(BackendName::Sim, "a simulated device, for tests and plans"),
        not_yet(BackendName::Cuda, "libcuda.so.1"),
        not_yet(BackendName::Rocm, "libamdhip64.so"),
        not_yet(BackendName::Opencl, "libOpenCL.so.1"),
        Backend {
            name: BackendName::Metal,
            available: false,
            why: "not looked for by this version; exists on macOS only".to_string(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_empty_tree_gives_unknowns_and_no_zero() {
        let folder = tempfile::tempdir().unwrap();
        let report = examine(&Root::new(folder.path()));
        assert!(report.memory.total_bytes.value.is_none());
        assert!(report.memory.total_bytes.how.is_none());
        assert!(report.machine.cpus.value.is_none());
        assert!(report.machine.unified.value.is_none());
        assert!(!report.machine.jetson);
        assert!(report.libraries.iter().all(|library| library.path.is_none()));
        let text = serde_json::to_string(&report).unwrap();
        assert!(!text.contains("\"value\":0"), "{text}");
    }

    #[test]
    fn a_library_that_is_there_is_named_in_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("usr/lib64")).unwrap();
        fs::write(folder.path().join("usr/lib64/libcuda.so.1"), "").unwrap();
        let report = examine(&Root::new(folder.path()));
        let cuda = report.backends.iter().find(|b| b.name == BackendName::Cuda).unwrap();
        assert!(!cuda.available);
        assert!(cuda.why.contains("/usr/lib64/libcuda.so.1"), "{}", cuda.why);
    }
}
