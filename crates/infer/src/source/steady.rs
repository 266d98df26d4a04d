//! A stream's frames have one size; another one is a bad frame.

use super::Frame;
use crate::error::{InferError, InferResult};

/// Remembers the size of the first frame.
#[derive(Debug, Default)]
pub(super) struct Steady(Option<(usize, usize)>);

impl Steady {
    /// Passes a frame on if it is as large as the first.
    pub(super) fn check(&mut self, frame: Frame) -> InferResult<Frame> {
        let (width, height) = *self.0.get_or_insert((frame.width, frame.height));
        if (frame.width, frame.height) == (width, height) {
            return Ok(frame);
        }
        let why =
            format!("the size changed from {width}x{height} to {}x{}", frame.width, frame.height);
        Err(InferError::Frame { frame: frame.name, why })
    }
}
