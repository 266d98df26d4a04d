//! Every device gives the bits that the host gives. A device that is not there is skipped;
//! `PLIMSOLL_REQUIRE=opencl,cuda` makes that a failure.
#![expect(clippy::print_stdout, reason = "what is skipped is said")]

use plimsoll_memory::{Bytes, Error, Result};
use plimsoll_points::backend::device::VoxelDevice;
use plimsoll_points::backend::host::VoxelHost;
use plimsoll_points::backend::{VoxelBackend, VoxelPiece, cuda, opencl};
use plimsoll_points::network::{
    CoordinateForm, CoordinateOrder, HardSpec, HardVoxels, PointBatch, ScatterRule, UniqueVoxels,
    hard_voxelize,
};
use plimsoll_points::{Cells, Cloud, VoxelGrid, VoxelMode, VoxelSpec};

/// The device, or nothing where it may be missing.
fn device(name: &str, limit: Option<Bytes>) -> Result<Option<VoxelDevice>> {
    let opened = match name {
        "cuda" => cuda::open(0, limit),
        _ => opencl::open(0, limit),
    };
    match opened {
        Err(Error::Unavailable { what, why }) => {
            let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|one| one == name), "{what}: {why}");
            println!("skipped: {what}: {why}");
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

/// Numbers that fall everywhere: into voxels, on their edges, outside, and nowhere.
fn clouds(count: usize, points: usize, features: usize, seed: u32) -> Result<Vec<Cloud>> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let mut coordinate = move || match next() % 40 {
        0 => f32::NAN,
        1 if next() % 2 == 0 => f32::INFINITY,
        1 => f32::NEG_INFINITY,
        2 => -1e-45,
        3 => f32::from_bits(next() << 8),
        4..=12 => (next() % 40) as f32 * 0.1 - 0.2,
        13..=16 => f32::from_bits(((next() % 40) as f32 * 0.1 - 0.2).to_bits() ^ 1),
        17..=24 => 0.55,
        _ => next() as f32 / (1 << 24) as f32 * 4.0 - 0.3,
    };
    (0..count)
        .map(|cloud| {
            // Ragged, one of them empty.
            let points = if cloud == 1 { 0 } else { points + cloud * 17 };
            Cloud::from_points(
                (0..points * (3 + features)).map(|_| coordinate()).collect(),
                features,
            )
        })
        .collect()
}

fn made(
    backend: &dyn VoxelBackend,
    piece: &VoxelPiece<'_>,
) -> Result<(Vec<u32>, plimsoll_points::VoxelTally)> {
    let mut words = vec![0x5555_5555u32; piece.bytes().div_ceil(4) as usize];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    let tally = backend.dense(piece, &mut bytes[..piece.bytes() as usize])?;
    Ok((words, tally))
}

fn same_as_the_host(name: &str) -> Result<()> {
    let Some(gpu) = device(name, None)? else { return Ok(()) };
    let grids = [
        VoxelGrid::new([13, 31, 29], [0.1, 0.1, 0.3], [-0.2, 0.0, 0.1])?,
        VoxelGrid::new([16, 16, 16], [0.25; 3], [0.0; 3])?,
        // So small voxels that the quick division does not apply.
        VoxelGrid::new([5, 5, 5], [1e-12, 0.5, 0.5], [0.0; 3])?,
    ];
    for (round, grid) in grids.into_iter().enumerate() {
        for (mode, cells, features) in [
            (VoxelMode::Occupancy, Cells::F32, 0),
            (VoxelMode::Occupancy, Cells::U8, 2),
            (VoxelMode::Occupancy, Cells::Bits, 1),
            (VoxelMode::Count, Cells::U32, 0),
            (VoxelMode::Count, Cells::F32, 1),
            (VoxelMode::Max, Cells::F32, 1),
            (VoxelMode::Mean, Cells::F32, 1),
            (VoxelMode::Mean, Cells::F32, 3),
        ] {
            let clouds = clouds(5, 3000, features, 7 + round as u32)?;
            let spec = VoxelSpec::new(grid, mode, cells, features)?;
            for voxels in [0..grid.voxels(), 64..grid.voxels().min(128)] {
                let piece = VoxelPiece { clouds: &clouds, spec: &spec, voxels };
                let (want, seen) = made(&VoxelHost::default(), &piece)?;
                let (got, tally) = made(&gpu, &piece)?;
                assert_eq!(tally, seen, "{name} {mode} {cells} {grid:?} {:?}", piece.voxels);
                assert!(got == want, "{name} {mode} {cells} {grid:?} {:?}", piece.voxels);
            }
        }
        let clouds = clouds(3, 500, 0, 3)?;
        let spec = VoxelSpec::new(grid, VoxelMode::Occupancy, Cells::Sparse, 0)?;
        assert_eq!(gpu.left_to_host(&spec, grid.voxels()), None, "made on the device");
        let counts = VoxelSpec::new(grid, VoxelMode::Count, Cells::Sparse, 0)?;
        assert!(gpu.left_to_host(&counts, grid.voxels()).is_some(), "and this is told");
        let piece = VoxelPiece { clouds: &clouds, spec: &spec, voxels: 0..grid.voxels() };
        let (want, got) = (VoxelHost::default().sparse(&piece)?, gpu.sparse(&piece)?);
        let voxels = |filled: &[plimsoll_points::backend::Filled]| {
            filled.iter().map(|filled| filled.voxels.clone()).collect::<Vec<_>>()
        };
        assert_eq!(voxels(&want.0), voxels(&got.0));
    }
    Ok(())
}

#[test]
fn opencl_gives_the_bits_of_the_host() -> Result<()> {
    same_as_the_host("opencl")
}

#[test]
fn cuda_gives_the_bits_of_the_host() -> Result<()> {
    same_as_the_host("cuda")
}

#[test]
fn a_line_is_kept_and_a_piece_past_it_is_refused() -> Result<()> {
    let clouds = clouds(4, 2000, 0, 1)?;
    let grid = VoxelGrid::new([64, 64, 64], [0.05; 3], [0.0; 3])?;
    let spec = VoxelSpec::new(grid, VoxelMode::Count, Cells::U32, 0)?;
    let piece = VoxelPiece { clouds: &clouds, spec: &spec, voxels: 0..grid.voxels() };
    for name in ["cuda", "opencl"] {
        let Some(gpu) = device(name, Some(Bytes::mib(2)))? else { continue };
        let want = made(&VoxelHost::default(), &piece)?;
        assert!(made(&gpu, &piece)? == want, "cut into turns");
        assert!(gpu.peak_bytes().is_some_and(|peak| peak <= 2 << 20));
        let Some(small) = device(name, Some(Bytes::kib(512)))? else { continue };
        let refused = made(&small, &piece).map(|_| ()).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
    }
    Ok(())
}

fn hard_is_the_same_as_on_the_host(name: &str) -> Result<()> {
    let Some(gpu) = device(name, None)? else { return Ok(()) };
    let (floats, lengths) = ragged(6000, 5, 11)?;
    let batch = PointBatch::ragged(&floats, 5, &lengths)?;
    let sizes = [[0.1, 0.1, 0.3], [0.25; 3], [1e-12, 0.5, 0.5], [4.0, 4.0, 4.0]];
    for (round, size) in sizes.into_iter().enumerate() {
        for (points, voxels) in [(1, 5000), (10, 700), (35, 40)] {
            let range = if round == 2 { 5e-12 } else { 3.0 };
            let spec = HardSpec::new(size, [0.0, 0.0, 0.0, range, 3.2, 3.2], points, voxels)?;
            let order = if round == 1 { CoordinateOrder::Xyz } else { CoordinateOrder::Zyx };
            let spec = spec.with_form(CoordinateForm { order, batch_index: round > 0 });
            let want = hard_voxelize(&batch, &spec)?;
            let mut got = HardVoxels::default();
            // Twice: what the first leaves behind must not matter.
            for _ in 0..2 {
                gpu.hard(&batch, &spec, &mut got)?;
                let bits = |made: &HardVoxels| {
                    made.voxels.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
                };
                assert!(bits(&got) == bits(&want), "{name} {spec:?}: points");
                assert!(got.coordinates == want.coordinates, "{name} {spec:?}: coordinates");
                assert_eq!(got.num_points, want.num_points, "{name} {spec:?}");
                assert_eq!(got.clouds, want.clouds, "{name} {spec:?}");
                let dropped = |made: &HardVoxels| (made.not_finite, made.outside);
                assert_eq!(dropped(&got), dropped(&want), "{name} {spec:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn opencl_gives_the_hard_voxels_of_the_host() -> Result<()> {
    hard_is_the_same_as_on_the_host("opencl")
}

#[test]
fn cuda_gives_the_hard_voxels_of_the_host() -> Result<()> {
    hard_is_the_same_as_on_the_host("cuda")
}

#[test]
fn a_cloud_past_the_limit_is_refused() -> Result<()> {
    let floats = vec![0.5f32; 3 * 50_000];
    let spec = HardSpec::new([0.1; 3], [0.0, 0.0, 0.0, 3.0, 3.0, 3.0], 32, 40_000)?;
    for name in ["cuda", "opencl"] {
        let Some(small) = device(name, Some(Bytes::kib(512)))? else { continue };
        let batch = PointBatch::one(&floats, 3)?;
        let refused = small.hard(&batch, &spec, &mut HardVoxels::default()).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        let refused = small.dynamic(&batch, &spec).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        let owners = vec![0; 50_000];
        for refused in [
            small.scatter(&floats, 3, &owners, 1, ScatterRule::Max),
            small.to_points(&[1.0; 3], 3, &owners),
        ] {
            assert!(refused.is_err_and(|refused| refused.is_out_of_memory()));
        }
        assert!(small.peak_bytes().is_some_and(|peak| peak <= 512 << 10));
    }
    Ok(())
}

fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|value| value.to_bits()).collect()
}

/// Clouds with features, as one list of floats of so many columns, and their lengths.
fn ragged(points: usize, columns: usize, seed: u32) -> Result<(Vec<f32>, Vec<usize>)> {
    let clouds = clouds(4, points, columns - 3, seed)?;
    let floats: Vec<Vec<f32>> =
        clouds.iter().map(|cloud| Ok(cloud.floats()?.into_owned())).collect::<Result<_>>()?;
    let lengths = floats.iter().map(|floats| floats.len() / columns).collect();
    Ok((floats.concat(), lengths))
}

/// Every point's voxel, pillars and images.
fn pillars_are_the_same_as_on_the_host(name: &str) -> Result<()> {
    let Some(gpu) = device(name, None)? else { return Ok(()) };
    let host = VoxelHost::default();
    for (columns, points, size, order) in [
        (4, 8, [0.1, 0.1, 4.0], CoordinateOrder::Zyx),
        (3, 1, [0.3, 0.25, 4.0], CoordinateOrder::Xyz),
        // An image whose rows are no multiple of four, in all.
        (6, 33, [0.21, 0.43, 4.0], CoordinateOrder::Zyx),
    ] {
        let (floats, lengths) = ragged(4000, columns, 5)?;
        let batch = PointBatch::ragged(&floats, columns, &lengths)?;
        for batch_index in [false, true] {
            let spec = HardSpec::new(size, [0.0, 0.0, -0.5, 3.15, 3.01, 3.5], points, 900)?;
            let spec = spec.with_form(CoordinateForm { order, batch_index });
            assert_eq!(gpu.dynamic(&batch, &spec)?, host.dynamic(&batch, &spec)?, "{spec:?}");
            let mut made = hard_voxelize(&batch, &spec)?;
            // What hard voxels never have: a coordinate that is no number.
            made.voxels[1] = f32::NAN;
            let (want, got) =
                (host.pillars(&made, &spec, columns)?, gpu.pillars(&made, &spec, columns)?);
            assert!(bits(&got) == bits(&want), "{name} {spec:?}: features of pillars");
            let clouds = if batch_index { batch.clouds() } else { 1 };
            for features in [1usize, 16, 37] {
                let rows: Vec<f32> =
                    (0..made.num_points.len() * features).map(|n| (n % 977) as f32 - 3.5).collect();
                let places = &made.coordinates;
                let want = host.birds_eye(&rows, features, places, &spec, clouds)?;
                let got = gpu.birds_eye(&rows, features, places, &spec, clouds)?;
                assert!(bits(&got) == bits(&want), "{name} {spec:?}: {features} features");
                assert!(want.iter().any(|value| *value != 0.0));
            }
            let row = vec![1.0; made.num_points.len()];
            let mut wrong = made.coordinates.clone();
            wrong[spec.form().columns() - 1] = 5000;
            for backend in [&host as &dyn VoxelBackend, &gpu] {
                let refused = backend.birds_eye(&row, 1, &wrong, &spec, clouds);
                assert!(matches!(refused, Err(Error::Config { field: "pillars", .. })));
                assert!(backend.pillars(&made, &spec, columns + 1).is_err());
                assert!(backend.birds_eye(&row[1..], 1, &made.coordinates, &spec, clouds).is_err());
            }
        }
        let none = HardVoxels::default();
        let spec = HardSpec::new(size, [0.0, 0.0, -0.5, 3.15, 3.01, 3.5], points, 900)?;
        assert!(gpu.pillars(&none, &spec, columns)?.is_empty());
        assert_eq!(gpu.birds_eye(&[], 2, &[], &spec, 1)?, host.birds_eye(&[], 2, &[], &spec, 1)?);
    }
    Ok(())
}

#[test]
fn opencl_gives_the_pillars_of_the_host() -> Result<()> {
    pillars_are_the_same_as_on_the_host("opencl")
}

#[test]
fn cuda_gives_the_pillars_of_the_host() -> Result<()> {
    pillars_are_the_same_as_on_the_host("cuda")
}

/// Sums, means and maxima in the order of points, and back.
fn scatters_are_the_same_as_on_the_host(name: &str) -> Result<()> {
    let Some(gpu) = device(name, None)? else { return Ok(()) };
    let host = VoxelHost::default();
    for (points, size) in [(0, 0.5), (3, 0.5), (5000, 0.1), (9000, 4.0)] {
        let (floats, lengths) = ragged(points, 5, 3)?;
        let batch = PointBatch::ragged(&floats, 5, &lengths)?;
        let spec = HardSpec::new([size; 3], [0.0, 0.0, 0.0, 3.0, 3.0, 3.0], 1, 1)?;
        let unique = UniqueVoxels::of(&batch, spec.grid(), spec.form())?;
        let owners = &unique.point_to_voxel;
        // One voxel more than there are, which has no points.
        let voxels = unique.num_points.len() + 1;
        for rule in [ScatterRule::Sum, ScatterRule::Mean, ScatterRule::Max] {
            let want = host.scatter(&floats, 5, owners, voxels, rule)?;
            let got = gpu.scatter(&floats, 5, owners, voxels, rule)?;
            assert!(bits(&got) == bits(&want), "{name}: {rule:?} of {points} points");
            let back = host.to_points(&want, 5, owners)?;
            assert!(bits(&gpu.to_points(&want, 5, owners)?) == bits(&back), "{name}: back");
        }
        for backend in [&host as &dyn VoxelBackend, &gpu] {
            assert!(
                backend.scatter(&floats, 5, owners, 0, ScatterRule::Sum).is_err() || points == 0
            );
            assert!(backend.to_points(&[1.0], 1, &[1]).is_err());
        }
    }
    Ok(())
}

#[test]
fn opencl_gives_the_scatters_of_the_host() -> Result<()> {
    scatters_are_the_same_as_on_the_host("opencl")
}

#[test]
fn cuda_gives_the_scatters_of_the_host() -> Result<()> {
    scatters_are_the_same_as_on_the_host("cuda")
}
