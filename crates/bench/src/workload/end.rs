//! How a slot came to its end, and what is told of it.

use plimsoll::Bytes;
use plimsoll_infer::InferError;
use plimsoll_infer::engine::messages::shortened;

use crate::record::{ModelDescription, Status};

/// How the loop ended.
pub(super) enum End {
    Done,
    /// The source had no more.
    Dry,
    /// The source is not there any more, and what is missing.
    Vanished(String),
    Stopped,
    /// It may not go on, and why.
    Refused(String),
    Failed(InferError),
}

impl From<InferError> for End {
    fn from(error: InferError) -> End {
        End::Failed(error)
    }
}

impl From<End> for Ended {
    fn from(end: End) -> Ended {
        let because = |why: &str| Some(why.to_string());
        match end {
            End::Done => Ended::new(Status::Completed, None),
            End::Dry => Ended::new(Status::Failed, because("the source gave no frame")),
            End::Vanished(why) => Ended::new(Status::Failed, Some(why)),
            End::Stopped => Ended::new(Status::Interrupted, because("stopped before it began")),
            End::Refused(why) => Ended::failed(shortened(&why), why),
            End::Failed(error) => {
                let out_of_memory = error.is_out_of_memory();
                Ended { out_of_memory, ..Ended::failed(error.brief(), error.to_string()) }
            }
        }
    }
}

/// What is told of it.
#[derive(Debug)]
pub(super) struct Ended {
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

impl Ended {
    /// It failed, in short and in full.
    pub(super) fn failed(brief: String, whole: String) -> Ended {
        let said = if brief == whole { Vec::new() } else { vec![whole] };
        Ended { said, ..Ended::new(Status::Failed, Some(brief)) }
    }

    /// The end of a slot of which nothing else is known.
    pub(super) fn new(status: Status, reason: Option<String>) -> Ended {
        Ended {
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
