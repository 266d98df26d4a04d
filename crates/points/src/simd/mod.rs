//! The inner loops, compiled for the instructions that this machine has.
//!
//! The loops are plain Rust ([`place`], [`spread`]). A binary for every x86-64 machine may use
//! SSE2 alone, where rounding down is a function call, so each is compiled once more with AVX2
//! and chosen when it is called. Stores that pass the caches by are written by hand: a grid
//! that is larger than them would only push everything else out.
//!
//! This and `sys` are the only places in the crate with unsafe code.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "instructions are chosen when the program runs")
)]

pub(crate) mod place;
pub(crate) mod spread;
#[cfg(target_arch = "x86_64")]
mod x86;

use place::SimdPlaces;

/// The places of whole points: see [`place::places`].
pub(crate) fn places(rule: &SimdPlaces, floats: &[f32], stride: usize, out: &mut [u32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the twin needs AVX2, and it was just found to be there.
        return unsafe { x86::places(rule, floats, stride, out) };
    }
    place::places(rule, floats, stride, out);
}

/// Bits into floats: see [`spread::floats`]. `past` says that the output is too large for
/// the caches, which are then left to others.
pub(crate) fn floats(words: &[u64], out: &mut [f32], past: bool) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the twin needs AVX2, and it was just found to be there.
        return unsafe { x86::floats(words, out, past) };
    }
    let _ = past;
    spread::floats(words, out);
}

/// Bits into bytes: see [`spread::bytes`].
pub(crate) fn bytes(words: &[u64], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the twin needs AVX2, and it was just found to be there.
        return unsafe { x86::bytes(words, out) };
    }
    spread::bytes(words, out);
}

/// Has an element on its way to the caches, for whoever will need it soon.
#[inline(always)]
pub(crate) fn fetch<T>(slice: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(element) = slice.get(index) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address is that of an element, and nothing is read from it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, index);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::VoxelGrid;

    #[test]
    fn the_chosen_loops_do_what_the_plain_ones_do() {
        let words: Vec<u64> = (0..40u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        for voxels in [0, 1, 7, 8, 63, 64, 65, 1000, 2500] {
            for past in [false, true] {
                // From a place that is not aligned, too.
                for start in [0, 3, 4] {
                    let (mut plain, mut chosen) = (vec![5.0; voxels + 4], vec![5.0; voxels + 4]);
                    spread::floats(&words, &mut plain[start..]);
                    floats(&words, &mut chosen[start..], past);
                    assert_eq!(plain, chosen);
                }
            }
            let (mut plain, mut chosen) = (vec![5; voxels], vec![5; voxels]);
            spread::bytes(&words, &mut plain);
            bytes(&words, &mut chosen);
            assert_eq!(plain, chosen);
        }
    }

    #[test]
    fn places_are_those_of_the_rule() {
        let grid = VoxelGrid::new([5, 6, 7], [0.1, 0.2, 0.3], [-0.3, 0.1, 0.0]).unwrap();
        let rule = SimdPlaces::new(&grid).unwrap();
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match state >> 28 {
                0 => f32::from_bits(state.rotate_left(9)),
                1 => (state >> 20 & 15) as f32 * 0.1 - 0.3,
                2 => f32::from_bits(((state >> 20 & 15) as f32 * 0.1).to_bits().wrapping_sub(1)),
                _ => (state >> 8) as f32 / (1 << 24) as f32 * 2.4 - 0.4,
            }
        };
        for stride in [3, 4, 5] {
            let points: Vec<f32> = (0..stride * 50_003).map(|_| next()).collect();
            let (mut plain, mut chosen) = (vec![0; 50_003], vec![0; 50_003]);
            place::places(&rule, &points, stride, &mut plain);
            places(&rule, &points, stride, &mut chosen);
            assert_eq!(plain, chosen);
            for (point, place) in points.chunks_exact(stride).zip(&plain) {
                let voxel = grid.voxel([point[0], point[1], point[2]]);
                let place = (*place < place::NOWHERE).then_some(u64::from(*place));
                assert_eq!(voxel, place, "{point:?}");
            }
        }
    }
}
