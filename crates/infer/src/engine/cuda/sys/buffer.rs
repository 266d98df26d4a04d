//! Memory on the device: buffers of our own, and numbers that an engine allocated.

use std::sync::Arc;

use plimsoll::{Block, Bytes, Request, Result};

use super::gpu::EngineGpu;
use super::wrong_size;

/// A buffer of our own on the device.
///
/// It comes from our pool and not from the arena of an ONNX Runtime session: the memory that a
/// captured graph works in counts as free in that arena, so the arena would hand it out again.
/// The pool never moves a block that is in use.
#[derive(Debug)]
pub(in crate::engine) struct EngineBuffer {
    gpu: Arc<EngineGpu>,
    block: Block,
}

impl EngineBuffer {
    pub(in crate::engine) fn new(gpu: &Arc<EngineGpu>, bytes: usize) -> Result<EngineBuffer> {
        let request = Request { size: Bytes(bytes as u64), stream: gpu.stream(), tag: None };
        let block = gpu.memory().allocate(request)?;
        Ok(EngineBuffer { gpu: Arc::clone(gpu), block })
    }

    /// A buffer with a table in it.
    pub(in crate::engine) fn holding(gpu: &Arc<EngineGpu>, table: &[i32]) -> Result<EngineBuffer> {
        let buffer = EngineBuffer::new(gpu, size_of_val(table))?;
        let bytes: Vec<u8> = table.iter().flat_map(|number| number.to_ne_bytes()).collect();
        gpu.device().write_on(gpu.stream(), buffer.block.address(), &bytes)?;
        Ok(buffer)
    }

    /// The size in bytes.
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.block.size().get() as usize
    }

    /// The address on the device.
    pub(in crate::engine) fn start(&self) -> u64 {
        self.block.address().pointer()
    }

    /// Queues a copy of bytes to `offset`.
    ///
    /// # Safety
    ///
    /// The bytes stay as they are until the stream has finished the copy.
    pub(super) unsafe fn queue_write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len());
        if end.is_none_or(|end| end > self.bytes()) {
            return Err(wrong_size("a frame is larger than its buffer"));
        }
        let to = self.start() + offset as u64;
        // SAFETY: the range lies in the block, which the pool keeps for work that is queued
        // before its release; the bytes are the caller's promise.
        unsafe { self.gpu.device().queue_write(self.gpu.stream(), to, bytes) }
    }

    /// Copies it to the host behind all queued work, and waits for the copy.
    pub(in crate::engine) fn fetch(&self, to: &mut [f32]) -> Result<()> {
        if size_of_val(to) != self.bytes() {
            return Err(wrong_size("a buffer has another size than its result"));
        }
        self.gpu.device().read_on(self.gpu.stream(), self.block.address(), as_bytes_mut(to))
    }
}

impl Drop for EngineBuffer {
    fn drop(&mut self) {
        if let Err(error) = self.gpu.memory().release(self.block, self.gpu.stream()) {
            tracing::warn!(%error, "a buffer on the device could not be returned");
        }
    }
}

/// Numbers on the device that an engine allocated.
#[derive(Debug)]
pub(in crate::engine) struct DeviceFloats {
    start: u64,
    numbers: usize,
}

impl DeviceFloats {
    /// # Safety
    ///
    /// This many f32 lie at this address of the device for as long as the value is used, and
    /// nobody else uses them while work on them is queued.
    pub(in crate::engine) unsafe fn new(start: u64, numbers: usize) -> DeviceFloats {
        DeviceFloats { start, numbers }
    }

    /// The address on the device.
    pub(in crate::engine) fn start(&self) -> u64 {
        self.start
    }

    /// How many numbers there are.
    pub(in crate::engine) fn numbers(&self) -> usize {
        self.numbers
    }
}

/// Numbers as bytes.
pub(in crate::engine) fn as_bytes(numbers: &[f32]) -> &[u8] {
    // SAFETY: the same memory, and every byte of an f32 is a valid u8.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// The same, to be written.
pub(in crate::engine) fn as_bytes_mut(numbers: &mut [f32]) -> &mut [u8] {
    let bytes = size_of_val(numbers);
    // SAFETY: the same memory, borrowed exclusively, and every four bytes are a valid f32.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), bytes) }
}
