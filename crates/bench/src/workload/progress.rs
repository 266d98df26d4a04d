//! The progress of a run, for a program that shows it.

use std::path::Path;
use std::time::Duration;

use plimsoll::Bytes;

use crate::record::{MeasuredWhat, MemorySafety, ModelRecord};

/// The progress of a slot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotProgress<'a> {
    /// The place of the slot or row, from 0.
    pub slot: usize,
    /// How many slots or rows there are.
    pub slots: usize,
    /// Its model and slot, or its row, in words.
    pub name: &'a str,
    /// Measured frames.
    pub frames: u64,
    /// All frames of the run; `None` where their number is not known.
    pub of: Option<u64>,
    /// Frames per second so far.
    pub fps: Option<f64>,
    /// How long it still takes at that speed; `None` where that is not known.
    pub left: Option<Duration>,
    /// What its memory is a figure of.
    pub what: MeasuredWhat,
    /// The slot's memory now.
    pub memory: Option<Bytes>,
    /// The effective limit, in GiB; `None` where the memory is not compared with it.
    pub limit_gb: Option<f64>,
}

/// Receives the progress of a run, on the recording thread and not on a measuring one.
pub trait BenchProgress {
    /// The folder is made and the limit is set. `backends` says for each slot or row what will
    /// run there.
    fn started(&mut self, _folder: &Path, _safety: &MemorySafety, _backends: &[(String, String)]) {}
    /// A model is being tried in a process of its own, before there is a folder.
    fn trying(&mut self, _name: &str, _weights: &Path) {}
    /// The memory that a model is expected to take, before it is loaded.
    fn estimated(&mut self, _name: &str, _estimate: &str) {}
    /// A model is loaded.
    fn opened(&mut self, _name: &str, _backend: &str) {}
    /// More frames were measured; called a few times a second.
    fn frames(&mut self, _view: &SlotProgress<'_>) {}
    /// Detections of more images were judged, of all that are labelled where their number is known;
    /// called a few times a second.
    fn judging(&mut self, _name: &str, _images: u64, _of: Option<u64>) {}
    /// A slot is over.
    fn ended(&mut self, _model: &ModelRecord) {}
    /// A warning for the user.
    fn warning(&mut self, _text: &str) {}
}

/// Shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl BenchProgress for Silent {}
