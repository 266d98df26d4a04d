//! The events that a measuring thread sends to the thread that records.

use plimsoll::Bytes;
use plimsoll_infer::engine::messages::shortened;
use plimsoll_infer::{Detection, Frame, InferError};

use super::accuracy::SlotJudged;
use crate::measure::FrameSample;
use crate::record::{ModelDescription, Status};

/// One thing that happened in a slot.
#[derive(Debug)]
pub(super) enum SlotEvent {
    /// The model is loaded.
    Opened { slot: usize, repeat: u32, opened: Box<SlotOpened> },
    /// A frame was measured; `seen` is empty during warm-up.
    Frame { sample: FrameSample, seen: Option<SeenFrame> },
    /// A frame to show in the report.
    Picture { slot: usize, frame: Box<Frame>, detections: Vec<Detection> },
    /// Frames that were offered and that nobody took.
    Dropped { slot: usize, frames: u64 },
    /// A frame that could not be read, or (`unfit`) could not be prepared.
    Corrupt { slot: usize, why: String, unfit: bool },
    /// Images whose detections were judged so far, after the slot was measured.
    Judging { slot: usize, images: u64, of: Option<u64> },
    /// How accurate the slot is, or why that is not known.
    Judged { slot: usize, judged: Result<Box<SlotJudged>, String> },
    /// The slot is over.
    Ended { slot: usize, outcome: Box<SlotOutcome> },
}

/// A model that was loaded.
#[derive(Debug)]
pub(super) struct SlotOpened {
    pub(super) description: ModelDescription,
    /// The names of the classes.
    pub(super) names: Vec<String>,
    pub(super) memory: MemoryReporter,
    /// Memory of the process before the model was loaded.
    pub(super) before: Option<Bytes>,
    /// The engine's full messages where the description has only their cause.
    pub(super) said: Vec<String>,
}

/// What the model found in a frame.
#[derive(Debug)]
pub(super) struct SeenFrame {
    pub(super) name: String,
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) detections: Vec<Detection>,
    /// Whether the model's output was not a number (NaN or infinite), so that nothing could be
    /// found.
    pub(super) no_number: bool,
}

/// Who reports the memory of a slot.
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
    /// The kernel, for the whole process.
    Process,
    /// The kernel, for what the process gained while this slot alone was loaded and tried.
    Growth,
}

/// Why the measuring loop of a slot ended.
pub(super) enum LoopEnd {
    /// All frames, or all of the time, that the plan asks for.
    Done,
    /// The source had no more frames.
    SourceEnded,
    /// The source disappeared, and what is missing.
    Vanished(String),
    /// The user stopped the run.
    Stopped,
    /// The slot must not go on, and why.
    Refused(String),
    Failed(InferError),
}

impl From<InferError> for LoopEnd {
    fn from(error: InferError) -> LoopEnd {
        LoopEnd::Failed(error)
    }
}

impl From<LoopEnd> for SlotOutcome {
    fn from(end: LoopEnd) -> SlotOutcome {
        let because = |why: &str| Some(why.to_string());
        match end {
            LoopEnd::Done => SlotOutcome::new(Status::Completed, None),
            LoopEnd::SourceEnded => {
                SlotOutcome::new(Status::Failed, because("the source gave no frame"))
            }
            LoopEnd::Vanished(why) => SlotOutcome::new(Status::Failed, Some(why)),
            LoopEnd::Stopped => {
                SlotOutcome::new(Status::Interrupted, because("stopped before it began"))
            }
            LoopEnd::Refused(why) => SlotOutcome::failed(shortened(&why), why),
            LoopEnd::Failed(error) => {
                let out_of_memory = error.is_out_of_memory();
                SlotOutcome {
                    out_of_memory,
                    ..SlotOutcome::failed(error.brief(), error.to_string())
                }
            }
        }
    }
}

/// How a slot ended, for the record.
#[derive(Debug)]
pub(super) struct SlotOutcome {
    pub(super) status: Status,
    /// Why it is not completed, shortened to the cause.
    pub(super) reason: Option<String>,
    /// The full message, where that is longer.
    pub(super) said: Vec<String>,
    /// Whether the engine reports that memory was refused.
    pub(super) out_of_memory: bool,
    /// All memory that it requested on the device, where the guard refused some of it.
    pub(super) asked_for: Option<Bytes>,
    /// What the engine reports about itself after it ran; `None` where it never did.
    pub(super) description: Option<ModelDescription>,
    /// The peak that the engine's own allocator counted.
    pub(super) peak: Option<Bytes>,
    /// Frames that the source gave, where it ended before the number that was asked for.
    pub(super) early: Option<u64>,
    /// Frames that the source gave before it vanished, and what is missing.
    pub(super) vanished: Option<(u64, String)>,
}

impl SlotOutcome {
    /// A failure: its cause, and the full message.
    pub(super) fn failed(brief: String, whole: String) -> SlotOutcome {
        let said = if brief == whole { Vec::new() } else { vec![whole] };
        SlotOutcome { said, ..SlotOutcome::new(Status::Failed, Some(brief)) }
    }

    /// The end of a slot about which nothing else is known.
    pub(super) fn new(status: Status, reason: Option<String>) -> SlotOutcome {
        SlotOutcome {
            status,
            reason,
            said: Vec::new(),
            out_of_memory: false,
            asked_for: None,
            description: None,
            peak: None,
            early: None,
            vanished: None,
        }
    }
}
