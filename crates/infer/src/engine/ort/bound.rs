//! Buffers that stay where the provider computes.
//!
//! On a GPU the input and the outputs are bound to device buffers once. That is what lets
//! a CUDA graph be replayed (its addresses must not change), and it leaves one copy in
//! and one copy out a frame as all that crosses the bus.

use ort::memory::{Allocator, MemoryInfo};
use ort::session::{IoBinding, Session};
use ort::value::{Tensor as OrtTensor, TensorRef, TensorRefMut};

use crate::tensor::Tensor;

/// A session's buffers on its device.
#[derive(Debug)]
pub(super) struct Bound {
    binding: IoBinding,
    input: OrtTensor<f32>,
    outputs: Vec<OrtTensor<f32>>,
    // Last: what it allocated goes first.
    _allocator: Allocator,
}

impl Bound {
    /// Allocates and binds buffers of these shapes.
    pub(super) fn new(
        session: &Session,
        memory: MemoryInfo<'static>,
        input: &[usize],
        outputs: &[Tensor],
    ) -> ort::Result<Bound> {
        let allocator = Allocator::new(session, memory)?;
        let mut binding = session.create_binding()?;
        let buffer = |shape: &[usize]| OrtTensor::<f32>::new(&allocator, shape);
        let names = (session.inputs(), session.outputs());
        let (Some(name), true) = (names.0.first(), names.1.len() == outputs.len()) else {
            return Err(ort::Error::new("the session has other inputs and outputs than the model"));
        };
        let input = buffer(input)?;
        binding.bind_input(name.name(), &input)?;
        let mut bound = Vec::with_capacity(outputs.len());
        for (output, name) in outputs.iter().zip(names.1) {
            let mut output = buffer(&output.shape)?;
            binding.bind_output(name.name(), &mut output)?;
            bound.push(output);
        }
        Ok(Bound { binding, input, outputs: bound, _allocator: allocator })
    }

    /// Copies in, runs, copies out.
    pub(super) fn run(
        &mut self,
        session: &mut Session,
        input: &Tensor,
        results: &mut [Tensor],
    ) -> ort::Result<()> {
        let host = TensorRef::from_array_view((&input.shape[..], &input.data[..]))?;
        host.copy_into(&mut self.input)?;
        session.run_binding(&self.binding)?;
        for (output, result) in self.outputs.iter().zip(results) {
            let host =
                TensorRefMut::from_array_view_mut((&result.shape[..], &mut result.data[..]))?;
            output.copy_into(host)?;
        }
        Ok(())
    }
}
