//! How large handles are, and how much may be held before free memory is used instead.
//!
//! A driver charges by the handle and hardly by the byte, so few large handles are cheap. But a live
//! block keeps its whole handle where it is. Where the rest of it can be lent (`lend`), handles
//! may be larger.

use std::sync::atomic::Ordering;

use super::{Growth, Pool};
use crate::config::Packing;

/// `MOST_PAGES`: a handle has at most 64 pages. From 10 to 64 pages a mapping costs the same, whatever its size; one of 128 costs two
/// thirds more.
const MOST_PAGES: u64 = 64;
/// `BUDGET_SHARE`: a handle is at most 1/128 of the budget, because one live piece in a handle
/// keeps the whole handle.
const BUDGET_SHARE: u64 = 128;
/// `HELD_SHARE`: a handle may always be 1/64 of what will be held.
const HELD_SHARE: u64 = 64;
/// `SMALL_PAGES`, `SMALL_SHARE` and `REQUEST_SHARE`: where nothing can be lent, a handle of up to 8 pages is at
/// most 1/32 of what will be held, so that small pools do not pay for large handles, or 1/4 of what one
/// request lacks, which is returned together.
const SMALL_PAGES: u64 = 8;
const SMALL_SHARE: u64 = 32;
const REQUEST_SHARE: u64 = 4;
/// `LENT_PAGES` and `LENT_SHARE`: where the free rest of a handle can be lent, so that a live block keeps less
/// from others, a handle is 1/3 of what one request lacks, up to 14 pages.
const LENT_PAGES: u64 = 14;
const LENT_SHARE: u64 = 3;
/// `UNUSED`: while at least 90 % of the slack is left, a handle is as large as what the request lacks: a program that
/// has found a use for its free memory so far probably goes on so.
const UNUSED: u64 = 90;
/// `SPREAD`: where many requests have been served for each handle that was taken or moved, handles
/// are smaller, as what they cost is spread over many: half as large from 40 on, a third from 80.
const SPREAD: u64 = 40;
/// `AHEAD_PAGES`: at most 4 pages are taken before they are needed.
const AHEAD_PAGES: u64 = 4;
/// `SLACK`, `EXTRA`: quick packing may hold 1/20 and 2 MiB more than was ever live before it
/// moves memory; 1/25 where it can lend, as a chain may need some more.
const SLACK: u64 = 20;
const LENT_SLACK: u64 = 25;
const EXTRA: u64 = 2 << 20;
/// `TIGHT_SLACK`, `TIGHT_EXTRA`: tight packing takes no new memory beyond 1/50, or 4 MiB if that is more, above what was
/// ever live before it has tried to lend.
const TIGHT_SLACK: u64 = 50;
const TIGHT_EXTRA: u64 = 4 << 20;

/// The most pages of a handle that a pool ever takes.
pub(super) fn most_pages(packing: Packing, budget: u64, page: u64) -> u64 {
    match packing {
        Packing::Quick => (budget / BUDGET_SHARE / page.max(1)).clamp(1, MOST_PAGES),
        Packing::Tight => 1,
    }
}

impl Pool {
    /// Notes what will be live with a request of this size.
    pub(super) fn note_live(&self, growth: &mut Growth, size: u64) {
        let live: u64 = self.shared_arenas().map(|arena| arena.figures().taken).sum();
        growth.most_live = growth.most_live.max(live + size);
    }

    /// What is held, but for the memory of graphs that are there, which serves no request.
    fn held_for_requests(&self, growth: &Growth) -> u64 {
        let graphs = self.private_arenas();
        let graphs = graphs.iter().filter(|arena| !growth.retired.contains(&arena.number));
        let graphs: u64 = graphs.map(|arena| arena.figures().held).sum();
        self.counts.held.load(Ordering::Relaxed).saturating_sub(graphs)
    }

    /// What will be held beyond what was ever live with this many pages more.
    fn excess(&self, growth: &Growth, pages: u64) -> u64 {
        let held = self.held_for_requests(growth).saturating_add(pages.saturating_mul(self.page));
        held.saturating_sub(growth.most_live)
    }

    /// How much quick packing may hold beyond what was ever live before it uses what lies free.
    fn slack(&self, growth: &Growth) -> u64 {
        growth.most_live / if self.can_alias { LENT_SLACK } else { SLACK } + EXTRA
    }

    /// Whether this many pages may be taken from the device though memory lies free: what is
    /// held beyond what was ever live is so little that it saves more than it costs.
    pub(super) fn may_grow(&self, growth: &Growth, pages: u64) -> bool {
        pages <= self.room_to_grow(growth)
    }

    /// How many pages may be taken from the device though memory lies free.
    pub(super) fn room_to_grow(&self, growth: &Growth) -> u64 {
        if self.most == 1 {
            return 0;
        }
        let room = growth.most_live + self.slack(growth);
        room.saturating_sub(self.held_for_requests(growth)) / self.page
    }

    /// Whether tight packing may take this many pages from the device before it lends.
    pub(super) fn stays_tight(&self, growth: &Growth, pages: u64) -> bool {
        self.excess(growth, pages) <= TIGHT_EXTRA.max(growth.most_live / TIGHT_SLACK)
    }

    /// The fewest pages that are taken from the device at a time, and the most by one
    /// handle: more, as the pool grows and for a large request; less, the more was asked for since.
    pub(super) fn handle_pages(&self, growth: &Growth, missing: u64) -> (u64, u64) {
        let pages = self.counts.held.load(Ordering::Relaxed) / self.page + missing;
        let share = pages / HELD_SHARE;
        let most = if !self.can_alias {
            let part = (missing / REQUEST_SHARE).max(pages / SMALL_SHARE);
            part.clamp(1, SMALL_PAGES)
        } else if self.excess(growth, missing) <= self.slack(growth) / 100 * (100 - UNUSED) {
            missing
        } else {
            (missing / LENT_SHARE).min(LENT_PAGES)
        };
        let brought = self.counts.taken.load(Ordering::Relaxed)
            + self.counts.remapped.load(Ordering::Relaxed);
        let parts = 1 + self.requests() / (SPREAD * brought.max(1));
        let most = (share.max(most).min(self.most) / parts).max(1);
        (share.clamp(1, AHEAD_PAGES).min(most), most)
    }
}
