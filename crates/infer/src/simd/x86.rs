//! The AVX2 twins. All but two are the plain loops, compiled with more instructions.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadl_epi64, _mm_loadu_si128, _mm256_add_epi16, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_packs_epi32, _mm256_packus_epi16, _mm256_set_epi32,
    _mm256_set_m128i, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_setr_epi8, _mm256_shuffle_epi8,
    _mm256_srai_epi32, _mm256_srli_epi16, _mm256_storeu_si256,
};

use crate::decode::{paint, scan};
use crate::prepare::rows;
use crate::prepare::weights::Column;

/// Pixels of one turn of [`mix_colour`].
const TURN: usize = 4;

/// One load a pixel brings both neighbours (six bytes of eight); a shuffle pairs their
/// channels, and one multiply-add weighs the pairs. Two pixels share a register.
#[target_feature(enable = "avx2")]
pub(super) fn mix_colour(row: &[u8], columns: &[Column], out: &mut [i16]) {
    // The loads read two bytes more than they need: the last columns are left to the
    // plain loop. Columns ascend, so those that may be loaded are the first ones.
    let safe = columns.partition_point(|column| 3 * column.at as usize + 8 <= row.len());
    let safe = safe.min(columns.len()).min(out.len() / 4) / TURN * TURN;
    let (quick, rest) = columns.split_at(safe);
    let (quick_out, rest_out) = out.split_at_mut(4 * safe);
    let turns = quick.as_chunks::<TURN>().0.iter();
    for (turn, lanes) in turns.zip(quick_out.as_chunks_mut::<{ 4 * TURN }>().0) {
        let [a, b, c, d] = *turn;
        // SAFETY: all four columns are among the first `safe`, so that eight bytes of
        // the row follow where each begins.
        let (first, second) = unsafe { (pair(row, a, c), pair(row, b, d)) };
        // Packing works in halves, so the pixels come out as a, b and c, d.
        let packed = _mm256_packs_epi32(first, second);
        // SAFETY: `lanes` is 16 numbers of 16 bits, 32 bytes; the store needs no
        // alignment.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast::<__m256i>(), packed) };
    }
    rows::mix_colour(row, rest, rest_out);
}

/// Two pixels interpolated: three sums and a zero in each half.
///
/// # Safety
///
/// Eight bytes of the row must follow where each column begins.
#[target_feature(enable = "avx2")]
unsafe fn pair(row: &[u8], low: Column, high: Column) -> __m256i {
    #[rustfmt::skip]
    let channels = _mm256_setr_epi8(
        0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,
        0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,
    );
    // SAFETY: the caller promises the eight bytes.
    let pixels = unsafe { _mm256_set_m128i(load(row, high), load(row, low)) };
    let paired = _mm256_shuffle_epi8(pixels, channels);
    let (low, high) = (word(low), word(high));
    let weights = _mm256_set_epi32(high, high, high, high, low, low, low, low);
    _mm256_srai_epi32::<4>(_mm256_madd_epi16(paired, weights))
}

/// Both weights as one word, the left one low.
fn word(column: Column) -> i32 {
    let [left, right] = column.weights.map(|weight| i32::from(weight) & 0xffff);
    left | right << 16
}

/// The eight bytes where a column begins.
///
/// # Safety
///
/// They must be in the row.
#[target_feature(enable = "avx2")]
unsafe fn load(row: &[u8], column: Column) -> __m128i {
    // SAFETY: the caller promises the eight bytes; the load needs no alignment.
    unsafe { _mm_loadl_epi64(row.as_ptr().add(3 * column.at as usize).cast::<__m128i>()) }
}

/// Pixels of the result, and bytes of a row, of one turn of [`halve`].
const HALVED: usize = 8;
const HALVED_FROM: usize = 6 * HALVED;

/// A load brings four pixels (twelve bytes of sixteen); a shuffle lays neighbours side by
/// side, and one multiply-add sums them. Four such loads of a row make eight pixels.
#[target_feature(enable = "avx2")]
pub(super) fn halve(upper: &[u8], lower: &[u8], out: &mut [u8]) {
    // The last load of a turn reads four bytes more than it needs: what they are missing for
    // is left to the plain loop.
    let bytes = upper.len().min(lower.len());
    let turns = (bytes.saturating_sub(4) / HALVED_FROM).min(out.len() / (4 * HALVED));
    for turn in 0..turns {
        let from = HALVED_FROM * turn;
        // SAFETY: both rows have all the turns' bytes and four more, so that 16 follow each of
        // 0, 12, 24 and 36 bytes into this turn.
        let (first, second) = unsafe {
            (
                means(upper, lower, from, from + 24), //
                means(upper, lower, from + 12, from + 36),
            )
        };
        // Packing works in halves, so the pixels come out in their order.
        let packed = _mm256_packus_epi16(first, second);
        let lanes = &mut out[4 * HALVED * turn..][..4 * HALVED];
        // SAFETY: `lanes` is 32 bytes; the store needs no alignment.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast::<__m256i>(), packed) };
    }
    let done = HALVED_FROM * turns;
    rows::halve(&upper[done..], &lower[done..], &mut out[4 * HALVED * turns..]);
}

/// Two pixels of the result in each half, as 16 bits a lane: the half of the first begins at
/// byte `low`, that of the second at byte `high`.
///
/// # Safety
///
/// Sixteen bytes of both rows must follow either.
#[target_feature(enable = "avx2")]
unsafe fn means(upper: &[u8], lower: &[u8], low: usize, high: usize) -> __m256i {
    #[rustfmt::skip]
    let neighbours = _mm256_setr_epi8(
        0, 3, 1, 4, 2, 5, -1, -1, 6, 9, 7, 10, 8, 11, -1, -1,
        0, 3, 1, 4, 2, 5, -1, -1, 6, 9, 7, 10, 8, 11, -1, -1,
    );
    let ones = _mm256_set1_epi8(1);
    let sums = |row: &[u8]| {
        // SAFETY: the caller promises the bytes; the loads need no alignment.
        let pixels = unsafe {
            _mm256_set_m128i(
                _mm_loadu_si128(row.as_ptr().add(high).cast::<__m128i>()),
                _mm_loadu_si128(row.as_ptr().add(low).cast::<__m128i>()),
            )
        };
        _mm256_maddubs_epi16(_mm256_shuffle_epi8(pixels, neighbours), ones)
    };
    let four = _mm256_add_epi16(sums(upper), sums(lower));
    _mm256_srli_epi16::<2>(_mm256_add_epi16(four, _mm256_set1_epi16(2)))
}

#[target_feature(enable = "avx2")]
pub(super) fn mix_grey(row: &[u8], columns: &[Column], out: &mut [i16]) {
    rows::mix_grey(row, columns, out);
}

#[target_feature(enable = "avx2")]
pub(super) fn blend(upper: &[i16], lower: &[i16], weights: [i16; 2], out: &mut [u8]) {
    rows::blend(upper, lower, weights, out);
}

#[target_feature(enable = "avx2")]
pub(super) fn widen(row: &[u8], out: &mut [u8]) {
    rows::widen(row, out);
}

#[target_feature(enable = "avx2")]
pub(super) fn split(pixels: &[u8], planes: [&mut [f32]; 3]) {
    rows::split(pixels, planes);
}

#[target_feature(enable = "avx2")]
pub(super) fn spread(bytes: &[u8], plane: &mut [f32]) {
    rows::spread(bytes, plane);
}

#[target_feature(enable = "avx2")]
pub(super) fn stretch(pixels: &[u16], low: u16, range: u16, out: &mut [u8]) {
    rows::stretch(pixels, low, range, out);
}

#[target_feature(enable = "avx2")]
pub(super) fn maxima(rows: &[f32], stride: usize, first: usize, block: &mut scan::ScanBlock) {
    scan::maxima(rows, stride, first, block);
}

#[target_feature(enable = "avx2")]
pub(super) fn owners(
    rows: &[f32],
    stride: usize,
    first: usize,
    best: &[f32],
    group: &mut scan::Group,
) {
    scan::owners(rows, stride, first, best, group);
}

#[target_feature(enable = "avx2")]
pub(super) fn weigh(data: &[f32], plane: usize, coefficients: &[f32], out: &mut [f32]) {
    paint::weigh(data, plane, coefficients, out);
}

#[target_feature(enable = "avx2")]
pub(super) fn signs(upper: &[f32], lower: &[f32], weights: [f32; 2], out: &mut [u64]) {
    paint::signs(upper, lower, weights, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare::weights::columns;

    #[test]
    fn halving_by_hand_and_plain_agree() {
        if !std::arch::is_x86_feature_detected!("avx2") {
            println!("skipped: no AVX2 here");
            return;
        }
        for width in [1, 2, 7, 8, 9, 15, 16, 17, 24, 321, 640] {
            let bytes = |by: usize| (0..6 * width).map(move |at| (at * by % 256) as u8);
            let (upper, lower): (Vec<u8>, Vec<u8>) = (bytes(151).collect(), bytes(89).collect());
            let (mut plain, mut quick) = (vec![7; 4 * width], vec![9; 4 * width]);
            rows::halve(&upper, &lower, &mut plain);
            // SAFETY: AVX2 was found above.
            unsafe { halve(&upper, &lower, &mut quick) };
            assert_eq!(plain, quick, "{width}");
        }
    }

    #[test]
    fn by_hand_and_plain_agree() {
        if !std::arch::is_x86_feature_detected!("avx2") {
            println!("skipped: no AVX2 here");
            return;
        }
        for (frame, result) in [(2, 9), (3, 3), (5, 2), (64, 37), (97, 640), (1280, 640)] {
            let row: Vec<u8> = (0..3 * frame).map(|at| (at * 151 % 256) as u8).collect();
            let mut taps = Vec::new();
            columns(frame, result, &mut taps);
            let (mut plain, mut quick) = (vec![7; 4 * result], vec![9; 4 * result]);
            rows::mix_colour(&row, &taps, &mut plain);
            // SAFETY: AVX2 was found above.
            unsafe { mix_colour(&row, &taps, &mut quick) };
            assert_eq!(plain, quick, "{frame} to {result}");
        }
    }
}
