//! Pages of physical memory, moved to where they are needed.

use std::sync::atomic::Ordering;

use super::arena::{Arena, Found, Inner, Region};
use super::heap::{Key, NONE, Piece};
use super::{Growth, Pool};
use crate::error::{Error, Result};
use crate::memory::{Address, Handle, Mapping, Memory, Request};
use crate::units::Bytes;

/// An arena's address range: this many times the budget, so that it hardly ever fills.
const RANGE: u64 = 8;

/// A place for a request, and what must be mapped there.
struct Place {
    /// A free piece of the run that it lies in.
    piece: Piece,
    /// Where it begins in the region.
    from: u64,
    missing: u64,
}

/// Pages that were unmapped and are not yet mapped elsewhere.
#[derive(Default)]
struct Hand {
    pages: Vec<Handle>,
    moved: u64,
}

impl Pool {
    fn mapping(&self) -> Result<&dyn Mapping> {
        self.upstream.mapping().ok_or_else(|| Error::Unavailable {
            what: "mapping physical memory".to_string(),
            why: format!("{} has stopped offering it", self.upstream.name()),
        })
    }

    /// Serves a request by mapping pages: first those that lie free, then new ones.
    pub(super) fn take_mapping(
        &self,
        growth: &mut Growth,
        home: &Arena,
        request: Request,
        size: u64,
    ) -> Result<Found> {
        let (found, missing) = self.claim(home, request, size)?;
        let mut hand = Hand::default();
        let held = self.counts.held.load(Ordering::Relaxed);
        let mapped = self
            .gather(growth, &mut hand, missing, request.size)
            .and_then(|()| self.map_all(home, found.piece, &mut hand));
        let mut inner = home.lock();
        inner.settle_around(found.piece);
        // What was gathered and not used is kept for the next request.
        self.keep(growth, hand);
        if let Err(error) = mapped {
            inner.undo(found.piece);
            home.publish(&mut inner);
            // A refusal must not cost memory: what was taken for it goes back.
            self.destroy_spare(growth, held)?;
            return Err(error);
        }
        inner.count(found.piece, request.size.0);
        inner.figures.misses += 1;
        home.publish(&mut inner);
        Ok(found)
    }

    /// Finds a place and makes it live before its pages are there, so that nobody else
    /// gets it meanwhile and no page of it is taken for free. It is counted when they are,
    /// so that what others publish meanwhile never has more taken than held.
    fn claim(&self, home: &Arena, request: Request, size: u64) -> Result<(Found, u64)> {
        let mut inner = home.lock();
        let place = self.find_place(&mut inner, size)?;
        let (piece, sides) = inner.heap.carve(place.piece, place.from, place.from + size);
        let tags = inner.heap.node(piece).tags.clone();
        inner.heap.make_live(piece);
        for side in sides.into_iter().filter(|side| *side != NONE) {
            inner.settle(side);
        }
        let behind = self.order.put_behind(self.device(), request.stream, &tags);
        if !matches!(behind, Ok(true)) {
            // Free again, with its last users: nothing is ordered behind them.
            inner.undo(piece);
            behind?;
            return Err(Error::Capturing { what: "taking memory that a captured stream has used" });
        }
        let found = inner.own(piece, request.size.0, self.order.tag(request.stream));
        Ok((found, place.missing))
    }

    /// Where to put a request: tight packing wants the smallest piece that holds it,
    /// quick packing the place that needs the fewest pages.
    fn find_place(&self, inner: &mut Inner, size: u64) -> Result<Place> {
        if let Some(place) = self.search(inner, size) {
            return Ok(place);
        }
        self.add_range(inner)?;
        self.search(inner, size).ok_or_else(|| self.refusal(Bytes(size)))
    }

    fn search(&self, inner: &Inner, size: u64) -> Option<Place> {
        let place = |piece: Piece, from: u64| {
            let region = inner.region(inner.heap.node(piece))?;
            Some(Place { piece, from, missing: inner.missing(region, from, from + size) })
        };
        if inner.heap.key() == Key::Length {
            let piece = inner.heap.best_fit(size, usize::MAX, |_| true)?;
            return place(piece, inner.heap.node(piece).offset);
        }
        // From the start of each piece, and up to its end, as far as the run reaches.
        let mut best: Option<(u64, u64, Place)> = None;
        for (piece, node) in inner.heap.free_pieces() {
            let run = inner.heap.run(piece);
            let left = Some(node.offset).filter(|from| from + size <= run.end);
            let end = node.offset + node.size;
            let right = end.checked_sub(size).filter(|from| *from >= run.start);
            for place in [left, right].into_iter().flatten().filter_map(|from| place(piece, from)) {
                if best.as_ref().is_none_or(|(n, s, _)| (place.missing, node.size) < (*n, *s)) {
                    best = Some((place.missing, node.size, place));
                }
            }
        }
        best.map(|(_, _, place)| place)
    }

    fn add_range(&self, inner: &mut Inner) -> Result<()> {
        let size = self.budget.saturating_mul(RANGE).round_up(self.page);
        let base = self.mapping()?.reserve(size)?;
        let pages = vec![None; (size.0 / self.page) as usize];
        let base = Address { buffer: base, offset: 0 };
        inner.add_region(Region { base, size: size.0, pages, top: 0, block: None }, 0);
        Ok(())
    }

    /// Gets pages: spare ones, free ones from elsewhere, and new ones, in that order.
    fn gather(&self, growth: &mut Growth, hand: &mut Hand, pages: u64, asked: Bytes) -> Result<()> {
        let enough = |hand: &Hand| hand.pages.len() as u64 >= pages;
        while !enough(hand) {
            let Some(page) = growth.spare.pop() else { break };
            self.counts.spare.fetch_sub(self.page, Ordering::Release);
            hand.pages.push(page);
        }
        if !enough(hand) {
            self.collect(growth, hand, pages, false)?;
        }
        if !enough(hand) {
            self.create(hand, pages)?;
        }
        if !enough(hand) {
            // Full: now it is worth waiting for work that still holds free pages.
            self.collect(growth, hand, pages, true)?;
        }
        if enough(hand) { Ok(()) } else { Err(self.refusal(asked)) }
    }

    /// Takes pages from the device until there are enough, or no more may be had.
    fn create(&self, hand: &mut Hand, pages: u64) -> Result<()> {
        let room = self.room()? / self.page;
        let short = pages.saturating_sub(hand.pages.len() as u64);
        for _ in 0..short.min(room) {
            match self.mapping()?.create(Bytes(self.page)) {
                Ok(handle) => hand.pages.push(handle),
                Err(error) if error.is_out_of_memory() => break,
                Err(error) => return Err(error),
            }
            self.count_held(self.page);
        }
        Ok(())
    }

    /// Unmaps whole free pages until there are enough, from the longest stretches first.
    fn collect(&self, growth: &Growth, hand: &mut Hand, pages: u64, patient: bool) -> Result<()> {
        let private: Vec<_> =
            growth.retired.iter().filter_map(|number| self.private_arena(*number)).collect();
        let arenas: Vec<&Arena> =
            self.shared_arenas().chain(private.iter().map(AsRef::as_ref)).collect();
        let mut stretches = Vec::new();
        for (index, arena) in arenas.iter().enumerate() {
            let inner = arena.lock();
            stretches.extend(inner.heap.free_pieces().filter_map(|(piece, node)| {
                let range = inner.whole_pages(node);
                let region = inner.region(node)?;
                let mapped = region.pages[range.start as usize..range.end as usize]
                    .iter()
                    .filter(|page| page.is_some())
                    .count();
                (mapped > 0).then_some((mapped, index, piece, node.generation))
            }));
        }
        stretches.sort_unstable_by_key(|(mapped, ..)| std::cmp::Reverse(*mapped));
        for (_, index, piece, _) in stretches {
            let short = pages.saturating_sub(hand.pages.len() as u64);
            if short == 0 {
                break;
            }
            let mut inner = arenas[index].lock();
            let unmapped = self.unmap_free(&mut inner, piece, hand, short, patient);
            arenas[index].publish(&mut inner);
            unmapped?;
        }
        Ok(())
    }

    /// Unmaps up to `most` whole pages of a free piece, from its end.
    fn unmap_free(
        &self,
        inner: &mut Inner,
        piece: Piece,
        hand: &mut Hand,
        most: u64,
        patient: bool,
    ) -> Result<()> {
        let Some(node) = inner.heap.get(piece).cloned() else { return Ok(()) };
        // The arena was unlocked meanwhile: the piece may be gone, live or another one.
        if node.state != super::heap::State::Free
            || !self.order.is_over(self.device(), &node.tags, patient)?
        {
            return Ok(());
        }
        let range = inner.whole_pages(&node);
        inner.heap.unsettle(piece);
        let mut left = most;
        let mut result = Ok(());
        for number in range.rev() {
            let Some(region) = inner.region_mut(node.region).filter(|_| left > 0) else { break };
            let Some(handle) = region.pages[number as usize] else { continue };
            let address = region.base.pointer() + number * self.page;
            result = self.mapping().and_then(|mapping| mapping.unmap(address, Bytes(self.page)));
            if result.is_err() {
                break;
            }
            region.pages[number as usize] = None;
            inner.figures.held -= self.page;
            hand.pages.push(handle);
            hand.moved += 1;
            left -= 1;
        }
        inner.lower_top(node.region);
        inner.settle(piece);
        result
    }

    /// Maps pages wherever a piece has none.
    fn map_all(&self, home: &Arena, piece: Piece, hand: &mut Hand) -> Result<()> {
        let mapping = self.mapping()?;
        let mut inner = home.lock();
        let node = inner.heap.node(piece).clone();
        let pages = node.offset / self.page..(node.offset + node.size).div_ceil(self.page);
        for number in pages {
            let Some(region) = inner.region_mut(node.region) else { break };
            if region.pages[number as usize].is_some() {
                continue;
            }
            let Some(handle) = hand.pages.pop() else {
                return Err(self.refusal(Bytes(node.size)));
            };
            let address = region.base.pointer() + number * self.page;
            if let Err(error) = mapping.map(address, handle, Bytes(self.page)) {
                hand.pages.push(handle);
                return Err(error);
            }
            region.pages[number as usize] = Some(handle);
            region.top = region.top.max(number as usize + 1);
            inner.figures.held += self.page;
            if hand.moved > 0 {
                hand.moved -= 1;
                self.counts.remapped.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn keep(&self, growth: &mut Growth, hand: Hand) {
        self.counts.spare.fetch_add(self.page * hand.pages.len() as u64, Ordering::Release);
        growth.spare.extend(hand.pages);
    }

    /// Gives back every whole page that lies free.
    pub(super) fn return_pages(&self, growth: &mut Growth, patient: bool) -> Result<()> {
        let mut hand = Hand::default();
        let collected = self.collect(growth, &mut hand, u64::MAX, patient);
        self.keep(growth, hand);
        collected?;
        self.destroy_spare(growth, 0)
    }

    /// Gives spare pages back until no more than so much is held.
    pub(super) fn destroy_spare(&self, growth: &mut Growth, held: u64) -> Result<()> {
        while self.counts.held.load(Ordering::Relaxed) > held {
            let Some(handle) = growth.spare.pop() else { break };
            if let Err(error) = self.mapping()?.destroy(handle, Bytes(self.page)) {
                growth.spare.push(handle);
                return Err(error);
            }
            self.counts.spare.fetch_sub(self.page, Ordering::Release);
            self.count_returned(self.page);
        }
        Ok(())
    }

    /// Gives an address range back with all that is mapped there.
    pub(super) fn dismantle_range(&self, growth: &mut Growth, region: &Region) -> Result<()> {
        let mapping = self.mapping()?;
        for (number, handle) in region.pages.iter().enumerate() {
            let Some(handle) = handle else { continue };
            mapping.unmap(region.base.pointer() + number as u64 * self.page, Bytes(self.page))?;
            self.counts.spare.fetch_add(self.page, Ordering::Release);
            growth.spare.push(*handle);
        }
        mapping.unreserve(region.base.pointer(), Bytes(region.size))
    }
}
