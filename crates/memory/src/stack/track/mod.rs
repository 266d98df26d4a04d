//! A list of what is live, with tags and ages: who holds the memory, and what was never
//! returned.
//!
//! [`Tracked`] is the layer: it puts each block on the list when it is handed out and
//! takes it off when it is returned. [`AllocationTracker`] is the list alone, for buffers
//! that do not come from a [`Memory`]. The list is cut into parts with a lock each, so
//! that threads seldom meet; an entry costs two of them, about as much as the pool's own
//! work, which is why a pool keeps one in debug builds only unless asked for
//! (`MemoryConfig::track_allocations`, [`Pool::tracker`](crate::Pool::tracker)).
//!
//! A block is taken off the list when the memory below has it back, and not before: a
//! return that is refused leaves the list as it is.
//!
//! # Where to put it
//!
//! *On top* of a stack, so that the list shows what callers asked for, with their tags.
//! *Under* a pool it lists what the pool holds, by page or by block: of use to find a
//! pool that does not give back. Both at once are two lists.

mod metadata;
mod shards;
mod tracker;

use std::sync::Arc;

use super::layer::MemoryLayer;
use crate::memory::{Block, Device, Handle, Mapping, Memory, MemoryId, Request, Stream};
pub use metadata::{BufferId, BufferLocation, BufferMetadata};
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;
use shards::Shards;
pub use tracker::AllocationTracker;

/// What a page is called on the list.
const PAGE: &str = "physical memory";

/// A memory with a list of what is live.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_memory::backend::host::Host;
/// use plimsoll_memory::{Bytes, Memory, Request, Stream, Tracked};
///
/// let memory = Tracked::new(Arc::new(Host::with_total(Bytes::mib(64))));
/// let weights = memory.allocate(Request::new(Bytes::mib(16)).tagged("weights"))?;
/// let scratch = memory.allocate(Request::new(Bytes::mib(1)).tagged("scratch"))?;
/// memory.release(scratch, Stream::DEFAULT)?;
/// let live = memory.live();
/// assert_eq!(live.len(), 1);
/// assert_eq!(live[0].tag.as_deref(), Some("weights"));
/// # memory.release(weights, Stream::DEFAULT)?;
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct Tracked {
    upstream: Arc<dyn Memory>,
    list: LiveList,
}

/// The list of a memory: an entry for each thing that it handed out and did not get back.
#[derive(Debug, Default)]
pub(in crate::stack) struct LiveList {
    numbers: Shards<LiveKey, BufferId>,
    tracker: AllocationTracker,
}

impl LiveList {
    pub(in crate::stack) fn tracker(&self) -> &AllocationTracker {
        &self.tracker
    }

    /// Puts a block on the list that `device` holds.
    pub(in crate::stack) fn note_block(
        &self,
        block: &Block,
        device: &dyn Device,
        tag: Option<&'static str>,
    ) {
        self.note(LiveKey::of(block), block.size(), device, tag);
    }

    /// Takes a block off the list.
    pub(in crate::stack) fn strike_block(&self, block: &Block) {
        if let Some(id) = self.numbers.remove(&LiveKey::of(block)) {
            self.tracker.untrack(id);
        }
    }

    fn note(&self, key: LiveKey, size: Bytes, device: &dyn Device, tag: Option<&'static str>) {
        let location = BufferLocation::of(device.info().backend);
        // A block has no type: its elements are its bytes.
        let mut buffer = BufferMetadata::new(BufferId::new(), size.0, size.0, location);
        buffer.tag = tag.map(Into::into);
        self.numbers.insert(key, buffer.id);
        self.tracker.track(buffer);
    }
}

/// What tells live things apart. The generation does so for a place that is used again
/// before the last return was noted here.
#[derive(Debug, PartialEq, Eq, Hash)]
enum LiveKey {
    Block(MemoryId, u64, u64),
    Page(Handle),
}

impl LiveKey {
    fn of(block: &Block) -> LiveKey {
        LiveKey::Block(block.owner(), block.key(), block.generation())
    }
}

impl Tracked {
    /// Lists what is handed out of `upstream`.
    #[must_use]
    pub fn new(upstream: Arc<dyn Memory>) -> Tracked {
        Tracked { upstream, list: LiveList::default() }
    }

    /// Whether each block is noted with the place in the program that asked for it.
    #[must_use]
    pub fn with_backtraces(mut self, on: bool) -> Tracked {
        self.list.tracker = std::mem::take(&mut self.list.tracker).with_backtraces(on);
        self
    }

    /// The list itself.
    #[must_use]
    pub fn tracker(&self) -> &AllocationTracker {
        self.list.tracker()
    }

    /// What has not been returned, the largest first.
    #[must_use]
    pub fn live(&self) -> Vec<BufferMetadata> {
        self.tracker().by_size()
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        let (count, bytes) = (self.tracker().count(), self.tracker().total_bytes());
        if count > 0 {
            tracing::warn!(memory = Memory::name(self), count, %bytes, "never returned");
        }
    }
}

impl MemoryLayer for Tracked {
    fn inner(&self) -> &dyn Memory {
        &*self.upstream
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        let block = self.upstream.allocate(request)?;
        let device = self.upstream.device_of(&block);
        self.list.note_block(&block, device, request.tag);
        Ok(block)
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        self.upstream.release(block, stream)?;
        self.list.strike_block(&block);
        Ok(())
    }

    fn create(&self, pages: &dyn Mapping, size: Bytes) -> Result<Handle> {
        let handle = pages.create(size)?;
        self.list.note(LiveKey::Page(handle), size, self.upstream.device(), Some(PAGE));
        Ok(handle)
    }

    fn destroy(&self, pages: &dyn Mapping, handle: Handle, size: Bytes) -> Result<()> {
        // Unlike a block, a page has no generation: its number may be given out again as
        // soon as it is returned, so it is struck before.
        let key = LiveKey::Page(handle);
        let id = self.list.numbers.remove(&key);
        let returned = pages.destroy(handle, size);
        match (id, &returned) {
            (Some(id), Ok(())) => drop(self.list.tracker.untrack(id)),
            (Some(id), Err(_)) => drop(self.list.numbers.insert(key, id)),
            (None, _) => {}
        }
        returned
    }
}
