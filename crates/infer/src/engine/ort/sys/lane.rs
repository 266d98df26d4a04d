//! Copies between the host and the memory that a session computes in.
//!
//! Everything that is in flight is borrowed by [`Lane::exchange`] until it has waited, so
//! that no buffer can go while the device reads or writes it.

use std::ffi::c_void;
use std::sync::Arc;

use ort::ep::CUDA;
use ort::memory::AllocationDevice;
use ort::value::Tensor as OrtTensor;

use super::driver::Stream;
use super::pinned::{Buffer, Pin};
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

/// Tensors that the device reaches without a stage between, where there is a device. Their
/// numbers can be changed, their place cannot.
#[derive(Debug)]
pub(in super::super) struct Pinned {
    // Before the tensors: let go before the memory is.
    _pins: Vec<Pin>,
    tensors: Vec<Tensor>,
}

impl Pinned {
    pub(in super::super) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The numbers of one of them.
    pub(in super::super) fn data_mut(&mut self, index: usize) -> &mut [f32] {
        self.tensors.get_mut(index).map(|tensor| &mut tensor.data[..]).unwrap_or_default()
    }
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
    pub(in super::super) fn pin(&self, mut tensors: Vec<Tensor>) -> ort::Result<Pinned> {
        let mut pins = Vec::new();
        if let Lane::Cuda(stream) = self {
            for tensor in &mut tensors {
                // SAFETY: the numbers stay where they are until the pin is dropped: the
                // tensors are private to `Pinned`, which gives out slices alone and drops
                // its pins first.
                pins.push(unsafe { Pin::new(stream, &mut tensor.data) }?);
            }
        }
        Ok(Pinned { _pins: pins, tensors })
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
            for (device, result) in tensors.iter().zip(&results.tensors) {
                self.here(device, result)?;
            }
        }
        let all = || {
            if let Some((input, device)) = input
                && let Some(input) = input.tensors.first()
            {
                self.here(device, input)?;
                self.copy_in(&input.data, device)?;
            }
            run()?;
            match (from, &mut results.tensors[..]) {
                (From::Session(tensors), results) => {
                    let mut pairs = tensors.iter().zip(results);
                    pairs.try_for_each(|(tensor, result)| {
                        self.copy_out(tensor.data_ptr(), &mut result.data)
                    })
                }
                (From::Ours(buffer), [result])
                    if buffer.bytes() == size_of_val(&result.data[..]) =>
                {
                    self.copy_out(buffer.start() as *const c_void, &mut result.data)
                }
                _ => Err(ort::Error::new("a buffer has another size than its result")),
            }
        };
        let done = match self {
            Lane::Host => return all(),
            Lane::Cuda(stream) => stream.enter().and_then(|()| all()).map(|()| stream),
        };
        // Whatever happened, nothing may be in flight when the borrows end.
        if let Lane::Cuda(stream) = self {
            stream.wait()?;
        }
        done.map(|_| ())
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
                stream.table.check("copy to the device", code)
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
                stream.table.check("copy to the host", code)
            }
        }
    }
}
