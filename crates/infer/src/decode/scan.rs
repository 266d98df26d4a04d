//! The search for the best class of each place, over an output that lies class by class.
//!
//! A YOLOv8 or 11 head answers `[1, 4 + classes, places]`: the scores of one place are a
//! stride apart. Walking place by place would miss the cache at every step; walking a
//! whole class at a time would push the running maxima out of the nearest cache. So
//! places are taken in blocks, whose maxima stay near, and each class adds a short run of
//! neighbours to them, which is also what vectors want.

/// Places in a block.
pub(crate) const BLOCK: usize = 512;

/// The running result for a block of places.
#[derive(Debug)]
pub(crate) struct Block {
    /// How many places count.
    pub(crate) length: usize,
    /// The best score so far.
    pub(crate) best: [f32; BLOCK],
    /// Whose it is; the first class where several are equal.
    pub(crate) class: [u32; BLOCK],
    /// The sum of the scores: it is not finite where one of them is not.
    pub(crate) sum: [f32; BLOCK],
}

impl Block {
    pub(crate) fn new() -> Block {
        Block { length: 0, best: [0.0; BLOCK], class: [0; BLOCK], sum: [0.0; BLOCK] }
    }

    /// Starts anew, for so many places.
    pub(crate) fn start(&mut self, length: usize) {
        self.length = length.min(BLOCK);
        self.best = [f32::NEG_INFINITY; BLOCK];
        self.class = [0; BLOCK];
        self.sum = [0.0; BLOCK];
    }
}

/// Adds every class to a block: `rows` holds one row of `stride` scores for each class,
/// and the block begins at place `first`.
///
/// Four classes at a time, so that the running result is fetched and put back a quarter as
/// often: with one, that is most of the work.
#[inline(always)]
pub(crate) fn update(rows: &[f32], stride: usize, first: usize, block: &mut Block) {
    let stride = stride.max(1);
    let mut four = rows.chunks_exact(4 * stride);
    let mut class = 0;
    for rows in &mut four {
        let (one, rest) = rows.split_at(stride);
        let (two, rest) = rest.split_at(stride);
        let (three, four) = rest.split_at(stride);
        add([one, two, three, four], class, first, block);
        class += 4;
    }
    for row in four.remainder().chunks_exact(stride) {
        add([row], class, first, block);
        class += 1;
    }
}

/// Adds some classes, the first of which is `class`.
#[inline(always)]
fn add<const COUNT: usize>(rows: [&[f32]; COUNT], class: u32, first: usize, block: &mut Block) {
    let length = block.length.min(BLOCK);
    let rows = rows.map(|row| row.get(first..first + length).unwrap_or_default());
    if rows.iter().any(|row| row.len() != length) {
        return;
    }
    let (best, classes) = (&mut block.best[..length], &mut block.class[..length]);
    let sum = &mut block.sum[..length];
    for at in 0..length {
        let (mut most, mut whose, mut all) = (best[at], classes[at], sum[at]);
        for (offset, row) in rows.iter().enumerate() {
            let score = row[at];
            let better = score > most;
            most = if better { score } else { most };
            whose = if better { class + offset as u32 } else { whose };
            all += score;
        }
        (best[at], classes[at], sum[at]) = (most, whose, all);
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
        let mut block = Block::new();
        block.start(3);
        update(rows.as_flattened(), 4, 1, &mut block);
        assert_eq!(block.best[..3], [0.7, 0.5, 0.8]);
        assert_eq!(block.class[..3], [1, 0, 1]);
        assert!(block.sum[0].is_finite() && !block.sum[2].is_finite());
    }
}
