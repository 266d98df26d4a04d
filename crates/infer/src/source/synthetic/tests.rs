//! What the detectors' training and judging rest on.

use super::*;
use crate::source::Pixels;

fn fingerprint(pixels: &Pixels) -> u64 {
    let bytes: Vec<u8> = match pixels {
        Pixels::Grey16(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Pixels::Rgb8(bytes) | Pixels::Bgr8(bytes) | Pixels::Grey8(bytes) => bytes.clone(),
    };
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[test]
fn a_frame_depends_on_seed_and_number_alone() {
    for kind in [SceneKind::Rgb, SceneKind::Thermal] {
        let mut scenes = Synthetic::new(SceneOptions::new(kind));
        let first = scenes.next_frame().unwrap().unwrap();
        let second = scenes.next_frame().unwrap().unwrap();
        assert_eq!(scenes.frame(0), first);
        assert_eq!(Synthetic::new(SceneOptions::new(kind)).frame(1), second);
        assert_ne!(first.pixels, second.pixels);
        assert_eq!(second.timestamp, Duration::from_secs_f64(1.0 / 30.0));
        let other = SceneOptions { seed: 5, ..SceneOptions::new(kind) };
        assert_ne!(Synthetic::new(other).frame(0).pixels, first.pixels);
    }
}

#[test]
fn truth_lies_within_the_frame_and_every_class_comes() {
    for kind in [SceneKind::Rgb, SceneKind::Thermal] {
        let scenes = Synthetic::new(SceneOptions::new(kind));
        let mut seen = [0; CLASSES.len()];
        for number in 0..60 {
            let frame = scenes.frame(number);
            let truth = frame.truth.unwrap();
            assert!(truth.len() <= 8);
            for Truth { bounds: [left, top, right, bottom], class } in truth {
                assert!(0.0 <= left && left < right && right <= frame.width as f32);
                assert!(0.0 <= top && top < bottom && bottom <= frame.height as f32);
                seen[class as usize] += 1;
            }
        }
        assert!(seen.iter().all(|&count| count > 20), "{seen:?}");
    }
}

#[test]
fn both_cameras_see_the_same_objects() {
    let [rgb, thermal] =
        [SceneKind::Rgb, SceneKind::Thermal].map(|kind| Synthetic::new(SceneOptions::new(kind)));
    for number in 0..40 {
        let (one, two) = (rgb.frame(number), thermal.frame(number));
        let (seen, felt) = (one.truth.unwrap(), two.truth.unwrap());
        assert_eq!(seen.len(), felt.len());
        for (a, b) in seen.iter().zip(&felt) {
            assert_eq!(a.class, b.class);
            let scale = [2.0, 480.0 / 256.0, 2.0, 480.0 / 256.0];
            for (edge, scale) in scale.into_iter().enumerate() {
                let apart = (a.bounds[edge] - b.bounds[edge] * scale).abs();
                assert!(apart <= 5.0, "{number}: {a:?} {b:?}");
            }
        }
    }
}

#[test]
fn the_end_comes_where_it_was_set() {
    let options = SceneOptions { frames: Some(2), ..SceneOptions::new(SceneKind::Thermal) };
    let mut scenes = Synthetic::new(options);
    assert_eq!(scenes.info().frames, Some(2));
    assert!(scenes.next_frame().is_some() && scenes.next_frame().is_some());
    assert!(scenes.next_frame().is_none());
}

#[test]
fn odd_sizes_and_every_background_can_be_drawn() {
    for kind in [SceneKind::Rgb, SceneKind::Thermal] {
        for family in Background::ALL {
            for (width, height) in [(1, 1), (33, 301), (501, 47)] {
                let backgrounds = vec![family];
                let options =
                    SceneOptions { width, height, backgrounds, ..SceneOptions::new(kind) };
                let frame = Synthetic::new(options).frame(3);
                let pixels = match &frame.pixels {
                    Pixels::Rgb8(bytes) => bytes.len() / 3,
                    Pixels::Grey16(values) => values.len(),
                    other => panic!("{other:?}"),
                };
                assert_eq!(pixels, frame.width * frame.height);
            }
        }
    }
}

#[test]
fn scenes_are_the_same_bits_on_every_machine() {
    let marks = [SceneKind::Rgb, SceneKind::Thermal].map(|kind| {
        let options = SceneOptions { backgrounds: Vec::new(), ..SceneOptions::new(kind) };
        let scenes = Synthetic::new(options);
        (0..12).fold(0, |sum: u64, n| sum.wrapping_add(fingerprint(&scenes.frame(n).pixels)))
    });
    assert_eq!(marks, [1_772_676_356_696_795_099, 3_284_934_765_999_669_799]);
}
