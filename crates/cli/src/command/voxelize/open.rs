//! Which backend does the work, and what it may use.

use std::path::Path;

use plimsoll::backend::{BackendKind, DeviceId};
use plimsoll::platform::{memory_left, system_memory};
use plimsoll::{Bytes, Error, MemoryConfig};
use plimsoll_points::backend::device::VoxelDevice;
use plimsoll_points::backend::host::VoxelHost;
use plimsoll_points::backend::{VoxelBackend, cuda, opencl};

/// A backend, and what it may use.
pub(super) struct VoxelizeBackend {
    pub(super) backend: Box<dyn VoxelBackend>,
    /// Of the memory that it works in.
    pub(super) available: Bytes,
    /// How that is known.
    pub(super) source: String,
    /// Of the host's.
    pub(super) room: Bytes,
}

/// The backend that was asked for; by default the GPU where there is one, otherwise the host.
pub(super) fn open(
    wanted: Option<DeviceId>,
    limit: Option<Bytes>,
) -> plimsoll::Result<VoxelizeBackend> {
    match wanted.map(|device| (device.kind, device.number)) {
        None => match cuda::open(0, limit) {
            Ok(gpu) => Ok(device(gpu, limit)),
            Err(error) => {
                tracing::info!(%error, "the host does the work");
                Ok(host(limit))
            }
        },
        Some((BackendKind::Host, _)) => Ok(host(limit)),
        Some((BackendKind::Cuda, number)) => Ok(device(cuda::open(number, limit)?, limit)),
        Some((BackendKind::OpenCl, number)) => Ok(device(opencl::open(number, limit)?, limit)),
        Some((kind, _)) => Err(Error::Unavailable {
            what: format!("voxelization on {kind}"),
            why: "there are kernels for CUDA and OpenCL; use --backend opencl or host".to_string(),
        }),
    }
}

fn device(gpu: VoxelDevice, limit: Option<Bytes>) -> VoxelizeBackend {
    let (room, _) = host_memory();
    // The other half is what it works in itself.
    let room = if gpu.shares_memory() { room.fraction(0.5) } else { room };
    let available = gpu.available();
    let source = if limit == Some(available) { "given" } else { "sampled: free on the device" };
    VoxelizeBackend { backend: Box::new(gpu), available, source: source.to_string(), room }
}

fn host(limit: Option<Bytes>) -> VoxelizeBackend {
    let (free, source) = host_memory();
    let (available, source) = match limit {
        Some(limit) if limit <= free => (limit, "given"),
        _ => (free, source),
    };
    let backend = Box::new(VoxelHost::default());
    VoxelizeBackend { backend, available, source: source.to_string(), room: available }
}

/// What the system has, less what is kept free, or what this process is left of it.
fn host_memory() -> (Bytes, &'static str) {
    let (keep, root) = (MemoryConfig::default().min_free_bytes, Path::new("/"));
    let (free, source) = match system_memory(root).ok().and_then(|memory| memory.available) {
        Some(free) => (free.saturating_sub(keep), "sampled: MemAvailable less 512 MiB"),
        None => (Bytes::gib(1), "assumed: what is available cannot be read here"),
    };
    match memory_left(root).filter(|left| *left < free) {
        Some(left) => (left, "sampled: what its control group or ulimit leaves this process"),
        None => (free, source),
    }
}
