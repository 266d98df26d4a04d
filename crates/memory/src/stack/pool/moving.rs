//! Pages of physical memory, moved to where they are needed.

use std::sync::atomic::Ordering;

use super::arena::{Arena, Inner};
use super::heap::{Piece, State};
use super::{Growth, Pool};
use crate::error::Result;
use crate::memory::{Handle, Memory};
use crate::units::Bytes;

/// Nanoseconds that moving a page costs.
const MOVED: u64 = 50_000;

/// Physical memory of one page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    handle: Handle,
    size: u64,
}

/// Pages that are mapped nowhere, on their way to a place of pages of one size.
pub(super) struct Hand {
    /// Of the size that is wanted.
    pages: Vec<Page>,
    /// Of another size: they are given back, so that as much can be taken instead.
    odd: Vec<Page>,
    page: u64,
    moved: u64,
    /// Whether free pages are moved before new ones are taken.
    thrifty: bool,
}

impl Hand {
    /// Nothing yet, for pages of this size.
    pub(super) fn of(page: u64) -> Hand {
        Hand { pages: Vec::new(), odd: Vec::new(), page, moved: 0, thrifty: true }
    }

    /// The same, but new pages are taken before free ones are moved.
    pub(super) fn prefer_new(mut self) -> Hand {
        self.thrifty = false;
        self
    }

    /// Nanoseconds that the pages which were moved have cost, as measured on a device.
    pub(super) fn cost(&self) -> u64 {
        self.moved * MOVED
    }

    pub(super) fn add(&mut self, handle: Handle, size: u64) {
        let list = if size == self.page { &mut self.pages } else { &mut self.odd };
        list.push(Page { handle, size });
    }

    fn bytes(&self) -> u64 {
        self.pages.iter().chain(&self.odd).map(|page| page.size).sum()
    }
}

impl Pool {
    /// Gets pages: spare ones, free ones from elsewhere, and new ones, in that order.
    pub(super) fn gather(
        &self,
        growth: &mut Growth,
        hand: &mut Hand,
        pages: u64,
        asked: Bytes,
    ) -> Result<()> {
        let enough = |hand: &Hand| hand.pages.len() as u64 >= pages;
        let bytes = pages * hand.page;
        while hand.bytes() < bytes {
            let Some(Page { handle, size }) = growth.spare.pop() else { break };
            self.counts.spare.fetch_sub(size, Ordering::Release);
            hand.add(handle, size);
        }
        if hand.thrifty && hand.bytes() < bytes {
            self.collect(growth, hand, bytes)?;
        }
        self.exchange(hand, pages)?;
        if !hand.thrifty && !enough(hand) {
            self.collect(growth, hand, bytes)?;
            self.exchange(hand, pages)?;
        }
        if !enough(hand) {
            // Full: now it is worth waiting for work that still holds free pages.
            self.await_free(growth)?;
            self.collect(growth, hand, bytes)?;
            self.exchange(hand, pages)?;
        }
        if enough(hand) { Ok(()) } else { Err(self.refusal(asked)) }
    }

    /// Gives pages of the wrong size back, and takes as many of the right one as are
    /// needed, or as may be had.
    fn exchange(&self, hand: &mut Hand, pages: u64) -> Result<()> {
        let mapping = self.mapping()?;
        while let Some(page) = hand.odd.pop() {
            if let Err(error) = mapping.destroy(page.handle, Bytes(page.size)) {
                hand.odd.push(page);
                return Err(error);
            }
            self.count_returned(page.size);
        }
        let short = pages.saturating_sub(hand.pages.len() as u64);
        if short == 0 {
            return Ok(());
        }
        for _ in 0..short.min(self.room()? / hand.page) {
            match mapping.create(Bytes(hand.page)) {
                Ok(handle) => hand.add(handle, hand.page),
                Err(error) if error.is_out_of_memory() => break,
                Err(error) => return Err(error),
            }
            self.count_held(hand.page);
        }
        Ok(())
    }

    /// Unmaps whole free pages until there are enough: those of the right size and in
    /// the longest stretches first.
    fn collect(&self, growth: &Growth, hand: &mut Hand, bytes: u64) -> Result<()> {
        let private = self.retired_arenas(growth);
        let arenas: Vec<&Arena> =
            self.shared_arenas().chain(private.iter().map(AsRef::as_ref)).collect();
        let mut stretches = Vec::new();
        for (index, arena) in arenas.iter().enumerate() {
            let inner = arena.lock();
            stretches.extend(inner.heap.free_pieces().filter_map(|(piece, node)| {
                let region = inner.region(node)?;
                let mapped = region.mapped_whole(node);
                (mapped > 0).then_some((region.page == hand.page, mapped, index, piece))
            }));
        }
        stretches.sort_unstable_by_key(|(right, mapped, ..)| std::cmp::Reverse((*right, *mapped)));
        for (_, _, index, piece) in stretches {
            if hand.bytes() >= bytes {
                break;
            }
            let mut inner = arenas[index].lock();
            let unmapped = self.unmap_free(&mut inner, piece, hand, bytes);
            arenas[index].publish(&mut inner);
            unmapped?;
        }
        Ok(())
    }

    /// Unmaps whole pages of a free piece, from its end, until there are enough.
    fn unmap_free(
        &self,
        inner: &mut Inner,
        piece: Piece,
        hand: &mut Hand,
        bytes: u64,
    ) -> Result<()> {
        let mapping = self.mapping()?;
        let Some(node) = inner.heap.get(piece).cloned() else { return Ok(()) };
        // The arena was unlocked meanwhile: the piece may be gone, live or another one.
        if node.state != State::Free || !self.order.is_over(self.device(), &node.tags)? {
            return Ok(());
        }
        inner.heap.unsettle(piece);
        let mut result = Ok(());
        let mut unmapped = 0;
        if let Some(region) = inner.region_mut(node.region) {
            for number in region.whole_pages(&node).rev() {
                if hand.bytes() >= bytes || result.is_err() {
                    break;
                }
                let Some(handle) = region.pages[number] else { continue };
                let address = region.base.pointer() + number as u64 * region.page;
                result = mapping.unmap(address, Bytes(region.page));
                if result.is_ok() {
                    region.pages[number] = None;
                    unmapped += region.page;
                    hand.add(handle, region.page);
                    hand.moved += 1;
                }
            }
            region.lower_top();
        }
        inner.figures.held -= unmapped;
        inner.settle(piece);
        result
    }

    /// Maps pages wherever a piece has none.
    pub(super) fn map_all(&self, home: &Arena, piece: Piece, hand: &mut Hand) -> Result<()> {
        let mapping = self.mapping()?;
        let mut inner = home.lock();
        let node = inner.heap.node(piece).clone();
        let mut mapped = 0;
        let mut result = Ok(());
        if let Some(region) = inner.region_mut(node.region) {
            for number in region.touched_pages(node.offset, node.offset + node.size) {
                if region.pages[number].is_some() {
                    continue;
                }
                let Some(page) = hand.pages.pop() else {
                    result = Err(self.refusal(Bytes(node.size)));
                    break;
                };
                let address = region.base.pointer() + number as u64 * region.page;
                if let Err(error) = mapping.map(address, page.handle, Bytes(region.page)) {
                    hand.pages.push(page);
                    result = Err(error);
                    break;
                }
                region.pages[number] = Some(page.handle);
                region.top = region.top.max(number + 1);
                mapped += region.page;
            }
        }
        inner.figures.held += mapped;
        inner.shared += hand.cost();
        let moved = hand.moved.min(mapped / hand.page);
        self.counts.remapped.fetch_add(moved, Ordering::Relaxed);
        result
    }

    /// Keeps pages for the next request.
    pub(super) fn keep(&self, growth: &mut Growth, hand: Hand) {
        self.counts.spare.fetch_add(hand.bytes(), Ordering::Release);
        growth.spare.extend(hand.pages);
        growth.spare.extend(hand.odd);
    }

    /// Gives back every whole page that lies free.
    pub(super) fn return_pages(&self, growth: &mut Growth) -> Result<()> {
        let mut hand = Hand::of(self.page);
        let collected = self.collect(growth, &mut hand, u64::MAX);
        self.keep(growth, hand);
        collected?;
        self.destroy_spare(growth, 0)
    }

    /// Gives spare pages back until no more than so much is held.
    pub(super) fn destroy_spare(&self, growth: &mut Growth, held: u64) -> Result<()> {
        while self.counts.held.load(Ordering::Relaxed) > held {
            let Some(page) = growth.spare.pop() else { break };
            if let Err(error) = self.mapping()?.destroy(page.handle, Bytes(page.size)) {
                growth.spare.push(page);
                return Err(error);
            }
            self.counts.spare.fetch_sub(page.size, Ordering::Release);
            self.count_returned(page.size);
        }
        Ok(())
    }
}
