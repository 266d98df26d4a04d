//! Looking at a machine: its memory, GPUs, processes, clocks, power and temperatures.
//!
//! One trait, one file for each source. A [`Probe`] adds to a [`MachineSample`] what its source
//! tells and leaves the rest unknown; nothing is guessed. [`Sampler`] asks all of them on
//! a clock of its own, and goes on without those that hang, die or are denied.
//! [`Forecast`] tells from samples when a memory runs out.
//!
//! | probe | source |
//! | --- | --- |
//! | [`ProbeKind::Proc`] | Linux: memory, processors, fragmentation, processes |
//! | [`ProbeKind::Jetson`] | a Jetson's own files: no root, no child process |
//! | [`ProbeKind::Nvml`] | NVIDIA's library |
//! | [`ProbeKind::Amdgpu`] | the files of AMD's driver |
//! | [`ProbeKind::Tegrastats`] | NVIDIA's program for Jetsons, where its files are not enough |
//!
//! How to add a metric: `crates/cli/src/command/monitor/mod.rs` lists every place, from the probe
//! to what `monitor` shows.

mod amdgpu;
mod forecast;
mod jetson;
mod nvml;
mod open_file;
mod proc;
mod rails;
mod sample;
mod sampler;
pub mod tegrastats;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use forecast::{Forecast, TimeLeft};
pub use proc::{ProcessIdentity, ResidentReader, Ticks};
pub use sample::{
    CoreSample, EngineSample, GpuSample, HelperCost, MachineSample, ProcessSample, Rail,
    Temperature, is_placeholder,
};
pub use sampler::{Opener, Sampler, TakenSample, look};

use crate::error::Result;
use crate::machine::Machine;

/// A source of figures.
pub trait Probe: Send {
    /// Adds what the source tells now.
    ///
    /// # Errors
    ///
    /// What keeps the source from telling anything.
    fn read(&mut self, sample: &mut MachineSample) -> Result<()>;

    /// Told before each reading which processes held GPU memory, those with the most
    /// first: for what is too expensive to be asked of all.
    fn attend(&mut self, _holders: &[u32]) {}
}

/// The sources that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    /// Linux's own files.
    Proc,
    /// A Jetson's own files.
    Jetson,
    /// NVIDIA's library.
    Nvml,
    /// The files of AMD's driver.
    Amdgpu,
    /// NVIDIA's program for Jetsons.
    Tegrastats,
}

impl ProbeKind {
    /// All of them, the one that is to be believed first in front.
    pub const ALL: [ProbeKind; 5] = [
        ProbeKind::Proc,
        ProbeKind::Jetson,
        ProbeKind::Nvml,
        ProbeKind::Amdgpu,
        ProbeKind::Tegrastats,
    ];

    /// Its name in flags and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ProbeKind::Proc => "proc",
            ProbeKind::Jetson => "jetson",
            ProbeKind::Nvml => "nvml",
            ProbeKind::Amdgpu => "amdgpu",
            ProbeKind::Tegrastats => "tegrastats",
        }
    }
}

/// What to look at, and how often.
#[derive(Debug, Clone)]
pub struct ProbeSettings {
    /// The files of the machine: `/` for this one.
    pub root: PathBuf,
    /// Between two samples.
    pub interval: Duration,
    /// Between two looks at all processes, which cost more than everything else; `None`
    /// for no processes.
    pub processes: Option<Duration>,
}

impl Default for ProbeSettings {
    fn default() -> ProbeSettings {
        ProbeSettings {
            root: PathBuf::from("/"),
            interval: Duration::from_millis(500),
            processes: Some(Duration::from_secs(2)),
        }
    }
}

/// Opens a source.
///
/// # Errors
///
/// [`Unavailable`](crate::Error::Unavailable) with the reason where this machine does not
/// have it.
pub fn open(kind: ProbeKind, settings: &ProbeSettings) -> Result<Box<dyn Probe>> {
    let machine = &Machine::recorded(&settings.root);
    Ok(match kind {
        ProbeKind::Proc => Box::new(proc::Proc::open(machine, settings.processes)?),
        ProbeKind::Jetson => Box::new(jetson::Jetson::open(machine)?),
        ProbeKind::Nvml => Box::new(nvml::Nvml::open(machine, settings.processes)?),
        ProbeKind::Amdgpu => Box::new(amdgpu::Amdgpu::open(machine, settings.processes)?),
        ProbeKind::Tegrastats => {
            Box::new(tegrastats::TegraReader::find(machine, settings.interval)?)
        }
    })
}

/// The sources that are tried on a machine without being asked for. On a Jetson its own
/// files tell most, and the program is the second source: it is started only where they do
/// not tell the GPU's load or the power.
#[must_use]
pub fn usual(root: &Path) -> Vec<ProbeKind> {
    let enough = jetson::tells_enough(&Machine::recorded(root));
    let wanted = |kind: &ProbeKind| *kind != ProbeKind::Tegrastats || enough == Some(false);
    ProbeKind::ALL.into_iter().filter(wanted).collect()
}
