//! Passes give what a cloud in memory gives, within the room that they were told.

use proptest::prelude::*;

use super::*;
use crate::network::{PointBatch, hard_voxelize};

/// The same as of a cloud in memory; gives the passes.
fn check(passes: &mut HardPasses, floats: &[f32], spec: &HardSpec, room: PassRoom) -> u64 {
    let batch = PointBatch::one(floats, 4).unwrap().numbered_from(3);
    let want = hard_voxelize(&batch, spec).unwrap();
    let cloud = Cloud::from_points(floats.to_vec(), 1).unwrap();
    let (mut voxels, mut places, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    let mut made = HardVoxels::default();
    let mut take = |made: &HardVoxels| {
        assert!(made.num_points.len() <= room.part && !made.num_points.is_empty());
        voxels.extend(made.voxels.iter().map(|value| value.to_bits()));
        places.extend_from_slice(&made.coordinates);
        counts.extend_from_slice(&made.num_points);
        Ok(())
    };
    let count = passes.run((&cloud, 3), room, &mut made, &mut take, &mut || Ok(()));
    let bits: Vec<u32> = want.voxels.iter().map(|value| value.to_bits()).collect();
    assert_eq!(counts, want.num_points);
    assert_eq!(places, want.coordinates);
    assert_eq!(voxels, bits);
    assert_eq!((made.not_finite, made.outside), (want.not_finite, want.outside));
    count.unwrap()
}

fn float() -> impl Strategy<Value = f32> {
    prop_oneof![8 => -1.0f32..9.0, 1 => Just(f32::NAN), 1 => Just(f32::INFINITY), 4 => (0u8..9).prop_map(f32::from)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn passes_give_what_a_cloud_in_memory_gives(
        points in prop::collection::vec(prop::array::uniform4(float()), 0..200),
        most in 1u32..90, width in prop_oneof![Just(8.0f32), Just(8e6)], few in 1u32..5,
        (entries, part) in (1u32..9, 1usize..40),
    ) {
        // The wide grid has more cells than a number of 32 bits counts.
        let spec = HardSpec::new([1.0; 3], [0.0, 0.0, 0.0, width, 8000.0, 8.0], few, most).unwrap();
        let entries = 1 << entries;
        let room = PassRoom { entries, part: part.min(entries / SPARSE) };
        let mut passes = HardPasses::new(spec);
        for points in [&points[..], &points[..points.len() / 2]] {
            check(&mut passes, points.as_flattened(), &spec, room);
        }
    }
}

#[test]
fn the_less_room_the_more_passes() {
    // Many pieces, and two points in each of most voxels.
    let point = |n: u32| {
        let cell = n.wrapping_mul(2_654_435_761) % 12_000;
        [cell % 100, cell / 100 % 100, cell / 10_000, n].map(|value| value as f32)
    };
    let points: Vec<[f32; 4]> = (0..25_000).map(point).collect();
    let range = [0.0, 0.0, 0.0, 100.0, 100.0, 2.0];
    let spec = HardSpec::new([1.0; 3], range, 3, 20_000).unwrap();
    let mut passes = HardPasses::new(spec);
    let mut of = |entries, part| {
        check(&mut passes, points.as_flattened(), &spec, PassRoom { entries, part })
    };
    assert_eq!(of(1 << 15, 1 << 14), 1);
    assert!(of(1 << 15, 1000) > 8);
    assert!(of(1 << 11, 1000) > 30);
}

#[test]
fn room_is_what_there_is() {
    let cloud = Cloud::from_points(vec![0.0; 40_000], 1).unwrap();
    let spec = HardSpec::new([1.0; 3], [0.0, 0.0, 0.0, 1e3, 1e3, 1.0], 4, 9000).unwrap();
    let least = PassRoom::least(&spec, 10_000).bytes(&spec, 10_000, 4);
    for bytes in [0, least, least + 1, 300_000, 500_000, 700_000, 1 << 30] {
        let mut room = PassRoom::of(Bytes(bytes), 1 << 40, &spec, &cloud);
        let taken = room.bytes(&spec, 10_000, 4);
        assert!(taken <= bytes.max(least), "{bytes}: {room:?} takes {taken}");
        assert!(room.part <= room.entries / SPARSE && room.part > 0, "{room:?}");
        while let Some(half) = room.halved() {
            assert!(half.bytes(&spec, 10_000, 4) < room.bytes(&spec, 10_000, 4));
            room = half;
        }
        assert_eq!(room, PassRoom { entries: ENTRIES, part: 1 });
    }
    let room = PassRoom::of(Bytes(1 << 30), 1 << 40, &spec, &cloud);
    assert_eq!(room, PassRoom { entries: 1 << 15, part: 9000 });
}

/// A file that others write to while it is read is an error, where that can be told.
#[test]
fn a_cloud_that_changes_between_passes_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    let points: Vec<f32> = (0..40_000u16).map(|n| f32::from(n / 4 % 100) + 0.5).collect();
    std::fs::write(&path, bytemuck::cast_slice::<f32, u8>(&points)).unwrap();
    let batch = crate::Batch::open(&path).unwrap();
    let cloud = &batch.load(0..1, true).unwrap()[0];
    let spec = HardSpec::new([1.0; 3], [0.0, 0.0, 0.0, 100.0, 100.0, 100.0], 2, 90).unwrap();
    for value in [f32::NAN, 0.5] {
        std::fs::write(&path, bytemuck::cast_slice::<f32, u8>(&points)).unwrap();
        let mut made = HardVoxels::default();
        let mut take = |_: &HardVoxels| {
            std::fs::write(&path, bytemuck::cast_slice::<f32, u8>(&[value; 40_000])).unwrap();
            Ok(())
        };
        let room = PassRoom { entries: 1 << 8, part: 20 };
        let run = HardPasses::new(spec).run((cloud, 0), room, &mut made, &mut take, &mut || Ok(()));
        let said = run.unwrap_err().to_string();
        assert!(said.contains("changed while it was read"), "{said}");
    }
}
