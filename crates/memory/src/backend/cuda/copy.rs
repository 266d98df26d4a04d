//! Copies and fills on a stream, and page-locked host memory to copy from.

pub use plimsoll_cuda::PinnedRange;

use super::Cuda;
use crate::memory::{Address, Stream};
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

impl Cuda {
    /// Copies bytes to the device behind the work of a stream, and waits for the copy.
    /// [`Device::write`](crate::Device::write) is behind [`Stream::DEFAULT`] only.
    #[expect(unsafe_code, reason = "raw memory is written")]
    pub fn write_on(&self, stream: Stream, to: Address, bytes: &[u8]) -> Result<()> {
        let stream = self.queue.stream(stream)?;
        let space = self.space();
        space.check(to.pointer(), bytes.len() as u64)?;
        // SAFETY: all of the range has memory behind it, and what was locked keeps it.
        Ok(unsafe { self.context.write_on(&stream, to.pointer(), bytes) }?)
    }

    /// Copies bytes from the device behind the work of a stream, and waits for the copy.
    /// [`Device::read`](crate::Device::read) is behind [`Stream::DEFAULT`] only.
    #[expect(unsafe_code, reason = "raw memory is read")]
    pub fn read_on(&self, stream: Stream, from: Address, bytes: &mut [u8]) -> Result<()> {
        let stream = self.queue.stream(stream)?;
        let space = self.space();
        space.check(from.pointer(), bytes.len() as u64)?;
        // SAFETY: as in `write_on`.
        Ok(unsafe { self.context.read_on(&stream, from.pointer(), bytes) }?)
    }

    /// Queues a copy to the device and returns: for page-locked memory ([`Cuda::pin`]), whose
    /// copies run beside other work. The address may be one that another library allocated in
    /// this context.
    ///
    /// # Safety
    ///
    /// All of the range is memory of this context; and it and the bytes stay as they are until
    /// the stream has finished the copy.
    #[expect(unsafe_code, reason = "raw memory is written")]
    pub unsafe fn queue_write(&self, stream: Stream, to: u64, bytes: &[u8]) -> Result<()> {
        let stream = self.queue.stream(stream)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { self.context.queue_write(&stream, to, bytes) }?)
    }

    /// Queues a copy from the device and returns.
    ///
    /// # Safety
    ///
    /// As for [`Cuda::queue_write`]; and nobody reads the bytes before.
    #[expect(unsafe_code, reason = "raw memory is read")]
    pub unsafe fn queue_read(&self, stream: Stream, from: u64, bytes: &mut [u8]) -> Result<()> {
        let stream = self.queue.stream(stream)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { self.context.queue_read(&stream, from, bytes) }?)
    }

    /// Page-locks host memory of the caller's.
    ///
    /// # Safety
    ///
    /// The memory stays allocated at this address until the returned value is dropped, and no
    /// copy of it is under way then.
    #[expect(unsafe_code, reason = "an address of the caller's")]
    pub unsafe fn pin<T>(&self, memory: &mut [T]) -> Result<PinnedRange> {
        // SAFETY: the caller's promise.
        Ok(unsafe { PinnedRange::new(&self.context, memory) }?)
    }

    /// Queues a fill with one byte. Like all queued work it must be over before the memory
    /// goes back to the device; a pool sees to that.
    #[expect(unsafe_code, reason = "raw memory is written")]
    pub fn fill_on(&self, stream: Stream, to: Address, byte: u8, size: Bytes) -> Result<()> {
        let stream = self.queue.stream(stream)?;
        let space = self.space();
        space.check(to.pointer(), size.get())?;
        // SAFETY: all of the range has memory behind it; returning a block waits for the
        // work of its stream.
        Ok(unsafe { self.context.fill_on(&stream, to.pointer(), byte, size.get() as usize) }?)
    }

    /// Queues a copy within the device.
    #[expect(unsafe_code, reason = "raw memory is written")]
    pub fn copy_on(&self, stream: Stream, to: Address, from: Address, size: Bytes) -> Result<()> {
        let stream = self.queue.stream(stream)?;
        let space = self.space();
        space.check(to.pointer(), size.get())?;
        space.check(from.pointer(), size.get())?;
        let (to, from) = (to.pointer(), from.pointer());
        // SAFETY: as in `fill_on`.
        Ok(unsafe { self.context.copy_on(&stream, to, from, size.get() as usize) }?)
    }
}
