//! NVIDIA's devices, through the driver's interface.
//!
//! The driver is loaded at run time, and a device's abilities are tried when it is opened:
//! physical memory is mapped by the page where that works, and plain blocks are allocated
//! where the driver refuses it, as on an Orin. The context is the device's primary one or the
//! caller's. [`Stream::DEFAULT`] is the context's default stream; every other stream is one
//! that was made here, or the caller's.
//!
//! Blocks are device memory by default ([`CudaMemory`]). On a board whose GPU shares the
//! system's memory, pinned memory needs no copy, and suits small buffers that are read once,
//! such as frames of a camera; it is not the default there either, since the GPU does not
//! cache it.
//!
//! The driver does not check the numbers that it is given, so we check a caller's first:
//! `space` knows every block, range, page and mapping, `queue` every stream and event. `copy`
//! copies and fills, `module` loads and launches compiled code, `graph` captures and replays
//! work, `touch` is work for replays.

mod copy;
mod facts;
mod graph;
mod mapping;
mod module;
mod options;
mod queue;
mod space;
mod touch;

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::memory::{
    Address, Block, Device, DeviceInfo, Event, Mapping, Memory, MemoryId, Request, Stream, refusal,
    stranger,
};
use crate::stats::MemoryStats;
use plimsoll_cuda::{BlockKind, Context, CudaRefusal, Driver, OUT_OF_MEMORY};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

pub use copy::PinnedRange;
pub use facts::{CudaFacts, count, facts};
pub use graph::{CudaCapture, CudaGraph};
pub use module::{Argument, Code, Function, Launch, Module, compile};
pub use options::{CudaMemory, CudaOptions};
use queue::CudaQueue;
use space::Space;
pub use touch::Toucher;

/// What the driver aligns every block to.
const ALIGNMENT: u64 = 256;
/// The step in which plain blocks are counted.
const GRANULARITY: Bytes = Bytes(512);

/// A device of NVIDIA's.
#[derive(Debug)]
pub struct Cuda {
    id: MemoryId,
    info: DeviceInfo,
    memory: CudaMemory,
    shareable: bool,
    /// The smallest page, or why nothing can be mapped.
    page: Result<Bytes, String>,
    /// Nothing, or why memory cannot be mapped at several addresses at once.
    aliases: Result<(), String>,
    context: Arc<Context>,
    queue: CudaQueue,
    space: RwLock<Space>,
}

impl Cuda {
    /// Opens the device of a number with default options.
    pub fn open(number: u32) -> Result<Cuda> {
        Cuda::open_with(&CudaOptions::new(number))
    }

    /// Opens a device with these options.
    pub fn open_with(options: &CudaOptions) -> Result<Cuda> {
        let driver = Driver::load(options.library.as_deref())?;
        let context = Arc::new(options.enter(driver)?);
        let total = options.size(&context)?;
        let facts = facts::of(driver, context.device());
        let info = DeviceInfo {
            name: driver.name(context.device())?,
            backend: "cuda",
            number: options.number,
            total,
            alignment: ALIGNMENT,
            granularity: GRANULARITY,
            is_unified: facts.integrated,
            compute_capability: facts.compute_capability,
            pci_bus: facts.pci_bus(),
        };
        let mut cuda = Cuda {
            id: MemoryId::next(),
            info,
            memory: options.memory,
            shareable: options.shareable,
            page: Err("plain blocks were asked for".to_string()),
            aliases: Err("mappings or aliases were not asked for".to_string()),
            queue: CudaQueue::new(&context),
            context,
            space: RwLock::new(Space::new(total)),
        };
        if options.mapping && options.memory == CudaMemory::Device {
            cuda.page = cuda.try_mapping().map_err(|error| error.to_string());
            if let Err(why) = &cuda.page {
                tracing::info!(device = %cuda.info.name, %why, "plain blocks take the place of pages");
            }
            if let (Ok(page), true) = (&cuda.page, options.aliases) {
                cuda.aliases = cuda.try_alias(*page).map_err(|error| error.to_string());
            }
            if let (Ok(_), true, Err(why)) = (&cuda.page, options.aliases, &cuda.aliases) {
                tracing::info!(device = %cuda.info.name, %why, "memory that moves is unmapped first");
            }
        }
        Ok(cuda)
    }

    /// Why physical memory is not mapped by the page here; `None` where it is.
    #[must_use]
    pub fn why_not_mapped(&self) -> Option<&str> {
        self.page.as_ref().err().map(String::as_str)
    }

    /// Why physical memory is not mapped at several addresses at once here, so that a pool unmaps
    /// what it moves; `None` where it is.
    #[must_use]
    pub fn why_not_aliased(&self) -> Option<&str> {
        self.aliases.as_ref().err().map(String::as_str)
    }

    /// What the device says of itself.
    #[must_use]
    pub fn facts(&self) -> CudaFacts {
        facts::of(self.context.driver(), self.context.device())
    }

    /// The context, as other libraries take it (a `CUcontext`).
    #[must_use]
    pub fn raw_context(&self) -> *mut std::ffi::c_void {
        self.context.raw().cast()
    }

    fn space(&self) -> RwLockReadGuard<'_, Space> {
        // Nothing in here panics between two changes that belong together.
        self.space.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn space_mut(&self) -> RwLockWriteGuard<'_, Space> {
        self.space.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn kind(&self) -> BlockKind {
        match self.memory {
            CudaMemory::Device => BlockKind::Device,
            CudaMemory::Pinned => BlockKind::Pinned,
            CudaMemory::Managed => BlockKind::Managed,
        }
    }

    /// The error for a call that the driver refused: out of memory, or another.
    fn refused(&self, size: Bytes, refused: CudaRefusal) -> Error {
        if refused.code != OUT_OF_MEMORY {
            return refused.into();
        }
        let available = self.free_memory().unwrap_or(Bytes::ZERO);
        // The driver has enough but not in one piece, or less than it reports.
        refusal(&self.info.name, size, available, self.info.total.max(size))
    }

    /// Waits for the work that a stream has been given so far.
    fn drain(&self, stream: Stream) -> Result<()> {
        self.synchronize_stream(stream)
    }

    /// Waits until all queued work of a stream is done.
    pub fn synchronize_stream(&self, stream: Stream) -> Result<()> {
        Ok(self.queue.stream(stream)?.synchronize()?)
    }

    /// Takes over a stream of the caller's (a `CUstream`) and gives it a number here.
    ///
    /// # Safety
    ///
    /// It is a stream of this device's context, and outlives this value.
    #[expect(unsafe_code, reason = "a pointer of the caller's")]
    pub unsafe fn adopt_stream(&self, raw: *mut std::ffi::c_void) -> Result<Stream> {
        // SAFETY: the caller's promise.
        unsafe { self.queue.adopt(raw.cast()) }
    }

    /// The stream as other libraries take it (a `CUstream`).
    pub fn raw_stream(&self, stream: Stream) -> Result<*mut std::ffi::c_void> {
        Ok(self.queue.stream(stream)?.raw().cast())
    }
}

impl Memory for Cuda {
    fn name(&self) -> &str {
        &self.info.name
    }

    fn device(&self) -> &dyn Device {
        self
    }

    fn owns(&self, block: &Block) -> bool {
        block.owner() == self.id
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        let taken = request.size.max(Bytes(1)).round_up(GRANULARITY.0);
        self.space_mut().claim(taken.0).map_err(|available| {
            refusal(&self.info.name, request.size, available, self.info.total)
        })?;
        let base = match self.context.take(self.kind(), taken.get() as usize) {
            Ok(base) => base,
            Err(refused) => {
                self.space_mut().unclaim(taken.0);
                return Err(self.refused(request.size, refused));
            }
        };
        let generation = self.space_mut().add_block(base, request.size.0, taken.0);
        let address = Address { buffer: base, offset: 0 };
        Ok(Block::new(self.id, base, generation, request.size, address))
    }

    /// Waits for the work of the stream, since the driver frees a block at once.
    #[expect(unsafe_code, reason = "memory is returned by its address")]
    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        let gone = if self.owns(&block) { self.space_mut().take_block(&block) } else { None };
        let gone = gone.ok_or_else(|| stranger(self, &block))?;
        // SAFETY: the block was in the table of live ones and is no longer, so it is
        // returned once; the work of its stream has been waited for.
        let returned = self
            .drain(stream)
            .and_then(|()| Ok(unsafe { self.context.give_back(self.kind(), block.key()) }?));
        match returned {
            Ok(()) => self.space_mut().unclaim(gone.taken),
            Err(_) => self.space_mut().put_block(block.key(), gone),
        }
        returned
    }

    fn stats(&self) -> MemoryStats {
        self.space().stats()
    }

    fn capacity(&self) -> Bytes {
        self.info.total
    }

    fn mapping(&self) -> Option<&dyn Mapping> {
        self.page.is_ok().then_some(self)
    }
}

impl Device for Cuda {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// What the driver reports, but no more than is left of the size that was set.
    fn free_memory(&self) -> Result<Bytes> {
        let ours = self.space().left();
        match self.memory {
            CudaMemory::Device => Ok(Bytes(self.context.free_memory()?).min(ours)),
            CudaMemory::Pinned | CudaMemory::Managed => {
                let system = plimsoll_machine::platform::system_memory(std::path::Path::new("/"))?;
                Ok(system.available.map_or(ours, |available| available.min(ours)))
            }
        }
    }

    fn new_stream(&self) -> Result<Stream> {
        self.queue.new_stream()
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        self.queue.record(stream)
    }

    fn is_done(&self, event: Event) -> Result<bool> {
        Ok(self.queue.event(event)?.is_done()?)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        Ok(self.queue.stream(stream)?.wait(&*self.queue.event(event)?)?)
    }

    fn synchronize(&self, event: Event) -> Result<()> {
        Ok(self.queue.event(event)?.synchronize()?)
    }

    fn forget(&self, event: Event) -> Result<()> {
        self.queue.forget(event);
        Ok(())
    }

    #[expect(unsafe_code, reason = "raw memory is written")]
    fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        let space = self.space();
        space.check(to.pointer(), bytes.len() as u64)?;
        // SAFETY: all of the range has memory behind it, and what was locked keeps it.
        Ok(unsafe { self.context.write(to.pointer(), bytes) }?)
    }

    #[expect(unsafe_code, reason = "raw memory is read")]
    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        let space = self.space();
        space.check(from.pointer(), bytes.len() as u64)?;
        // SAFETY: as in `write`.
        Ok(unsafe { self.context.read(from.pointer(), bytes) }?)
    }
}

impl Drop for Cuda {
    /// Frees everything that is still allocated: nobody can reach it any more.
    #[expect(unsafe_code, reason = "memory is returned by its address")]
    fn drop(&mut self) {
        self.queue.drain();
        let space = self.space.get_mut().unwrap_or_else(PoisonError::into_inner);
        let left = space.dismantle();
        // SAFETY: each was in the tables of what is live, all streams that this device
        // knows have been waited for, and with the device gone nobody returns it again.
        unsafe {
            for (address, size) in left.mapped {
                let _ = self.context.unmap(address, size as usize);
            }
            for handle in left.handles {
                let _ = self.context.destroy(handle);
            }
            for (base, size) in left.ranges {
                let _ = self.context.unreserve(base, size as usize);
            }
            for base in left.blocks {
                let _ = self.context.give_back(self.kind(), base);
            }
        }
    }
}
