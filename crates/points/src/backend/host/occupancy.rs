//! Whether a voxel has a point.

use plimsoll::Result;
use rayon::prelude::*;

use super::visit::Finder;
use crate::backend::{Piece, Tally, zeroed_words};
use crate::cloud::Cloud;
use crate::simd;
use crate::spec::Cells;

/// Voxels that are spread at a time: their bits, merged, stay in the first-level cache.
const TILE: usize = 1 << 16;
const TILE_WORDS: usize = TILE / 64;
/// Bits of all parts together stay below this; a large grid is marked by fewer.
const MOST_BITS: u64 = 256 << 20;
/// From here on an output is not worth keeping in the caches.
const LARGE: usize = 4 << 20;

pub(super) fn make(
    piece: &Piece<'_>,
    cloud: &Cloud,
    out: &mut [u8],
    parts: usize,
) -> Result<Tally> {
    let words = piece.span().div_ceil(64);
    let affordable = (MOST_BITS / (8 * words.max(1))).max(1);
    let parts = parts.min(affordable as usize).max(1);
    let finder = Finder::new(piece.spec.grid(), piece.voxels.clone());
    let share = cloud.len().div_ceil(parts).max(1);
    let marked: Result<Vec<(Vec<u64>, Tally)>> = (0..parts)
        .into_par_iter()
        .map(|part| {
            let points = (part * share).min(cloud.len())..((part + 1) * share).min(cloud.len());
            let mut bits = zeroed_words(words.saturating_mul(8))?;
            let tally = finder.visit(cloud, points, |_, voxel| {
                bits[(voxel / 64) as usize] |= 1 << (voxel % 64);
            });
            Ok((bits, tally))
        })
        .collect();
    let marked = marked?;
    let mut tally: Tally = marked.iter().map(|(_, tally)| *tally).sum();
    let bits: Vec<&[u64]> = marked.iter().map(|(bits, _)| bits.as_slice()).collect();
    tally.occupied = spread(&bits, piece.spec.cells(), out);
    Ok(tally)
}

/// Puts the parts together and writes what they stand for; says how many voxels have a point.
pub(in crate::backend) fn spread(parts: &[&[u64]], cells: Cells, out: &mut [u8]) -> u64 {
    let bytes_of_tile = match cells {
        Cells::U8 => TILE,
        Cells::Bits => TILE / 8,
        _ => TILE * 4,
    };
    let large = out.len() >= LARGE;
    let tiles = out.par_chunks_mut(bytes_of_tile).enumerate();
    tiles.map(|(tile, out)| one_tile(parts, tile, cells, out, large)).sum()
}

fn one_tile(parts: &[&[u64]], tile: usize, cells: Cells, out: &mut [u8], large: bool) -> u64 {
    let mut merged = [0u64; TILE_WORDS];
    let start = tile * TILE_WORDS;
    for part in parts {
        let end = (start + TILE_WORDS).min(part.len());
        let part = part.get(start..end).unwrap_or_default();
        merged.iter_mut().zip(part).for_each(|(to, from)| *to |= from);
    }
    match cells {
        Cells::U8 => simd::bytes(&merged, out),
        Cells::Bits => {
            let bytes = merged.iter().flat_map(|word| word.to_le_bytes());
            out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        }
        _ => match bytemuck::try_cast_slice_mut(out) {
            Ok(floats) => simd::floats(&merged, floats, large),
            // Not aligned: the same floats, byte by byte.
            Err(_) => {
                for (voxel, four) in out.chunks_exact_mut(4).enumerate() {
                    let lit = merged[voxel / 64] >> (voxel % 64) & 1;
                    four.copy_from_slice(&(lit as u32 as f32).to_le_bytes());
                }
            }
        },
    }
    merged.iter().map(|word| u64::from(word.count_ones())).sum()
}
