//! A session whose input and outputs are bound to buffers on the device.
//!
//! The buffers are bound once. So a CUDA graph can be replayed (its addresses must not
//! change), and only one copy in and one copy out cross the bus for each frame. Both copies
//! are from and to page-locked memory of our own. Frames can be prepared there, so that
//! nothing is copied twice. [`SessionMemory`] makes the copies.

use std::fmt;

use ort::memory::{Allocator, MemoryInfo};
use ort::session::{IoBinding, NoSelectedOutputs, RunOptions, Session};
use ort::value::Tensor as OrtTensor;

use super::sys::session_memory::{ResultsFrom, SessionMemory, floats_of};
use crate::engine::cuda::DevicePipeline;
use crate::engine::cuda::sys::buffer::EngineBuffer;
use crate::engine::cuda::sys::pinned::PinnedTensors;
use crate::prepare::Prepare;
use crate::source::{Frame, Stager};
use crate::tensor::Tensor;

/// A session's buffers on its device, and ours on the host.
pub(super) struct Bound {
    // First: it waits for queued work.
    on_device: Option<DevicePipeline>,
    memory: SessionMemory,
    binding: IoBinding,
    input: OrtTensor<f32>,
    /// Whether a frame was prepared in the input on the device.
    loaded: bool,
    outputs: Vec<OrtTensor<f32>>,
    search: Option<OrtSearch>,
    host_input: PinnedTensors,
    results: PinnedTensors,
    options: RunOptions<NoSelectedOutputs>,
    // Last: its tensors are freed first.
    _allocator: Allocator,
}

/// An output that is searched on the device.
struct OrtSearch {
    output: usize,
    classes: usize,
    /// Copied out in its place.
    found: EngineBuffer,
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Bound {
    /// Allocates and binds buffers of these shapes in the session's memory.
    pub(super) fn new(
        session: &Session,
        (memory, info): (SessionMemory, MemoryInfo<'static>),
        input: &[usize],
        outputs: Vec<Tensor>,
    ) -> ort::Result<Bound> {
        let names = (session.inputs(), session.outputs());
        let (Some(name), true) = (names.0.first(), names.1.len() == outputs.len()) else {
            return Err(ort::Error::new("the session has other inputs and outputs than the model"));
        };
        let allocator = Allocator::new(session, info)?;
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
        // `exchange` waits once, behind the copies.
        options.disable_device_sync()?;
        Ok(Bound {
            on_device: None,
            host_input: memory.pin(vec![Tensor::zeros(input)])?,
            results: memory.pin(outputs)?,
            memory,
            binding,
            input: device_input,
            loaded: false,
            outputs: device_outputs,
            search: None,
            options,
            _allocator: allocator,
        })
    }

    /// Prepares frames and searches outputs on the device from now on.
    pub(super) fn use_device_pipeline(&mut self) -> plimsoll::Result<()> {
        if let SessionMemory::Cuda(gpu) = &self.memory {
            self.on_device = Some(DevicePipeline::new(gpu)?);
        }
        Ok(())
    }

    /// Copies frames to page-locked memory when they are decoded.
    pub(super) fn stager(&self) -> Option<Stager> {
        self.on_device.as_ref()?.stager()
    }

    /// Prepares a frame in the input on the device; `false` where the host has to prepare it.
    pub(super) fn load(&mut self, frame: &Frame, prepare: &mut Prepare) -> plimsoll::Result<bool> {
        let Some(on_device) = &mut self.on_device else { return Ok(false) };
        let &[_, _, height, width] = &self.input.shape()[..] else { return Ok(false) };
        let tensor = (height as usize, width as usize);
        self.loaded = on_device.load(frame, prepare, (&floats_of(&self.input), tensor))?;
        Ok(self.loaded)
    }

    /// From now on the result is one tensor, `[1, 6, places]`: the boxes of an output, the
    /// best score of each box and its class. `false` where there is no device for it.
    pub(super) fn search(&mut self, output: usize, classes: usize) -> ort::Result<bool> {
        let (Some(on_device), Some(raw)) = (&self.on_device, self.outputs.get(output)) else {
            return Ok(false);
        };
        let places = raw.shape().num_elements() / (4 + classes);
        let found = on_device.found(places).map_err(ort::Error::wrap)?;
        self.results = self.memory.pin(vec![Tensor::zeros(&[1, 6, places])])?;
        self.search = Some(OrtSearch { output, classes, found });
        Ok(true)
    }

    /// The buffer that is copied in.
    pub(super) fn input(&mut self) -> &mut [f32] {
        self.host_input.data_mut(0)
    }

    /// Copies the input in unless it is on the device, runs, copies the results out.
    pub(super) fn run(&mut self, session: &mut Session) -> ort::Result<&[Tensor]> {
        let Bound { binding, options, outputs, .. } = self;
        let loaded = std::mem::take(&mut self.loaded);
        let input = (!loaded).then_some((&self.host_input, &mut self.input));
        let mut run = || session.run_binding_with_options(binding, options).map(|_| ());
        match (&self.on_device, &self.search) {
            (Some(on_device), Some(OrtSearch { output, classes, found })) => {
                let run = || {
                    run()?;
                    let raw = floats_of(&outputs[*output]);
                    on_device.best(&raw, *classes, found).map_err(ort::Error::wrap)
                };
                let to = (&mut self.results, ResultsFrom::Buffer(found));
                self.memory.exchange(input, run, to)?;
            }
            _ => {
                let to = (&mut self.results, ResultsFrom::Session(outputs));
                self.memory.exchange(input, run, to)?;
            }
        }
        Ok(self.results.tensors())
    }
}
