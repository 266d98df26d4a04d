//! The loops with AVX2.

use std::arch::x86_64::{
    _mm_sfence, _mm_stream_ps, _mm256_and_si256, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_cmpeq_epi32, _mm256_extractf128_ps, _mm256_set1_epi32, _mm256_setr_epi32,
    _mm256_storeu_ps,
};

use super::place::{self, SimdPlaces};
use super::spread;

#[target_feature(enable = "avx2")]
pub(super) fn places(rule: &SimdPlaces, floats: &[f32], stride: usize, out: &mut [u32]) {
    place::places(rule, floats, stride, out);
}

#[target_feature(enable = "avx2")]
pub(super) fn bytes(words: &[u64], out: &mut [u8]) {
    spread::bytes(words, out);
}

/// Eight floats at a time; past the caches only where the output is aligned to half of them,
/// as everything is that an allocator gives (large blocks of glibc's lie 16 bytes behind a page,
/// so whole vectors would never do).
#[target_feature(enable = "avx2")]
pub(super) fn floats(words: &[u64], out: &mut [f32], past: bool) {
    let whole = (out.len() / 64).min(words.len());
    let past = past && out.as_ptr().addr().is_multiple_of(16);
    let mask = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let one = _mm256_set1_epi32(1.0f32.to_bits() as i32);
    for (word, out) in words.iter().zip(out.chunks_exact_mut(64)) {
        for (byte, out) in word.to_le_bytes().into_iter().zip(out.chunks_exact_mut(8)) {
            let picked = _mm256_and_si256(_mm256_set1_epi32(i32::from(byte)), mask);
            let lit = _mm256_and_si256(_mm256_cmpeq_epi32(picked, mask), one);
            let lit = _mm256_castsi256_ps(lit);
            // SAFETY: the chunk has eight floats, and streaming stores of four are used only
            // where the first of them all, and so every fourth, lies on a multiple of 16 bytes.
            unsafe {
                if past {
                    _mm_stream_ps(out.as_mut_ptr(), _mm256_castps256_ps128(lit));
                    _mm_stream_ps(out.as_mut_ptr().add(4), _mm256_extractf128_ps::<1>(lit));
                } else {
                    _mm256_storeu_ps(out.as_mut_ptr(), lit);
                }
            }
        }
    }
    if past {
        _mm_sfence();
    }
    spread::floats(
        words.get(whole..).unwrap_or_default(),
        out.get_mut(whole * 64..).unwrap_or_default(),
    );
}
