//! Preparing against OpenCV's own answers, and against itself in other colours.

use std::time::Duration;

use super::*;

fn frame(pixels: Pixels, width: usize, height: usize) -> Frame {
    let timestamp = Duration::ZERO;
    Frame::new(pixels, (width, height), timestamp, "made up".to_owned())
}

/// Bytes without a pattern, the same in every run.
fn noise(count: usize, mut state: u32) -> Vec<u8> {
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn prepared(pixels: Pixels, size: (usize, usize), tensor: (usize, usize)) -> Tensor {
    let mut out = Tensor::default();
    Prepare::new(tensor.1, tensor.0).run(&frame(pixels, size.0, size.1), &mut out).unwrap();
    out
}

/// FNV-1a over the bytes that the numbers stand for.
fn digest(tensor: &Tensor) -> u64 {
    tensor.data.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &value| {
        let byte = (value * 255.0).round() as u8;
        assert_eq!(value.to_bits(), (f32::from(byte) / 255.0).to_bits());
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Frame and tensor (columns, rows), and the digest of what OpenCV 4.14 and 5.0 make of
/// `noise(.., 1000 * columns + rows)` by `resize` and `copyMakeBorder`.
const OPENCV: [(usize, usize, usize, usize, u64); 9] = [
    (192, 108, 64, 64, 0xcc11_8d54_896f_3918),
    (100, 70, 64, 64, 0xfbf8_795a_ae73_0d2a),
    (33, 21, 64, 64, 0x5622_e458_6f25_61b6),
    (65, 48, 64, 64, 0x542e_08c9_f325_d778),
    (64, 47, 64, 64, 0x3859_fe4a_8c42_dbbb),
    (10, 100, 64, 64, 0xa64f_1c23_b255_3e3d),
    (7, 5, 96, 64, 0xdfa6_addf_363b_1090),
    (1, 3, 64, 64, 0xde72_a255_1f8b_6380),
    (2, 2, 32, 64, 0xb76b_76bc_8acc_28db),
];

#[test]
fn equals_opencv_to_the_bit() {
    for (width, height, columns, rows, expected) in OPENCV {
        let pixels = noise(3 * width * height, (1000 * width + height) as u32);
        let out = prepared(Pixels::Rgb8(pixels), (width, height), (columns, rows));
        assert_eq!(out.shape, [1, 3, rows, columns]);
        assert_eq!(digest(&out), expected, "{width}x{height} in {columns}x{rows}");
    }
}

#[test]
fn blue_first_is_turned_round() {
    for size in [(40, 30), (64, 40)] {
        let rgb = noise(3 * size.0 * size.1, 7);
        let bgr = rgb.chunks_exact(3).flat_map(|pixel| [pixel[2], pixel[1], pixel[0]]).collect();
        let turned = prepared(Pixels::Bgr8(bgr), size, (64, 64));
        assert!(prepared(Pixels::Rgb8(rgb), size, (64, 64)) == turned, "{size:?}");
    }
}

#[test]
fn grey_is_three_equal_channels() {
    for size in [(40, 30), (64, 40), (1, 5)] {
        let grey = noise(size.0 * size.1, 9);
        let rgb = grey.iter().flat_map(|&value| [value; 3]).collect();
        let widened = prepared(Pixels::Rgb8(rgb), size, (64, 64));
        assert!(prepared(Pixels::Grey8(grey), size, (64, 64)) == widened, "{size:?}");
    }
}

#[test]
fn thermal_is_stretched_and_then_grey() {
    for size in [(40, 30), (64, 40), (1, 5), (1, 64)] {
        let grey = noise(size.0 * size.1, 11);
        let deep: Vec<u16> = grey.iter().map(|&value| 7000 + 3 * u16::from(value)).collect();
        let mut stretch = Stretch::default();
        stretch.look(&deep);
        let mut bytes = vec![0; deep.len()];
        stretch.row(&deep, &mut bytes);
        let stretched = prepared(Pixels::Grey8(bytes), size, (64, 64));
        assert!(prepared(Pixels::Grey16(deep), size, (64, 64)) == stretched, "{size:?}");
    }
}

#[test]
fn sizes_may_change_and_rooms_are_kept() {
    let mut prepare = Prepare::new(64, 64);
    let mut out = Tensor::default();
    for (width, height) in [(100, 70), (33, 21), (64, 64), (100, 70)] {
        let pixels = Pixels::Rgb8(noise(3 * width * height, 3));
        prepare.run(&frame(pixels.clone(), width, height), &mut out).unwrap();
        assert!(out == prepared(pixels, (width, height), (64, 64)), "{width}x{height}");
    }
    let room = (out.data.as_ptr(), prepare.rows.bytes.as_ptr());
    let pixels = Pixels::Rgb8(noise(3 * 100 * 70, 4));
    prepare.run(&frame(pixels, 100, 70), &mut out).unwrap();
    assert_eq!((out.data.as_ptr(), prepare.rows.bytes.as_ptr()), room);
}

#[test]
fn a_frame_that_lies_about_its_size_is_refused() {
    let mut out = Tensor::default();
    for (width, height) in [(4, 4), (0, 0), (usize::MAX, usize::MAX), (3, 3)] {
        let bad = frame(Pixels::Rgb8(vec![0; 26]), width, height);
        let refused = Prepare::new(64, 64).run(&bad, &mut out);
        assert!(matches!(refused, Err(InferError::Frame { .. })), "{width}x{height}");
    }
    let empty = frame(Pixels::Grey8(Vec::new()), 0, 9);
    assert!(Prepare::new(64, 64).run(&empty, &mut out).is_err());
}
