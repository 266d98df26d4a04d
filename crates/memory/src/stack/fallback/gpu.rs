//! Buffers on a device, as a [`FallbackBuffer`](super::FallbackBuffer) needs them.

use std::sync::Arc;

use crate::memory::{Block, Memory, Request, Stream};
use crate::stack::track::BufferLocation;
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// A buffer of `f32` on a device, to be implemented for buffers of one's own. Both calls
/// return when the numbers have arrived; both slices are as long as the buffer.
pub trait GpuBuffer {
    /// Copies numbers onto the device.
    fn upload(&mut self, from: &[f32]) -> Result<()>;
    /// Copies numbers from the device.
    fn download(&self, to: &mut [f32]) -> Result<()>;
}

/// Bytes of one number.
const F32: usize = size_of::<f32>();
/// Numbers that are copied at a time, so that a copy does not double what is held.
const STEP: usize = 16 * 1024;

/// A buffer of `f32` in any [`Memory`], returned there when it is dropped.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_memory::backend::host::Host;
/// use plimsoll_memory::{Bytes, GpuBuffer, Memory, MemoryBuffer};
///
/// let memory: Arc<dyn Memory> = Arc::new(Host::with_total(Bytes::mib(1)));
/// let mut buffer = MemoryBuffer::allocate(Arc::clone(&memory), 3)?;
/// buffer.upload(&[1.0, 2.0, 3.0])?;
/// let mut back = [0.0; 3];
/// buffer.download(&mut back)?;
/// assert_eq!(back, [1.0, 2.0, 3.0]);
/// drop(buffer);
/// assert_eq!(memory.stats().active_buffers, 0);
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct MemoryBuffer {
    memory: Arc<dyn Memory>,
    block: Block,
    stream: Stream,
    len: usize,
}

impl MemoryBuffer {
    /// A buffer of `len` numbers, whose contents are whatever was there before.
    pub fn allocate(memory: Arc<dyn Memory>, len: usize) -> Result<MemoryBuffer> {
        MemoryBuffer::allocate_on(memory, len, Stream::DEFAULT)
    }

    /// The same, to be used on this stream and returned behind its work.
    pub fn allocate_on(
        memory: Arc<dyn Memory>,
        len: usize,
        stream: Stream,
    ) -> Result<MemoryBuffer> {
        let size = Bytes::from(len).saturating_mul(F32 as u64);
        let block = memory.allocate(Request::new(size).on(stream))?;
        Ok(MemoryBuffer { memory, block, stream, len })
    }

    /// The block behind it; it must not be returned by anyone else.
    #[must_use]
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// How many numbers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it lies.
    #[must_use]
    pub fn location(&self) -> BufferLocation {
        BufferLocation::of(self.memory.device_of(&self.block).info().backend)
    }
}

impl GpuBuffer for MemoryBuffer {
    fn upload(&mut self, from: &[f32]) -> Result<()> {
        same_length("MemoryBuffer::upload", from.len(), self.len)?;
        let device = self.memory.device_of(&self.block);
        let mut bytes = Vec::with_capacity(STEP.min(self.len) * F32);
        let mut at = self.block.address();
        for numbers in from.chunks(STEP) {
            bytes.clear();
            bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
            device.write(at, &bytes)?;
            at = at.plus(bytes.len() as u64);
        }
        Ok(())
    }

    fn download(&self, to: &mut [f32]) -> Result<()> {
        same_length("MemoryBuffer::download", to.len(), self.len)?;
        let device = self.memory.device_of(&self.block);
        let mut bytes = vec![0; STEP.min(self.len) * F32];
        let mut at = self.block.address();
        for numbers in to.chunks_mut(STEP) {
            let bytes = &mut bytes[..numbers.len() * F32];
            device.read(at, bytes)?;
            let (words, _) = bytes.as_chunks::<F32>();
            for (number, word) in numbers.iter_mut().zip(words) {
                *number = f32::from_ne_bytes(*word);
            }
            at = at.plus(bytes.len() as u64);
        }
        Ok(())
    }
}

impl Drop for MemoryBuffer {
    fn drop(&mut self) {
        if let Err(error) = self.memory.release(self.block, self.stream) {
            tracing::warn!(memory = self.memory.name(), %error, "a buffer was not taken back");
        }
    }
}

/// The error for a slice that is not as long as the buffer.
pub(super) fn same_length(call: &str, given: usize, len: usize) -> Result<()> {
    if given == len {
        return Ok(());
    }
    Err(Error::Malformed {
        what: format!("the slice given to {call}"),
        why: format!("it has {given} elements and the buffer {len}; they must be the same"),
    })
}
