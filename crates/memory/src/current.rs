//! Memory of the current device, for programs that name none.
//!
//! The current device is the first GPU of CUDA, ROCm or Metal, in this order, and the host where
//! there is none; `CUDA_VISIBLE_DEVICES` and its kin say which GPU is the first. The functions of
//! the same names at the top of the library are for a memory or a figure of the caller's own.
//!
//! ```
//! use plimsoll_memory::{Bytes, current};
//!
//! let item = Bytes::kib(64);
//! if current::will_oom(item * 64)? {
//!     println!("64 items do not fit into 70 % of {}", current::get_free_memory()?);
//! }
//! let plan = current::auto_chunk(64, item)?;
//! println!("{plan} on {}", current::device());
//! # Ok::<(), plimsoll_memory::Error>(())
//! ```

use std::path::Path;

use crate::backend::{BackendKind, DeviceId, count, open};
use crate::chunk::{self, ChunkingConfig};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::machine::Machine;
use plimsoll_machine::platform::memory_left;
use plimsoll_machine::units::Bytes;

/// The kinds of GPU that can be the current device. OpenCL is not among them: its first device
/// may well be the processor.
const GPUS: [BackendKind; 3] = [BackendKind::Cuda, BackendKind::Rocm, BackendKind::Metal];

/// A batch should shrink when less than this share of memory is available.
pub const REDUCE_BATCH_BELOW: f64 = 0.2;

/// What can be had on a device now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreeMemory {
    /// The device.
    pub device: DeviceId,
    /// What can be had. On unified memory it is what the system has available.
    pub available: Bytes,
    /// On unified memory, the most that a single allocation on the GPU can hope for.
    pub largest_single: Option<Bytes>,
    /// Whether the GPU shares the system's memory; `None` where nothing tells.
    pub is_unified: Option<bool>,
    /// How the figures were obtained.
    pub how: &'static str,
}

/// The current device.
#[must_use]
pub fn device() -> DeviceId {
    let found = GPUS.into_iter().find(|kind| count(*kind).is_ok_and(|devices| devices > 0));
    found.unwrap_or(BackendKind::Host).into()
}

/// What can be had on a device now. On unified memory the GPU has what the system has; on the
/// host it is what the system has available, or what a control group leaves this process.
///
/// # Errors
///
/// [`Error::Unavailable`] where the device is not here or does not say.
pub fn free_memory_on(device: impl Into<DeviceId>) -> Result<FreeMemory> {
    let device = device.into();
    let machine = Machine::here();
    let (info, on_host) = (machine.memory_info(), device.kind == BackendKind::Host);
    let is_unified = info.is_unified;
    let shares = is_unified == Some(true) && device.kind != BackendKind::Sim;
    if !on_host && !shares {
        let available = open(device)?.free_memory()?;
        let how = "sampled: what the device says is free";
        return Ok(FreeMemory { device, available, largest_single: None, is_unified, how });
    }
    let system = info.system_available.ok_or_else(|| Error::Unavailable {
        what: "what the system has available".to_string(),
        why: "/proc/meminfo does not say".to_string(),
    })?;
    let (available, how) = match memory_left(Path::new("/")) {
        Some(left) if left < system => {
            (left, "sampled: what its control group or ulimit leaves this process")
        }
        _ if on_host => (system, "sampled: /proc/meminfo MemAvailable"),
        _ => (system, "sampled: MemAvailable, as the GPU shares the system's memory"),
    };
    let largest_single = info.largest_single.filter(|_| !on_host);
    Ok(FreeMemory { device, available, largest_single, is_unified, how })
}

/// What can be had on the current device now.
///
/// # Errors
///
/// As [`free_memory_on`].
pub fn get_free_memory() -> Result<Bytes> {
    Ok(free_memory_on(device())?.available)
}

/// Whether `required` is more than the safety margin leaves of the current device's memory.
///
/// # Errors
///
/// As [`free_memory_on`].
pub fn will_oom(required: impl Into<Bytes>) -> Result<bool> {
    Ok(chunk::will_oom(required.into(), get_free_memory()?))
}

/// This many items of this many bytes into what the current device has, with the safety margin.
///
/// # Errors
///
/// As [`free_memory_on`]; [`Error::NeverFits`] where not even one item fits.
pub fn auto_chunk(total_items: u64, bytes_per_item: impl Into<Bytes>) -> Result<ChunkingConfig> {
    chunk::auto_chunk(total_items, bytes_per_item.into(), get_free_memory()?)
}

/// Whether less than [`REDUCE_BATCH_BELOW`] of memory is available: the system's, and on a GPU
/// with memory of its own also that. `None` where the system does not say.
#[must_use]
pub fn should_reduce_batch() -> Option<bool> {
    should_reduce_batch_below(REDUCE_BATCH_BELOW)
}

/// The same for a share of the caller's own.
#[must_use]
pub fn should_reduce_batch_below(share: f64) -> Option<bool> {
    let info = Machine::here().memory_info();
    let system = part(info.system_available, info.system_total);
    let gpu = Some(device()).filter(|gpu| gpu.kind != BackendKind::Host);
    let own = gpu.filter(|_| info.is_unified != Some(true)).and_then(|gpu| {
        let opened = open(gpu).ok()?;
        part(opened.free_memory().ok(), Some(opened.info().total))
    });
    is_below(share, system, own)
}

fn part(available: Option<Bytes>, total: Option<Bytes>) -> Option<f64> {
    let (available, total) = available.zip(total)?;
    (total > Bytes::ZERO).then(|| available.get() as f64 / total.get() as f64)
}

/// The tighter of the two decides; one that is not known says nothing.
fn is_below(share: f64, system: Option<f64>, own: Option<f64>) -> Option<bool> {
    let least = system.into_iter().chain(own).reduce(f64::min)?;
    Some(least < share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_device_named_the_current_one_is_planned_for() {
        let free = get_free_memory().unwrap();
        assert!(free > Bytes::ZERO);
        assert!(!will_oom(Bytes(1)).unwrap() && will_oom(Bytes::MAX).unwrap());
        assert_eq!(auto_chunk(64, Bytes(1)).unwrap().num_chunks, 1);
        let too_large = auto_chunk(1, Bytes::gib(1 << 30)).unwrap_err();
        assert!(matches!(too_large, Error::NeverFits { .. }), "{too_large}");
    }

    #[test]
    fn a_device_that_is_not_here_is_an_error_and_the_host_always_is() {
        let host = free_memory_on(BackendKind::Host).unwrap();
        assert!(host.available > Bytes::ZERO && host.how.starts_with("sampled"), "{host:?}");
        let far = DeviceId { kind: BackendKind::Rocm, number: 99 };
        assert!(free_memory_on(far).is_err());
        let sim = free_memory_on(BackendKind::Sim).unwrap();
        assert_eq!(sim.available, Bytes::gib(8));
    }

    #[test]
    fn a_batch_shrinks_when_the_tighter_memory_is_low() {
        assert_eq!(is_below(0.2, Some(0.5), None), Some(false));
        assert_eq!(is_below(0.2, Some(0.19), None), Some(true));
        assert_eq!(is_below(0.2, Some(0.5), Some(0.1)), Some(true));
        assert_eq!(is_below(0.2, None, None), None, "nothing is known");
        assert_eq!(should_reduce_batch_below(1.1), Some(true));
        assert_eq!(should_reduce_batch_below(0.0), Some(false));
    }
}
