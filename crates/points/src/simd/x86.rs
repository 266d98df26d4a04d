//! The loops with AVX2.

use std::arch::x86_64::{
    _mm_sfence, _mm256_and_si256, _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_set1_epi32,
    _mm256_setr_epi32, _mm256_storeu_ps, _mm256_stream_ps,
};

use super::place::{self, Places};
use super::spread;

#[target_feature(enable = "avx2")]
pub(super) fn places(rule: &Places, coordinates: &[f32], out: &mut [u32]) {
    place::places(rule, coordinates, out);
}

#[target_feature(enable = "avx2")]
pub(super) fn bytes(words: &[u64], out: &mut [u8]) {
    spread::bytes(words, out);
}

/// Eight floats at a time; past the caches only where the output is aligned to a vector.
#[target_feature(enable = "avx2")]
pub(super) fn floats(words: &[u64], out: &mut [f32], past: bool) {
    let whole = (out.len() / 64).min(words.len());
    let past = past && out.as_ptr().addr().is_multiple_of(32);
    let mask = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let one = _mm256_set1_epi32(1.0f32.to_bits() as i32);
    for (word, out) in words.iter().zip(out.chunks_exact_mut(64)) {
        for (byte, out) in word.to_le_bytes().into_iter().zip(out.chunks_exact_mut(8)) {
            let picked = _mm256_and_si256(_mm256_set1_epi32(i32::from(byte)), mask);
            let lit = _mm256_and_si256(_mm256_cmpeq_epi32(picked, mask), one);
            let lit = _mm256_castsi256_ps(lit);
            // SAFETY: the chunk has eight floats, and a streaming store is used only where
            // the first of them all, and so every eighth, lies on a multiple of 32 bytes.
            unsafe {
                if past {
                    _mm256_stream_ps(out.as_mut_ptr(), lit);
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
