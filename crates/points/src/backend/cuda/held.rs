//! Blocks of a device that kernels work in, returned together.

use std::sync::Arc;

use plimsoll_memory::backend::cuda::Cuda;
use plimsoll_memory::{Block, Bytes, Memory, Request, Result, Stream};

/// Blocks that are returned when this is dropped.
#[derive(Debug)]
pub(super) struct HeldBlocks {
    device: Arc<Cuda>,
    blocks: Vec<Block>,
}

impl HeldBlocks {
    pub(super) fn on(device: &Arc<Cuda>) -> HeldBlocks {
        HeldBlocks { device: Arc::clone(device), blocks: Vec::new() }
    }

    pub(super) fn take(&mut self, bytes: u64) -> Result<Block> {
        let block = self.device.allocate(Request::new(Bytes(bytes.max(8))))?;
        self.blocks.push(block);
        Ok(block)
    }
}

impl Drop for HeldBlocks {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            if let Err(error) = self.device.release(block, Stream::DEFAULT) {
                tracing::warn!(%error, "a block could not be returned to the device");
            }
        }
    }
}
