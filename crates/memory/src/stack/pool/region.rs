//! An address range that pieces are cut from, and what is behind it.

use std::ops::Range;

use super::heap::Node;
use crate::memory::{Address, Block, Handle};

/// An address range: pages that come and go, or one plain block.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) base: Address,
    pub(super) size: u64,
    /// Bytes a page; 0 for a plain block.
    pub(super) page: u64,
    /// What is behind each page.
    pub(super) pages: Vec<Option<Handle>>,
    /// There is nothing behind this page and those after it.
    pub(super) top: usize,
    /// The plain block that it is.
    pub(super) block: Option<Block>,
}

impl Region {
    /// Addresses without memory behind them yet.
    pub(super) fn of_pages(base: u64, size: u64, page: u64) -> Region {
        let base = Address { buffer: base, offset: 0 };
        let pages = vec![None; (size / page) as usize];
        Region { base, size, page, pages, top: 0, block: None }
    }

    /// A plain block.
    pub(super) fn of_block(block: Block, size: u64) -> Region {
        let base = block.address();
        Region { base, size, page: 0, pages: Vec::new(), top: 0, block: Some(block) }
    }

    /// The pages that `[from, to)` lies on.
    pub(super) fn touched_pages(&self, from: u64, to: u64) -> Range<usize> {
        (from / self.page) as usize..to.div_ceil(self.page) as usize
    }

    /// How many of the pages that `[from, to)` lies on have nothing behind them.
    pub(super) fn missing(&self, from: u64, to: u64) -> u64 {
        let touched = self.touched_pages(from, to);
        let known = touched.start.min(self.top)..touched.end.min(self.top);
        let mapped = self.pages[known].iter().filter(|page| page.is_some()).count();
        (touched.len() - mapped) as u64
    }

    /// The whole pages inside a free piece, as far as any can be mapped.
    pub(super) fn whole_pages(&self, node: &Node) -> Range<usize> {
        if self.page == 0 {
            return 0..0;
        }
        let first = node.offset.div_ceil(self.page) as usize;
        let end = ((node.offset + node.size) / self.page) as usize;
        first..end.min(self.top).max(first)
    }

    /// How many of them are mapped.
    pub(super) fn mapped_whole(&self, node: &Node) -> usize {
        let whole = self.whole_pages(node);
        if whole.is_empty() {
            return 0;
        }
        self.pages[whole].iter().filter(|page| page.is_some()).count()
    }

    /// Whether the front of a piece is mapped, and how far that goes.
    pub(super) fn stretch(&self, node: &Node) -> (bool, u64) {
        if self.block.is_some() {
            return (true, node.size);
        }
        let end = node.offset + node.size;
        let touched = self.touched_pages(node.offset, end);
        if touched.start >= self.top {
            return (false, node.size);
        }
        let mapped = self.pages[touched.start].is_some();
        let known = &self.pages[touched.start..touched.end.min(self.top)];
        let same = known.iter().take_while(|page| page.is_some() == mapped).count();
        if same == known.len() && !mapped {
            return (false, node.size);
        }
        let reach = (touched.start + same) as u64 * self.page;
        (mapped, reach.min(end) - node.offset)
    }

    /// Finds the last mapped page again, after some were unmapped.
    pub(super) fn lower_top(&mut self) {
        while self.top > 0 && self.pages[self.top - 1].is_none() {
            self.top -= 1;
        }
    }
}
