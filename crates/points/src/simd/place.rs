//! From coordinates to voxels, many at a time.
//!
//! Points are triples (or have one feature), vectors are not. So every number is worked on for
//! itself, as one long row in which origin, size and extent repeat with the points: no shuffling. Each
//! becomes its share of the voxel's place (its cell times the step of its axis), and three
//! shares are added up. A share outside is so large that every sum with one in it is past
//! the largest grid that this form is used for.

use crate::grid::VoxelGrid;

/// Where there is no voxel: this or more.
pub(crate) const NOWHERE: u32 = 1 << 30;
/// Points at a time: coordinates and places stay in the first-level cache.
pub(crate) const BLOCK: usize = 512;
/// Points of a block of vectors: its patterns are a multiple of every vector.
const POINTS: usize = 16;
/// Numbers of a block of points without features, and with one.
const TRIPLES: usize = 3 * POINTS;
const FOURS: usize = 4 * POINTS;
/// Added to a whole number from 0 below 2²³, it leaves that number in the low bits.
const WHOLE: f32 = 8_388_608.0;

/// The rule of a grid of at most 2³⁰ voxels, laid out for vectors.
#[derive(Debug, Clone)]
pub(crate) struct SimdPlaces {
    triples: BlockRule<TRIPLES>,
    fours: BlockRule<FOURS>,
}

/// The rule for each number of a block. A feature has that of the coordinate before it, and its share
/// is left out.
#[derive(Debug, Clone)]
struct BlockRule<const N: usize> {
    origin: [f32; N],
    size: [f32; N],
    extent: [f32; N],
    step: [u32; N],
}

impl<const N: usize> BlockRule<N> {
    fn new(grid: &VoxelGrid) -> BlockRule<N> {
        let axis = |i: usize| (i % (N / POINTS)).min(2);
        let steps = grid.steps();
        BlockRule {
            origin: std::array::from_fn(|i| grid.origin()[axis(i)]),
            size: std::array::from_fn(|i| grid.size()[axis(i)]),
            extent: std::array::from_fn(|i| grid.cells()[axis(i)] as f32),
            // Below 2³⁰, as the whole grid is.
            step: std::array::from_fn(|i| steps[axis(i)] as u32),
        }
    }
}

impl SimdPlaces {
    /// Nothing for a grid that is too large.
    pub(crate) fn new(grid: &VoxelGrid) -> Option<SimdPlaces> {
        (grid.voxels() <= u64::from(NOWHERE))
            .then(|| SimdPlaces { triples: BlockRule::new(grid), fours: BlockRule::new(grid) })
    }
}

/// The voxel of each point, or [`NOWHERE`] and more; `stride` floats for each of `out`.
#[inline(always)]
pub(crate) fn places(rule: &SimdPlaces, floats: &[f32], stride: usize, out: &mut [u32]) {
    match stride {
        3 => whole_blocks(&rule.triples, floats, out),
        4 => whole_blocks(&rule.fours, floats, out),
        _ => {
            let mut block = [f32::NAN; TRIPLES];
            for (points, out) in floats.chunks(POINTS * stride).zip(out.chunks_mut(POINTS)) {
                for (to, from) in block.chunks_exact_mut(3).zip(points.chunks_exact(stride)) {
                    to.copy_from_slice(&from[..3]);
                }
                let mut places = [0; POINTS];
                one_block(&rule.triples, &block, &mut places);
                out.iter_mut().zip(places).for_each(|(to, from)| *to = from);
            }
        }
    }
}

/// The same where floats lie as the pattern does.
#[inline(always)]
fn whole_blocks<const N: usize>(rule: &BlockRule<N>, floats: &[f32], out: &mut [u32]) {
    let (blocks, rest) = floats.as_chunks::<N>();
    let (outs, last) = out.as_chunks_mut::<POINTS>();
    for (block, out) in blocks.iter().zip(outs) {
        one_block(rule, block, out);
    }
    let (mut block, mut places) = ([f32::NAN; N], [0; POINTS]);
    block.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    one_block(rule, &block, &mut places);
    last.iter_mut().zip(places).for_each(|(to, from)| *to = from);
}

#[inline(always)]
fn one_block<const N: usize>(rule: &BlockRule<N>, block: &[f32; N], out: &mut [u32; POINTS]) {
    let mut shares = [0u32; N];
    for i in 0..N {
        let cell = ((block[i] - rule.origin[i]) / rule.size[i]).floor();
        let number = (cell + WHOLE).to_bits() & 0x7F_FFFF;
        let inside = cell >= 0.0 && cell < rule.extent[i];
        shares[i] = if inside { number.wrapping_mul(rule.step[i]) } else { NOWHERE };
    }
    for (place, share) in out.iter_mut().zip(shares.chunks_exact(N / POINTS)) {
        *place = share[0] + share[1] + share[2];
    }
}
