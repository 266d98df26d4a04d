//! Which backend does the work, and what it may use: for programs that let their users choose.

use std::path::Path;

use plimsoll_machine::platform::{memory_left, system_memory};
use plimsoll_memory::backend::{BackendKind, DeviceId};
use plimsoll_memory::{Bytes, Error, MemoryConfig, Result};
use rayon::ThreadPoolBuilder;

use crate::backend::device::VoxelDevice;
use crate::backend::host::VoxelHost;
use crate::backend::{VoxelBackend, cuda, opencl};

/// A backend, and what it may use.
#[non_exhaustive]
pub struct VoxelizeBackend {
    /// The backend.
    pub backend: Box<dyn VoxelBackend>,
    /// What it may use of the memory that it works in.
    pub available: Bytes,
    /// How that is known.
    pub source: String,
    /// What may be used of the host's memory.
    pub room: Bytes,
}

/// Does work with a thread for each processor, or with the calling thread alone where the system
/// lets this process have no more: the threads that others would start on their own end it then.
pub fn with_threads<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    match ThreadPoolBuilder::new().build() {
        Ok(threads) => threads.install(work),
        Err(error) => {
            tracing::info!(%error, "one thread does the work");
            let _only = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
            work()
        }
    }
}

/// The backend that was asked for; by default the GPU where there is one, otherwise the host.
///
/// # Errors
///
/// [`Error::Unavailable`] where the device is not here, or there are no kernels for its kind.
pub fn open(wanted: Option<DeviceId>, limit: Option<Bytes>) -> Result<VoxelizeBackend> {
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
            why: "there are kernels for CUDA and OpenCL; use opencl or host".to_string(),
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
