//! Hard voxels of one cloud in two steps: the caller allocates what they are written to while the
//! first kernel runs.

use std::sync::{Arc, PoisonError};

use plimsoll_memory::{Result, Stream};

use super::hard::{HardBuffers, HardClouds, ResidentHard, check_outputs};

/// A launch whose first kernel is queued. Where it is dropped instead of finished, what that kernel
/// leaves behind is cleared.
#[derive(Debug)]
#[must_use]
pub struct StartedHard {
    hard: Arc<ResidentHard>,
    stream: Stream,
    clouds: HardClouds,
    points: u64,
    is_filled: bool,
}

impl StartedHard {
    pub(super) fn new(
        hard: Arc<ResidentHard>,
        stream: Stream,
        clouds: HardClouds,
        points: u64,
    ) -> StartedHard {
        StartedHard { hard, stream, clouds, points, is_filled: false }
    }

    /// Queues the second kernel and waits until the number of voxels is known, which is long before
    /// they are written: what is queued on the stream behind it finds them. The addresses are those
    /// of [`HardBuffers`].
    ///
    /// # Errors
    ///
    /// As [`ResidentHard::launch`].
    ///
    /// # Safety
    ///
    /// As [`ResidentHard::launch`].
    pub unsafe fn finish(mut self, voxels: u64, coordinates: u64, num_points: u64) -> Result<u64> {
        let hard = Arc::clone(&self.hard);
        let mut totals = hard.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let pinned = hard.pinned(&mut totals)?;
        let (points, totals) = (self.points, pinned.start());
        let buffers = HardBuffers { points, voxels, coordinates, num_points, totals };
        check_outputs(&buffers)?;
        // SAFETY: the caller's promise; the first kernel of these clouds is queued.
        unsafe { hard.fill(self.stream, self.clouds, &buffers) }?;
        self.is_filled = true;
        pinned.wait(&hard.device, self.stream)
    }
}

impl Drop for StartedHard {
    fn drop(&mut self) {
        if self.is_filled {
            return;
        }
        if let Err(error) = self.hard.clear(self.stream) {
            tracing::warn!(%error, "what a launch left behind could not be cleared");
        }
    }
}
