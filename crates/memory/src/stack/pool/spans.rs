//! Addresses at which handles are mapped one behind the other, beside where they are at home: which
//! there are, which stretches of them have free memory behind them, and how they go.

use std::collections::BTreeMap;

use super::chain::FreePart;
use super::heap::PieceId;
use super::region::Extent;
use super::tag::UseTags;
use crate::memory::{Handle, Mapping};
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

/// Handles that are mapped one behind the other, beside where they are at home.
#[derive(Debug)]
pub(super) struct Span {
    /// Where it begins.
    pub(super) address: u64,
    /// Each with its mapping, as long as it is there.
    pub(super) parts: Vec<(Extent, bool)>,
    /// All who have used memory through it.
    pub(super) users: UseTags,
    /// The pieces that are lent to the block that lies in it now, by their arenas.
    pub(super) lent: Vec<(u32, PieceId)>,
    /// When it was used last, by [`Spans::clock`].
    pub(super) used: u64,
}

/// All spans, and the addresses for others.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// By their numbers.
    pub(super) spans: BTreeMap<u64, Span>,
    /// The span of each block in lent memory, by its arena and piece.
    pub(super) loans: BTreeMap<(u32, PieceId), u64>,
    /// The number of the next span.
    next: u64,
    /// Goes on by one with each block in lent memory.
    pub(super) clock: u64,
    /// The spans that each handle is part of, and how many mappings all have.
    of_handle: BTreeMap<Handle, Vec<u64>>,
    mapped: u64,
    /// Address ranges that were set aside, and what of them is free.
    pub(super) ranges: Vec<(u64, u64)>,
    free: BTreeMap<u64, u64>,
}

impl Spans {
    /// Adds a span; returns its number.
    pub(super) fn insert(&mut self, span: Span) -> u64 {
        let number = self.next;
        self.next += 1;
        for (extent, there) in &span.parts {
            self.of_handle.entry(extent.handle).or_default().push(number);
            self.mapped += u64::from(*there);
        }
        self.spans.insert(number, span);
        number
    }

    /// Takes a span away.
    pub(super) fn remove(&mut self, number: u64) -> Option<Span> {
        let span = self.spans.remove(&number)?;
        for (extent, there) in &span.parts {
            self.mapped -= u64::from(*there);
            if let Some(numbers) = self.of_handle.get_mut(&extent.handle) {
                numbers.retain(|other| *other != number);
                if numbers.is_empty() {
                    self.of_handle.remove(&extent.handle);
                }
            }
        }
        Some(span)
    }

    /// The spans that a handle is part of.
    pub(super) fn of(&self, handle: Handle) -> &[u64] {
        self.of_handle.get(&handle).map_or(&[], Vec::as_slice)
    }

    /// How many mappings all spans have.
    pub(super) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Unmaps those parts of a span, which nobody uses. Nothing where there is no such span.
    pub(super) fn unmap(
        &mut self,
        number: u64,
        (mapping, page): (&dyn Mapping, u64),
        which: impl Fn(Handle) -> bool,
    ) -> Result<()> {
        let Some(span) = self.spans.get_mut(&number) else { return Ok(()) };
        let mut at = span.address;
        for (extent, there) in &mut span.parts {
            let bytes = extent.pages * page;
            if *there && which(extent.handle) {
                mapping.unmap(at, Bytes(bytes))?;
                *there = false;
                self.mapped -= 1;
            }
            at += bytes;
        }
        Ok(())
    }

    /// Takes addresses, the lowest that are enough.
    pub(super) fn take_addresses(&mut self, size: u64) -> Option<u64> {
        let (address, length) = self.free.iter().find(|(_, length)| **length >= size)?;
        let (address, length) = (*address, *length);
        self.free.remove(&address);
        if length > size {
            self.free.insert(address + size, length - size);
        }
        Some(address)
    }

    pub(super) fn return_addresses(&mut self, address: u64, size: u64) {
        let (mut address, mut size) = (address, size);
        // Ranges that touch are two all the same: nothing is mapped across.
        let is_border = |at: u64| self.ranges.iter().any(|(base, _)| *base == at);
        if !is_border(address + size)
            && let Some(after) = self.free.remove(&(address + size))
        {
            size += after;
        }
        if !is_border(address)
            && let Some((before, length)) = self.free.range(..address).next_back()
            && before + length == address
        {
            (address, size) = (*before, length + size);
        }
        self.free.insert(address, size);
    }

    /// The tightest stretch of a span that nobody uses and behind which all memory is free: the span,
    /// where the block begins in it, and the parts.
    pub(super) fn find(
        &self,
        free: &[FreePart],
        size: u64,
        page: u64,
    ) -> Option<(u64, u64, Vec<FreePart>)> {
        let mut by_handle: Vec<&FreePart> = free.iter().collect();
        by_handle.sort_unstable_by_key(|part| (part.extent.handle, part.from));
        let mut best: Option<(u64, u64, Vec<FreePart>)> = None;
        let mut least = u64::MAX;
        for (number, span) in self.spans.iter().filter(|(_, span)| span.lent.is_empty()) {
            span.stretches(&by_handle, page, |start, parts, length| {
                if length >= size && length < least {
                    least = length;
                    best = Some((*number, start, parts.to_vec()));
                }
            });
        }
        let (number, start, mut parts) = best?;
        let mut left = size;
        parts.retain_mut(|part| {
            part.to = part.to.min(part.from + left);
            left -= part.size();
            part.size() > 0
        });
        Some((number, start, parts))
    }
}

impl Span {
    /// Calls `visit` with where each stretch of free memory begins, its parts and its length.
    fn stretches(
        &self,
        by_handle: &[&FreePart],
        page: u64,
        mut visit: impl FnMut(u64, &[FreePart], u64),
    ) {
        let (mut parts, mut start, mut end, mut at) = (Vec::new(), 0, 0, 0);
        for (extent, there) in &self.parts {
            let first = by_handle.partition_point(|part| part.extent.handle < extent.handle);
            let of_it = by_handle[first..].iter();
            for part in of_it.take_while(|part| part.extent == *extent && *there) {
                if at + part.from > end || parts.is_empty() {
                    visit(start, &parts, end - start);
                    parts.clear();
                    start = at + part.from;
                }
                parts.push(**part);
                end = at + part.to;
            }
            at += extent.pages * page;
        }
        visit(start, &parts, end - start);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_join_within_a_range_and_not_across_two_that_touch() {
        let mut spans = Spans::default();
        for base in [100, 200] {
            spans.ranges.push((base, 100));
            spans.return_addresses(base, 100);
        }
        assert_eq!(spans.take_addresses(101), None);
        assert_eq!([60, 40].map(|size| spans.take_addresses(size)), [Some(100), Some(160)]);
        spans.return_addresses(160, 40);
        spans.return_addresses(100, 60);
        assert_eq!([100, 100].map(|size| spans.take_addresses(size)), [Some(100), Some(200)]);
    }
}
