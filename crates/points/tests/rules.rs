//! The rules of voxelization, held against the plainest way to write them down.

use plimsoll_points::backend::host::VoxelHost;
use plimsoll_points::backend::{VoxelBackend, VoxelPiece};
use plimsoll_points::{Cells, Cloud, VoxelGrid, VoxelMode, VoxelSpec, Voxelized, voxelize};
use proptest::prelude::*;

/// Sums in point order in double precision, one voxel after the other.
fn reference(cloud: &Cloud, grid: &VoxelGrid) -> Vec<Vec<usize>> {
    let mut voxels = vec![Vec::new(); grid.voxels() as usize];
    let floats = cloud.floats().unwrap_or_default();
    for (index, point) in floats.chunks_exact(cloud.stride()).enumerate() {
        let mut place = [0usize; 3];
        let inside = (0..3).all(|axis| {
            let cell = ((point[axis] - grid.origin()[axis]) / grid.size()[axis]).floor();
            place[axis] = if cell >= 0.0 { cell as usize } else { usize::MAX };
            place[axis] < grid.cells()[axis] as usize
        });
        if inside {
            let [_, height, width] = grid.dims().map(|n| n as usize);
            voxels[(place[2] * height + place[1]) * width + place[0]].push(index);
        }
    }
    voxels
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn coordinate() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -1.0f32..6.0,
        2 => (-4i32..24).prop_map(|k| k as f32 * 0.25),
        1 => (-4i32..24).prop_map(|k| f32::from_bits((k as f32 * 0.3).to_bits().wrapping_sub(1))),
        1 => Just(f32::NAN),
        1 => Just(f32::INFINITY),
        1 => Just(-1e-45f32),
        1 => any::<f32>(),
    ]
}

fn cloud(features: usize) -> impl Strategy<Value = Cloud> {
    prop::collection::vec(
        (prop::array::uniform3(coordinate()), prop::collection::vec(-9f32..9.0, features)),
        0..200,
    )
    .prop_filter_map("whole points", move |points| {
        let floats = points.into_iter().flat_map(|(xyz, f)| xyz.into_iter().chain(f)).collect();
        Cloud::from_points(floats, features).ok()
    })
}

fn grid() -> impl Strategy<Value = VoxelGrid> {
    let sizes = prop_oneof![Just(0.25f32), Just(0.3), 0.01f32..2.0];
    (
        prop::array::uniform3(1u32..12),
        prop::array::uniform3(sizes),
        prop::array::uniform3(-1f32..1.0),
    )
        .prop_filter_map("a grid", |(dims, size, origin)| VoxelGrid::new(dims, size, origin).ok())
}

fn dense(
    clouds: &[Cloud],
    grid: VoxelGrid,
    mode: VoxelMode,
    cells: Cells,
) -> plimsoll_memory::Result<Voxelized> {
    voxelize(clouds, &VoxelSpec::new(grid, mode, cells, clouds[0].features())?)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_mode_follows_the_rules(a in cloud(2), b in cloud(2), grid in grid()) {
        let clouds = [a, b];
        let want: Vec<Vec<Vec<usize>>> = clouds.iter().map(|cloud| reference(cloud, &grid)).collect();
        let counts: Vec<u32> = want.iter().flatten().map(|points| points.len() as u32).collect();

        let occupancy = dense(&clouds, grid, VoxelMode::Occupancy, Cells::U8)?;
        let lit: Vec<u8> = counts.iter().map(|count| u8::from(*count > 0)).collect();
        prop_assert_eq!(&occupancy.bytes, &lit);
        prop_assert_eq!(occupancy.tally.occupied, lit.iter().map(|n| u64::from(*n)).sum::<u64>());
        let dropped = occupancy.tally.not_finite + occupancy.tally.outside;
        let kept: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        prop_assert_eq!(dropped + kept, occupancy.tally.points);

        let as_floats = dense(&clouds, grid, VoxelMode::Occupancy, Cells::F32)?;
        prop_assert_eq!(floats(&as_floats.bytes), lit.iter().map(|n| f32::from(*n)).collect::<Vec<_>>());
        let bits = dense(&clouds, grid, VoxelMode::Occupancy, Cells::Bits)?;
        let packed: Vec<u8> = lit
            .chunks(grid.voxels() as usize)
            .flat_map(|cloud| cloud.chunks(8).map(|eight| {
                eight.iter().enumerate().map(|(bit, n)| n << bit).sum::<u8>()
            }))
            .collect();
        prop_assert_eq!(bits.bytes, packed);

        let counted = dense(&clouds, grid, VoxelMode::Count, Cells::U32)?;
        let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
        prop_assert_eq!(counted.bytes, bytes);

        for (mode, of) in [(VoxelMode::Mean, mean as fn(&Cloud, &[usize], usize) -> f32), (VoxelMode::Max, max)] {
            let made = floats(&dense(&clouds, grid, mode, Cells::F32)?.bytes);
            let expected: Vec<f32> = clouds.iter().zip(&want).flat_map(|(cloud, voxels)| {
                (0..2).flat_map(move |f| voxels.iter().map(move |points| of(cloud, points, f)))
            }).collect();
            prop_assert_eq!(
                made.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
                expected.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn slabs_make_the_same(cloud in cloud(1), grid in grid(), cut in 1u64..20) {
        let clouds = [cloud];
        let spec = VoxelSpec::new(grid, VoxelMode::Count, Cells::U32, 0).unwrap();
        let whole = voxelize(&clouds, &spec).unwrap();
        let mut parts = Vec::new();
        let mut start = 0;
        while start < grid.voxels() {
            let end = (start + cut * 64).min(grid.voxels());
            let piece = VoxelPiece { clouds: &clouds, spec: &spec, voxels: start..end };
            let mut words = vec![9u32; piece.bytes() as usize / 4];
            VoxelHost::default().dense(&piece, bytemuck::cast_slice_mut(&mut words)).unwrap();
            parts.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            start = end;
        }
        prop_assert_eq!(parts, whole.bytes);
    }

    #[test]
    fn sparse_is_what_is_not_empty(cloud in cloud(3), grid in grid()) {
        let clouds = [cloud];
        let spec = VoxelSpec::new(grid, VoxelMode::Max, Cells::Sparse, 3).unwrap();
        let piece = VoxelPiece { clouds: &clouds, spec: &spec, voxels: 0..grid.voxels() };
        let (filled, tally) = VoxelHost::default().sparse(&piece).unwrap();
        let want = reference(&clouds[0], &grid);
        let full: Vec<u64> = (0..grid.voxels()).filter(|v| !want[*v as usize].is_empty()).collect();
        prop_assert_eq!(&filled[0].voxels, &full);
        prop_assert_eq!(tally.occupied, full.len() as u64);
        let values: Vec<f32> = full.iter().flat_map(|v| {
            (0..3).map(|f| max(&clouds[0], &want[*v as usize], f)).collect::<Vec<_>>()
        }).collect();
        prop_assert_eq!(&filled[0].values, &values);
        prop_assert!(filled[0].counts.iter().zip(&full).all(|(c, v)| *c as usize == want[*v as usize].len()));
    }
}

fn mean(cloud: &Cloud, points: &[usize], feature: usize) -> f32 {
    if points.is_empty() {
        return 0.0;
    }
    let floats = cloud.floats().unwrap_or_default();
    let value = |p: &usize| f64::from(floats[p * cloud.stride() + 3 + feature]);
    let mut sum = 0.0;
    for point in points {
        sum += value(point);
    }
    (sum / points.len() as f64) as f32
}

fn max(cloud: &Cloud, points: &[usize], feature: usize) -> f32 {
    let floats = cloud.floats().unwrap_or_default();
    let value = |p: &usize| floats[p * cloud.stride() + 3 + feature];
    points
        .iter()
        .map(value)
        .fold(None, |best: Option<f32>, v| {
            Some(best.map_or(v, |b| if v > b || (v == b && v.is_sign_positive()) { v } else { b }))
        })
        .unwrap_or(0.0)
}

/// Far past 2³² voxels; only a slab of them is ever made.
#[test]
fn a_grid_past_32_bits_is_addressed() {
    let grid = VoxelGrid::new([8192, 4096, 4096], [1.0; 3], [0.0; 3]).unwrap();
    assert_eq!(grid.voxels(), 1 << 37);
    let cloud = [Cloud::from_points(vec![4095.5, 4095.5, 8191.5, 0.5, 0.5, 0.5], 0).unwrap()];
    let spec = VoxelSpec::new(grid, VoxelMode::Occupancy, Cells::Bits, 0).unwrap();
    let last = grid.voxels() - 128..grid.voxels();
    let piece = VoxelPiece { clouds: &cloud, spec: &spec, voxels: last };
    let mut out = [0; 16];
    let tally = VoxelHost::default().dense(&piece, &mut out).unwrap();
    assert_eq!((out[15], tally.occupied, tally.outside), (0x80, 1, 0));
    let sparse = VoxelSpec::new(grid, VoxelMode::Occupancy, Cells::Sparse, 0).unwrap();
    let piece = VoxelPiece { clouds: &cloud, spec: &sparse, voxels: 0..grid.voxels() };
    let (filled, _) = VoxelHost::default().sparse(&piece).unwrap();
    assert_eq!(filled[0].voxels, [0, (1 << 37) - 1]);
    assert_eq!(grid.place(filled[0].voxels[1]), [8191, 4095, 4095]);
}

/// Which NaN a processor makes of these is its own affair; what is written is not.
#[test]
fn means_that_are_no_numbers_have_the_same_bits() {
    let grid = VoxelGrid::new([1, 1, 2], [1.0; 3], [0.0; 3]).unwrap();
    let nan = f32::from_bits(0xFFC0_1234);
    let points = [(0.5, f32::INFINITY), (0.5, f32::NEG_INFINITY), (1.5, nan), (1.5, 1.0)];
    let points = points.iter().flat_map(|(x, feature)| [*x, 0.5, 0.5, *feature]).collect();
    let made = dense(&[Cloud::from_points(points, 1).unwrap()], grid, VoxelMode::Mean, Cells::F32)
        .unwrap();
    let made: Vec<u32> = floats(&made.bytes).iter().map(|v| v.to_bits()).collect();
    assert_eq!(made, [f32::NAN.to_bits(); 2]);
}

#[test]
fn nan_is_the_largest_and_minus_zero_is_below_zero() {
    let grid = VoxelGrid::new([1, 1, 2], [1.0; 3], [0.0; 3]).unwrap();
    let nan = f32::from_bits(0xFFC0_1234);
    let points =
        vec![0.5, 0.5, 0.5, 1.0, 0.5, 0.5, 0.5, nan, 1.5, 0.5, 0.5, -0.0, 1.5, 0.5, 0.5, 0.0];
    let made =
        dense(&[Cloud::from_points(points, 1).unwrap()], grid, VoxelMode::Max, Cells::F32).unwrap();
    let made: Vec<u32> = floats(&made.bytes).iter().map(|v| v.to_bits()).collect();
    assert_eq!(made, [f32::NAN.to_bits(), 0]);
}
