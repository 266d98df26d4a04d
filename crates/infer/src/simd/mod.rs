//! The inner loops, compiled for the instructions that this machine has.
//!
//! The loops themselves are plain Rust, in the rooms that they belong to. A binary for
//! every x86-64 machine may use SSE2 alone, which halves and more what they could do, so
//! each is compiled once more with AVX2 and chosen when it is called. The two loops that read
//! pixels of three bytes across a row, interpolating and halving, are written by hand: their
//! reads are scattered, and there the compiler finds no vectors.
//!
//! This is the only place in the crate with unsafe code.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "instructions are chosen when the program runs")
)]

#[cfg(target_arch = "x86_64")]
mod x86;

use crate::decode::{paint, scan};
use crate::prepare::rows;
use crate::prepare::weights::Column;

/// Defines each kernel as its plain form, or its AVX2 twin where that may be called.
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $kind:ty),*) = $plain:path;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name($($argument: $kind),*) {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the twin needs AVX2, and it was just found to be there.
                return unsafe { x86::$name($($argument),*) };
            }
            $plain($($argument),*);
        }
    )*};
}

kernels! {
    /// See [`rows::mix_colour`].
    mix_colour(row: &[u8], columns: &[Column], out: &mut [i16]) = rows::mix_colour;
    /// See [`rows::mix_grey`].
    mix_grey(row: &[u8], columns: &[Column], out: &mut [i16]) = rows::mix_grey;
    /// See [`rows::halve`].
    halve(upper: &[u8], lower: &[u8], out: &mut [u8]) = rows::halve;
    /// See [`rows::blend`].
    blend(upper: &[i16], lower: &[i16], weights: [i16; 2], out: &mut [u8]) = rows::blend;
    /// See [`rows::widen`].
    widen(row: &[u8], out: &mut [u8]) = rows::widen;
    /// See [`rows::split`].
    split(pixels: &[u8], planes: [&mut [f32]; 3]) = rows::split;
    /// See [`rows::spread`].
    spread(bytes: &[u8], plane: &mut [f32]) = rows::spread;
    /// See [`rows::stretch`].
    stretch(pixels: &[u16], low: u16, range: u16, out: &mut [u8]) = rows::stretch;
    /// See [`scan::maxima`].
    maxima(rows: &[f32], stride: usize, first: usize, block: &mut scan::ScanBlock) = scan::maxima;
    /// See [`scan::owners`].
    owners(rows: &[f32], stride: usize, first: usize, best: &[f32], group: &mut scan::Group) =
        scan::owners;
    /// See [`paint::weigh`].
    weigh(data: &[f32], plane: usize, coefficients: &[f32], out: &mut [f32]) = paint::weigh;
    /// See [`paint::signs`].
    signs(upper: &[f32], lower: &[f32], weights: [f32; 2], out: &mut [u64]) = paint::signs;
}
