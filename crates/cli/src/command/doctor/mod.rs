//! `plimsoll doctor`: what this machine is, what it can do, and what is missing.
//!
//! Reads the machine's files and queries its drivers, each with a timeout. Of a recorded tree
//! (`--root`) only files can be read. Every value says where it came from; a value that could not
//! be found is null, with the places that were searched. For everything that is missing there is
//! a remedy.

mod backends;
mod engines;
mod files;
mod hardware;
mod limits;
mod machine;
mod next;
mod page;
mod root;
mod selftest;

use std::path::PathBuf;

use serde::Serialize;

use crate::outcome::Outcome;
use crate::output::Output;
use crate::recording;
use backends::{BackendName, DoctorBackend, DoctorGpu};
use engines::DoctorEngine;
use files::{DoctorLibrary, Permission, Tool};
use hardware::GpuHardware;
use limits::DoctorLimits;
use machine::{DoctorMachine, DoctorMemory};
use next::NextStep;
use root::Root;

const EXAMPLES: &str = "\
Examples:
  plimsoll doctor                     what this machine can do, and what to do next
  plimsoll doctor --verbose           with the files that were tried, and where values come from
  plimsoll doctor --require host,sim  exit 1 unless these backends are available
  plimsoll doctor --json              the same for programs
  plimsoll doctor --selftest bundle   try every promise that this machine can check, and
                                      leave a folder to pass on; exit 1 if one is broken
                                      or something required is missing";

/// Say what this machine is and can do, and what is missing
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Exit 1 unless each of these backends is available (comma-separated)
    #[arg(long, value_name = "BACKEND", value_delimiter = ',')]
    require: Vec<BackendName>,
    /// Try every promise that this machine can check, and leave a bundle in this folder
    #[arg(long, value_name = "DIR", conflicts_with = "root")]
    selftest: Option<PathBuf>,
    /// Examine the recorded file tree of another machine
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    root: PathBuf,
}

/// A value, and how it was obtained.
#[derive(Debug, Serialize)]
struct Fact<T> {
    /// The value; null where it is not known.
    value: Option<T>,
    /// How it was obtained; null where it was not.
    how: Option<FactSource>,
    /// Where it was read, or looked for.
    source: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum FactSource {
    /// Read from the running machine.
    Sampled,
    /// Read from the files of another machine.
    Recorded,
}

impl FactSource {
    fn word(self) -> &'static str {
        match self {
            FactSource::Sampled => "sampled",
            FactSource::Recorded => "recorded",
        }
    }
}

#[derive(Debug, Serialize)]
struct DoctorReport {
    machine: DoctorMachine,
    memory: DoctorMemory,
    /// What NVML reports; null where there is no NVML.
    gpus: Option<Vec<DoctorGpu>>,
    /// Why NVML reports nothing.
    no_nvml: Option<String>,
    backends: Vec<DoctorBackend>,
    limits: DoctorLimits,
    libraries: Vec<DoctorLibrary>,
    /// What runs models.
    engines: Vec<DoctorEngine>,
    tools: Vec<Tool>,
    permissions: Vec<Permission>,
    /// What was required and cannot be had; it decides the exit code.
    lacks: Vec<BackendName>,
    /// The GPUs that the machine has, whether or not a driver runs them.
    #[serde(skip)]
    hardware: GpuHardware,
    /// Whether it is another machine's files.
    #[serde(skip)]
    recorded: bool,
    /// Whether this program runs in a container.
    #[serde(skip)]
    in_container: bool,
    /// What works here.
    you_can: Vec<String>,
    /// One to three commands.
    do_next: Vec<NextStep>,
}

/// Examines the machine.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let root = Root::new(&args.root);
    recording::check_root(&args.root)?;
    tracing::info!("examining {}", args.root.display());
    let mut report = examine(&root)?;
    report.you_can = next::you_can(&report);
    report.do_next = next::do_next(&report);
    let available =
        |name: &BackendName| report.backends.iter().any(|b| b.available && b.name == *name);
    report.lacks = args.require.iter().copied().filter(|name| !available(name)).collect();
    if let Some(folder) = &args.selftest {
        return selftest::run(folder, &report, out);
    }
    out.answer(&report)?;
    Ok(Outcome::from(report.lacks.is_empty()))
}

fn examine(root: &Root) -> anyhow::Result<DoctorReport> {
    let machine = machine::machine(root);
    let libraries = files::libraries(root);
    let hardware = GpuHardware::of(root, machine.jetson);
    let mut backends = backends::backends(root, &libraries);
    let (gpus, no_nvml) = match backends::gpus(root) {
        Ok(gpus) => (Some(gpus), None),
        Err(why) => (None, Some(why)),
    };
    Ok(DoctorReport {
        memory: machine::memory(root),
        gpus,
        no_nvml,
        limits: limits::limits(root, &mut backends)?,
        backends,
        tools: files::tools(root, machine.jetson),
        permissions: files::permissions(root),
        engines: engines::engines(root, hardware, machine.jetson),
        libraries,
        machine,
        lacks: Vec::new(),
        hardware,
        recorded: !root.is_live(),
        in_container: ["/.dockerenv", "/run/.containerenv"]
            .iter()
            .any(|file| root.machine().has_file(file)),
        you_can: Vec::new(),
        do_next: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_empty_tree_gives_unknowns_and_no_zero() {
        let folder = tempfile::tempdir().unwrap();
        let report = examine(&Root::new(folder.path())).unwrap();
        assert!(report.memory.total_bytes.value.is_none());
        assert!(report.memory.total_bytes.how.is_none());
        assert!(report.machine.cpus.value.is_none());
        assert!(report.machine.unified.value.is_none());
        assert!(!report.machine.jetson);
        assert!(report.libraries.iter().all(|library| library.path.is_none()));
        assert_eq!(report.limits.limit_type, "unavailable");
        let text = serde_json::to_string(&report).unwrap();
        assert!(!text.contains("\"value\":0"), "{text}");
    }

    #[test]
    fn a_library_that_is_there_is_named_in_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("usr/lib64")).unwrap();
        fs::write(folder.path().join("usr/lib64/libcuda.so.1"), "").unwrap();
        let report = examine(&Root::new(folder.path())).unwrap();
        let cuda = report.backends.iter().find(|b| b.name == BackendName::Cuda).unwrap();
        assert!(!cuda.available);
        assert!(cuda.why.contains("/usr/lib64/libcuda.so.1"), "{}", cuda.why);
    }
}
