//! From coordinates to voxels, many at a time.
//!
//! Points are triples, vectors are not. So every coordinate is worked on for itself, as one
//! long row in which origin, size and extent repeat every three numbers: no shuffling. Each
//! becomes its share of the voxel's place (its cell times the step of its axis), and three
//! shares are added up. A share outside is so large that every sum with one in it is past
//! the largest grid that this form is used for.

use crate::grid::VoxelGrid;

/// Where there is no voxel: this or more.
pub(crate) const NOWHERE: u32 = 1 << 30;
/// Points at a time: coordinates and places stay in the first-level cache.
pub(crate) const BLOCK: usize = 512;
/// Points of a block of vectors: its patterns are 48 numbers long, a multiple of 3 and of every vector.
const POINTS: usize = 16;
const NUMBERS: usize = 3 * POINTS;
/// Added to a whole number from 0 below 2²³, it leaves that number in the low bits.
const WHOLE: f32 = 8_388_608.0;

/// The rule of a grid of at most 2³⁰ voxels, laid out for vectors.
#[derive(Debug, Clone)]
pub(crate) struct SimdPlaces {
    origin: [f32; NUMBERS],
    size: [f32; NUMBERS],
    extent: [f32; NUMBERS],
    step: [u32; NUMBERS],
}

impl SimdPlaces {
    /// Nothing for a grid that is too large.
    pub(crate) fn new(grid: &VoxelGrid) -> Option<SimdPlaces> {
        let steps = grid.steps();
        (grid.voxels() <= u64::from(NOWHERE)).then(|| SimdPlaces {
            origin: std::array::from_fn(|i| grid.origin()[i % 3]),
            size: std::array::from_fn(|i| grid.size()[i % 3]),
            extent: std::array::from_fn(|i| grid.cells()[i % 3] as f32),
            // Below 2³⁰, as the whole grid is.
            step: std::array::from_fn(|i| steps[i % 3] as u32),
        })
    }
}

/// The voxel of each point, or [`NOWHERE`] and more; three coordinates for each of `out`.
#[inline(always)]
pub(crate) fn places(rule: &SimdPlaces, coordinates: &[f32], out: &mut [u32]) {
    let mut blocks = coordinates.chunks_exact(NUMBERS);
    let mut outs = out.chunks_exact_mut(POINTS);
    for (block, out) in (&mut blocks).zip(&mut outs) {
        if let (Ok(block), Ok(out)) = (block.try_into(), out.try_into()) {
            one_block(rule, block, out);
        }
    }
    let (rest, out) = (blocks.remainder(), outs.into_remainder());
    let (mut block, mut last) = ([f32::NAN; NUMBERS], [0; POINTS]);
    block.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    one_block(rule, &block, &mut last);
    out.iter_mut().zip(last).for_each(|(to, from)| *to = from);
}

#[inline(always)]
fn one_block(rule: &SimdPlaces, block: &[f32; NUMBERS], out: &mut [u32; POINTS]) {
    let mut shares = [0u32; NUMBERS];
    for i in 0..NUMBERS {
        let cell = ((block[i] - rule.origin[i]) / rule.size[i]).floor();
        let number = (cell + WHOLE).to_bits() & 0x7F_FFFF;
        let inside = cell >= 0.0 && cell < rule.extent[i];
        shares[i] = if inside { number.wrapping_mul(rule.step[i]) } else { NOWHERE };
    }
    for (place, share) in out.iter_mut().zip(shares.chunks_exact(3)) {
        *place = share[0] + share[1] + share[2];
    }
}

/// The coordinates of at most [`BLOCK`] points alone, one triple after the other.
pub(crate) fn triples<'a>(
    block: &'a [f32],
    stride: usize,
    packed: &'a mut [f32; 3 * BLOCK],
) -> &'a [f32] {
    if stride == 3 {
        return block;
    }
    let count = block.len() / stride;
    for (to, from) in packed.chunks_exact_mut(3).zip(block.chunks_exact(stride)) {
        to.copy_from_slice(&from[..3]);
    }
    &packed[..3 * count]
}
