//! A buffer that is on the GPU, or on the CPU when the GPU is full.

use std::path::Path;

use super::counter::FallbackCounter;
use super::gpu::{GpuBuffer, same_length};
use crate::memory::refusal;
use crate::stack::track::{BufferId, BufferLocation};
use plimsoll_machine::error::Result;
use plimsoll_machine::platform::system_memory;
use plimsoll_machine::units::Bytes;

/// A buffer of `f32` on the GPU or, when that is full, on the CPU.
///
/// How a buffer is made on the GPU is the caller's business: `allocate` and `try_promote`
/// are given a function that does. Over a [`Memory`](crate::Memory) that is
/// [`MemoryBuffer::allocate`](crate::MemoryBuffer::allocate); give it a stack without a
/// [`Fallback`](crate::Fallback) in it, or the buffer is on the CPU while this says GPU.
///
/// Only a refusal of memory sends it to the CPU; it is counted, and logged as a warning.
/// A failed move leaves it whole where it was.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_memory::backend::sim::{Sim, SimConfig};
/// use plimsoll_memory::{BufferLocation, Bytes, FallbackBuffer, FallbackCounter, Memory, MemoryBuffer};
///
/// let gpu: Arc<dyn Memory> = Arc::new(Sim::new(SimConfig::default().with_total(Bytes::mib(4))));
/// let others = MemoryBuffer::allocate(Arc::clone(&gpu), 1 << 20)?; // all of it
/// let counter = FallbackCounter::new();
/// let alloc = || MemoryBuffer::allocate(Arc::clone(&gpu), 1000);
///
/// let mut buffer = FallbackBuffer::allocate(1000, alloc, &counter)?;
/// assert_eq!(buffer.location(), BufferLocation::Cpu);
/// assert_eq!(counter.get(), 1);
/// buffer.write(&[0.5; 1000])?;
///
/// assert!(!buffer.try_promote(alloc)?, "there is no room yet");
/// drop(others);
/// assert!(buffer.try_promote(alloc)?);
/// assert_eq!(buffer.location(), BufferLocation::Gpu);
/// let mut back = [0.0; 1000];
/// buffer.read(&mut back)?;
/// assert_eq!(back, [0.5; 1000]);
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct FallbackBuffer<G> {
    gpu_buffer: Option<G>,
    cpu_buffer: Option<Vec<f32>>,
    location: BufferLocation,
    len: usize,
    id: BufferId,
}

impl<G: GpuBuffer> FallbackBuffer<G> {
    /// A buffer of `len` numbers: from `alloc` or, if that is out of memory, on the CPU.
    /// Write before reading: on the GPU its contents are whatever was there before.
    pub fn allocate(
        len: usize,
        alloc: impl FnOnce() -> Result<G>,
        counter: &FallbackCounter,
    ) -> Result<FallbackBuffer<G>> {
        let id = BufferId::new();
        let (gpu_buffer, cpu_buffer) = match alloc() {
            Ok(buffer) => (Some(buffer), None),
            Err(reason) if reason.is_out_of_memory() => {
                let buffer = zeros(len)?;
                counter.add();
                tracing::warn!(%id, %reason, "a buffer fell back to the CPU");
                (None, Some(buffer))
            }
            Err(error) => return Err(error),
        };
        let location = location_of(cpu_buffer.is_some());
        Ok(FallbackBuffer { gpu_buffer, cpu_buffer, location, len, id })
    }

    /// Copies its contents out; the slice is as long as the buffer.
    pub fn read(&self, to: &mut [f32]) -> Result<()> {
        same_length("FallbackBuffer::read", to.len(), self.len)?;
        match (&self.gpu_buffer, &self.cpu_buffer) {
            (Some(buffer), _) => buffer.download(to)?,
            (None, Some(buffer)) => to.copy_from_slice(buffer),
            (None, None) => {}
        }
        Ok(())
    }

    /// Replaces its contents; the slice is as long as the buffer.
    pub fn write(&mut self, from: &[f32]) -> Result<()> {
        same_length("FallbackBuffer::write", from.len(), self.len)?;
        match (&mut self.gpu_buffer, &mut self.cpu_buffer) {
            (Some(buffer), _) => buffer.upload(from)?,
            (None, Some(buffer)) => buffer.copy_from_slice(from),
            (None, None) => {}
        }
        Ok(())
    }

    /// Moves it to the GPU if there is room, contents and all; says whether it is there
    /// now. `alloc` is not called for a buffer that is there already.
    pub fn try_promote(&mut self, alloc: impl FnOnce() -> Result<G>) -> Result<bool> {
        let Some(contents) = &self.cpu_buffer else { return Ok(true) };
        let mut buffer = match alloc() {
            Ok(buffer) => buffer,
            Err(error) if error.is_out_of_memory() => return Ok(false),
            Err(error) => return Err(error),
        };
        buffer.upload(contents)?;
        self.settle(Some(buffer), None);
        Ok(true)
    }

    /// Moves it to the CPU, contents and all, to make room for others; counted like any
    /// other fallback. On the CPU already, it stays.
    pub fn demote(&mut self, counter: &FallbackCounter) -> Result<()> {
        let Some(buffer) = &self.gpu_buffer else { return Ok(()) };
        let mut contents = zeros(self.len)?;
        buffer.download(&mut contents)?;
        self.settle(None, Some(contents));
        counter.add();
        Ok(())
    }

    fn settle(&mut self, gpu_buffer: Option<G>, cpu_buffer: Option<Vec<f32>>) {
        self.location = location_of(cpu_buffer.is_some());
        self.gpu_buffer = gpu_buffer;
        self.cpu_buffer = cpu_buffer;
    }
}

impl<G> FallbackBuffer<G> {
    /// Where it is.
    #[must_use]
    pub fn location(&self) -> BufferLocation {
        self.location
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

    /// Its number: the same wherever it moves.
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.id
    }

    /// The buffer on the GPU, to launch work with, while it is there.
    #[must_use]
    pub fn gpu(&self) -> Option<&G> {
        self.gpu_buffer.as_ref()
    }

    /// The numbers on the CPU, to work on in place, while they are there.
    #[must_use]
    pub fn cpu(&self) -> Option<&[f32]> {
        self.cpu_buffer.as_deref()
    }
}

fn location_of(on_cpu: bool) -> BufferLocation {
    if on_cpu { BufferLocation::Cpu } else { BufferLocation::Gpu }
}

/// Numbers on the CPU; an error where even that is full.
fn zeros(len: usize) -> Result<Vec<f32>> {
    let mut numbers = Vec::new();
    let requested = Bytes::from(len).saturating_mul(size_of::<f32>() as u64);
    numbers.try_reserve_exact(len).map_err(|_| {
        let system = system_memory(Path::new("/")).ok();
        let available = system.and_then(|memory| memory.available).unwrap_or(Bytes::ZERO);
        refusal("host", requested, available, Bytes(isize::MAX as u64))
    })?;
    numbers.resize(len, 0.0);
    Ok(numbers)
}
