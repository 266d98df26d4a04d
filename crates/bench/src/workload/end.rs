//! How a slot came to its end, and what is told of it.

use plimsoll::Bytes;
use plimsoll_infer::Error;
use plimsoll_infer::engine::said::shortened;

use crate::record::{ModelDescription, Status};

/// How the loop ended.
pub(super) enum LoopEnd {
    Done,
    /// The source had no more.
    Dry,
    /// The source is not there any more, and what is missing.
    Vanished(String),
    Stopped,
    /// It may not go on, and why.
    Refused(String),
    Failed(Error),
}

impl From<Error> for LoopEnd {
    fn from(error: Error) -> LoopEnd {
        LoopEnd::Failed(error)
    }
}

impl From<LoopEnd> for SlotOutcome {
    fn from(end: LoopEnd) -> SlotOutcome {
        let because = |why: &str| Some(why.to_string());
        match end {
            LoopEnd::Done => SlotOutcome::new(Status::Completed, None),
            LoopEnd::Dry => SlotOutcome::new(Status::Failed, because("the source gave no frame")),
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

/// What is told of it.
#[derive(Debug)]
pub(super) struct SlotOutcome {
    pub(super) status: Status,
    /// Why it is not completed, cut to its cause.
    pub(super) reason: Option<String>,
    /// What was said in full, where that is more.
    pub(super) said: Vec<String>,
    /// Whether memory was refused, by what the engine says.
    pub(super) out_of_memory: bool,
    /// What it asked for on the device in all, where the guard refused some of it.
    pub(super) asked_for: Option<Bytes>,
    /// What the engine says of itself after it ran; `None` where it never did.
    pub(super) description: Option<ModelDescription>,
    /// What the engine's own allocator counted.
    pub(super) peak: Option<Bytes>,
    /// Frames that the source gave where it ended before those that were asked for.
    pub(super) early: Option<u64>,
    /// Frames that the source gave before it vanished, and what is missing.
    pub(super) vanished: Option<(u64, String)>,
}

impl SlotOutcome {
    /// It failed, in short and in full.
    pub(super) fn failed(brief: String, whole: String) -> SlotOutcome {
        let said = if brief == whole { Vec::new() } else { vec![whole] };
        SlotOutcome { said, ..SlotOutcome::new(Status::Failed, Some(brief)) }
    }

    /// The end of a slot of which nothing else is known.
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
