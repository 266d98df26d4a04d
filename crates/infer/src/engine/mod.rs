//! Who runs a model: one file for each engine, named as users name it.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::tensor::Tensor;

/// The engines, as users name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineKind {
    /// Pure Rust on the CPU; always there.
    Rten,
    /// ONNX Runtime, found at run time.
    Ort,
    /// Fixed answers after fixed times, for tests.
    Echo,
}

/// What a model says of itself.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The file, or the name of an embedded model.
    pub name: String,
    /// The name of its input.
    pub input: String,
    /// Rows and columns that it wants; `None` where any will do.
    pub input_size: Option<(usize, usize)>,
    /// The names and shapes of its outputs; 0 where an extent is not fixed.
    pub outputs: Vec<(String, Vec<usize>)>,
    /// The metadata in the file: `names`, `stride`, `task`, …
    pub metadata: BTreeMap<String, String>,
    /// Bytes of the file.
    pub bytes: u64,
}

/// What an engine is and how it was set up.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct EngineInfo {
    /// As users name it: `rten`, `ort`, `echo`.
    pub name: &'static str,
    /// Its version, by its own account.
    pub version: Option<String>,
    /// Where it runs: `cpu`, `cuda:0`.
    pub device: String,
    /// How many nodes of the model each provider ran, where the engine tells.
    pub nodes_by_provider: BTreeMap<String, u64>,
    /// What it does not do as it was asked, in words for the report.
    pub fallbacks: Vec<String>,
    /// Whether the memory limit was handed to it.
    pub limit_applied: bool,
}

/// What an engine's own allocator says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EngineMemory {
    /// Bytes in use now.
    pub in_use: Option<u64>,
    /// The most that was in use.
    pub peak: Option<u64>,
}

/// A model, loaded and ready.
pub trait Engine: Send {
    /// What it is.
    fn info(&self) -> &EngineInfo;
    /// What the model says of itself.
    fn model(&self) -> &ModelInfo;
    /// Runs the model. The outputs stay valid until the next run.
    fn run(&mut self, input: &Tensor) -> Result<&[Tensor]>;
    /// What its allocator says, where it tells.
    fn memory(&self) -> Option<EngineMemory> {
        None
    }
}
