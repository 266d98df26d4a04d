//! How many voxels a launch of one cloud made, told by the device itself: in memory of the host that it writes.
//!
//! A copy to the host would wait for all of the launch. A kernel knows the number long before it
//! has written the voxels.

use std::time::{Duration, Instant};

use plimsoll_memory::backend::cuda::{Cuda, CudaMemory, CudaOptions};
use plimsoll_memory::{Block, Bytes, Error, Memory, Request, Result, Stream};

/// No number of voxels is negative.
const NOT_YET: i32 = -1;
/// Longer than any launch takes that has nothing in front of it. Then waiting without a rest is
/// only a burden.
const SPIN: Duration = Duration::from_millis(1);
/// How often the number is looked at before the clock: that takes longer, on some machines far
/// longer.
const LOOKS: usize = 64;

/// The number of voxels of the cloud, and that of all.
#[derive(Debug)]
pub(super) struct PinnedTotals {
    pinned: Cuda,
    block: Block,
}

impl PinnedTotals {
    /// For launches on the device of a number.
    pub(super) fn new(device: u32) -> Result<PinnedTotals> {
        let pinned = Cuda::open_with(&CudaOptions::new(device).memory(CudaMemory::Pinned))?;
        let block = pinned.allocate(Request::new(Bytes(8)))?;
        Ok(PinnedTotals { pinned, block })
    }

    /// Where a launch writes them.
    pub(super) fn start(&mut self) -> u64 {
        // SAFETY: the block is memory of the host with room for them, and no launch is under way.
        unsafe { self.place().write_volatile(NOT_YET) };
        self.address()
    }

    fn address(&self) -> u64 {
        let address = self.block.address();
        address.buffer + address.offset
    }

    fn place(&self) -> *mut i32 {
        (self.address() as *mut i32).wrapping_add(1)
    }

    /// The number of all, once the launch has told it; `queue` is the device of its stream.
    pub(super) fn wait(&self, queue: &Cuda, stream: Stream) -> Result<u64> {
        // SAFETY: as above; the device writes whole numbers.
        let told = || u64::try_from(unsafe { self.place().read_volatile() }).ok();
        let start = Instant::now();
        while start.elapsed() < SPIN {
            for _ in 0..LOOKS {
                if let Some(total) = told() {
                    return Ok(total);
                }
                std::hint::spin_loop();
            }
        }
        queue.synchronize_stream(stream)?;
        told().ok_or_else(|| Error::Device {
            call: "hard voxelization",
            why: "it ended without telling how many voxels there are".to_string(),
        })
    }
}

impl Drop for PinnedTotals {
    fn drop(&mut self) {
        if let Err(error) = self.pinned.release(self.block, Stream::DEFAULT) {
            tracing::warn!(%error, "pinned memory could not be returned");
        }
    }
}
