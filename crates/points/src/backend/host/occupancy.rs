//! Whether a voxel has a point.

use plimsoll_memory::Result;
use rayon::prelude::*;

use super::room_for;
use super::visit::Finder;
use crate::backend::{VoxelPiece, VoxelTally, zeroed_words};
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
/// Larger grids, whose bits are in no cache, are marked bucket by bucket.
const LARGE_GRID: u64 = 1 << 26;
/// Voxels of a bucket at most: their bits stay in the cache of a core.
const LARGEST_BUCKET: u64 = 1 << 21;
/// Buckets that are aimed for. Fewer have lists so long that each is memory fresh from the
/// system, which costs more than filling it; more are too many to write to in turns.
const BUCKETS: u64 = 128;
const MOST_BUCKETS: u64 = 4096;
/// Places that wait in buckets take no more than this; of more points bits are made.
const MOST_WAITING: u64 = 64 << 20;
/// Bytes of a place that waits, with the room that a list grows by.
const WAITING: u64 = 8;

/// What is needed between points and voxels of a cloud that so many parts are made of.
pub(super) fn bytes_between(points: u64, span: u64, parts: usize) -> u64 {
    match bucket_of(points, span) {
        // Bits of a bucket for each processor, which are not many.
        Some(bucket) => points.saturating_mul(WAITING).saturating_add(parts as u64 * bucket / 8),
        None => span.div_ceil(64).saturating_mul(8).saturating_mul(affordable(span, parts) as u64),
    }
}

/// Voxels of a bucket, where a cloud is made by them.
fn bucket_of(points: u64, span: u64) -> Option<u64> {
    let bucket = (span / BUCKETS).next_power_of_two().min(LARGEST_BUCKET);
    let waiting = points.saturating_mul(WAITING);
    let few = span / bucket < MOST_BUCKETS && waiting <= MOST_WAITING;
    (span > LARGE_GRID && few).then_some(bucket)
}

/// Parts whose bits may be there together.
fn affordable(span: u64, parts: usize) -> usize {
    let most = (MOST_BITS / (8 * span.div_ceil(64).max(1))).max(1);
    parts.min(most as usize).max(1)
}

pub(super) fn make(
    piece: &VoxelPiece<'_>,
    cloud: &Cloud,
    out: &mut [u8],
    parts: usize,
) -> Result<VoxelTally> {
    if let Some(bucket) = bucket_of(cloud.len() as u64, piece.span()) {
        return by_buckets(piece, cloud, out, parts, bucket);
    }
    let words = piece.span().div_ceil(64);
    let parts = affordable(piece.span(), parts);
    let finder = Finder::new(piece.spec.grid(), piece.voxels.clone());
    let share = cloud.len().div_ceil(parts).max(1);
    let marked: Result<Vec<(Vec<u64>, VoxelTally)>> = (0..parts)
        .into_par_iter()
        .map(|part| {
            let points = (part * share).min(cloud.len())..((part + 1) * share).min(cloud.len());
            let mut bits = zeroed_words(words.saturating_mul(8))?;
            let tally = finder.visit(cloud, points, |_, voxel| {
                bits[(voxel / 64) as usize] |= 1 << (voxel % 64);
            })?;
            Ok((bits, tally))
        })
        .collect();
    let marked = marked?;
    let mut tally: VoxelTally = marked.iter().map(|(_, tally)| *tally).sum();
    let bits: Vec<&[u64]> = marked.iter().map(|(bits, _)| bits.as_slice()).collect();
    tally.occupied = spread(&bits, piece.spec.cells(), out);
    Ok(tally)
}

/// Bits of a large grid are in no cache, and a mark at random costs more than all else of a
/// point. So places are sorted roughly first, and each bucket is marked and written at once.
fn by_buckets(
    piece: &VoxelPiece<'_>,
    cloud: &Cloud,
    out: &mut [u8],
    parts: usize,
    bucket: u64,
) -> Result<VoxelTally> {
    let buckets = piece.span().div_ceil(bucket) as usize;
    let finder = Finder::new(piece.spec.grid(), piece.voxels.clone());
    let (share, shift) = (cloud.len().div_ceil(parts).max(1), bucket.trailing_zeros());
    let sorted: Result<Vec<(Vec<Vec<u32>>, VoxelTally)>> = (0..parts)
        .into_par_iter()
        .map(|part| {
            let points = (part * share).min(cloud.len())..((part + 1) * share).min(cloud.len());
            let lists: Result<Vec<Vec<u32>>> =
                (0..buckets).map(|_| room_for(points.len() / buckets * 5 / 4)).collect();
            let mut lists = lists?;
            let tally = finder.visit(cloud, points, |_, voxel| {
                lists[(voxel >> shift) as usize].push((voxel & (bucket - 1)) as u32);
            })?;
            Ok((lists, tally))
        })
        .collect();
    let sorted = sorted?;
    let mut tally: VoxelTally = sorted.iter().map(|(_, tally)| *tally).sum();
    let (cells, large) = (piece.spec.cells(), out.len() >= LARGE);
    let own = out.par_chunks_mut(bytes_of(cells, bucket as usize)).enumerate();
    let bits = || vec![0u64; (bucket / 64) as usize];
    let occupied = own.map_init(bits, |bits, (number, out)| -> u64 {
        bits.fill(0);
        for place in sorted.iter().flat_map(|(lists, _)| &lists[number]) {
            bits[(place / 64) as usize] |= 1 << (place % 64);
        }
        let tiles = out.chunks_mut(bytes_of(cells, TILE)).enumerate();
        tiles.map(|(tile, out)| one_tile(&[bits], tile, cells, out, large)).sum()
    });
    tally.occupied = occupied.sum();
    Ok(tally)
}

fn bytes_of(cells: Cells, voxels: usize) -> usize {
    match cells {
        Cells::U8 => voxels,
        Cells::Bits => voxels / 8,
        _ => voxels * 4,
    }
}

/// Puts the parts together and writes what they stand for; says how many voxels have a point.
pub(in crate::backend) fn spread(parts: &[&[u64]], cells: Cells, out: &mut [u8]) -> u64 {
    let large = out.len() >= LARGE;
    let tiles = out.par_chunks_mut(bytes_of(cells, TILE)).enumerate();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::VoxelGrid;
    use crate::spec::{VoxelMode, VoxelSpec};

    /// The last bucket is short, and a piece begins and ends inside of one.
    #[test]
    fn buckets_make_what_bits_make() {
        let grid = VoxelGrid::new([40, 51, 53], [0.1, 0.2, 0.3], [-1.0, 0.0, 2.0]).unwrap();
        let mut state = 9u32;
        let mut next = |width: f32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 * width
        };
        let point = |_| [next(5.5) - 1.1, next(10.5) - 0.2, next(12.4) + 1.9];
        let cloud = Cloud::from_points((0..5000).flat_map(point).collect(), 0).unwrap();
        for cells in [Cells::F32, Cells::U8, Cells::Bits] {
            let spec = VoxelSpec::new(grid, VoxelMode::Occupancy, cells, 0).unwrap();
            for voxels in [0..grid.voxels(), 6400..grid.voxels() - 77] {
                let piece =
                    VoxelPiece { clouds: std::slice::from_ref(&cloud), spec: &spec, voxels };
                let size = piece.bytes() as usize;
                let (mut bits, mut buckets) = (vec![7u8; size], vec![9u8; size]);
                let seen = make(&piece, &cloud, &mut bits, 2).unwrap();
                for bucket in [1 << 15, 1 << 17] {
                    let tally = by_buckets(&piece, &cloud, &mut buckets, 3, bucket).unwrap();
                    assert_eq!(tally, seen);
                    assert!(buckets == bits, "{cells} {bucket}");
                }
            }
        }
    }
}
