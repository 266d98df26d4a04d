//! The kernels' text, and what is defined for one compilation of it.
//!
//! CUDA and OpenCL compile the same text; `dialect.h` names what differs. What a kernel can be
//! told before it is compiled (how long a point is, whether a voxel's number needs 64 bits) is
//! a definition and costs nothing when it runs.

use super::{Arg, KernelShape};
use crate::backend::VoxelPiece;
use crate::grid::VoxelGrid;
use crate::network::{CoordinateOrder, HardSpec};
use crate::spec::{VoxelMode, VoxelSpec};

/// The whole program.
pub(crate) const SOURCE: &str = concat!(
    include_str!("../../kernels/dialect.h"),
    include_str!("../../kernels/place.h"),
    include_str!("../../kernels/occupancy.h"),
    include_str!("../../kernels/shared.h"),
    include_str!("../../kernels/early.h"),
    include_str!("../../kernels/direct.h"),
    include_str!("../../kernels/gate.h"),
    include_str!("../../kernels/exchange.h"),
    include_str!("../../kernels/features.h"),
);

/// A program: its text, and what is defined for one compilation of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ProgramText {
    pub(crate) source: &'static str,
    pub(crate) flags: Vec<String>,
}

/// The program of hard voxelization.
const HARD_SOURCE: &str = concat!(
    include_str!("../../kernels/dialect.h"),
    include_str!("../../kernels/place.h"),
    include_str!("../../kernels/early.h"),
    include_str!("../../kernels/features.h"),
    include_str!("../../kernels/voxel_place.h"),
    include_str!("../../kernels/hard.h"),
    include_str!("../../kernels/hard_runs.h"),
);

/// The program of what else networks take of points and pillars.
const NETWORK_SOURCE: &str = concat!(
    include_str!("../../kernels/dialect.h"),
    include_str!("../../kernels/place.h"),
    include_str!("../../kernels/features.h"),
    include_str!("../../kernels/voxel_place.h"),
    include_str!("../../kernels/network.h"),
);

/// The program of scatters.
const SCATTER_SOURCE: &str = concat!(
    include_str!("../../kernels/dialect.h"),
    include_str!("../../kernels/place.h"),
    include_str!("../../kernels/features.h"),
    include_str!("../../kernels/scatter.h"),
);

/// Pillars whose features a block makes, and features of the image that a block writes
/// (`network.h`).
pub(crate) const BLOCK_PILLARS: u64 = 8;
pub(crate) const BLOCK_FEATURES: u64 = 16;

/// Blocks that make the features of so many pillars.
pub(crate) fn pillar_shape(pillars: u64) -> KernelShape {
    let blocks = pillars.div_ceil(BLOCK_PILLARS).max(1);
    KernelShape { blocks: [blocks as u32, 1], lanes: HARD_LANES }
}

/// Lanes of a block of hard voxelization; `sums` is written for as many.
pub(crate) const HARD_LANES: u32 = 256;

/// Runs of a voxel's list (CUDA), behind the two that lie in the table: enough for most voxels of
/// those who want as many points of one, as runs that come later take longer.
fn hard_list(spec: &HardSpec) -> u64 {
    if spec.max_points() > 16 { 64 } else { 32 }
}

/// Blocks of the second kernel (CUDA) that run on a processor at a time, by the registers that each
/// gets: more of them were slower, as were fewer.
const FILL_BLOCKS: usize = 5;

/// What every program over the points and voxels of a spec defines.
fn spec_flags(spec: &HardSpec, columns: usize, ragged: bool) -> Vec<(&'static str, usize)> {
    let (grid, form) = (spec.grid(), spec.form());
    vec![
        ("STRIDE", columns),
        ("WIDE", usize::from(grid.voxels() >= 1 << 32)),
        ("WIDE_KEYS", 0),
        ("WHOLE", 1),
        ("DIVISION", Division::of(grid) as usize),
        ("RAGGED", ragged.into()),
        ("OUT_U8", 0),
        ("MAX_POINTS", spec.max_points() as usize),
        ("COORDINATES", form.columns()),
        ("ORDER_XYZ", usize::from(form.order == CoordinateOrder::Xyz)),
    ]
}

fn text(source: &'static str, flags: &[(&str, usize)]) -> ProgramText {
    let flags = flags.iter().map(|(name, value)| format!("-D{name}={value}")).collect();
    ProgramText { source, flags }
}

/// The program that makes hard voxels of points of so many columns. `ragged` says that clouds
/// differ in length.
pub(crate) fn hard_text(spec: &HardSpec, columns: usize, ragged: bool) -> ProgramText {
    let mut flags = spec_flags(spec, columns, ragged);
    flags.extend([
        ("LIST", hard_list(spec) as usize),
        ("HARD_LANES", HARD_LANES as usize),
        ("FILL_BLOCKS", FILL_BLOCKS),
    ]);
    text(HARD_SOURCE, &flags)
}

/// The program that makes places of points of so many columns, features of their pillars, and
/// images.
pub(crate) fn network_text(spec: &HardSpec, columns: usize) -> ProgramText {
    text(NETWORK_SOURCE, &spec_flags(spec, columns, false))
}

/// The program that scatters.
pub(crate) fn scatter_text() -> ProgramText {
    let flags = ["WIDE", "WIDE_KEYS", "DIVISION", "RAGGED", "OUT_U8"].map(|name| (name, 0));
    text(SCATTER_SOURCE, &[&flags[..], &[("STRIDE", 3), ("WHOLE", 1)]].concat())
}

/// Whether CUDA's kernels can tell apart the cells of a grid, and so many points of a launch.
pub(crate) fn hard_fits(spec: &HardSpec, points: u64) -> bool {
    points < 1 << 27 && spec.grid().voxels() < (1 << 36) - 1
}

/// Slots of a table for so many points: few meet another cell's on the way.
pub(crate) fn hard_slots(points: u64) -> u64 {
    points.saturating_mul(2).max(16)
}

/// Bytes of a slot (CUDA), of a voxel's list, and of its row.
pub(crate) fn hard_slot_bytes(spec: &HardSpec) -> [u64; 3] {
    let row = (u64::from(spec.max_points()) + 1).saturating_mul(4);
    [16, hard_list(spec).saturating_mul(4), row]
}

/// The numbers of a grid as every kernel over points takes them, then those of a launch: its first
/// voxel and how many, the points of each cloud, and the clouds.
pub(crate) fn grid_arguments(grid: &VoxelGrid, launch: [u64; 4]) -> [Arg<'static>; 16] {
    let [origin, size] = [grid.origin(), grid.size()].map(|numbers| numbers.map(Arg::F32));
    let factor = grid.size().map(|size| Arg::F32(1.0 / size));
    let axes = [origin, size, factor, grid.cells().map(Arg::U32)];
    let mut arguments = [Arg::U64(0); 16];
    let numbers = axes.into_iter().flatten().chain(launch.map(Arg::U64));
    arguments.iter_mut().zip(numbers).for_each(|(to, number)| *to = number);
    arguments
}

/// What is defined for one compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Defines {
    /// Floats of a point.
    pub(crate) stride: usize,
    /// Whether the grid has 2³² voxels or more.
    pub(crate) wide: bool,
    /// Whether sorting keys need 64 bits.
    pub(crate) wide_keys: bool,
    /// Whether a piece is all of a grid.
    pub(crate) whole: bool,
    /// How quotients are had.
    pub(crate) division: Division,
    /// Whether clouds differ in length.
    pub(crate) ragged: bool,
    /// Whether occupancy is made on the device as bytes.
    pub(crate) bytes: bool,
}

impl Defines {
    /// For what is made of pieces whose keys reach so far.
    pub(crate) fn of(piece: &VoxelPiece<'_>, keys: u64) -> Defines {
        let spec = piece.spec;
        let voxels = spec.grid().voxels();
        Defines {
            stride: stride_of(spec),
            wide: voxels >= 1 << 32,
            wide_keys: spec.mode() == VoxelMode::Mean && keys >= u64::from(u32::MAX),
            whole: piece.voxels == (0..voxels),
            division: Division::of(spec.grid()),
            ragged: true,
            bytes: false,
        }
    }

    /// The program that it is of.
    pub(crate) fn text(&self) -> ProgramText {
        let flag = |name: &str, value: usize| format!("-D{name}={value}");
        let flags = vec![
            flag("STRIDE", self.stride),
            flag("WIDE", self.wide.into()),
            flag("WIDE_KEYS", self.wide_keys.into()),
            flag("WHOLE", self.whole.into()),
            flag("DIVISION", self.division as usize),
            flag("RAGGED", self.ragged.into()),
            flag("OUT_U8", self.bytes.into()),
        ];
        ProgramText { source: SOURCE, flags }
    }
}

/// How a kernel has the quotient of a difference and a size (`place.h`). What decides is
/// speed alone: each gives the cell that an exact division gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Division {
    /// The language's own.
    Plain = 0,
    /// The product with the reciprocal, rounded down.
    Product = 1,
    /// Corrected once.
    Once = 2,
    /// Corrected twice, which is proven for all sizes within 2⁻³⁶..2³⁶.
    Twice = 3,
}

/// Beyond this the trial of every boundary would be felt.
const MOST_TRIED: u32 = 1 << 16;

impl Division {
    /// The quickest that is right for the sizes and extents of a grid.
    ///
    /// Both quick ones are within a few units of the exact quotient, so the cell can be wrong
    /// only a few floats from a whole multiple of the size, and these are tried, all of them.
    /// A size above 1 might make a quotient vanish that is not zero; it is left to the others.
    pub(crate) fn of(grid: &VoxelGrid) -> Division {
        if grid.size().iter().any(|size| !is_ordinary(*size)) {
            return Division::Plain;
        }
        let small = grid.size().iter().all(|size| *size <= 1.0);
        if !small || grid.cells().iter().any(|extent| *extent > MOST_TRIED) {
            return Division::Twice;
        }
        let right = |division: Division| {
            let axes = grid.size().into_iter().zip(grid.cells());
            axes.into_iter().all(|(size, extent)| division.is_right(size, extent))
        };
        let quick = [Division::Product, Division::Once];
        quick.into_iter().find(|division| right(*division)).unwrap_or(Division::Twice)
    }

    fn is_right(self, size: f32, extent: u32) -> bool {
        (1..=extent).all(|cell| {
            let near = (f64::from(cell) * f64::from(size)) as f32;
            let near = near.to_bits();
            (near - 6..=near + 6).all(|bits| {
                let difference = f32::from_bits(bits);
                self.cell(difference, size) == f64::from((difference / size).floor())
            })
        })
    }

    /// The cell that a kernel finds, in the same operations.
    fn cell(self, difference: f32, size: f32) -> f64 {
        let inverse = 1.0 / size;
        let corrected = |q: f32| (-size).mul_add(q, difference).mul_add(inverse, q);
        let quotient = difference * inverse;
        match self {
            Division::Plain => f64::from(difference / size).floor(),
            // A product of two singles is exact in double precision.
            Division::Product => (f64::from(difference) * f64::from(inverse)).floor(),
            Division::Once => f64::from(corrected(quotient)).floor(),
            Division::Twice => f64::from(corrected(corrected(quotient))).floor(),
        }
    }
}

/// Within 2⁻³⁶..2³⁶, where the correction is proven.
fn is_ordinary(size: f32) -> bool {
    let exponent = (size.to_bits() >> 23) as i32 - 127;
    (-36..36).contains(&exponent)
}

/// Floats of a point as a device gets them: without features where they say nothing.
pub(crate) fn stride_of(spec: &VoxelSpec) -> usize {
    match spec.mode() {
        VoxelMode::Occupancy | VoxelMode::Count => 3,
        VoxelMode::Mean | VoxelMode::Max => 3 + spec.planes() as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Corrected twice, in the operations of `place.h`.
    fn quotient(difference: f32, size: f32) -> f32 {
        let inverse = 1.0 / size;
        let corrected = |q: f32| (-size).mul_add(q, difference).mul_add(inverse, q);
        corrected(corrected(difference * inverse))
    }

    #[test]
    fn the_quick_division_is_the_exact_one() {
        let mut state = 0x0123_4567_89AB_CDEFu64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 32) as u32
        };
        for _ in 0..2_000_000 {
            // Any significand; exponents over the whole of what is promised.
            let size = f32::from_bits((127 - 36 + next() % 72) << 23 | next() & 0x7F_FFFF);
            let exponent = 127 - 60 + next() % 120;
            let difference = f32::from_bits(exponent << 23 | next() & 0x807F_FFFF);
            assert!(is_ordinary(size));
            let (quick, exact) = (quotient(difference, size), difference / size);
            assert_eq!(quick.to_bits(), exact.to_bits(), "{difference:e} / {size:e}");
        }
    }

    #[test]
    fn the_quickest_that_is_right_is_chosen() {
        let of = |size: f32, cells: u32| {
            Division::of(&VoxelGrid::new([cells; 3], [size; 3], [0.0; 3]).unwrap())
        };
        assert_eq!(of(1.0 / 128.0, 128), Division::Product);
        assert_eq!(of(0.25, 1024), Division::Product);
        assert_eq!(of(0.1, 512), Division::Once);
        assert_eq!(of(3.7, 10), Division::Twice);
        assert_eq!(of(0.1, 1 << 20), Division::Twice);
        assert_eq!(of(1e-12, 10), Division::Plain);
    }

    /// Every float, not only those that were tried, in a grid whose steps are awkward.
    #[test]
    fn what_was_not_tried_is_right_too() {
        for size in [0.1f32, 0.3, 1.0 / 3.0, 0.007, 1.0 / 128.0] {
            let grid = VoxelGrid::new([300; 3], [size; 3], [0.0; 3]).unwrap();
            let division = Division::of(&grid);
            let last = (size * 300.0).to_bits();
            for bits in (1..last + 1000).step_by(977) {
                let difference = f32::from_bits(bits);
                let exact = f64::from((difference / size).floor());
                assert_eq!(division.cell(difference, size), exact, "{difference} / {size}");
            }
        }
    }
}
