//! Buffers that stay where the provider computes.
//!
//! On a GPU the input and the outputs are bound to device buffers once. That is what lets
//! a CUDA graph be replayed (its addresses must not change), and it leaves one copy in
//! and one copy out a frame as all that crosses the bus. Both are from and to pinned
//! memory of our own, and frames can be prepared into it, so that nothing is copied
//! twice. How bytes travel is the [`Lane`]'s affair.

use std::fmt;

use ort::memory::{Allocator, MemoryInfo};
use ort::session::{IoBinding, NoSelectedOutputs, RunOptions, Session};
use ort::value::Tensor as OrtTensor;

use super::sys::lane::{self, From, Lane};
use crate::engine::cuda::Aboard;
use crate::engine::cuda::sys::pinned::{Buffer, Pinned};
use crate::prepare::Prepare;
use crate::source::{Frame, Stager};
use crate::tensor::Tensor;

/// A session's buffers on its device, and ours on the host.
pub(super) struct Bound {
    // First: it waits for what is in flight.
    aboard: Option<Aboard>,
    lane: Lane,
    binding: IoBinding,
    input: OrtTensor<f32>,
    /// Whether the input is filled already, on the device.
    loaded: bool,
    outputs: Vec<OrtTensor<f32>>,
    search: Option<Search>,
    host_input: Pinned,
    results: Pinned,
    options: RunOptions<NoSelectedOutputs>,
    // Last: what it allocated goes first.
    _allocator: Allocator,
}

/// An output that is searched on the device.
struct Search {
    output: usize,
    classes: usize,
    /// What is copied out in its stead.
    found: Buffer,
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("lane", &self.lane).finish_non_exhaustive()
    }
}

impl Bound {
    /// Allocates and binds buffers of these shapes in the memory that `lane` leads to.
    pub(super) fn new(
        session: &Session,
        (lane, memory): (Lane, MemoryInfo<'static>),
        input: &[usize],
        outputs: Vec<Tensor>,
    ) -> ort::Result<Bound> {
        let names = (session.inputs(), session.outputs());
        let (Some(name), true) = (names.0.first(), names.1.len() == outputs.len()) else {
            return Err(ort::Error::new("the session has other inputs and outputs than the model"));
        };
        let allocator = Allocator::new(session, memory)?;
        let mut binding = session.create_binding()?;
        let device_input = OrtTensor::new(&allocator, input)?;
        binding.bind_input(name.name(), &device_input)?;
        let mut device_outputs = Vec::with_capacity(outputs.len());
        for (output, name) in outputs.iter().zip(names.1) {
            let mut output = OrtTensor::new(&allocator, &output.shape[..])?;
            binding.bind_output(name.name(), &mut output)?;
            device_outputs.push(output);
        }
        let mut options = RunOptions::new()?;
        // The lane waits once, behind the copies.
        options.disable_device_sync()?;
        Ok(Bound {
            aboard: None,
            host_input: lane.pin(vec![Tensor::zeros(input)])?,
            results: lane.pin(outputs)?,
            lane,
            binding,
            input: device_input,
            loaded: false,
            outputs: device_outputs,
            search: None,
            options,
            _allocator: allocator,
        })
    }

    /// Does on the device what can be done there beside the model.
    pub(super) fn go_aboard(&mut self) -> ort::Result<()> {
        if let Lane::Cuda(stream) = &self.lane {
            self.aboard = Some(Aboard::new(stream)?);
        }
        Ok(())
    }

    /// What brings frames to where they are read most quickly.
    pub(super) fn stager(&self) -> Option<Stager> {
        self.aboard.as_ref()?.stager()
    }

    /// Puts a frame into the input on the device; `false` where that is for the host to do.
    pub(super) fn load(&mut self, frame: &Frame, prepare: &mut Prepare) -> ort::Result<bool> {
        let Some(aboard) = &mut self.aboard else { return Ok(false) };
        let &[_, _, height, width] = &self.input.shape()[..] else { return Ok(false) };
        let tensor = (height as usize, width as usize);
        self.loaded = aboard.load(frame, prepare, (&lane::place(&self.input), tensor))?;
        Ok(self.loaded)
    }

    /// From now on the result is one tensor, `[1, 6, places]`: the boxes of an output, the
    /// best score of each place and its class. `false` where there is no device for it.
    pub(super) fn search(&mut self, output: usize, classes: usize) -> ort::Result<bool> {
        let (Some(aboard), Some(raw)) = (&self.aboard, self.outputs.get(output)) else {
            return Ok(false);
        };
        let places = raw.shape().num_elements() / (4 + classes);
        let found = aboard.found(places)?;
        self.results = self.lane.pin(vec![Tensor::zeros(&[1, 6, places])])?;
        self.search = Some(Search { output, classes, found });
        Ok(true)
    }

    /// What it holds on the device beside the session's own.
    pub(super) fn bytes(&self) -> u64 {
        self.lane.held()
    }

    /// The buffer that is copied in.
    pub(super) fn input(&mut self) -> &mut [f32] {
        self.host_input.data_mut(0)
    }

    /// Copies in what is not there yet, runs, copies out.
    pub(super) fn run(&mut self, session: &mut Session) -> ort::Result<&[Tensor]> {
        let Bound { binding, options, outputs, .. } = self;
        let loaded = std::mem::take(&mut self.loaded);
        let input = (!loaded).then_some((&self.host_input, &mut self.input));
        let mut run = || session.run_binding_with_options(binding, options).map(|_| ());
        match (&self.aboard, &self.search) {
            (Some(aboard), Some(Search { output, classes, found })) => {
                let run = || {
                    run()?;
                    Ok(aboard.best(&lane::place(&outputs[*output]), *classes, found)?)
                };
                self.lane.exchange(input, run, (&mut self.results, From::Ours(found)))?;
            }
            _ => self.lane.exchange(input, run, (&mut self.results, From::Session(outputs)))?,
        }
        Ok(self.results.tensors())
    }
}
