//! Buffers that stay where the provider computes.
//!
//! On a GPU the input and the outputs are bound to device buffers once. That is what lets
//! a CUDA graph be replayed (its addresses must not change), and it leaves one copy in
//! and one copy out a frame as all that crosses the bus.
//!
//! Both copies go through staging buffers of our own, in pinned memory where there is
//! such: the driver would stage a caller's memory anyway. They must be the runtime's own
//! tensors: `ort` (rc.15) waits for itself forever when it copies a borrowed tensor within
//! one memory, since it clones it under the lock that cloning takes.

use ort::memory::{Allocator, MemoryInfo};
use ort::session::{IoBinding, Session};
use ort::value::Tensor as OrtTensor;

use crate::tensor::Tensor;

/// A session's buffers on its device, each with its stage on the host.
#[derive(Debug)]
pub(super) struct Bound {
    binding: IoBinding,
    input: Staged,
    outputs: Vec<Staged>,
    // Last: what they allocated goes first.
    _allocators: [Allocator; 2],
}

#[derive(Debug)]
struct Staged {
    device: OrtTensor<f32>,
    host: OrtTensor<f32>,
}

impl Bound {
    /// Allocates and binds buffers of these shapes. `pinned` is host memory that the
    /// device reaches fast.
    pub(super) fn new(
        session: &Session,
        (memory, pinned): (MemoryInfo<'static>, Option<MemoryInfo<'static>>),
        input: &[usize],
        outputs: &[Tensor],
    ) -> ort::Result<Bound> {
        let device = Allocator::new(session, memory)?;
        let host = pinned.and_then(|pinned| Allocator::new(session, pinned).ok());
        let host = host.unwrap_or_default();
        let staged = |shape: &[usize]| -> ort::Result<Staged> {
            let device = OrtTensor::new(&device, shape)?;
            Ok(Staged { device, host: OrtTensor::new(&host, shape)? })
        };
        let names = (session.inputs(), session.outputs());
        let (Some(name), true) = (names.0.first(), names.1.len() == outputs.len()) else {
            return Err(ort::Error::new("the session has other inputs and outputs than the model"));
        };
        let mut binding = session.create_binding()?;
        let input = staged(input)?;
        binding.bind_input(name.name(), &input.device)?;
        let mut bound = Vec::with_capacity(outputs.len());
        for (output, name) in outputs.iter().zip(names.1) {
            let mut output = staged(&output.shape)?;
            binding.bind_output(name.name(), &mut output.device)?;
            bound.push(output);
        }
        Ok(Bound { binding, input, outputs: bound, _allocators: [device, host] })
    }

    /// Copies in, runs, copies out.
    pub(super) fn run(
        &mut self,
        session: &mut Session,
        input: &Tensor,
        results: &mut [Tensor],
    ) -> ort::Result<()> {
        let (_, stage) = self.input.host.try_extract_tensor_mut::<f32>()?;
        copy(&input.data, stage)?;
        self.input.host.copy_into(&mut self.input.device)?;
        session.run_binding(&self.binding)?;
        for (output, result) in self.outputs.iter_mut().zip(results) {
            output.device.copy_into(&mut output.host)?;
            let (_, stage) = output.host.try_extract_tensor::<f32>()?;
            copy(stage, &mut result.data)?;
        }
        Ok(())
    }
}

fn copy(from: &[f32], to: &mut [f32]) -> ort::Result<()> {
    if from.len() != to.len() {
        return Err(ort::Error::new("a buffer has another size than the tensor in it"));
    }
    to.copy_from_slice(from);
    Ok(())
}
