//! The search for the best class of each place, over an output that lies class by class.
//!
//! A YOLOv8 or 11 head answers `[1, 4 + classes, places]`: the scores of one place are a
//! stride apart. Walking place by place would miss the cache at every step; walking a
//! whole class at a time would push the running maxima out of the nearest cache. So
//! places are taken in blocks, long enough that the machine reads ahead along a row and
//! short enough that the maxima stay near.
//!
//! Almost all places are below the threshold, so that the first walk keeps the maxima
//! alone: whose they are, and whether all the scores are numbers, is looked up for the
//! few groups of places that hold a candidate, while their scores are still near.

/// Places in a block.
pub(crate) const BLOCK: usize = 2048;

/// Places that are looked up together.
pub(crate) const GROUP: usize = 16;

/// The running maxima of a block of places.
#[derive(Debug)]
pub(crate) struct ScanBlock {
    /// How many places count.
    pub(crate) length: usize,
    /// The best score so far; NaN is ignored.
    pub(crate) best: [f32; BLOCK],
}

impl ScanBlock {
    pub(crate) fn new() -> ScanBlock {
        ScanBlock { length: 0, best: [0.0; BLOCK] }
    }

    /// Starts anew, for this many places.
    pub(crate) fn start(&mut self, length: usize) {
        self.length = length.min(BLOCK);
        self.best = [f32::NEG_INFINITY; BLOCK];
    }
}

/// What was looked up for a group of places.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    /// The first class that has the best score.
    pub(crate) class: [u32; GROUP],
    /// The sum of the scores: it is not finite where one of them is not.
    pub(crate) sum: [f32; GROUP],
}

impl Group {
    pub(crate) fn new() -> Group {
        Group { class: [0; GROUP], sum: [0.0; GROUP] }
    }
}

/// Adds every class to a block: `rows` holds one row of `stride` scores for each class,
/// and the block begins at place `first`.
///
/// Eight classes at a time, so that the running result is fetched and put back an eighth as
/// often: with one, that is most of the work.
#[inline(always)]
pub(crate) fn maxima(rows: &[f32], stride: usize, first: usize, block: &mut ScanBlock) {
    let stride = stride.max(1);
    let rest = by::<8>(rows, stride, first, block);
    let rest = by::<4>(rest, stride, first, block);
    by::<1>(rest, stride, first, block);
}

/// Adds as many classes as there are by this many at a time, and gives back the rest.
#[inline(always)]
fn by<'rows, const COUNT: usize>(
    rows: &'rows [f32],
    stride: usize,
    first: usize,
    block: &mut ScanBlock,
) -> &'rows [f32] {
    let mut all = rows.chunks_exact(COUNT * stride);
    for some in &mut all {
        let row = |at: usize| &some[at * stride..][..stride];
        add::<COUNT>(std::array::from_fn(row), first, block);
    }
    all.remainder()
}

#[inline(always)]
fn add<const COUNT: usize>(rows: [&[f32]; COUNT], first: usize, block: &mut ScanBlock) {
    let length = block.length.min(BLOCK);
    let rows = rows.map(|row| row.get(first..first + length).unwrap_or_default());
    if rows.iter().any(|row| row.len() != length) {
        return;
    }
    let best = &mut block.best[..length];
    for at in 0..length {
        let mut most = best[at];
        for row in rows {
            most = if row[at] > most { row[at] } else { most };
        }
        best[at] = most;
    }
}

/// Looks up whose the best scores are, for as many places from `first` on as `best` has.
#[inline(always)]
pub(crate) fn owners(rows: &[f32], stride: usize, first: usize, best: &[f32], group: &mut Group) {
    *group = Group::new();
    let length = best.len().min(GROUP);
    let mut most = [f32::NAN; GROUP];
    most[..length].copy_from_slice(&best[..length]);
    // From the last class to the first, so that the first of equals is what stays.
    for (class, row) in rows.chunks_exact(stride.max(1)).enumerate().rev() {
        let mut scores = [0.0; GROUP];
        let Some(row) = row.get(first..first + length) else { return };
        if let Some(whole) = row.first_chunk::<GROUP>() {
            scores = *whole;
        } else {
            scores[..length].copy_from_slice(row);
        }
        for at in 0..GROUP {
            let here = scores[at] == most[at];
            group.class[at] = if here { class as u32 } else { group.class[at] };
            group.sum[at] += scores[at];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_first_best_class_and_marks_what_is_not_a_number() {
        // Three classes, four places; the block begins at the second.
        let rows = [
            [0.9, 0.1, 0.5, f32::NAN], //
            [0.0, 0.7, 0.5, 0.8],
            [0.0, 0.2, 0.4, 0.1],
        ];
        let rows = rows.as_flattened();
        let mut block = ScanBlock::new();
        block.start(3);
        maxima(rows, 4, 1, &mut block);
        assert_eq!(block.best[..3], [0.7, 0.5, 0.8]);
        let mut group = Group::new();
        owners(rows, 4, 1, &block.best[..3], &mut group);
        assert_eq!(group.class[..3], [1, 0, 1]);
        assert!(group.sum[0].is_finite() && !group.sum[2].is_finite());
    }

    #[test]
    fn blocks_and_groups_agree_with_a_plain_search_at_every_length() {
        let (classes, places) = (15, BLOCK + GROUP + 3);
        let score = |at: usize| (at * 7919 % 1009) as f32 / 1009.0;
        let rows: Vec<f32> = (0..classes * places).map(score).collect();
        let mut block = ScanBlock::new();
        for first in [0, 5, GROUP, BLOCK, places - 1] {
            block.start(places - first);
            maxima(&rows, places, first, &mut block);
            for start in (0..block.length).step_by(GROUP) {
                let end = (start + GROUP).min(block.length);
                let mut group = Group::new();
                owners(&rows, places, first + start, &block.best[start..end], &mut group);
                for at in start..end {
                    let of = |class: usize| rows[class * places + first + at];
                    let most = (0..classes).map(of).fold(f32::NEG_INFINITY, f32::max);
                    let class = (0..classes).position(|class| of(class) == most);
                    assert_eq!(block.best[at], most);
                    assert_eq!(Some(group.class[at - start] as usize), class);
                }
            }
        }
    }
}
