//! Memory for copies: pinned on the host, and of our own on the device.

use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::driver::Stream;
use super::{Failure, Result};
use crate::tensor::Tensor;

/// Pinned for every context.
const PORTABLE: c_uint = 1;

/// Memory that the driver was told of.
#[derive(Debug)]
pub(in crate::engine) struct Pin(Arc<Stream>, *mut c_void);

// SAFETY: the address is only handed back to the driver, which takes it from any thread.
unsafe impl Send for Pin {}
// SAFETY: there is nothing to share.
unsafe impl Sync for Pin {}

impl Pin {
    /// # Safety
    ///
    /// The memory must stay where it is until this is dropped.
    pub(in crate::engine) unsafe fn new<T>(stream: &Arc<Stream>, memory: &mut [T]) -> Result<Pin> {
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
pub(in crate::engine) struct Buffer {
    stream: Arc<Stream>,
    start: u64,
    bytes: usize,
}

impl Buffer {
    pub(in crate::engine) fn new(stream: &Arc<Stream>, bytes: usize) -> Result<Buffer> {
        stream.enter()?;
        if !stream.ledger.charge(bytes as u64) {
            let bytes = plimsoll::Bytes(bytes as u64);
            return Err(Failure::new(format!("the limit has no room for a buffer of {bytes}")));
        }
        let mut start = 0;
        // SAFETY: the context is current, the place for the answer ours.
        let code = unsafe { (stream.table.allocate)(&raw mut start, bytes.max(1)) };
        if code != 0 {
            stream.ledger.release(bytes as u64);
        }
        stream.table.check("allocate on the device", code)?;
        Ok(Buffer { stream: Arc::clone(stream), start, bytes })
    }

    /// The same with a table in it.
    pub(in crate::engine) fn holding(stream: &Arc<Stream>, from: &[i32]) -> Result<Buffer> {
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
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(in crate::engine) fn start(&self) -> u64 {
        self.start
    }

    /// Copies it out, behind all that is on the stream, and waits.
    pub(in crate::engine) fn fetch(&self, to: &mut [f32]) -> Result<()> {
        if size_of_val(to) != self.bytes {
            return Err(Failure::new("a buffer has another size than its result"));
        }
        let Stream { table, stream, .. } = *self.stream;
        self.stream.enter()?;
        // SAFETY: both ranges are as long, and waited for before this returns.
        let code =
            unsafe { (table.to_host)(to.as_mut_ptr().cast(), self.start, self.bytes, stream) };
        let copied = table.check("copy to the host", code);
        self.stream.wait().and(copied)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.stream.enter().is_ok() && self.stream.wait().is_ok() {
            // SAFETY: allocated by us, and nothing that is on the stream uses it any more.
            unsafe { (self.stream.table.free)(self.start) };
            self.stream.ledger.release(self.bytes as u64);
        }
    }
}

/// Numbers on the device that are an engine's own.
#[derive(Debug)]
pub(in crate::engine) struct Place {
    start: u64,
    numbers: usize,
}

impl Place {
    /// # Safety
    ///
    /// So many f32 must lie there on the device, for as long as this is used, and for nobody
    /// else while it is on a stream.
    pub(in crate::engine) unsafe fn new(start: u64, numbers: usize) -> Place {
        Place { start, numbers }
    }

    pub(in crate::engine) fn start(&self) -> u64 {
        self.start
    }

    /// How many there are.
    pub(in crate::engine) fn numbers(&self) -> usize {
        self.numbers
    }
}

/// Tensors that the device reaches without a stage between, where there is a device. Their
/// numbers can be changed, their place cannot.
#[derive(Debug)]
pub(in crate::engine) struct Pinned {
    // Before the tensors: let go before the memory is.
    _pins: Vec<Pin>,
    tensors: Vec<Tensor>,
}

impl Pinned {
    /// Takes tensors in, for good.
    pub(in crate::engine) fn new(stream: &Arc<Stream>, mut tensors: Vec<Tensor>) -> Result<Pinned> {
        let mut pins = Vec::new();
        for tensor in &mut tensors {
            // SAFETY: the numbers stay where they are until the pin is dropped: the tensors are
            // private to this, which gives out slices alone and drops its pins first.
            pins.push(unsafe { Pin::new(stream, &mut tensor.data) }?);
        }
        Ok(Pinned { _pins: pins, tensors })
    }

    /// The same where there is no device.
    pub(in crate::engine) fn unpinned(tensors: Vec<Tensor>) -> Pinned {
        Pinned { _pins: Vec::new(), tensors }
    }

    pub(in crate::engine) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The numbers of one of them.
    pub(in crate::engine) fn data_mut(&mut self, index: usize) -> &mut [f32] {
        self.tensors.get_mut(index).map(|tensor| &mut tensor.data[..]).unwrap_or_default()
    }

    /// The numbers of all.
    pub(in crate::engine) fn all_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.tensors.iter_mut().map(|tensor| &mut tensor.data[..])
    }
}

/// Pinned bytes that frames pass through.
#[derive(Debug)]
pub(in crate::engine) struct Stage {
    // Before the bytes: let go before the memory is.
    pin: Pin,
    bytes: Vec<u8>,
}

/// Bytes that are copied at a time, so that the device copies what came before meanwhile.
const PORTION: usize = 256 << 10;

impl Stage {
    /// Room for so many bytes.
    pub(in crate::engine) fn new(stream: &Arc<Stream>, length: usize) -> Result<Stage> {
        let mut bytes = vec![0; length];
        // SAFETY: the bytes are private to the stage, never grow, and go after the pin.
        let pin = unsafe { Pin::new(stream, &mut bytes) }?;
        Ok(Stage { pin, bytes })
    }

    /// Puts a frame on the stream, behind all that is on it, in portions.
    pub(in crate::engine) fn pass(&mut self, pixels: &[u8], to: &Buffer) -> Result<()> {
        if pixels.len() > self.bytes.len() {
            return Err(Failure::new("a frame is larger than the room for it"));
        }
        // What passed before must have left.
        self.pin.0.enter()?;
        self.pin.0.wait()?;
        for (number, portion) in pixels.chunks(PORTION).enumerate() {
            let start = number * PORTION;
            self.bytes[start..start + portion.len()].copy_from_slice(portion);
            self.send(start..start + portion.len(), to)?;
        }
        Ok(())
    }

    /// Puts these bytes on the stream, to the same place there.
    fn send(&self, range: Range<usize>, to: &Buffer) -> Result<()> {
        let Some(from) = self.bytes.get(range.clone()).filter(|_| range.end <= to.bytes) else {
            return Err(Failure::new("a frame is larger than the room for it"));
        };
        let stream = &to.stream;
        let place = to.start + range.start as u64;
        // SAFETY: both ranges were seen to be large enough; the bytes stay pinned and where they
        // are until the stream is waited for, by who sends the next or when the pin goes.
        let code = unsafe {
            (stream.table.to_device)(place, from.as_ptr().cast(), from.len(), stream.stream)
        };
        stream.table.check("copy a frame to the device", code)
    }
}

/// Pinned buffers in which frames wait for their turn, each used again and again.
#[derive(Debug)]
pub(in crate::engine) struct Shelf {
    stream: Arc<Stream>,
    state: Mutex<Shelved>,
}

#[derive(Debug, Default)]
struct Shelved {
    free: Vec<Stage>,
    made: usize,
}

/// Those that are decoded ahead, one between two threads and one at work, and two to spare.
const MOST: usize = 8;

impl Shelf {
    pub(in crate::engine) fn new(stream: &Arc<Stream>) -> Arc<Shelf> {
        Arc::new(Shelf { stream: Arc::clone(stream), state: Mutex::default() })
    }

    /// Copies a frame onto the shelf; nothing where it is full or the driver pins no more.
    pub(in crate::engine) fn take_in(self: &Arc<Shelf>, pixels: &[u8]) -> Option<Waiting> {
        let mut stage = self.room(pixels.len())?;
        stage.bytes[..pixels.len()].copy_from_slice(pixels);
        Some(Waiting { stage: Some(stage), bytes: pixels.len(), shelf: Arc::clone(self) })
    }

    /// A buffer that is large enough. One that is too small is for frames of another size, and
    /// goes.
    fn room(&self, bytes: usize) -> Option<Stage> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.free.pop() {
            Some(stage) if stage.bytes.len() >= bytes => return Some(stage),
            Some(_) => {}
            None if state.made >= MOST => return None,
            None => state.made += 1,
        }
        drop(state);
        Stage::new(&self.stream, bytes).ok()
    }
}

/// A frame on the shelf.
#[derive(Debug)]
pub(in crate::engine) struct Waiting {
    stage: Option<Stage>,
    bytes: usize,
    shelf: Arc<Shelf>,
}

impl Waiting {
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts it on the stream. It must be kept until the stream was waited for, or another frame
    /// may be read in its place.
    pub(in crate::engine) fn pass(&self, to: &Buffer) -> Result<()> {
        to.stream.enter()?;
        self.stage.as_ref().map_or(Ok(()), |stage| stage.send(0..self.bytes, to))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.shelf.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.free.extend(self.stage.take());
    }
}
