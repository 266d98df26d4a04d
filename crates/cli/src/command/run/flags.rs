//! The flags of `run`, and the limit that follows from them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use plimsoll::{Bytes, LimitProfile, effective_limit, platform};
use plimsoll_guard::launch::{self, GuardedProgram};
use plimsoll_guard::ledger::{DEVICES, flag};
use plimsoll_guard::watch::GuardSettings;

use crate::limit::{LimitArgs, size, size_above_zero};
use crate::outcome::BadInput;

const KEEP_FREE: Bytes = Bytes(launch::KEEP_FREE);
const RESERVE: Bytes = Bytes(launch::RESERVE);

const EXAMPLES: &str = "\
Examples:
  plimsoll run --gpu-mem-limit 8GiB -- python3 train.py
  plimsoll run --limit 4GiB --report out -- ./server --port 80   with a timeline and a trace
  plimsoll run --no-limit --stacks -- ./tool                     counts, and shows where
  plimsoll run --device-limit 0=8GiB --device-limit 1=4GiB -- ./two-gpus

Exit codes:
  the program's own (128 and the signal's number where a signal ended it);
  125 plimsoll itself failed, 126 the program cannot be executed, 127 it was not found";

/// Run a program under a hard limit of GPU memory, and report what it used
///
/// The guard is loaded into the program and its children. It counts every device allocation,
/// refuses those past the limit with the driver's own out-of-memory code, and shows the limit
/// as the size of the device. No daemon and no root are needed. With --json the answer has
/// stdout for itself, and the program's output goes to stderr.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    limit: LimitArgs,
    /// The machine to keep to: orin-nano-8gb (the default), orin-nx-16gb, agx-orin-64gb,
    /// thor-128gb or host; a limit above its size is clamped
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// The limit of one device, by the program's own number, such as 1=4GiB; may be repeated
    #[arg(long, value_name = "N=SIZE", value_parser = device_limit)]
    device_limit: Vec<(usize, Bytes)>,
    /// What must stay available of the system's memory where the GPU shares it (512MiB unless
    /// you say otherwise)
    #[arg(long, value_name = "SIZE", default_value_t = KEEP_FREE, hide_default_value = true, value_parser = size)]
    keep_free: Bytes,
    /// What is reserved below the limit for the driver's own memory (128MiB unless you say
    /// otherwise)
    #[arg(long, value_name = "SIZE", default_value_t = RESERVE, hide_default_value = true, value_parser = size)]
    reserve: Bytes,
    /// Count only, refuse nothing
    #[arg(long, conflicts_with_all = ["gpu_mem_limit", "gpu_mem_limit_gb", "device_limit", "profile", "keep_free"])]
    no_limit: bool,
    /// Whether managed memory counts: some programs oversubscribe it on purpose
    #[arg(long, value_name = "HOW", default_value = "count", value_parser = ["count", "ignore"])]
    managed: String,
    /// Whether the driver's own limit is set too where an MPS daemon runs
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = ["auto", "off"])]
    driver_limit: String,
    /// Write report.json, report.html and trace.csv into this folder
    #[arg(long, value_name = "DIR")]
    pub(super) report: Option<PathBuf>,
    /// Keep where each block was allocated; slower
    #[arg(long)]
    stacks: bool,
    /// Refuse what the guard cannot limit: a static, set-uid or 32-bit program, an unknown driver
    #[arg(long)]
    pub(super) strict: bool,
    /// A file to read in place of /proc/meminfo
    #[arg(long, value_name = "FILE", hide = true, default_value = "/proc/meminfo")]
    meminfo: PathBuf,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

fn device_limit(text: &str) -> Result<(usize, Bytes), String> {
    let (number, size) = text.split_once('=').ok_or("it must be N=SIZE, such as 1=4GiB")?;
    let number = number.trim().parse().ok().filter(|number| *number < DEVICES);
    let number = number.ok_or(format!("the device must be a number below {DEVICES}"))?;
    Ok((number, size_above_zero(size.trim())?))
}

/// The limit of a run.
#[derive(Debug)]
pub(super) struct RunLimit {
    pub(super) settings: GuardSettings,
    /// As it was asked for, clamped to the profile.
    pub(super) limit: Option<Bytes>,
    pub(super) mps: Option<MpsLimit>,
    /// What the user should know about it.
    pub(super) notes: Vec<String>,
}

/// The driver's own limit, where an MPS daemon listens.
#[derive(Debug)]
pub(super) struct MpsLimit {
    /// The folder of the daemon's pipes.
    pub(super) pipes: PathBuf,
    /// The value of the variable that its clients read.
    pub(super) value: String,
}

impl Args {
    /// The program's name and arguments, as they were given.
    pub(super) fn words(&self) -> &[OsString] {
        &self.program
    }

    /// The program to start.
    pub(super) fn program<'a>(
        &'a self,
        mps: Option<&'a MpsLimit>,
        stdout_to_stderr: bool,
    ) -> Result<GuardedProgram<'a>, BadInput> {
        let (name, arguments) =
            self.program.split_first().ok_or_else(|| BadInput::new("give a program to run"))?;
        let mps_limit = mps.map(|mps| mps.value.as_str());
        Ok(GuardedProgram { name, arguments, mps_limit, stdout_to_stderr })
    }

    /// Works out the limit.
    pub(super) fn run_limit(&self) -> anyhow::Result<RunLimit> {
        let mut notes = Vec::new();
        let limit = if self.no_limit { None } else { Some(self.size(&mut notes)?) };
        let reserve = self.reserve;
        for (place, (number, _)) in self.device_limit.iter().enumerate() {
            if self.device_limit[..place].iter().any(|(other, _)| other == number) {
                let text = format!("--device-limit names device {number} twice; give it one limit");
                return Err(BadInput::new(text).into());
            }
        }
        let mut limits = limit.into_iter().chain(self.device_limit.iter().map(|(_, size)| *size));
        if let Some(limit) = limits.find(|limit| *limit <= reserve) {
            let text = format!(
                "a limit of {limit} leaves nothing above the reserve of {reserve}; raise it, or lower --reserve"
            );
            return Err(BadInput::new(text).into());
        }
        let mut flags = 0;
        for (on, bit) in [
            (self.managed == "ignore", flag::MANAGED_IGNORED),
            (self.strict, flag::STRICT),
            (self.stacks, flag::STACKS),
        ] {
            flags |= if on { bit } else { 0 };
        }
        let drivers = limit.filter(|_| self.driver_limit == "auto");
        let mps = drivers.and_then(|limit| mps(limit, &self.device_limit));
        Ok(RunLimit {
            settings: GuardSettings {
                limit: limit.map(Bytes::get),
                limits: self.device_limit.iter().map(|(n, size)| (*n, size.get())).collect(),
                reserve: self.reserve.get(),
                keep_free: if self.no_limit { 0 } else { self.keep_free.get() },
                flags,
                meminfo: self.meminfo.clone(),
            },
            limit,
            mps,
            notes,
        })
    }

    fn size(&self, notes: &mut Vec<String>) -> anyhow::Result<Bytes> {
        let profile = match &self.profile {
            Some(name) => LimitProfile::find(name)?,
            // A size without a profile is meant as it is.
            None if self.limit.limit().is_some() => LimitProfile::find("host")?,
            None => LimitProfile::default(),
        };
        let wanted = self.limit.limit();
        match (wanted, profile.size) {
            (Some(wanted), Some(size)) if wanted > size => {
                notes
                    .push(format!("{wanted} is more than {} has: clamped to {size}", profile.name));
                Ok(size)
            }
            (Some(wanted), _) => Ok(wanted),
            (None, Some(size)) => Ok(size),
            (None, None) => {
                let total = platform::system_memory(Path::new("/"))?.total;
                let total = total.ok_or_else(|| {
                    BadInput::new(
                        "the system does not report its memory size; give --gpu-mem-limit SIZE",
                    )
                })?;
                let limit = effective_limit(total, true, Some(total), self.keep_free);
                if limit == Bytes(0) {
                    let keep = self.keep_free;
                    let text = format!("--keep-free {keep} leaves nothing of {total}; lower it");
                    return Err(BadInput::new(text).into());
                }
                Ok(limit)
            }
        }
    }
}

/// The driver's own limit, where an MPS daemon listens.
fn mps(limit: Bytes, limits: &[(usize, Bytes)]) -> Option<MpsLimit> {
    let pipes = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
    let pipes = pipes.map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
    let there =
        pipes.join("control").exists() && pipes.join("nvidia-cuda-mps-control.pid").exists();
    // The limit of the first device, and those that were given one of their own.
    let mut all = BTreeMap::from([(0, limit)]);
    all.extend(limits.iter().copied());
    let all: Vec<String> =
        all.iter().map(|(n, size)| format!("{n}={}M", size.get() >> 20)).collect();
    there.then(|| MpsLimit { pipes, value: all.join(",") })
}
