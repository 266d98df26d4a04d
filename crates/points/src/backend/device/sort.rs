//! Points by key, stably: the kernels of `features.h`, four bits at a time from the lowest.

use plimsoll_memory::{Block, Result};

use super::{Arg, Kernel, KernelShape};

/// Lanes of a block that the kernels are written for.
const LANES: u32 = 256;
/// Points of a tile, and digits that it counts.
const TILE: u64 = 2048;
const DIGITS: u64 = 16;

/// What points are sorted in: keys and numbers twice, as each round moves them, and counts of
/// digits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SortBlocks {
    pub(crate) keys: [Block; 2],
    pub(crate) numbers: [Block; 2],
    pub(crate) histogram: Block,
}

impl SortBlocks {
    /// For so many points, with keys of 32 bits.
    pub(crate) fn new(
        points: u64,
        mut take: impl FnMut(u64) -> Result<Block>,
    ) -> Result<SortBlocks> {
        let mut room = || take(points.saturating_mul(4));
        let (keys, numbers) = ([room()?, room()?], [room()?, room()?]);
        Ok(SortBlocks { keys, numbers, histogram: take(histogram_bytes(points))? })
    }
}

/// Bytes of the histogram for so many points.
pub(crate) fn histogram_bytes(points: u64) -> u64 {
    points.div_ceil(TILE).max(1) * DIGITS * 4
}

/// Sorts the first keys and numbers; `largest` is the largest key. Gives where keys and numbers
/// ended up.
pub(crate) fn sort(
    blocks: &SortBlocks,
    points: u64,
    largest: u64,
    launch: impl Fn(Kernel, KernelShape, &[Arg<'_>]) -> Result<()>,
) -> Result<(Block, Block)> {
    let SortBlocks { keys: [mut keys, mut to_keys], numbers, histogram } = *blocks;
    let [mut numbers, mut to_numbers] = numbers;
    let tiles = points.div_ceil(TILE).max(1);
    let tiled = KernelShape { blocks: [u32::try_from(tiles).unwrap_or(u32::MAX), 1], lanes: LANES };
    let single = KernelShape { blocks: [1, 1], lanes: LANES };
    for shift in (0..u64::BITS - largest.leading_zeros()).step_by(4) {
        let (total, digit) = (Arg::U64(points), Arg::U32(shift));
        let counts = Arg::Block(&histogram);
        launch(Kernel::Digits, tiled, &[Arg::Block(&keys), total, digit, counts])?;
        launch(Kernel::Sums, single, &[counts, Arg::U64(tiles * DIGITS)])?;
        let from = [Arg::Block(&keys), Arg::Block(&numbers), total, digit];
        let to = [&histogram, &to_keys, &to_numbers].map(Arg::Block);
        launch(Kernel::Move, tiled, &[&from[..], &to].concat())?;
        std::mem::swap(&mut keys, &mut to_keys);
        std::mem::swap(&mut numbers, &mut to_numbers);
    }
    Ok((keys, numbers))
}
