//! The kernels by name, in which shape they are launched, and what they are given.

use plimsoll_memory::Block;

/// The kernels of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Mark,
    Count,
    Largest,
    Zeros,
    ToFloats,
    Keys,
    Digits,
    Sums,
    Move,
    Means,
    HardInsert,
    HardFill,
    HardCount,
    HardNumber,
    HardCopy,
    PlacePoints,
    PillarFeatures,
    BirdsMark,
    BirdsFill,
    ScatterKeys,
    Scatter,
    VoxelsToPoints,
}

impl Kernel {
    /// As its text names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kernel::Mark => "mark",
            Kernel::Count => "count",
            Kernel::Largest => "largest",
            Kernel::Zeros => "zeros",
            Kernel::ToFloats => "to_floats",
            Kernel::Keys => "keys",
            Kernel::Digits => "digits",
            Kernel::Sums => "sums",
            Kernel::Move => "move",
            Kernel::Means => "means",
            Kernel::HardInsert => "hard_insert",
            Kernel::HardFill => "hard_fill",
            Kernel::HardCount => "hard_count",
            Kernel::HardNumber => "hard_number",
            Kernel::HardCopy => "hard_copy",
            Kernel::PlacePoints => "place_points",
            Kernel::PillarFeatures => "pillar_features",
            Kernel::BirdsMark => "birds_mark",
            Kernel::BirdsFill => "birds_fill",
            Kernel::ScatterKeys => "scatter_keys",
            Kernel::Scatter => "scatter",
            Kernel::VoxelsToPoints => "voxels_to_points",
        }
    }
}

/// Blocks across and down, and lanes of each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelShape {
    pub(crate) blocks: [u32; 2],
    pub(crate) lanes: u32,
}

/// Lanes of a block of kernels that go over points or voxels.
const BLOCK_LANES: u32 = 256;
/// Blocks of a launch whose lanes go on until all is done: a few for each processor of the largest
/// devices.
pub(crate) const MOST_BLOCKS: u64 = 4096;

impl KernelShape {
    /// A lane for each of these.
    pub(crate) fn across(items: u64) -> KernelShape {
        let blocks = items.div_ceil(BLOCK_LANES.into()).max(1);
        KernelShape { blocks: [blocks as u32, 1], lanes: BLOCK_LANES }
    }

    /// Lanes that go on until these are done.
    pub(crate) fn over(items: u64) -> KernelShape {
        KernelShape::across(items.min(MOST_BLOCKS * u64::from(BLOCK_LANES)))
    }
}

/// What a kernel is given.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arg<'a> {
    Block(&'a Block),
    U64(u64),
    U32(u32),
    F32(f32),
}
