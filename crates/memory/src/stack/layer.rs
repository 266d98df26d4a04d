//! What every layer does alike: it forwards whatever it does not change.
//!
//! A layer names the memory below it, takes part in handing out and taking back, and
//! overrides what else it changes. Everything else is answered by the memory below, so a
//! layer cannot forget to forward a method that [`Memory`] has a default for.
//!
//! A pool takes pages, not blocks, if the device can map. A layer under it that counts must see them
//! come and go: [`MemoryLayer::create`] and [`MemoryLayer::destroy`] are for physical memory
//! what [`MemoryLayer::allocate`] and [`MemoryLayer::release`] are for blocks. Addresses and
//! mappings cost nothing and are forwarded.

use std::fmt;

use crate::memory::{Block, Device, Handle, Mapping, Memory, Request, Stream};
use crate::pressure::MemoryPressure;
use crate::stats::MemoryStats;
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// A memory over a memory, which writes only what it changes.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use plimsoll_memory::backend::host::Host;
/// use plimsoll_memory::stack::MemoryLayer;
/// use plimsoll_memory::{Block, Bytes, Memory, Request, Result, Stream};
///
/// #[derive(Debug)]
/// struct CountsRequests { inner: Arc<dyn Memory>, requests: AtomicU64 }
///
/// impl MemoryLayer for CountsRequests {
///     fn inner(&self) -> &dyn Memory {
///         &*self.inner
///     }
///
///     fn allocate(&self, request: Request) -> Result<Block> {
///         self.requests.fetch_add(1, Ordering::Relaxed);
///         self.inner.allocate(request)
///     }
///
///     fn release(&self, block: Block, stream: Stream) -> Result<()> {
///         self.inner.release(block, stream)
///     }
/// }
///
/// let inner = Arc::new(Host::with_total(Bytes::mib(64)));
/// let layer = CountsRequests { inner, requests: AtomicU64::new(0) };
/// let memory: &dyn Memory = &layer;
/// let block = memory.allocate(Request::new(Bytes::mib(1)))?;
/// memory.release(block, Stream::DEFAULT)?;
/// assert_eq!((memory.name(), layer.requests.load(Ordering::Relaxed)), ("host", 1));
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
pub trait MemoryLayer: Send + Sync + fmt::Debug {
    /// Whether the layer offers the mapping of the memory below. One that does not count
    /// pages must not, or a pool over it would take them uncounted.
    const OFFERS_PAGES: bool = true;

    /// The memory below.
    fn inner(&self) -> &dyn Memory;

    /// [`Memory::allocate`], from the memory below.
    fn allocate(&self, request: Request) -> Result<Block>;

    /// [`Memory::release`], to the memory below.
    fn release(&self, block: Block, stream: Stream) -> Result<()>;

    /// [`Mapping::create`], by the mapping of the memory below.
    fn create(&self, pages: &dyn Mapping, size: Bytes) -> Result<Handle> {
        pages.create(size)
    }

    /// [`Mapping::destroy`], by the mapping of the memory below.
    fn destroy(&self, pages: &dyn Mapping, handle: Handle, size: Bytes) -> Result<()> {
        pages.destroy(handle, size)
    }

    /// [`Memory::name`].
    fn name(&self) -> &str {
        self.inner().name()
    }

    /// [`Memory::device`].
    fn device(&self) -> &dyn Device {
        self.inner().device()
    }

    /// [`Memory::device_of`].
    fn device_of(&self, block: &Block) -> &dyn Device {
        self.inner().device_of(block)
    }

    /// [`Memory::capacity`].
    fn capacity(&self) -> Bytes {
        self.inner().capacity()
    }

    /// [`Memory::available`].
    fn available(&self) -> Bytes {
        self.inner().available()
    }

    /// [`Memory::pressure`].
    fn pressure(&self) -> MemoryPressure {
        self.inner().pressure()
    }
}

impl<T: MemoryLayer> Memory for T {
    fn name(&self) -> &str {
        MemoryLayer::name(self)
    }

    fn device(&self) -> &dyn Device {
        MemoryLayer::device(self)
    }

    fn device_of(&self, block: &Block) -> &dyn Device {
        MemoryLayer::device_of(self, block)
    }

    fn owns(&self, block: &Block) -> bool {
        self.inner().owns(block)
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        MemoryLayer::allocate(self, request)
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        MemoryLayer::release(self, block, stream)
    }

    fn stats(&self) -> MemoryStats {
        self.inner().stats()
    }

    fn capacity(&self) -> Bytes {
        MemoryLayer::capacity(self)
    }

    fn trim(&self) -> Result<Bytes> {
        self.inner().trim()
    }

    fn mapping(&self) -> Option<&dyn Mapping> {
        let offered = self.inner().mapping().filter(|_| T::OFFERS_PAGES);
        offered.map(|_| self as &dyn Mapping)
    }

    fn available(&self) -> Bytes {
        MemoryLayer::available(self)
    }

    fn pressure(&self) -> MemoryPressure {
        MemoryLayer::pressure(self)
    }
}

/// The mapping of the memory below, where it has one.
fn pages(layer: &impl MemoryLayer) -> Result<&dyn Mapping> {
    let inner = layer.inner();
    inner.mapping().ok_or_else(|| Error::Unavailable {
        what: "mapping physical memory".to_string(),
        why: format!("{} does not offer it", inner.name()),
    })
}

impl<T: MemoryLayer> Mapping for T {
    fn page_size(&self) -> Bytes {
        self.inner().mapping().map_or(Bytes::ZERO, Mapping::page_size)
    }

    fn reserve(&self, size: Bytes) -> Result<u64> {
        pages(self)?.reserve(size)
    }

    fn unreserve(&self, base: u64, size: Bytes) -> Result<()> {
        pages(self)?.unreserve(base, size)
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        MemoryLayer::create(self, pages(self)?, size)
    }

    fn destroy(&self, handle: Handle, size: Bytes) -> Result<()> {
        MemoryLayer::destroy(self, pages(self)?, handle, size)
    }

    fn can_alias(&self) -> bool {
        self.inner().mapping().is_some_and(Mapping::can_alias)
    }

    fn map(&self, address: u64, handle: Handle, size: Bytes) -> Result<()> {
        pages(self)?.map(address, handle, size)
    }

    fn unmap(&self, address: u64, size: Bytes) -> Result<()> {
        pages(self)?.unmap(address, size)
    }
}
