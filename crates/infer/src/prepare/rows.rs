//! The inner loops of preparing, row by row, in plain Rust that the compiler vectorises.
//!
//! Colour travels as four lanes (three channels and one idle), so that a pixel is one
//! word: blending needs no regard for channels, and taking a word apart into planes is
//! shifts and masks. The integer arithmetic is OpenCV's, with every truncation where it
//! has it; that makes the result equal to the bit.

use super::weights::Column;

/// The reciprocal of 255 in two parts: the first short enough that a byte times it is
/// exact, the second what is missing. The sum of the two products is the quotient rounded
/// once, for every byte, without a division.
const PER_255: [f32; 2] = [f32::from_bits(0x3b80_8000), 5.983_839e-8];

/// A byte divided by 255, as IEEE division gives it.
#[inline(always)]
pub(crate) fn unit(byte: u8) -> f32 {
    let value = f32::from(byte);
    value * PER_255[0] + value * PER_255[1]
}

/// Interpolates a row of three channels across; four lanes a pixel come out, 15 bits each.
#[inline(always)]
pub(crate) fn mix_colour(row: &[u8], columns: &[Column], out: &mut [i16]) {
    for (column, lanes) in columns.iter().zip(out.chunks_exact_mut(4)) {
        let at = 3 * column.at as usize;
        let Some(&[r0, g0, b0, r1, g1, b1]) = row.get(at..).and_then(|row| row.first_chunk())
        else {
            continue;
        };
        let [left, right] = column.weights.map(i32::from);
        let mix = |first: u8, second: u8| {
            ((i32::from(first) * left + i32::from(second) * right) >> 4) as i16
        };
        lanes.copy_from_slice(&[mix(r0, r1), mix(g0, g1), mix(b0, b1), 0]);
    }
}

/// Interpolates a row of one channel across; 15 bits a pixel come out.
#[inline(always)]
pub(crate) fn mix_grey(row: &[u8], columns: &[Column], out: &mut [i16]) {
    for (column, lane) in columns.iter().zip(out) {
        let at = column.at as usize;
        let Some(&[first, second]) = row.get(at..).and_then(|row| row.first_chunk()) else {
            continue;
        };
        let [left, right] = column.weights.map(i32::from);
        *lane = ((i32::from(first) * left + i32::from(second) * right) >> 4) as i16;
    }
}

/// Halves two rows of three channels into one: each pixel is the mean of four, rounded half
/// up, which is what interpolating half-way in both directions comes to. Four lanes a pixel
/// come out.
#[inline(always)]
pub(crate) fn halve(upper: &[u8], lower: &[u8], out: &mut [u8]) {
    let pairs = upper.as_chunks::<6>().0.iter().zip(lower.as_chunks::<6>().0);
    for ((above, below), lanes) in pairs.zip(out.as_chunks_mut::<4>().0) {
        let mean = |channel: usize| {
            let four = [above[channel], above[channel + 3], below[channel], below[channel + 3]];
            ((four.map(u16::from).iter().sum::<u16>() + 2) >> 2) as u8
        };
        *lanes = [mean(0), mean(1), mean(2), 0];
    }
}

/// Blends two rows into bytes, lane by lane.
#[inline(always)]
pub(crate) fn blend(upper: &[i16], lower: &[i16], weights: [i16; 2], out: &mut [u8]) {
    let [above, below] = weights.map(i32::from);
    let high = |value: i16, weight: i32| ((i32::from(value) * weight) >> 16) as i16;
    for ((byte, &upper), &lower) in out.iter_mut().zip(upper).zip(lower) {
        *byte = ((high(upper, above) + high(lower, below) + 2) >> 2) as u8;
    }
}

/// Gives each pixel of a row of three channels its idle fourth lane.
#[inline(always)]
pub(crate) fn widen(row: &[u8], out: &mut [u8]) {
    let (pixels, _) = row.as_chunks::<3>();
    for (&[r, g, b], lanes) in pixels.iter().zip(out.as_chunks_mut::<4>().0) {
        *lanes = [r, g, b, 0];
    }
}

/// Takes pixels of four lanes apart into planes between 0 and 1, the first lane first.
#[inline(always)]
pub(crate) fn split(pixels: &[u8], planes: [&mut [f32]; 3]) {
    let [first, second, third] = planes;
    let (pixels, _) = pixels.as_chunks::<4>();
    let out = first.iter_mut().zip(second.iter_mut()).zip(third.iter_mut());
    for (pixel, ((first, second), third)) in pixels.iter().zip(out) {
        let word = u32::from_le_bytes(*pixel);
        *first = unit(word as u8);
        *second = unit((word >> 8) as u8);
        *third = unit((word >> 16) as u8);
    }
}

/// Writes a row of one channel between 0 and 1.
#[inline(always)]
pub(crate) fn spread(bytes: &[u8], plane: &mut [f32]) {
    for (value, &byte) in plane.iter_mut().zip(bytes) {
        *value = unit(byte);
    }
}

/// Maps `low` to 0 and what lies `range` above it to 255, and what lies beyond to the
/// nearer of the two.
#[inline(always)]
pub(crate) fn stretch(pixels: &[u16], low: u16, range: u16, out: &mut [u8]) {
    // 24 bits after the point: the greatest product and the half for rounding just fit.
    let scale = (255 << 24) / u32::from(range.max(1));
    for (byte, &pixel) in out.iter_mut().zip(pixels) {
        let above = u32::from(pixel.saturating_sub(low).min(range));
        *byte = ((above * scale + (1 << 23)) >> 24) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_divided_exactly() {
        for byte in 0..=255_u8 {
            assert_eq!(unit(byte).to_bits(), (f32::from(byte) / 255.0).to_bits(), "{byte}");
        }
    }

    #[test]
    fn halving_is_interpolating_half_way() {
        let bytes = |by: usize| (0..3 * 514).map(move |at| (at * by % 256) as u8);
        let (upper, lower): (Vec<u8>, Vec<u8>) = (bytes(151).collect(), bytes(89).collect());
        let mut columns = Vec::new();
        crate::prepare::weights::columns(514, 257, &mut columns);
        let (mut above, mut below) = (vec![0; 4 * 257], vec![0; 4 * 257]);
        mix_colour(&upper, &columns, &mut above);
        mix_colour(&lower, &columns, &mut below);
        let (mut blended, mut halved) = (vec![1; 4 * 257], vec![2; 4 * 257]);
        blend(&above, &below, [1024, 1024], &mut blended);
        halve(&upper, &lower, &mut halved);
        assert_eq!(blended, halved);
    }

    #[test]
    fn equal_rows_blend_to_themselves() {
        for value in 0..=255_i16 {
            let row = [value * 128];
            let mut out = [0];
            blend(&row, &row, [2048, 0], &mut out);
            assert_eq!(i16::from(out[0]), value);
        }
    }
}
