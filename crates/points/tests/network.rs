//! What networks take of points, held against the plainest way to write it down.

use std::collections::HashMap;

use plimsoll_points::VoxelGrid;
use plimsoll_points::network::{
    CoordinateForm, CoordinateOrder, HardHost, HardSlices, HardSpec, HardVoxels, PillarSlices,
    PointBatch, ScatterRule, UniqueVoxels, birds_eye, birds_eye_into, dynamic_coordinates,
    hard_voxelize, pillar_features, pillar_features_into, scatter_points, scatter_points_into,
    voxels_to_points, voxels_to_points_into,
};
use proptest::prelude::*;

/// The cells of a point along z, y and x, one operation after the other.
fn cells(grid: &VoxelGrid, point: &[f32]) -> Option<[i32; 3]> {
    let mut cells = [0; 3];
    for axis in 0..3 {
        let cell = ((point[axis] - grid.origin()[axis]) / grid.size()[axis]).floor();
        if !(cell >= 0.0 && cell < grid.cells()[axis] as f32) {
            return None;
        }
        cells[2 - axis] = cell as i32;
    }
    Some(cells)
}

fn row(form: CoordinateForm, cloud: usize, [z, y, x]: [i32; 3]) -> Vec<i32> {
    let place = if form.order == CoordinateOrder::Zyx { [z, y, x] } else { [x, y, z] };
    let cloud = form.batch_index.then_some(cloud as i32);
    cloud.into_iter().chain(place).collect()
}

/// Point after point: a voxel is new until there are too many, a point is added until there are
/// too many of it.
fn reference(batch: &PointBatch<'_>, spec: &HardSpec) -> (Vec<u32>, Vec<i32>, Vec<i32>) {
    let (most, columns) = (spec.max_points() as usize, batch.columns());
    let (mut voxels, mut coordinates, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for cloud in 0..batch.clouds() {
        let mut known: HashMap<[i32; 3], Vec<&[f32]>> = HashMap::new();
        let mut order = Vec::new();
        let floats = &batch.floats()[batch.range(cloud).start * columns..]
            [..batch.range(cloud).len() * columns];
        for point in floats.chunks_exact(columns) {
            let Some(place) = cells(spec.grid(), point) else { continue };
            if !known.contains_key(&place) {
                if order.len() == spec.max_voxels() as usize {
                    continue;
                }
                order.push(place);
            }
            let points = known.entry(place).or_default();
            if points.len() < most {
                points.push(point);
            }
        }
        for place in order {
            let points = &known[&place];
            coordinates.extend(row(spec.form(), cloud, place));
            counts.push(points.len() as i32);
            for index in 0..most {
                let zeros = vec![0.0; columns];
                let point = points.get(index).copied().unwrap_or(&zeros);
                voxels.extend(point.iter().map(|value| value.to_bits()));
            }
        }
    }
    (voxels, coordinates, counts)
}

fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|value| value.to_bits()).collect()
}

fn coordinate() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -1.0f32..6.0,
        4 => (-4i32..24).prop_map(|k| k as f32 * 0.25),
        2 => (-4i32..24).prop_map(|k| f32::from_bits((k as f32 * 0.3).to_bits().wrapping_sub(1))),
        1 => Just(f32::NAN),
        1 => Just(f32::INFINITY),
        1 => Just(f32::NEG_INFINITY),
        1 => Just(-1e-45f32),
        1 => any::<f32>(),
    ]
}

fn points(columns: usize) -> impl Strategy<Value = Vec<f32>> {
    let point = prop::collection::vec(coordinate(), columns);
    prop::collection::vec(point, 0..300).prop_map(|points| points.concat())
}

fn form() -> impl Strategy<Value = CoordinateForm> {
    (any::<bool>(), any::<bool>()).prop_map(|(xyz, batch_index)| CoordinateForm {
        order: if xyz { CoordinateOrder::Xyz } else { CoordinateOrder::Zyx },
        batch_index,
    })
}

fn spec() -> impl Strategy<Value = HardSpec> {
    let size = prop_oneof![Just(0.25f32), Just(0.3), Just(5.0), 0.05f32..2.0];
    (prop::array::uniform3(size), 1u32..7, 1u32..60, form()).prop_filter_map(
        "a range",
        |(size, points, voxels, form)| {
            let spec =
                HardSpec::new(size, [-0.5, 0.0, 0.25, 5.0, 4.5, 3.5], points, voxels).ok()?;
            Some(spec.with_form(form))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn hard_voxels_follow_the_rule(
        clouds in prop::collection::vec(points(4), 1..4), spec in spec(),
    ) {
        let floats = clouds.concat();
        let lengths: Vec<usize> = clouds.iter().map(|cloud| cloud.len() / 4).collect();
        let batch = PointBatch::ragged(&floats, 4, &lengths).unwrap();
        let (voxels, coordinates, counts) = reference(&batch, &spec);
        let mut host = HardHost::new(spec);
        let mut made = HardVoxels::default();
        // Twice, the second time in memory that was used before.
        for _ in 0..2 {
            host.run(&batch, &mut made).unwrap();
            prop_assert_eq!(bits(&made.voxels), voxels.clone());
            prop_assert_eq!(&made.coordinates, &coordinates);
            prop_assert_eq!(&made.num_points, &counts);
            prop_assert_eq!(made.clouds.iter().sum::<usize>(), counts.len());
        }
        let most: u64 = lengths.iter().map(|points| spec.most_voxels(*points as u64)).sum();
        let (most, width) = (most as usize, spec.form().columns());
        let each = spec.max_points() as usize * 4;
        let (mut a, mut b, mut c) = (vec![7.0; most * each], vec![7; most * width], vec![7; most]);
        let to = HardSlices { voxels: &mut a, coordinates: &mut b, num_points: &mut c };
        prop_assert_eq!(host.run_into(&batch, to).unwrap(), made.clouds.clone());
        prop_assert_eq!(bits(&a[..counts.len() * each]), voxels.clone());
        prop_assert_eq!(&b[..counts.len() * width], &coordinates);
        prop_assert_eq!(&c[..counts.len()], &counts);
        prop_assert!(a[counts.len() * each..].iter().all(|value| *value == 7.0), "nothing behind them");
        if !counts.is_empty() {
            let few = HardSlices { voxels: &mut a, coordinates: &mut b, num_points: &mut c[1..counts.len()] };
            prop_assert!(host.run_into(&batch, few).is_err());
        }
        let unique = UniqueVoxels::of(&batch, spec.grid(), spec.form()).unwrap();
        let inside = unique.point_to_voxel.iter().filter(|voxel| **voxel >= 0).count() as u64;
        prop_assert_eq!(made.not_finite + made.outside + inside, batch.points() as u64);
    }

    #[test]
    fn dynamic_voxels_follow_the_rule(a in points(3), b in points(3), spec in spec()) {
        let (floats, grid, form) = ([a.clone(), b.clone()].concat(), spec.grid(), spec.form());
        let batch = PointBatch::ragged(&floats, 3, &[a.len() / 3, b.len() / 3]).unwrap();
        let cloud = |point: usize| usize::from(point >= a.len() / 3);
        let found: Vec<_> = floats.chunks_exact(3).map(|point| cells(grid, point)).collect();
        let want: Vec<i32> = found.iter().enumerate()
            .flat_map(|(point, place)| row(form, cloud(point), place.unwrap_or([-1; 3]))).collect();
        prop_assert_eq!(dynamic_coordinates(&batch, grid, form).unwrap(), want);

        let (mut order, mut inverse) = (Vec::new(), Vec::new());
        for (point, place) in found.iter().enumerate() {
            inverse.push(place.map_or(-1, |place| {
                let key = (cloud(point), place);
                order.iter().position(|known| *known == key).unwrap_or_else(|| {
                    order.push(key);
                    order.len() - 1
                }) as i32
            }));
        }
        let unique = UniqueVoxels::of(&batch, grid, form).unwrap();
        prop_assert_eq!(&unique.point_to_voxel, &inverse);
        let want: Vec<i32> = order.iter().flat_map(|(cloud, place)| row(form, *cloud, *place)).collect();
        prop_assert_eq!(&unique.coordinates, &want);
        for (voxel, count) in unique.num_points.iter().enumerate() {
            prop_assert_eq!(*count as usize, inverse.iter().filter(|own| **own == voxel as i32).count());
        }
        prop_assert_eq!(unique.clouds.iter().sum::<usize>(), order.len());
    }

    #[test]
    fn scatters_go_through_points_in_order(
        rows in prop::collection::vec(((-1i32..6), prop::array::uniform2(coordinate())), 0..80),
    ) {
        let inverse: Vec<i32> = rows.iter().map(|(voxel, _)| *voxel).collect();
        let features: Vec<f32> = rows.iter().flat_map(|(_, two)| *two).collect();
        for rule in [ScatterRule::Sum, ScatterRule::Mean, ScatterRule::Max] {
            let made = scatter_points(&features, 2, &inverse, 6, rule).unwrap();
            let want: Vec<f32> = (0..6).flat_map(|voxel| {
                let own: Vec<[f32; 2]> = rows.iter().filter(|(v, _)| *v == voxel).map(|(_, two)| *two).collect();
                [0, 1].map(|column| plain(rule, &own.iter().map(|two| two[column]).collect::<Vec<_>>()))
            }).collect();
            prop_assert_eq!(bits(&made), bits(&want), "{:?}", rule);
        }
        let values: Vec<f32> = (0..18).map(|n| n as f32).collect();
        let back = voxels_to_points(&values, 3, &inverse).unwrap();
        for (row, voxel) in back.chunks_exact(3).zip(&inverse) {
            let want = if *voxel < 0 { [0.0; 3] } else { [0, 1, 2].map(|n| (voxel * 3 + n) as f32) };
            prop_assert_eq!(row, want);
        }
    }
}

fn plain(rule: ScatterRule, values: &[f32]) -> f32 {
    let quiet = |value: f32| if value.is_nan() { f32::NAN } else { value };
    if values.is_empty() {
        return 0.0;
    }
    let mut sum = 0.0f64;
    for value in values {
        sum += f64::from(*value);
    }
    match rule {
        ScatterRule::Sum => quiet(sum as f32),
        ScatterRule::Mean => quiet((sum / values.len() as f64) as f32),
        _ if values.iter().any(|value| value.is_nan()) => f32::NAN,
        _ => values.iter().copied().max_by(f32::total_cmp).unwrap_or_default(),
    }
}

#[test]
fn large_clouds_are_divided_among_threads() {
    let mut state = 9u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let mut floats: Vec<f32> = (0..4 * 70_001).map(|_| next() * 12.0 - 1.0).collect();
    floats[..4 * 20_000].iter_mut().for_each(|value| *value *= 0.05);
    floats.iter_mut().step_by(211).for_each(|value| *value = f32::NAN);
    let batch = PointBatch::ragged(&floats, 4, &[70_001 - 33_000, 33_000]).unwrap();
    // The second has more cells than a number of 32 bits counts.
    for (size, range) in [(0.5, 10.0), (0.001, 10.0)] {
        for (points, voxels) in [(3, 100_000), (50, 700)] {
            let spec =
                HardSpec::new([size; 3], [0.0, 0.0, 0.0, range, range, range], points, voxels);
            let (spec, mut made) = (spec.unwrap(), HardVoxels::default());
            let (want, places, counts) = reference(&batch, &spec);
            for threads in [1, 2, 3, 7] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let room = 2 * voxels.min(40_000) as usize;
                let (mut a, mut b) = (vec![7.0; room * points as usize * 4], vec![7; room * 3]);
                let mut c = vec![7; room];
                let unique = pool.install(|| {
                    let mut host = HardHost::new(spec);
                    host.run(&batch, &mut made).unwrap();
                    for _ in 0..2 {
                        let to =
                            HardSlices { voxels: &mut a, coordinates: &mut b, num_points: &mut c };
                        assert_eq!(host.run_into(&batch, to).unwrap(), made.clouds);
                    }
                    UniqueVoxels::of(&batch, spec.grid(), spec.form()).unwrap()
                });
                assert_eq!(bits(&made.voxels), want, "{threads} threads");
                assert_eq!((&made.coordinates, &made.num_points), (&places, &counts));
                assert_eq!(bits(&a[..want.len()]), want, "{threads} threads");
                assert_eq!((&b[..places.len()], &c[..counts.len()]), (&places[..], &counts[..]));
                let inside = unique.point_to_voxel.iter().filter(|voxel| **voxel >= 0).count();
                let dropped = made.not_finite + made.outside;
                assert_eq!(dropped + inside as u64, batch.points() as u64);
                if voxels == 100_000 {
                    assert_eq!(unique.coordinates, places);
                }
            }
        }
    }
}

#[test]
fn pillars_have_ten_features_and_a_place_in_the_image() {
    let form = CoordinateForm { batch_index: true, ..CoordinateForm::default() };
    let spec = HardSpec::new([1.0, 1.0, 4.0], [0.0, 0.0, -3.0, 4.0, 3.0, 1.0], 3, 9).unwrap();
    let spec = spec.with_form(form);
    let points = [
        2.5, 1.25, 0.0, 0.5, 2.75, 1.5, -1.0, 0.25, // one pillar of cloud 0
        0.5, 0.5, 0.5, 1.0, // one of cloud 1
    ];
    let batch = PointBatch::ragged(&points, 4, &[2, 1]).unwrap();
    let made = hard_voxelize(&batch, &spec).unwrap();
    assert_eq!(made.coordinates, [0, 0, 1, 2, 1, 0, 0, 0]);
    let features = pillar_features(&made, &spec, 4).unwrap();
    assert_eq!(features.len(), 2 * 3 * 10);
    // The mean is 2.625, 1.375, −0.5; the centre 2.5, 1.5, −1.
    assert_eq!(features[..10], [2.5, 1.25, 0.0, 0.5, -0.125, -0.125, 0.5, 0.0, -0.25, 1.0]);
    assert_eq!(features[10..20], [2.75, 1.5, -1.0, 0.25, 0.125, 0.125, -0.5, 0.25, 0.0, 0.0]);
    assert_eq!(features[20..30], [0.0; 10]);
    let image = birds_eye(&[7.0, 8.0, 9.0, 10.0], 2, &made.coordinates, &spec, 2).unwrap();
    let mut want = vec![0.0; 2 * 2 * 3 * 4];
    (want[4 + 2], want[12 + 4 + 2], want[24], want[36]) = (7.0, 8.0, 9.0, 10.0);
    assert_eq!(image, want);
    assert!(birds_eye(&[7.0], 2, &made.coordinates, &spec, 2).is_err());
    assert!(birds_eye(&[7.0; 4], 2, &made.coordinates, &spec, 1).is_err(), "a cloud too many");
    assert!(pillar_features(&made, &spec, 5).is_err());
}

/// What is written into memory of the caller's is the same, all of it, and nothing where it fails.
#[test]
fn memory_of_the_callers_is_filled_or_left_alone() {
    let spec = HardSpec::new([1.0, 1.0, 4.0], [0.0, 0.0, -3.0, 4.0, 3.0, 1.0], 3, 9).unwrap();
    let points = [2.5, 1.25, 0.0, 0.5, 2.75, 1.5, -1.0, 0.25, 0.5, 0.5, 0.5, 1.0];
    let batch = PointBatch::one(&points, 4).unwrap();
    let made = hard_voxelize(&batch, &spec).unwrap();
    let pillars = PillarSlices::from(&made);
    let coordinates = made.coordinates.as_slice();
    let owners = [0, -1, 1];
    let wanted = [
        pillar_features(&made, &spec, 4).unwrap(),
        birds_eye(&[7.0, 8.0], 1, coordinates, &spec, 1).unwrap(),
        scatter_points(&[1.0, 2.0, 3.0], 1, &owners, 3, ScatterRule::Sum).unwrap(),
        voxels_to_points(&[5.0, 6.0], 1, &owners).unwrap(),
    ];
    let mut memory = wanted.each_ref().map(|wanted| vec![f32::NAN; wanted.len()]);
    let [features, image, sums, back] = &mut memory;
    pillar_features_into(pillars, &spec, 4, features).unwrap();
    birds_eye_into(&[7.0, 8.0], 1, coordinates, (&spec, 1), image).unwrap();
    scatter_points_into(&[1.0, 2.0, 3.0], 1, &owners, 3, ScatterRule::Sum, sums).unwrap();
    voxels_to_points_into(&[5.0, 6.0], 1, &owners, back).unwrap();
    assert_eq!(memory, wanted);
    let [features, image, sums, back] = &mut memory;
    let past = [0, 9, 0, 0, 0, 0];
    assert!(pillar_features_into(pillars, &spec, 5, features).is_err());
    assert!(birds_eye_into(&[1.0, 2.0], 1, &past, (&spec, 1), image).is_err());
    assert!(birds_eye_into(&[1.0, 2.0], 1, coordinates, (&spec, 2), image).is_err());
    let rule = ScatterRule::Sum;
    assert!(scatter_points_into(&[1.0; 3], 1, &[0, 3, 1], 3, rule, sums).is_err());
    assert!(voxels_to_points_into(&[1.0; 2], 1, &[0, 2, 1], back).is_err());
    assert_eq!(memory, wanted, "something was written");
}

/// An image of 256 PB is an error, and not the end of the process.
#[test]
fn what_no_memory_holds_is_refused() {
    let spec = HardSpec::new([1e-4, 1e-4, 1.0], [0.0, 0.0, 0.0, 800.0, 800.0, 1.0], 32, 100);
    let image = birds_eye(&[1.0; 1000], 1000, &[0, 0, 0], &spec.unwrap(), 1);
    assert!(image.unwrap_err().is_out_of_memory());
    let values = scatter_points(&[], 1 << 30, &[], 1 << 40, ScatterRule::Sum);
    assert!(values.unwrap_err().is_out_of_memory());
}

#[test]
fn adversaries() {
    let spec = |points, voxels| {
        HardSpec::new([0.5; 3], [0.0, 0.0, 0.0, 50.0, 50.0, 50.0], points, voxels).unwrap()
    };
    let agree = |floats: &[f32], spec: &HardSpec| {
        let batch = PointBatch::one(floats, 3).unwrap();
        let made = hard_voxelize(&batch, spec).unwrap();
        let want = reference(&batch, spec);
        assert!((bits(&made.voxels), made.coordinates, made.num_points) == want);
    };
    let all_in_one: Vec<f32> = (0..90_000).map(|n| 1.0 + (n % 7) as f32 * 0.05).collect();
    agree(&all_in_one, &spec(32, 10));
    let every_its_own: Vec<f32> = (0..40_000u32)
        .flat_map(|n| [n % 100, n / 100 % 100, n / 10_000].map(|cell| cell as f32 * 0.5))
        .collect();
    agree(&every_its_own, &spec(2, 30_000));
    agree(&every_its_own, &spec(2, 100_000));
    agree(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY].repeat(50), &spec(2, 10));
    agree(&[], &spec(2, 10));
    // Cells past 2³⁰, which go another way.
    let wide = HardSpec::new([0.01; 3], [0.0, 0.0, 0.0, 50.0, 50.0, 50.0], 4, 1000).unwrap();
    assert!(wide.grid().voxels() > 1 << 30);
    agree(&every_its_own, &wide);
}

#[test]
fn what_cannot_be_is_named() {
    let range = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0];
    for (spec, field) in [
        (HardSpec::new([0.5; 3], range, 0, 1), "max_points"),
        (HardSpec::new([0.5; 3], range, 1, 0), "max_voxels"),
        (HardSpec::new([0.5; 3], range, u32::MAX, 1), "max_points"),
        (HardSpec::new([0.0; 3], range, 1, 1), "voxel_size"),
        (HardSpec::new([0.5; 3], [1.0; 6], 1, 1), "range"),
    ] {
        let error = spec.unwrap_err().to_string();
        assert!(error.starts_with(field), "{error}");
    }
    assert!(PointBatch::one(&[0.0; 7], 3).is_err());
    assert!(PointBatch::one(&[0.0; 4], 2).is_err());
    assert!(PointBatch::ragged(&[0.0; 12], 3, &[1, 2]).is_err());
    for columns in [1 << 55, usize::MAX] {
        assert!(PointBatch::one(&[], columns).is_err());
    }
    // Rows so large that not one could be made, and none is asked for.
    let huge = HardSpec::new([1e-4; 3], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], 1 << 30, 9).unwrap();
    let batch = PointBatch::one(&[], 1 << 24).unwrap();
    assert_eq!(hard_voxelize(&batch, &huge).unwrap().clouds, [0]);
    let to = HardSlices { voxels: &mut [], coordinates: &mut [], num_points: &mut [] };
    assert_eq!(HardHost::new(huge).run_into(&batch, to).unwrap(), [0]);
    assert!("yxz".parse::<CoordinateOrder>().is_err());
    assert!(scatter_points(&[0.0; 4], 2, &[0, 3], 2, ScatterRule::Sum).is_err());
    assert!(voxels_to_points(&[0.0; 4], 2, &[2]).is_err());
}

#[test]
fn small_clouds_are_written_in_place_with_any_number_of_columns() {
    let spec = HardSpec::new([0.25; 3], [0.0, 0.0, 0.0, 2.0, 1.5, 1.0], 3, 90).unwrap();
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 * 2.3 - 0.1
    };
    for columns in 3..=7 {
        let floats: Vec<f32> = (0..600 * columns).map(|_| next()).collect();
        let batch = PointBatch::one(&floats, columns).unwrap();
        let made = hard_voxelize(&batch, &spec).unwrap();
        let (mut a, mut b, mut c) = (vec![7.0; 90 * 3 * columns], vec![7; 90 * 3], vec![7; 90]);
        let to = HardSlices { voxels: &mut a, coordinates: &mut b, num_points: &mut c };
        let voxels = HardHost::new(spec).run_into(&batch, to).unwrap()[0];
        assert!(voxels > 40);
        assert_eq!(a[..voxels * 3 * columns], made.voxels);
        assert_eq!((&b[..voxels * 3], &c[..voxels]), (&made.coordinates[..], &made.num_points[..]));
    }
}
