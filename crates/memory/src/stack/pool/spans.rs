//! Addresses at which handles are mapped one behind the other, beside where they are at home: which
//! there are, which stretches of them have free memory behind them. It calls no device.

use std::collections::BTreeMap;

use super::chain::FreePart;
use super::heap::PieceId;
use super::region::Extent;
use super::tag::UseTags;

/// Handles that are mapped one behind the other, beside where they are at home.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) address: u64,
    /// Each with its mapping, as long as it is there.
    pub(super) parts: Vec<(Extent, bool)>,
    /// All who have used memory through it.
    pub(super) users: UseTags,
    /// The pieces that are lent to the block that lies in it now, by their arenas.
    pub(super) lent: Vec<(u32, PieceId)>,
    pub(super) used: u64,
}

/// All spans, and the addresses for others.
#[derive(Debug, Default)]
pub(super) struct Spans {
    pub(super) spans: BTreeMap<u64, Span>,
    /// The span of each block in lent memory, by its arena and piece.
    pub(super) loans: BTreeMap<(u32, PieceId), u64>,
    pub(super) next: u64,
    /// Address ranges that were set aside, and what of them is free.
    pub(super) ranges: Vec<(u64, u64)>,
    free: BTreeMap<u64, u64>,
}

impl Spans {
    pub(super) fn mappings(&self) -> u64 {
        let mapped = self.spans.values().flat_map(|span| &span.parts).filter(|(_, there)| *there);
        mapped.count() as u64
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
        if let Some(after) = self.free.remove(&(address + size)) {
            size += after;
        }
        if let Some((before, length)) = self.free.range(..address).next_back()
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
