//! Memory for copies: pinned on the host, and of our own on the device.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use super::driver::Stream;

/// Pinned for every context.
const PORTABLE: c_uint = 1;

/// Memory that the driver was told of.
#[derive(Debug)]
pub(super) struct Pin(Arc<Stream>, *mut c_void);

// SAFETY: the address is only handed back to the driver, which takes it from any thread.
unsafe impl Send for Pin {}
// SAFETY: there is nothing to share.
unsafe impl Sync for Pin {}

impl Pin {
    /// # Safety
    ///
    /// The memory must stay where it is until this is dropped.
    pub(super) unsafe fn new<T>(stream: &Arc<Stream>, memory: &mut [T]) -> ort::Result<Pin> {
        stream.enter()?;
        let start = memory.as_mut_ptr().cast::<c_void>();
        // SAFETY: the range is a slice's, and the caller promises that it stays.
        let code = unsafe { (stream.table.pin)(start, size_of_val(memory), PORTABLE) };
        stream.table.check("pin host memory", code)?;
        Ok(Pin(Arc::clone(stream), start))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.0.enter().is_ok() {
            // Nothing may be in flight when the memory goes.
            let _ = self.0.wait();
            // SAFETY: registered when this was made.
            unsafe { (self.0.table.unpin)(self.1) };
        }
    }
}

/// Memory of the device that is ours alone.
///
/// Not from the session's arena: what a captured graph works in counts as free there, and
/// would be handed out again.
#[derive(Debug)]
pub(in super::super) struct Buffer {
    stream: Arc<Stream>,
    start: u64,
    bytes: usize,
}

impl Buffer {
    pub(in super::super) fn new(stream: &Arc<Stream>, bytes: usize) -> ort::Result<Buffer> {
        stream.enter()?;
        let mut start = 0;
        // SAFETY: the context is current, the place for the answer ours.
        let code = unsafe { (stream.table.allocate)(&raw mut start, bytes.max(1)) };
        stream.table.check("allocate on the device", code)?;
        Ok(Buffer { stream: Arc::clone(stream), start, bytes })
    }

    /// The same with a table in it.
    pub(in super::super) fn holding(stream: &Arc<Stream>, from: &[i32]) -> ort::Result<Buffer> {
        let made = Buffer::new(stream, size_of_val(from))?;
        // SAFETY: both ranges are as long as the table, and waited for before this returns.
        let code = unsafe {
            (stream.table.to_device)(
                made.start,
                from.as_ptr().cast(),
                size_of_val(from),
                stream.stream,
            )
        };
        let copied = stream.table.check("copy a table to the device", code);
        stream.wait().and(copied).map(|()| made)
    }

    /// How many bytes it has.
    pub(in super::super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.stream.enter().is_ok() && self.stream.wait().is_ok() {
            // SAFETY: allocated by us, and nothing that is on the stream uses it any more.
            unsafe { (self.stream.table.free)(self.start) };
        }
    }
}

/// Pinned bytes that frames pass through.
#[derive(Debug)]
pub(in super::super) struct Stage {
    // Before the bytes: let go before the memory is.
    pin: Pin,
    bytes: Vec<u8>,
}

/// Bytes that are copied at a time, so that the device copies what came before meanwhile.
const PORTION: usize = 256 << 10;

impl Stage {
    /// Room for so many bytes.
    pub(in super::super) fn new(stream: &Arc<Stream>, length: usize) -> ort::Result<Stage> {
        let mut bytes = vec![0; length];
        // SAFETY: the bytes are private to the stage, never grow, and go after the pin.
        let pin = unsafe { Pin::new(stream, &mut bytes) }?;
        Ok(Stage { pin, bytes })
    }

    /// Puts a frame of so many bytes on the stream, behind all that is on it, in portions of a
    /// whole number of `unit` bytes: `fill` writes each, given where it begins.
    pub(in super::super) fn pass(
        &mut self,
        (bytes, unit): (usize, usize),
        to: &Buffer,
        mut fill: impl FnMut(usize, &mut [u8]) -> bool,
    ) -> ort::Result<()> {
        if bytes > self.bytes.len() || bytes > to.bytes {
            return Err(ort::Error::new("a frame is larger than the room for it"));
        }
        let stream = &self.pin.0;
        stream.enter()?;
        // What passed before must have left.
        stream.wait()?;
        let portion = PORTION.next_multiple_of(unit.max(1));
        for (number, stage) in self.bytes[..bytes].chunks_mut(portion).enumerate() {
            let start = number * portion;
            if !fill(start, stage) {
                return Err(ort::Error::new("a frame changed on its way"));
            }
            let place = to.start + start as u64;
            // SAFETY: both ranges were seen to be large enough; the stage stays pinned and
            // untouched until the stream is waited for, here or when the pin goes.
            let code = unsafe {
                let from = stage.as_ptr().cast();
                (stream.table.to_device)(place, from, stage.len(), stream.stream)
            };
            stream.table.check("copy a frame to the device", code)?;
        }
        Ok(())
    }
}
