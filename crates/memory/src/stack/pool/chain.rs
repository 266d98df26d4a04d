//! Free parts of handles, joined to one stretch of addresses. It calls no device.
//!
//! A handle is mapped as a whole, so only its end can be followed by other memory and only its front
//! can follow other memory. A *chain* is therefore the free end of one handle, handles that are
//! wholly free, and the free front of another, mapped one behind the other.

use super::region::Extent;

/// A part of a handle that lies free at the place that the handle backs.
#[derive(Debug, Clone, Copy)]
pub(super) struct FreePart {
    pub(super) extent: Extent,
    /// Where the handle is: its arena, its region, and the bytes before it there.
    pub(super) arena: u32,
    pub(super) region: u32,
    pub(super) base: u64,
    /// The part, in bytes from the start of the handle.
    pub(super) from: u64,
    pub(super) to: u64,
}

impl FreePart {
    pub(super) fn size(&self) -> u64 {
        self.to - self.from
    }

    /// In the order of addresses: numbers of pieces are an accident.
    fn place(&self) -> (u32, u32, u64) {
        (self.arena, self.region, self.base + self.from)
    }
}

/// The free parts by what they can be in a chain.
#[derive(Debug, Default)]
struct Links {
    /// Ends and fronts, the smallest first.
    ends: Vec<FreePart>,
    fronts: Vec<FreePart>,
    /// Handles that are wholly free, the largest first.
    wholes: Vec<FreePart>,
}

impl Links {
    fn of(free: &[FreePart], page: u64) -> Links {
        let mut links = Links::default();
        for part in free {
            match (part.from == 0, part.to == part.extent.pages * page) {
                (true, true) => links.wholes.push(*part),
                (true, false) => links.fronts.push(*part),
                (false, true) => links.ends.push(*part),
                (false, false) => {}
            }
        }
        links.ends.sort_unstable_by_key(|part| (part.size(), part.place()));
        links.fronts.sort_unstable_by_key(|part| (part.size(), part.place()));
        links.wholes.sort_unstable_by_key(|part| (u64::MAX - part.size(), part.place()));
        links
    }

    /// An end and a front that hold `size` together, or one of them that does, with the least
    /// to spare: those with fewer parts first.
    fn pair(&self, ends: &[FreePart], size: u64) -> Option<[Option<FreePart>; 2]> {
        let least = |parts: &[FreePart]| {
            parts.get(parts.partition_point(|part| part.size() < size)).copied()
        };
        let single = match (least(ends), least(&self.fronts)) {
            (Some(end), Some(front)) if front.size() < end.size() => Some([None, Some(front)]),
            (Some(end), _) => Some([Some(end), None]),
            (None, front) => front.map(|front| [None, Some(front)]),
        };
        if single.is_some() {
            return single;
        }
        let mut best: Option<(u64, [Option<FreePart>; 2])> = None;
        for end in ends {
            let first = self.fronts.partition_point(|part| end.size() + part.size() < size);
            let other = |part: &&FreePart| part.extent.handle != end.extent.handle;
            let Some(front) = self.fronts[first..].iter().find(other) else { continue };
            let both = end.size() + front.size();
            if best.as_ref().is_none_or(|(least, _)| both < *least) {
                best = Some((both, [Some(*end), Some(*front)]));
            }
        }
        best.map(|(_, pair)| pair)
    }
}

/// The chain of the fewest parts, and among those with the least to spare, that holds `size`
/// bytes; at most of `most` parts.
pub(super) fn find(free: &[FreePart], size: u64, page: u64, most: usize) -> Option<Vec<FreePart>> {
    let links = Links::of(free, page);
    let largest = |parts: &[FreePart]| parts.last().map_or(0, FreePart::size);
    let (end, front) = (largest(&links.ends), largest(&links.fronts));
    let mut rest = size;
    // The largest free handles lie in the middle: one that is larger than the rest is enough by itself.
    for between in 0..=links.wholes.len().min(most) {
        let (middle, others) = links.wholes.split_at(between);
        // A handle that is wholly free can also be used from somewhere inside on.
        let next = others.first().map_or(0, FreePart::size);
        if rest <= end.max(next) + front {
            let mut ends = links.ends.clone();
            ends.extend(others);
            ends.sort_unstable_by_key(|part| (part.size(), part.place()));
            let pair = if rest == 0 { Some([None, None]) } else { links.pair(&ends, rest) };
            if let Some([end, front]) = pair {
                let middle = middle.iter().copied();
                let parts: Vec<_> = end.into_iter().chain(middle).chain(front).collect();
                return (parts.len() <= most).then(|| shave(parts, size));
            }
        }
        rest = rest.saturating_sub(next);
    }
    None
}

/// How many pages of new memory make a chain possible: of as few handles as can be where `enough` pages
/// may be new, else as few pages as can be.
pub(super) fn lacking(free: &[FreePart], size: u64, page: u64, enough: u64) -> u64 {
    let links = Links::of(free, page);
    let largest = |parts: &[FreePart]| parts.last().map_or(0, FreePart::size);
    let mut rest = size.saturating_sub(largest(&links.ends) + largest(&links.fronts));
    for part in &links.wholes {
        if rest.div_ceil(page) <= enough {
            break;
        }
        rest = rest.saturating_sub(part.size());
    }
    rest.div_ceil(page)
}

/// Leaves away what is more than `size`: at the start of an end, else at the end of a front.
fn shave(mut parts: Vec<FreePart>, size: u64) -> Vec<FreePart> {
    let more = parts.iter().map(FreePart::size).sum::<u64>().saturating_sub(size);
    let starts_inside = parts.len() > 1 || parts.first().is_some_and(|part| part.from > 0);
    match parts.as_mut_slice() {
        [first, ..] if starts_inside && more < first.size() => first.from += more,
        [.., last] => last.to -= more.min(last.size()),
        [] => {}
    }
    parts
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::Handle;

    const PAGE: u64 = 100;

    fn part(handle: u64, from: u64, to: u64) -> FreePart {
        let extent = Extent { handle: Handle(handle), pages: 3 };
        FreePart { extent, arena: 0, region: 0, base: handle * 1_000, from, to }
    }

    fn found(free: &[FreePart], size: u64) -> Option<Vec<(u64, u64, u64)>> {
        let parts = find(free, size, PAGE, 4)?;
        Some(parts.iter().map(|part| (part.extent.handle.0, part.from, part.to)).collect())
    }

    #[test]
    fn an_end_and_a_front_make_one_stretch() {
        let free = [part(1, 200, 300), part(2, 0, 150), part(3, 100, 200), part(4, 0, 240)];
        assert_eq!(found(&free, 220), Some(vec![(4, 0, 220)]), "one part is enough");
        assert_eq!(found(&free, 245), Some(vec![(1, 205, 300), (2, 0, 150)]), "the tightest");
        assert_eq!(found(&free, 341), None, "the middle of a handle joins nothing");
    }

    #[test]
    fn handles_that_are_free_lie_between_them() {
        let free = [part(1, 200, 300), part(2, 0, 150), part(3, 0, 300), part(5, 0, 300)];
        assert_eq!(found(&free, 400), Some(vec![(3, 50, 300), (2, 0, 150)]));
        let all = [(1, 200, 300), (3, 0, 300), (5, 0, 300), (2, 0, 150)];
        assert_eq!(found(&free, 850), Some(all.to_vec()));
        assert_eq!(found(&free, 851), None);
        assert_eq!(find(&free, 850, PAGE, 3).map(|parts| parts.len()), None);
        let same = [part(1, 200, 300), part(1, 0, 150)];
        assert_eq!(found(&same, 200), None, "one handle is mapped once in a chain");
    }
}
