//! The progress of a run, for a program that shows it.

use std::path::Path;

use plimsoll::Bytes;

use crate::record::{MeasuredWhat, MemorySafety, ModelRecord};

/// The progress of a slot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotProgress<'a> {
    /// 0 or 1.
    pub slot: usize,
    /// Its model and slot, in words.
    pub name: &'a str,
    /// Measured frames.
    pub frames: u64,
    /// All frames of the run; `None` where their number is not known.
    pub of: Option<u64>,
    /// Frames per second so far.
    pub fps: Option<f64>,
    /// What its memory is a figure of.
    pub what: MeasuredWhat,
    /// The slot's memory now.
    pub memory: Option<Bytes>,
    /// The effective limit, in GiB; `None` where the memory is not compared with it.
    pub limit_gb: Option<f64>,
}

/// Receives the progress of a run, on the recording thread and not on a measuring one.
pub trait BenchProgress {
    /// The folder is made and the limit is set. `backends` says what will run each slot.
    fn started(&mut self, _folder: &Path, _safety: &MemorySafety, _backends: [&str; 2]) {}
    /// A model is being tried in a process of its own, before there is a folder.
    fn trying(&mut self, _name: &str, _weights: &Path) {}
    /// The memory that a model is expected to take, before it is loaded.
    fn estimated(&mut self, _name: &str, _estimate: &str) {}
    /// A model is loaded.
    fn opened(&mut self, _name: &str, _backend: &str) {}
    /// More frames were measured; called a few times a second.
    fn frames(&mut self, _view: &SlotProgress<'_>) {}
    /// A slot is over.
    fn ended(&mut self, _model: &ModelRecord) {}
    /// A warning for the user.
    fn warning(&mut self, _text: &str) {}
}

/// Shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl BenchProgress for Silent {}
