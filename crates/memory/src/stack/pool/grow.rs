//! The slow path: what to do when nothing that is mapped at home fits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::arena::{Arena, Found, Miss};
use super::tag::Tags;
use super::{Growth, Pool};
use crate::config::Packing;
use crate::memory::{Block, Memory, Request, Stream};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// About what a handle costs: created, mapped and made accessible.
const BRIEFLY: Duration = Duration::from_micros(50);

impl Pool {
    /// Serves a request that home could not serve at once: behind other streams, from
    /// another arena, or with memory from the device.
    #[cold]
    pub(super) fn allocate_elsewhere(
        &self,
        home: &Arena,
        request: Request,
        size: u64,
        miss: Miss,
    ) -> Result<Block> {
        let Request { size: asked, stream, .. } = request;
        if miss.unordered
            && let Some(found) = self.take_behind(home, stream, size, asked.0)?
        {
            return Ok(self.block(home.number, found, asked));
        }
        // Always where holding least is what counts, else as long as it does not cost too
        // much.
        let share = miss.share || self.config.packing == Packing::Tight;
        let others = || self.shared_arenas().filter(|arena| arena.number != home.number);
        if share {
            // First what lies behind events that are known to be over: nothing is asked.
            let known = others().find_map(|arena| {
                let found = arena.try_lend(&self.order, stream, size, asked.0)?;
                Some(self.block(arena.number, found, asked))
            });
            if let Some(block) = known {
                return Ok(block);
            }
            for arena in others() {
                if let Some(found) = self.take_behind(arena, stream, size, asked.0)? {
                    return Ok(self.block(arena.number, found, asked));
                }
            }
        }
        let start = Instant::now();
        let result = self.allocate_slowly(home, request, size, share);
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counts.slow.fetch_add(1, Ordering::Relaxed);
        self.counts.slow_nanos.fetch_add(nanos, Ordering::Relaxed);
        result
    }

    /// Serves a request with memory from the device.
    fn allocate_slowly(
        &self,
        home: &Arena,
        request: Request,
        size: u64,
        share: bool,
    ) -> Result<Block> {
        let Request { size: asked, stream, .. } = request;
        let mut growth = self.growth();
        // While this thread waited, another may have brought what is needed.
        if let Some(found) = self.take_behind(home, stream, size, asked.0)? {
            return Ok(self.block(home.number, found, asked));
        }
        if self.order.any_capture() {
            return Err(Error::Capturing { what: "taking more memory from the device" });
        }
        let found = if self.page > 0 {
            self.take_mapping(&mut growth, home, request, size, share)
        } else {
            self.take_segment(&mut growth, home, request, size)
        };
        match found {
            Ok(found) => Ok(self.block(home.number, found, asked)),
            Err(error) if error.is_out_of_memory() => self.last_resort(request, size, error),
            Err(error) => Err(error),
        }
    }

    /// Before a refusal: a piece of any arena, whatever sharing may cost.
    fn last_resort(&self, request: Request, size: u64, refusal: Error) -> Result<Block> {
        for arena in self.shared_arenas() {
            let found = self.take_behind(arena, request.stream, size, request.size.0)?;
            if let Some(found) = found {
                return Ok(self.block(arena.number, found, request.size));
            }
        }
        Err(refusal)
    }

    /// Takes a piece that is mapped, ordering the stream behind its last users.
    fn take_behind(
        &self,
        arena: &Arena,
        stream: Stream,
        size: u64,
        asked: u64,
    ) -> Result<Option<Found>> {
        let mut inner = arena.lock();
        let mut tried = Vec::new();
        loop {
            let fit = inner.heap.best_fit(size, usize::MAX, |node| {
                !tried.contains(&(node.region, node.offset)) && inner.suits(node, size)
            });
            let Some(piece) = fit.filter(|piece| inner.heap.node(*piece).ready >= size) else {
                return Ok(None);
            };
            let node = inner.heap.node(piece);
            if self.order.put_behind(self.device(), stream, &node.tags)? {
                let piece = inner.take_front(piece, size);
                let found = inner.hand_out(piece, asked, self.order.tag(stream));
                inner.figures.hits += 1;
                arena.publish(&mut inner);
                return Ok(Some(found));
            }
            // Its last user is being captured: nothing can be recorded there.
            let place = (node.region, node.offset);
            tried.push(place);
        }
    }

    /// Gives back what is held and not in use.
    pub(super) fn give_back_free(&self, patient: bool) -> Result<Bytes> {
        let mut growth = self.growth();
        if self.order.any_capture() {
            return Err(Error::Capturing { what: "giving memory back" });
        }
        let before = self.counts.held.load(Ordering::Relaxed);
        if patient {
            self.await_free(&growth)?;
        }
        if self.page > 0 {
            self.return_pages(&mut growth)?;
        } else {
            self.return_segments(&growth, u64::MAX)?;
        }
        self.forget_empty(&mut growth)?;
        Ok(Bytes(before.saturating_sub(self.counts.held.load(Ordering::Relaxed))))
    }

    /// Waits until the work is over that still uses what lies free. No arena is locked
    /// meanwhile, so that the work can give memory back.
    pub(super) fn await_free(&self, growth: &Growth) -> Result<()> {
        self.order.await_all(self.device(), &self.last_users(growth))
    }

    /// The same for as long as taking new memory would cost: an event that was recorded just
    /// now is never over yet, and one behind which nothing runs is over in a few microseconds.
    pub(super) fn await_briefly(&self, growth: &Growth) -> Result<()> {
        let (all, begun) = (self.last_users(growth), Instant::now());
        while !self.order.is_over(self.device(), &all)? && begun.elapsed() < BRIEFLY {
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Who has used what lies free.
    fn last_users(&self, growth: &Growth) -> Tags {
        let private = self.retired_arenas(growth);
        let mut all = Tags::NONE;
        for arena in self.shared_arenas().chain(private.iter().map(AsRef::as_ref)) {
            for (_, node) in arena.lock().heap.free_pieces() {
                all.join(&node.tags);
            }
        }
        all
    }

    /// The arenas whose graph is gone.
    pub(super) fn retired_arenas(&self, growth: &Growth) -> Vec<Arc<Arena>> {
        growth.retired.iter().filter_map(|number| self.private_arena(*number)).collect()
    }

    /// Gives everything back at the end, live or not. Goes on past failures, so that one
    /// costs no more than what it is about; the first is returned.
    pub(super) fn dismantle(&mut self) -> Result<()> {
        let mut result = self.order.await_all(self.upstream.device(), &self.order.every_tag());
        let mut growth = self.growth();
        let private = self.private_arenas();
        for arena in self.shared_arenas().chain(private.iter().map(AsRef::as_ref)) {
            for mut region in arena.lock().regions.drain(..).flatten() {
                let returned = match region.block {
                    Some(block) => self.upstream.release(block, Stream::DEFAULT),
                    None => self.dismantle_range(&mut growth, &mut region),
                };
                if returned.is_ok() && region.block.is_some() {
                    self.count_returned(region.size);
                }
                result = result.and(returned);
            }
        }
        while !growth.spare.is_empty() {
            let left = growth.spare.len();
            let destroyed = self.destroy_spare(&mut growth, 0);
            if destroyed.is_err() && growth.spare.len() == left {
                // The one that will not go is left behind, the others are not.
                growth.spare.pop();
            }
            result = result.and(destroyed);
        }
        result
    }
}
