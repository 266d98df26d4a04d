//! What this machine is: whether its GPU shares the system's memory, and what that leaves.
//!
//! On unified memory the GPU's memory is part of the system's. Adding the two counts one
//! thing twice, and asking the GPU what is free misses what the kernel could give back. So
//! this is found out first, from whatever the machine has to say, in the order of how hard
//! it is to be wrong: the board's own files, the drivers, names. What nothing tells is
//! `None`, not "discrete".
//!
//! Everything that is a file is read under a root that the caller may choose, so that
//! recorded machines are examined anywhere; drivers are asked only of the machine itself.

mod files;
mod mps;
mod timeout;
mod unified;

use std::path::{Path, PathBuf};

pub use files::name;
pub use mps::{MPS_LIMIT_VARIABLE, Mps, mps_client_limit, parse_mps_limit};
pub use timeout::{DRIVER_TIMEOUT, with_timeout};
pub use unified::{Evidence, Unified};

pub use crate::sys::nvml::{Addressing, NvmlGpu, NvmlMemory, gpus as nvml_gpus};

use crate::platform::{MemInfo, system_memory};
use crate::units::Bytes;

/// A machine as a tree of files: this one, or a recorded one.
///
/// ```
/// use plimsoll_machine::machine::Machine;
/// let machine = Machine::here();
/// match machine.unified().value {
///     Some(true) => println!("GPU memory is part of the system's"),
///     Some(false) => println!("the GPU has its own memory"),
///     None => println!("not known: {}", machine.unified().because),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    root: PathBuf,
}

/// Memory as users should see it: the system's, and the GPU's as a part of it or beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// Whether the GPU shares the system's memory; `None` where nothing tells.
    pub is_unified: Option<bool>,
    /// Live in the allocator that was given; counted. On unified memory a part of
    /// `system_used`.
    pub gpu_alloc: Option<Bytes>,
    /// Held from the device by that allocator; counted.
    pub gpu_reserved: Option<Bytes>,
    /// On a Jetson from Nano to Orin: what the GPU, codecs and cameras hold
    /// (`NvMapMemUsed`); sampled. A part of `system_used`.
    pub gpu_codecs_cameras: Option<Bytes>,
    /// `MemTotal`.
    pub system_total: Option<Bytes>,
    /// `MemTotal` less `MemAvailable`.
    pub system_used: Option<Bytes>,
    /// `MemAvailable`: the measure of safety.
    pub system_available: Option<Bytes>,
    /// On unified memory, `MemFree`: the most that a single GPU allocation can hope for,
    /// as the page cache is not given up for it.
    pub largest_single: Option<Bytes>,
    /// How the figures belong together, in a sentence.
    pub note: String,
}

/// Whether the GPU of this machine shares the system's memory; `None` where nothing tells,
/// as where there is no GPU.
#[must_use]
pub fn is_unified() -> Option<bool> {
    Machine::here().unified().value
}

/// Whether this machine is a Jetson, by the files of its board.
#[must_use]
pub fn is_jetson() -> bool {
    Machine::here().is_jetson()
}

/// The memory of this machine. An allocator adds its own figures with
/// [`MemoryInfo::with_allocator`].
#[must_use]
pub fn memory_info() -> MemoryInfo {
    Machine::here().memory_info()
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn here() -> Machine {
        Machine { root: PathBuf::from("/") }
    }

    /// The machine whose files lie under a folder.
    #[must_use]
    pub fn recorded(root: impl Into<PathBuf>) -> Machine {
        Machine { root: root.into() }
    }

    /// The folder under which its files lie.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether it is the machine that runs this program.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.root == Path::new("/")
    }

    /// The name of the board, where its device tree has one.
    #[must_use]
    pub fn board(&self) -> Option<String> {
        let text = unified::MODELS.iter().find_map(|path| self.read(path))?;
        files::name(&text).map(str::to_string)
    }

    /// Whether its GPU shares the system's memory, and by what that is known.
    #[must_use]
    pub fn unified(&self) -> Unified {
        unified::decide(&self.evidence())
    }

    /// Whether it is a Jetson, by the files of its board: one of the boards whose GPU shares the
    /// system's memory.
    #[must_use]
    pub fn is_jetson(&self) -> bool {
        !unified::from_board(self).is_empty()
    }

    /// Everything that speaks for or against unified memory, the surest first. Of a
    /// recorded machine only files.
    #[must_use]
    pub fn evidence(&self) -> Vec<Evidence> {
        let mut evidence = unified::from_board(self);
        if self.is_here() {
            evidence.extend(unified::drivers().iter().cloned());
        }
        evidence.extend(unified::from_names(self));
        evidence
    }

    /// Its memory.
    #[must_use]
    pub fn memory_info(&self) -> MemoryInfo {
        let system = system_memory(&self.root).unwrap_or_default();
        MemoryInfo::new(&system, &self.unified())
    }
}

impl MemoryInfo {
    /// The same with what an allocator has handed out and what it holds from the GPU.
    #[must_use]
    pub fn with_allocator(self, live: Bytes, reserved: Bytes) -> MemoryInfo {
        MemoryInfo { gpu_alloc: Some(live), gpu_reserved: Some(reserved), ..self }
    }

    fn new(system: &MemInfo, unified: &Unified) -> MemoryInfo {
        let is_unified = unified.value;
        MemoryInfo {
            is_unified,
            gpu_alloc: None,
            gpu_reserved: None,
            gpu_codecs_cameras: system.nvmap_used,
            system_total: system.total,
            system_used: system.used(),
            system_available: system.available,
            largest_single: system.free.filter(|_| is_unified == Some(true)),
            note: match is_unified {
                Some(true) => "unified memory: what the GPU holds is part of system memory; \
                               never add the two"
                    .to_string(),
                Some(false) => "discrete memory: the GPU's is beside the system's".to_string(),
                None => format!("not known whether memory is unified: {}", unified.because),
            },
        }
    }
}

#[cfg(test)]
mod tests;
