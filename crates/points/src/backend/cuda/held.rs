//! What belongs to a device and is used for some time: blocks that kernels work in, returned
//! together, and streams of the caller's.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

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

/// Streams of the caller's, by their pointers.
#[derive(Debug)]
pub struct CallerStreams {
    device: Arc<Cuda>,
    known: Mutex<HashMap<usize, Stream>>,
}

impl CallerStreams {
    /// None yet.
    #[must_use]
    pub fn on(device: &Arc<Cuda>) -> CallerStreams {
        CallerStreams { device: Arc::clone(device), known: Mutex::default() }
    }

    /// A stream of the caller's; a null pointer is the default one.
    ///
    /// # Errors
    ///
    /// Where there are too many streams.
    ///
    /// # Safety
    ///
    /// It is a `CUstream` of the device's context, and outlives this value.
    pub unsafe fn stream(&self, raw: *mut c_void) -> Result<Stream> {
        if raw.is_null() {
            return Ok(Stream::DEFAULT);
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = known.get(&raw.addr()) {
            return Ok(*stream);
        }
        // SAFETY: the caller's promise.
        let stream = unsafe { self.device.adopt_stream(raw) }?;
        known.insert(raw.addr(), stream);
        Ok(stream)
    }

    /// Waits for all work of these streams.
    pub(super) fn wait(&self) {
        for stream in self.known.lock().unwrap_or_else(PoisonError::into_inner).values() {
            if let Err(error) = self.device.synchronize_stream(*stream) {
                tracing::warn!(%error, "a stream could not be waited for");
            }
        }
    }
}

impl Drop for CallerStreams {
    fn drop(&mut self) {
        self.wait();
    }
}
