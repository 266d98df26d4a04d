//! Engines: one file or folder for each, named as users name it.
//!
//! [`open`] is the only entry. It reads the model's header itself, so that all engines report
//! the same of the same file, and it refuses models that no engine here can run before it asks
//! one. [`EngineInfo`] says which engine and device were chosen and why, where the model really
//! runs, and what differs from the request. A fallback is part of that data, and an error with
//! [`EngineOptions::strict`]. It never happens silently.
//!
//! | module | what it has |
//! | --- | --- |
//! | `open` | from a request to an engine: candidates, order, fallbacks |
//! | `options`, `info` | the request, and what an engine reports of itself |
//! | `check`, `shield`, `messages` | checks before a run, panics and messages of foreign code |
//! | `cuda` | what engines share on an NVIDIA GPU |
//! | `ort`, `rten`, `tensorrt`, `echo` | the engines |
//!
//! # How to add an engine
//!
//! 1. Write `engine/<name>.rs` (or a folder) with a type that implements [`InferenceEngine`].
//!    Only `info`, `model` and `run` are required. Put foreign calls into `<name>/sys` and run
//!    them inside `shield::shielded`, so that a panic becomes an error of the model.
//! 2. Add a variant to [`EngineKind`] in `options.rs` with the name that users write, and list it
//!    in [`EngineKind::ALL`], which parsing reads. Name it in the message of
//!    `EngineKind::from_str`, and in the tests of that file. If it runs on the CPU only, add it to
//!    [`EngineKind::is_host_only`].
//! 3. Open it in `open_kind` in `open.rs`. If it should be chosen without being named, give it
//!    its place in `open_best`.
//! 4. Fill [`EngineInfo`]: the version, the device, and a sentence in `fallbacks` for everything
//!    that differs from the request. End with `check::settle`, which applies `strict`.
//! 5. On an NVIDIA GPU, take an `EngineGpu` from `cuda`: hand its stream to the engine, and use
//!    `DevicePipeline` in `load` and `search`. Report memory with `EngineMemory::of` its budget.
//! 6. Add it to the engines of `tests/engines.rs`, which all give the same answers.
//! 7. In `bench`: `crates/bench/src/workload/estimate.rs` says what is estimated for it, and the
//!    help of `--engine` in `crates/cli/src/command/bench/flags.rs` names it.

mod check;
mod cuda;
pub mod echo;
mod info;
pub mod messages;
mod open;
pub mod options;
pub mod ort;
pub mod rten;
mod shield;
pub mod tensorrt;
mod trial;

pub use echo::{Echo, EchoOptions};
pub use info::{EngineInfo, EngineMemory};
pub use open::open;
pub use options::{EngineChoice, EngineDevice, EngineKind, EngineOptions};
pub use plimsoll_models::ModelInfo;
pub use shield::is_shielded;
pub use trial::{STACK, trial};

use crate::error::InferResult;
use crate::prepare::Prepare;
use crate::source::{Frame, Stager};
use crate::tensor::Tensor;

/// A model that an engine has loaded.
pub trait InferenceEngine: Send {
    /// What the engine is and how it was set up.
    fn info(&self) -> &EngineInfo;
    /// What the model's file says of it.
    fn model(&self) -> &ModelInfo;
    /// Runs the model. The outputs stay valid until the next run.
    ///
    /// # Errors
    /// [`InferError::Engine`](crate::InferError::Engine) when the input does not fit the model or the engine fails.
    fn run(&mut self, input: &Tensor) -> InferResult<&[Tensor]>;
    /// The engine's own input, where preparing a frame in it saves a copy:
    /// [`InferenceEngine::run_input`] then runs what was written there. It is as long as the
    /// model's input, and keeps its numbers until [`InferenceEngine::run`] writes others.
    fn input(&mut self) -> Option<&mut [f32]> {
        None
    }
    /// Prepares a frame as [`Prepare`] does, in the model's input on the engine's own device,
    /// for [`InferenceEngine::run_input`]; `false` where the caller has to prepare it.
    ///
    /// # Errors
    /// [`InferError::Engine`](crate::InferError::Engine) when the device fails.
    fn load(&mut self, _frame: &Frame, _prepare: &mut Prepare) -> InferResult<bool> {
        Ok(false)
    }
    /// A function for the thread that decodes frames: it copies them to memory from which
    /// [`InferenceEngine::load`] reads them fastest. `None` where that would gain nothing.
    fn stager(&self) -> Option<Stager> {
        None
    }
    /// Asks for the best class of each box only: the engine then searches an output of the
    /// layout [`Layout::ByClass`](crate::Layout::ByClass) on its own device, and runs return one
    /// tensor of the layout [`Layout::Best`](crate::Layout::Best). `false` where the engine
    /// cannot do that, and runs return what they did before.
    ///
    /// # Errors
    /// [`InferError::Engine`](crate::InferError::Engine) when the device fails.
    fn search(&mut self, _output: usize, _classes: usize) -> InferResult<bool> {
        Ok(false)
    }
    /// Runs the model on the frame that was loaded, or on [`InferenceEngine::input`].
    ///
    /// # Errors
    /// [`InferError::Engine`](crate::InferError::Engine) when there is no such input or the engine fails.
    fn run_input(&mut self) -> InferResult<&[Tensor]> {
        Err(check::no_input(self.info().name))
    }
    /// The figures of its allocator, where it has any.
    fn memory(&self) -> Option<EngineMemory> {
        None
    }
}
