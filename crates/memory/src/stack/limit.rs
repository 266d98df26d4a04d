//! A limit that is never exceeded.
//!
//! The bytes of a request are reserved from a [`Budget`] before the memory below is asked,
//! and credited if it fails; [`Budget`] says why in that order.
//!
//! What is charged is the size as asked for ([`Block::size`]). What the memory below adds by
//! rounding is its own, and a limit over a bare device does not see it; a pool asks for
//! sizes that need none.
//!
//! # Where to put it
//!
//! *Under a pool* (pool over limit over device) it holds for everything that the
//! pool takes from the device, pages included: this is the one to keep a process below
//! its share. *Over a pool* it bounds what is live: one limit for each user of a shared
//! pool is a fair share for each. Return a block through the limit that it was taken
//! through: limits do not number blocks, so another limit over the same memory cannot
//! tell that the block was charged elsewhere.

use super::layer::MemoryLayer;
use crate::budget::Budget;
use crate::memory::{Block, Handle, Mapping, Memory, Request, Stream, refusal};
use crate::pressure::MemoryPressure;
use crate::sync::{AtomicU64, Ordering};
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;
use std::sync::Arc;

/// A memory of which no more than this much is ever out.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_memory::backend::host::Host;
/// use plimsoll_memory::{Bytes, Limit, Memory, Request, Stream};
///
/// let host = Arc::new(Host::with_total(Bytes::mib(64)));
/// let limit = Limit::new(host, Bytes::mib(8));
/// let block = limit.allocate(Request::new(Bytes::mib(6)))?;
/// assert!(limit.allocate(Request::new(Bytes::mib(3))).unwrap_err().is_full_now());
/// assert!(!limit.allocate(Request::new(Bytes::mib(9))).unwrap_err().is_full_now());
/// assert_eq!(limit.refusals(), 2);
/// limit.release(block, Stream::DEFAULT)?;
/// assert_eq!(limit.available(), Bytes::mib(8));
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct Limit {
    name: String,
    upstream: Arc<dyn Memory>,
    budget: Arc<Budget>,
    refusals: AtomicU64,
}

impl Limit {
    /// No more than `limit` of `upstream`.
    #[must_use]
    pub fn new(upstream: Arc<dyn Memory>, limit: Bytes) -> Limit {
        Limit::sharing(upstream, Arc::new(Budget::new(limit)))
    }

    /// No more of `upstream` than a budget has free. The budget is shared with whoever else
    /// reserves from it: another limit, or a library that allocates by itself and asks first.
    #[must_use]
    pub fn sharing(upstream: Arc<dyn Memory>, budget: Arc<Budget>) -> Limit {
        Limit {
            name: format!("limit of {} on {}", budget.limit(), upstream.name()),
            upstream,
            budget,
            refusals: AtomicU64::new(0),
        }
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> Bytes {
        self.budget.limit()
    }

    /// What is charged now: live blocks and physical memory, as asked for.
    #[must_use]
    pub fn charged(&self) -> Bytes {
        self.budget.reserved()
    }

    /// How many requests this limit refused; those that upstream refused are not counted.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Reserves, asks upstream, and gives the reservation back where upstream fails.
    fn charge<T>(&self, size: Bytes, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Err(free) = self.budget.reserve(size) {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            return Err(refusal(&self.name, size, free, Memory::capacity(self)));
        }
        ask().inspect_err(|_| self.budget.credit(size))
    }
}

impl MemoryLayer for Limit {
    fn inner(&self) -> &dyn Memory {
        &*self.upstream
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        self.charge(request.size, || self.upstream.allocate(request))
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        self.upstream.release(block, stream)?;
        self.budget.credit(block.size());
        Ok(())
    }

    fn create(&self, pages: &dyn Mapping, size: Bytes) -> Result<Handle> {
        self.charge(size, || pages.create(size))
    }

    fn destroy(&self, pages: &dyn Mapping, handle: Handle, size: Bytes) -> Result<()> {
        pages.destroy(handle, size)?;
        self.budget.credit(size);
        Ok(())
    }

    /// The lesser of the limit and what upstream has.
    fn capacity(&self) -> Bytes {
        self.limit().min(self.upstream.capacity())
    }

    /// The lesser of what the limit leaves and what upstream has left.
    fn available(&self) -> Bytes {
        self.budget.free().min(self.upstream.available())
    }

    /// The tighter of the two: the limit, or upstream, which others may be filling too.
    fn pressure(&self) -> MemoryPressure {
        let charged = MemoryPressure::of(self.charged(), Memory::capacity(self));
        charged.max(self.upstream.pressure())
    }
}
