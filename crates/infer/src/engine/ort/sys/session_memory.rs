//! Copies between the host and the memory that a session computes in.
//!
//! [`SessionMemory::exchange`] borrows everything that is being copied until it has waited for
//! the copies, so no buffer can be freed while the device reads or writes it.

use std::sync::Arc;

use ort::ep::CUDA;
use ort::memory::AllocationDevice;
use ort::value::Tensor as OrtTensor;

use crate::engine::cuda::sys::buffer::{DeviceFloats, EngineBuffer, as_bytes, as_bytes_mut};
use crate::engine::cuda::sys::gpu::EngineGpu;
use crate::engine::cuda::sys::pinned::PinnedTensors;
use crate::tensor::Tensor;

/// Where results are copied from.
#[derive(Debug, Clone, Copy)]
pub(in super::super) enum ResultsFrom<'a> {
    /// The session's outputs.
    Session(&'a [OrtTensor<f32>]),
    /// A buffer of our own on the device.
    Buffer(&'a EngineBuffer),
}

/// The memory that a session computes in.
#[derive(Debug, Clone)]
pub(in super::super) enum SessionMemory {
    /// The host's memory.
    Host,
    /// A GPU's; bytes are copied on this GPU's stream.
    Cuda(Arc<EngineGpu>),
}

/// Where a session's tensor lies, for kernels. The tensor must stay until the stream was waited
/// for.
pub(in super::super) fn floats_of(tensor: &OrtTensor<f32>) -> DeviceFloats {
    // SAFETY: the runtime allocated it with the size that it reports; `Bound` keeps it as long
    // as its session, and all work on it is queued on one stream.
    unsafe { DeviceFloats::new(tensor.data_ptr() as u64, tensor.shape().num_elements()) }
}

impl SessionMemory {
    /// Lets a provider compute on our stream. Its session must be dropped before this value.
    pub(in super::super) fn on_our_stream(&self, provider: CUDA) -> ort::Result<CUDA> {
        match self {
            SessionMemory::Host => Ok(provider),
            SessionMemory::Cuda(gpu) => {
                let stream = gpu.raw_stream().map_err(ort::Error::wrap)?;
                // SAFETY: `Ort` holds this value, and with it the stream, and drops its session
                // before.
                Ok(unsafe { provider.with_compute_stream(stream.cast()) })
            }
        }
    }

    /// Page-locks tensors for copies from and to this memory.
    pub(in super::super) fn pin(&self, tensors: Vec<Tensor>) -> ort::Result<PinnedTensors> {
        match self {
            SessionMemory::Host => Ok(PinnedTensors::unpinned(tensors)),
            SessionMemory::Cuda(gpu) => PinnedTensors::new(gpu, tensors).map_err(ort::Error::wrap),
        }
    }

    /// Copies `input` in where there is one, lets `run` queue the model's work behind it,
    /// copies the results out behind that, and waits for all.
    pub(in super::super) fn exchange(
        &self,
        input: Option<(&PinnedTensors, &mut OrtTensor<f32>)>,
        run: impl FnOnce() -> ort::Result<()>,
        (results, from): (&mut PinnedTensors, ResultsFrom<'_>),
    ) -> ort::Result<()> {
        if let ResultsFrom::Session(tensors) = from {
            for (device, result) in tensors.iter().zip(results.tensors()) {
                self.check(device, result)?;
            }
        }
        let all = || {
            if let Some((input, device)) = input
                && let Some(input) = input.tensors().first()
            {
                self.check(device, input)?;
                self.copy_in(&input.data, device)?;
            }
            run()?;
            match from {
                ResultsFrom::Session(tensors) => {
                    let mut pairs = tensors.iter().zip(results.all_mut());
                    pairs.try_for_each(|(tensor, result)| self.copy_out(tensor, result))
                }
                ResultsFrom::Buffer(buffer) => {
                    buffer.fetch(results.data_mut(0)).map_err(ort::Error::wrap)
                }
            }
        };
        let done = all();
        // Whatever happened, no copy may be under way when the borrows end.
        if let SessionMemory::Cuda(gpu) = self {
            gpu.synchronize().map_err(ort::Error::wrap)?;
        }
        done
    }

    /// Checks that a session's tensor lies in this memory and is as large as ours.
    fn check(&self, device: &OrtTensor<f32>, host: &Tensor) -> ort::Result<()> {
        let place = match self {
            SessionMemory::Host => AllocationDevice::CPU,
            SessionMemory::Cuda(_) => AllocationDevice::CUDA,
        };
        let right = device.memory_info().allocation_device() == place
            && device.shape().num_elements() == host.data.len();
        if right { Ok(()) } else { Err(ort::Error::new("a buffer lies elsewhere than planned")) }
    }

    fn copy_in(&self, from: &[f32], to: &mut OrtTensor<f32>) -> ort::Result<()> {
        let start = to.data_ptr_mut();
        match self {
            SessionMemory::Host => {
                // SAFETY: `check` saw that it is the host's memory and as many numbers; the
                // runtime allocated it, and it is borrowed exclusively.
                unsafe { start.cast::<f32>().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
                Ok(())
            }
            SessionMemory::Cuda(gpu) => {
                // SAFETY: `check` saw that it is the device's memory and as many numbers;
                // `exchange` borrows both until it has waited.
                let queued =
                    unsafe { gpu.device().queue_write(gpu.stream(), start as u64, as_bytes(from)) };
                queued.map_err(ort::Error::wrap)
            }
        }
    }

    /// Copies out as many numbers as there are.
    fn copy_out(&self, from: &OrtTensor<f32>, to: &mut [f32]) -> ort::Result<()> {
        let start = from.data_ptr();
        match self {
            SessionMemory::Host => {
                // SAFETY: as in `copy_in`, the other way.
                unsafe {
                    to.as_mut_ptr().copy_from_nonoverlapping(start.cast::<f32>(), to.len());
                };
                Ok(())
            }
            SessionMemory::Cuda(gpu) => {
                // SAFETY: as in `copy_in`, the other way.
                let queued = unsafe {
                    gpu.device().queue_read(gpu.stream(), start as u64, as_bytes_mut(to))
                };
                queued.map_err(ort::Error::wrap)
            }
        }
    }
}
