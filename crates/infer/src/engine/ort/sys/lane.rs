//! Copies between the host and the memory that a session computes in.
//!
//! Everything that is in flight is borrowed by [`Lane::exchange`] until it has waited, so
//! that no buffer can go while the device reads or writes it.

use std::ffi::c_void;
use std::sync::Arc;

use ort::ep::CUDA;
use ort::memory::AllocationDevice;
use ort::value::Tensor as OrtTensor;

use crate::engine::cuda::sys::driver::Stream;
use crate::engine::cuda::sys::pinned::{Buffer, Pinned, Place};
use crate::tensor::Tensor;

/// Where results are copied from.
#[derive(Debug, Clone, Copy)]
pub(in super::super) enum From<'a> {
    /// The session's outputs.
    Session(&'a [OrtTensor<f32>]),
    /// A buffer on the lane's device.
    Ours(&'a Buffer),
}

/// Which way bytes go between the host and the memory that a session computes in.
#[derive(Debug, Clone)]
pub(in super::super) enum Lane {
    /// It computes in the host's memory.
    Host,
    /// Over this stream.
    Cuda(Arc<Stream>),
}

/// Where a session's tensor lies, for kernels. The tensor must stay until the lane has waited.
pub(in super::super) fn place(tensor: &OrtTensor<f32>) -> Place {
    // SAFETY: the runtime made it, as large as it says; `Bound` keeps it as long as its
    // session, and puts on the stream what uses it in turn.
    unsafe { Place::new(tensor.data_ptr() as u64, tensor.shape().num_elements()) }
}

impl Lane {
    /// A provider that works on this lane's stream. The session that it is for must go
    /// before the lane does.
    pub(in super::super) fn on(&self, provider: CUDA) -> CUDA {
        match self {
            Lane::Host => provider,
            // SAFETY: `Ort` holds the lane and drops its session before it.
            Lane::Cuda(stream) => unsafe { provider.with_compute_stream(stream.stream.cast()) },
        }
    }

    /// Takes tensors in, for good.
    pub(in super::super) fn pin(&self, tensors: Vec<Tensor>) -> ort::Result<Pinned> {
        Ok(match self {
            Lane::Host => Pinned::unpinned(tensors),
            Lane::Cuda(stream) => Pinned::new(stream, tensors)?,
        })
    }

    /// What is held on the device beside the session's own.
    pub(in super::super) fn held(&self) -> u64 {
        match self {
            Lane::Host => 0,
            Lane::Cuda(stream) => stream.ledger.memory().in_use.unwrap_or(0),
        }
    }

    /// Copies `input` in where there is one, lets `run` put the model's work behind it,
    /// copies the results out behind that, and waits for all.
    pub(in super::super) fn exchange(
        &self,
        input: Option<(&Pinned, &mut OrtTensor<f32>)>,
        run: impl FnOnce() -> ort::Result<()>,
        (results, from): (&mut Pinned, From<'_>),
    ) -> ort::Result<()> {
        if let From::Session(tensors) = from {
            for (device, result) in tensors.iter().zip(results.tensors()) {
                self.here(device, result)?;
            }
        }
        let all = || {
            if let Some((input, device)) = input
                && let Some(input) = input.tensors().first()
            {
                self.here(device, input)?;
                self.copy_in(&input.data, device)?;
            }
            run()?;
            match from {
                From::Session(tensors) => {
                    let mut pairs = tensors.iter().zip(results.all_mut());
                    pairs.try_for_each(|(tensor, result)| self.copy_out(tensor.data_ptr(), result))
                }
                From::Ours(buffer) => Ok(buffer.fetch(results.data_mut(0))?),
            }
        };
        let done = match self {
            Lane::Host => return all(),
            Lane::Cuda(stream) => stream.enter().map_err(ort::Error::from).and_then(|()| all()),
        };
        // Whatever happened, nothing may be in flight when the borrows end.
        if let Lane::Cuda(stream) = self {
            stream.wait()?;
        }
        done
    }

    /// Whether a session's tensor lies where this lane leads to, and is as large.
    fn here(&self, device: &OrtTensor<f32>, host: &Tensor) -> ort::Result<()> {
        let place = match self {
            Lane::Host => AllocationDevice::CPU,
            Lane::Cuda(_) => AllocationDevice::CUDA,
        };
        let right = device.memory_info().allocation_device() == place
            && device.shape().num_elements() == host.data.len();
        if right { Ok(()) } else { Err(ort::Error::new("a buffer lies elsewhere than planned")) }
    }

    fn copy_in(&self, from: &[f32], to: &mut OrtTensor<f32>) -> ort::Result<()> {
        let start = to.data_ptr_mut();
        match self {
            Lane::Host => {
                // SAFETY: `here` saw that it is the host's memory and as many numbers; it is
                // borrowed exclusively, and of the runtime's own making.
                unsafe { start.cast::<f32>().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
                Ok(())
            }
            Lane::Cuda(stream) => {
                let bytes = size_of_val(from);
                // SAFETY: `here` saw that it is the device's memory and as many numbers;
                // `exchange` holds both until it has waited.
                let code = unsafe {
                    let from = from.as_ptr().cast::<c_void>();
                    (stream.table.to_device)(start as u64, from, bytes, stream.stream)
                };
                Ok(stream.table.check("copy to the device", code)?)
            }
        }
    }

    /// From as many numbers in the memory that this lane leads to.
    fn copy_out(&self, start: *const c_void, to: &mut [f32]) -> ort::Result<()> {
        match self {
            Lane::Host => {
                // SAFETY: as in `copy_in`, the other way.
                unsafe {
                    to.as_mut_ptr().copy_from_nonoverlapping(start.cast::<f32>(), to.len());
                };
                Ok(())
            }
            Lane::Cuda(stream) => {
                let bytes = size_of_val(to);
                // SAFETY: as in `copy_in`, the other way.
                let code = unsafe {
                    let to = to.as_mut_ptr().cast::<c_void>();
                    (stream.table.to_host)(to, start as u64, bytes, stream.stream)
                };
                Ok(stream.table.check("copy to the host", code)?)
            }
        }
    }
}
