//! Pixels that wait where an engine reads them.
//!
//! A device copies from pinned memory by itself, and from all other memory only what a
//! processor core has carried there first. That carrying is done by the thread that decodes,
//! while the frame before is at work, and its time is told as decoding. An engine says how
//! ([`InferenceEngine::stager`](crate::InferenceEngine::stager)); what it made comes along with the frame, and only
//! that engine understands it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::Frame;

/// Brings a frame's pixels to where an engine reads them.
pub type Stager = Arc<dyn Fn(&Frame) -> Staged + Send + Sync>;

/// What a [`Stager`] made of a frame; nothing, where there was none or it had no room.
#[derive(Default)]
pub struct Staged(Option<Box<dyn Any + Send + Sync>>);

impl Staged {
    pub(crate) fn new(made: impl Any + Send + Sync) -> Staged {
        Staged(Some(Box::new(made)))
    }

    /// What was made, where it is of this kind.
    pub(crate) fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_ref()?.downcast_ref()
    }
}

/// A copy of a frame is staged nowhere.
impl Clone for Staged {
    fn clone(&self) -> Staged {
        Staged::default()
    }
}

/// Where a frame is staged is no part of what it shows.
impl PartialEq for Staged {
    fn eq(&self, _: &Staged) -> bool {
        true
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Staged({})", self.0.is_some())
    }
}
