//! What the measured thread tells the recorder.

use plimsoll::Bytes;
use plimsoll_infer::{Detection, Frame, Truth};

use super::end::SlotOutcome;
use crate::measure::FrameSample;
use crate::record::ModelDescription;

/// What was found in a frame, and what is known to be there.
#[derive(Debug)]
pub(super) struct SeenFrame {
    pub(super) name: String,
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) detections: Vec<Detection>,
    /// Whether the model's answer held no number, so that nothing could be found.
    pub(super) no_number: bool,
    pub(super) truth: Option<Vec<Truth>>,
}

/// One thing that happened in a slot.
#[derive(Debug)]
pub(super) enum SlotEvent {
    /// The model is loaded.
    Opened { slot: usize, repeat: u32, opened: Box<SlotOpened> },
    /// A frame; `seen` is empty in warm-up.
    Frame { sample: FrameSample, seen: Option<SeenFrame> },
    /// A frame to show in the report.
    Picture { slot: usize, frame: Box<Frame>, detections: Vec<Detection> },
    /// Frames that were offered and never taken.
    Dropped { slot: usize, frames: u64 },
    /// A frame that could not be read, or (`unfit`) not be prepared.
    Corrupt { slot: usize, why: String, unfit: bool },
    /// It is over.
    Ended { slot: usize, ended: Box<SlotOutcome> },
}

#[derive(Debug)]
pub(super) struct SlotOpened {
    pub(super) description: ModelDescription,
    pub(super) names: Vec<String>,
    pub(super) memory: MemoryReporter,
    /// What the process held before the model was loaded.
    pub(super) before: Option<Bytes>,
    /// What was said in full where the description has a cause alone.
    pub(super) said: Vec<String>,
}

/// Who tells a slot's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum MemoryReporter {
    /// Nobody.
    #[default]
    Nobody,
    /// The guard, by the slot's tag.
    Guard,
    /// The engine's allocator, on a GPU.
    EngineOnGpu,
    /// The engine's allocator, on the host.
    EngineOnHost,
    /// The kernel, of the whole process.
    Process,
    /// The kernel, of what the process gained while this slot alone was loaded and tried.
    Growth,
}
