//! Memory for captured graphs: addresses that stay.
//!
//! A CUDA graph replays the addresses that it was captured with, so what was handed out
//! during a capture must not be remapped, given back or handed to anyone else until the
//! graph is gone; and while a stream is being captured the driver must not be asked to
//! map, or after an event. So a capture brings its own arena, mapped in full before it
//! begins. Within the capture its blocks are reused as always: that is the graph's own
//! order.

use std::sync::{Arc, PoisonError};

use super::arena::Arena;
use super::heap::IndexKey;
use super::region::Region;
use super::{Growth, Pool};
use crate::memory::{Block, Request, Stream, refusal};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// A capture under way on a stream. Dropped without [`Capture::end`], it is abandoned.
#[derive(Debug)]
pub struct Capture {
    pool: Arc<Pool>,
    stream: Stream,
    number: u32,
    ended: bool,
}

/// The memory of a captured graph: keep it as long as the graph may be launched. What was
/// launched before it is dropped is waited for before its memory goes to others.
#[derive(Debug)]
pub struct GraphMemory {
    pool: Arc<Pool>,
    number: u32,
}

impl Pool {
    /// Begins a capture on a stream, with this much memory set aside for it. Requests of
    /// that stream are served from there until the capture ends.
    pub fn begin_capture(
        self: &Arc<Self>,
        stream: Stream,
        memory: impl Into<Bytes>,
    ) -> Result<Capture> {
        let memory = memory.into();
        if memory > self.budget {
            return Err(self.refusal(memory));
        }
        // All under the one lock: nothing is mapped for others between the look for
        // another capture and the beginning of this one.
        let mut growth = self.growth();
        if self.order.any_capture() {
            return Err(Error::Capturing { what: "beginning another capture" });
        }
        growth.next_private += 1;
        let number = growth.next_private;
        let shared = (&self.crowd, &self.peaks.0);
        let arena = Arc::new(Arena::new(number, IndexKey::Ready, self.page == 0, None, shared));
        // Known to the pool first: if it cannot be filled, what it got is taken back.
        let private = Arc::clone(&arena);
        self.private.write().unwrap_or_else(PoisonError::into_inner).insert(number, private);
        let filled = self.fill(&mut growth, &arena, stream, memory);
        if filled.is_err() || !self.order.begin_capture(stream) {
            self.retire(&mut growth, number);
            filled?;
            return Err(Error::Capturing { what: "beginning another capture" });
        }
        growth.captures.insert(stream, number);
        Ok(Capture { pool: Arc::clone(self), stream, number, ended: false })
    }

    /// Puts memory behind all of an arena: one block of it, returned at once.
    fn fill(
        &self,
        growth: &mut Growth,
        arena: &Arena,
        stream: Stream,
        memory: Bytes,
    ) -> Result<()> {
        let size = memory.max(Bytes(1)).round_up(self.alignment).0;
        let request = Request { size: memory, stream, tag: None };
        let found = if self.page > 0 {
            let range = Bytes(size).round_up(self.page);
            let base = self.mapping()?.reserve(range)?;
            arena.lock().add_region(Region::of_pages(base, range.0, self.page), 0);
            self.take_mapping(growth, arena, request, size, true)?
        } else {
            self.take_plain_block(growth, arena, request, size)?
        };
        arena.give_back(&self.order, found.piece, found.generation, memory.0, stream);
        // Graphs that are gone have just been asked for their pages.
        self.forget_empty(growth)
    }

    /// Serves a request of a stream that is being captured, from memory that is there.
    #[cold]
    pub(super) fn allocate_captured(&self, request: Request, size: u64) -> Result<Block> {
        let number = self.growth().captures.get(&request.stream).copied();
        let arena = number.and_then(|number| self.private_arena(number));
        let arena = arena.ok_or(Error::Capturing { what: "allocating outside of the capture" })?;
        match arena.try_take(&self.order, request.stream, size, request.size.0) {
            Ok(found) => Ok(self.block(arena.number, found, request.size)),
            Err(_) => {
                let figures = arena.figures();
                let free = Bytes(figures.held - figures.taken);
                let name = format!("the memory set aside for the capture on {}", self.name);
                Err(refusal(&name, request.size, free, Bytes(figures.held)))
            }
        }
    }

    /// Ends a capture on its stream.
    fn end_capture(&self, stream: Stream) {
        self.growth().captures.remove(&stream);
        self.order.end_capture(stream);
    }

    /// Lets the memory of a graph be used again: by whoever comes, behind every stream
    /// that the pool knows of, since the graph may have run on any.
    fn retire(&self, growth: &mut Growth, number: u32) {
        if let Some(arena) = self.private_arena(number) {
            let (mut inner, users) = (arena.lock(), self.order.every_tag());
            inner.heap.tag_all_free(&users);
            // The same goes for what is still to be returned.
            inner.late_users = Some(users);
        }
        growth.retired.push(number);
    }

    /// Forgets arenas whose graph is gone and that have given everything back.
    pub(super) fn forget_empty(&self, growth: &mut Growth) -> Result<()> {
        for number in growth.retired.clone() {
            if let Some(arena) = self.private_arena(number) {
                let mut inner = arena.lock();
                if inner.figures.held > 0 || inner.figures.blocks > 0 {
                    continue;
                }
                for place in &mut inner.regions {
                    // Taken only once it has gone: a device that fails may be asked again.
                    if let Some(region) = place {
                        self.dismantle_range(growth, region)?;
                        *place = None;
                    }
                }
                self.private.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
            }
            growth.retired.retain(|other| *other != number);
        }
        Ok(())
    }
}

impl Capture {
    /// The stream that is being captured.
    #[must_use]
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Ends the capture. Its memory stays as it is until what is returned is dropped.
    #[must_use = "dropping the graph's memory lets others reuse its addresses"]
    pub fn end(mut self) -> GraphMemory {
        self.ended = true;
        self.pool.end_capture(self.stream);
        GraphMemory { pool: Arc::clone(&self.pool), number: self.number }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.ended {
            self.pool.end_capture(self.stream);
            self.pool.retire(&mut self.pool.growth(), self.number);
        }
    }
}

impl GraphMemory {
    /// Tells the pool that the graph was launched on a stream. Needed for streams that
    /// never had memory of this pool: of the others it knows.
    pub fn launched_on(&self, stream: Stream) {
        self.pool.order.tag(stream);
    }

    /// What is held for the graph.
    #[must_use]
    pub fn held(&self) -> Bytes {
        self.pool
            .private_arena(self.number)
            .map_or(Bytes::ZERO, |arena| Bytes(arena.figures().held))
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        self.pool.retire(&mut self.pool.growth(), self.number);
    }
}
