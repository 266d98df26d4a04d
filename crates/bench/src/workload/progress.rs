//! How far a run is, for whoever wants to show it.

use std::path::Path;

use plimsoll::Bytes;

use crate::record::{MeasuredWhat, MemorySafety, ModelRecord};

/// A slot, while it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotProgress<'a> {
    /// 0 or 1.
    pub slot: usize,
    /// Its model and slot, in words.
    pub name: &'a str,
    /// Measured frames.
    pub frames: u64,
    /// All that there will be; `None` where that is not known.
    pub of: Option<u64>,
    /// Frames a second so far.
    pub fps: Option<f64>,
    /// What its memory is a figure of.
    pub what: MeasuredWhat,
    /// The slot's memory now.
    pub memory: Option<Bytes>,
    /// The effective limit, in GiB; `None` where the memory is not compared with it.
    pub limit_gb: Option<f64>,
}

/// Is told how far a run is, on the thread that writes and not on the one that measures.
pub trait BenchProgress {
    /// The folder is made and the line is drawn. `backends` says of each slot who will run
    /// it.
    fn started(&mut self, _folder: &Path, _safety: &MemorySafety, _backends: [&str; 2]) {}
    /// A model is tried in a process of its own, before there is a folder.
    fn trying(&mut self, _name: &str, _weights: &Path) {}
    /// What a model is expected to take, before it is loaded.
    fn estimated(&mut self, _name: &str, _estimate: &str) {}
    /// A model is loaded.
    fn opened(&mut self, _name: &str, _backend: &str) {}
    /// Some frames more; a few times a second.
    fn frames(&mut self, _view: &SlotProgress<'_>) {}
    /// A slot is over.
    fn ended(&mut self, _model: &ModelRecord) {}
    /// Something that the user should know now.
    fn warning(&mut self, _text: &str) {}
}

/// Shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl BenchProgress for Silent {}
