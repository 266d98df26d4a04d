//! The devices: one file each, all of the same plan.
//!
//! A backend is small: it turns a device's calls into the [`Device`] trait and holds no
//! policy. What is pooled, limited or tracked is decided once, in the layers above.
//!
//! Which of them a machine has is found out when one is opened: libraries are looked for
//! at run time, and what is missing is [`Error::Unavailable`] with the files that were
//! tried and the reason.
//!
//! # To add a backend
//!
//! 1. `<kind>.rs`, or `<kind>/mod.rs` with children: the device, which implements [`Memory`]
//!    and [`Device`]. Foreign calls go to `sys/`, each with its reason to be sound.
//! 2. If the driver counts nothing itself: a field `blocks: DeviceBlocks<Buffer>` and
//!    `memory_from_blocks!()` in `impl Memory`. `DeviceBlocks` knows which blocks are live and
//!    reserves their bytes from a [`Budget`](crate::Budget) before the driver is asked; the
//!    backend writes `allocate` and `release` with the driver's two calls (`rocm` is the
//!    shortest example).
//! 3. If the driver has queues and events: a field `streams: DeviceStreams<Queue, Marker>`
//!    and `events_from_streams!()` in `impl Device`. The queue has `mark` and `wait`, the
//!    marker `is_done` and `synchronize`.
//! 4. If the driver maps physical memory by the page: [`Mapping`](crate::Mapping), and
//!    [`Memory::mapping`] that returns it. Without it pools use plain blocks.
//! 5. Here: a variant of [`BackendKind`] with its name and its place in
//!    [`BackendKind::REAL`], a line in [`count`] and one in [`open`], and the name in the
//!    message of `DeviceId::from_str`.
//! 6. `current.rs`: its place in `GPUS`, if it can be the current device. The list is fixed.
//! 7. `crates/cli/src/command/doctor/backends.rs`: a variant of `BackendName` (its own list,
//!    because `doctor` says `host` where `--device` says `cpu`), its kind and its library.
//! 8. `tests/conformance/`: a line that tests the device for the promises of every memory.
//!
//! Selection by free memory, `--device`, reports and pools follow by themselves. Two more crates
//! have code for each kind of device, which is separate and optional: `crates/points/src/backend`
//! (kernels for voxels; without them the host computes) and `crates/machine/src/probe` (load,
//! clocks and temperatures for `monitor`).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::memory::Device;
#[cfg(doc)]
use crate::memory::Memory;
use plimsoll_machine::error::{Error, Result};

mod blocks;
pub mod cuda;
pub mod host;
pub mod metal;
pub mod opencl;
pub mod rocm;
mod select;
pub mod sim;
mod streams;

pub use select::{Survey, SurveyedDevice, select_backend_for_model, survey};

/// The kinds of device, in the order in which they are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum BackendKind {
    /// NVIDIA's, by its driver.
    Cuda,
    /// AMD's, by HIP.
    Rocm,
    /// Apple's.
    Metal,
    /// Any that has an OpenCL driver.
    OpenCl,
    /// System memory.
    Host,
    /// A device of arithmetic.
    Sim,
}

impl BackendKind {
    /// The kinds that stand for hardware, in the order in which they are preferred.
    pub const REAL: [BackendKind; 5] = [
        BackendKind::Cuda,
        BackendKind::Rocm,
        BackendKind::Metal,
        BackendKind::OpenCl,
        BackendKind::Host,
    ];

    /// As it is written in `--device`, and as [`DeviceInfo::backend`](crate::DeviceInfo)
    /// has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::Cuda => "cuda",
            BackendKind::Rocm => "rocm",
            BackendKind::Metal => "metal",
            BackendKind::OpenCl => "opencl",
            BackendKind::Host => "cpu",
            BackendKind::Sim => "sim",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A device by its name: `cpu`, `cuda:0`, `opencl:1`.
///
/// ```
/// use plimsoll_memory::backend::{BackendKind, DeviceId};
/// let second: DeviceId = "cuda:1".parse()?;
/// assert_eq!((second.kind, second.number), (BackendKind::Cuda, 1));
/// assert_eq!("opencl".parse::<DeviceId>()?.to_string(), "opencl:0");
/// assert_eq!("host".parse::<DeviceId>()?.to_string(), "cpu");
/// assert!("cpu:1".parse::<DeviceId>().is_err() && "gpu".parse::<DeviceId>().is_err());
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// Its kind.
    pub kind: BackendKind,
    /// Which of that kind, from 0.
    pub number: u32,
}

impl From<BackendKind> for DeviceId {
    /// The first of a kind.
    fn from(kind: BackendKind) -> DeviceId {
        DeviceId { kind, number: 0 }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.number) {
            (kind @ (BackendKind::Host | BackendKind::Sim), 0) => f.pad(kind.name()),
            (kind, number) => f.pad(&format!("{kind}:{number}")),
        }
    }
}

impl FromStr for DeviceId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::Config {
            field: "device",
            value: format!("{text:?}"),
            range: "cpu (or host), cuda:N, rocm:N, metal:N, opencl:N or sim",
        };
        let (name, number) = match text.split_once(':') {
            // Digits alone: a sign is no part of a name.
            Some((name, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                (name, Some(digits.parse().map_err(|_| wrong())?))
            }
            Some(_) => return Err(wrong()),
            None => (text, None),
        };
        let kind = match (name, number) {
            ("host", None) => BackendKind::Host,
            (name, number) => [BackendKind::Sim]
                .into_iter()
                .chain(BackendKind::REAL)
                .find(|kind| {
                    kind.name() == name && (*kind != BackendKind::Host || number.is_none())
                })
                .ok_or_else(wrong)?,
        };
        Ok(DeviceId { kind, number: number.unwrap_or(0) })
    }
}

/// How many devices of a kind there are, or why there is none.
pub fn count(kind: BackendKind) -> Result<u32> {
    match kind {
        BackendKind::Cuda => cuda::count(),
        BackendKind::Rocm => rocm::count(),
        BackendKind::Metal => metal::count(),
        BackendKind::OpenCl => opencl::count(),
        BackendKind::Host | BackendKind::Sim => Ok(1),
    }
}

/// Opens a device, or says why there is none.
pub fn open(device: impl Into<DeviceId>) -> Result<Arc<dyn Device>> {
    let device = device.into();
    match (device.kind, device.number) {
        (BackendKind::Cuda, number) => Ok(Arc::new(cuda::Cuda::open(number)?)),
        (BackendKind::Rocm, number) => Ok(Arc::new(rocm::Rocm::open(number)?)),
        (BackendKind::Metal, number) => metal::open(number),
        (BackendKind::OpenCl, number) => Ok(Arc::new(opencl::OpenCl::open(number)?)),
        (BackendKind::Host, 0) => Ok(Arc::new(host::Host::open()?)),
        (BackendKind::Sim, 0) => Ok(Arc::new(sim::Sim::new(sim::SimConfig::default()))),
        _ => Err(unknown(device)),
    }
}

fn unknown(device: DeviceId) -> Error {
    Error::Unavailable {
        what: device.to_string(),
        why: "this version has no such device; `plimsoll doctor` lists those that there are"
            .to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_as_it_is_written() {
        for kind in BackendKind::REAL.into_iter().chain([BackendKind::Sim]) {
            let first = DeviceId::from(kind);
            assert_eq!(first.to_string().parse::<DeviceId>().unwrap(), first);
            assert_eq!(kind.name().parse::<DeviceId>().unwrap(), first);
        }
        let last = DeviceId { kind: BackendKind::Rocm, number: u32::MAX };
        assert_eq!(last.to_string().parse::<DeviceId>().unwrap(), last);
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            ":",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda:4294967296",
            "cpu:0",
            "gpu:0",
            "CUDA",
            "cuda:1:2",
            "host:1",
        ] {
            let error = text.parse::<DeviceId>().unwrap_err().to_string();
            assert!(error.contains("opencl:N"), "{text}: {error}");
        }
    }
}
