//! A frame as a small picture for the report. It is a bitmap, which needs no encoder.
//!
//! Grey frames are stretched to the whole range of brightness: a thermal camera's values often
//! take a few percent of it, and would all look the same. Masks are drawn into the picture;
//! boxes, turned boxes and keypoints are drawn over it by the report.

use plimsoll_infer::decode::Detail;
use plimsoll_infer::{Detection, Frame, Pixels};

use crate::report::html::{CLASS_COLOURS, Picture, PictureFormat, PictureItem};

/// Pictures are shown small, and make the report larger.
const WIDEST: usize = 320;
/// The most detections that are drawn: more cover the picture.
const MOST: usize = 50;
/// The share of the darkest and of the brightest pixels that does not count for the range: single
/// hot pixels would make everything else dark.
const OUTLIERS: f64 = 0.005;

/// The picture of a frame with what was found in it.
pub(super) fn picture(
    name: String,
    frame: &Frame,
    detections: &[Detection],
    names: &[String],
) -> Option<Picture> {
    let (width, height) = (frame.width, frame.height);
    if width == 0 || height == 0 {
        return None;
    }
    let step = width.max(height).div_ceil(WIDEST).max(1);
    let (columns, rows) = (width.div_ceil(step), height.div_ceil(step));
    let colour = colours(frame)?;
    let shown = &detections[..detections.len().min(MOST)];
    let bytes = bitmap(columns, rows, |x, y| {
        let (x, y) = (x * step, y * step);
        shown.iter().fold(colour(y * width + x), |colour, found| masked(found, (x, y), colour))
    });
    let found = shown.iter().map(|found| item(found, names)).collect();
    Some(Picture { name, bytes, format: PictureFormat::Bmp, width, height, found })
}

/// The colour of a pixel, tinted where a mask covers it.
fn masked(found: &Detection, (x, y): (usize, usize), colour: [u8; 3]) -> [u8; 3] {
    if !found.mask().is_some_and(|mask| mask.has_in_frame(x, y)) {
        return colour;
    }
    let [red, green, blue] = CLASS_COLOURS[found.class as usize % CLASS_COLOURS.len()];
    let mix = |one: u8, two: u8| ((u16::from(one) + u16::from(two)) / 2) as u8;
    [mix(colour[0], blue), mix(colour[1], green), mix(colour[2], red)]
}

/// A detection as the report draws it.
fn item(found: &Detection, names: &[String]) -> PictureItem {
    let class = names.get(found.class as usize).cloned();
    let class = class.unwrap_or_else(|| format!("class {}", found.class));
    let label = format!("{class} {:.2}", found.confidence);
    let mut item = PictureItem::boxed(found.bounds, label, found.class);
    match &found.detail {
        Detail::Oriented(turned) => item.corners = turned.corners().to_vec(),
        Detail::Keypoints(points) => {
            let seen = points.iter().filter(|point| point.confidence.is_none_or(|c| c >= 0.5));
            item.points = seen.map(|point| [point.x, point.y]).collect();
        }
        Detail::Frame => item.corners.clear(),
        _ => {}
    }
    item
}

/// Blue, green and red of a pixel by its place.
fn colours(frame: &Frame) -> Option<Box<dyn Fn(usize) -> [u8; 3] + '_>> {
    Some(match &frame.pixels {
        Pixels::Rgb8(all) if is_grey(all) => {
            let stretch = GreyStretch::of(all.iter().step_by(3).map(|value| u16::from(*value)));
            Box::new(move |at| stretch.grey(u16::from(all.get(at * 3).copied().unwrap_or(0))))
        }
        Pixels::Bgr8(all) if is_grey(all) => {
            let stretch = GreyStretch::of(all.iter().step_by(3).map(|value| u16::from(*value)));
            Box::new(move |at| stretch.grey(u16::from(all.get(at * 3).copied().unwrap_or(0))))
        }
        Pixels::Rgb8(all) => Box::new(move |at| match all.get(at * 3..at * 3 + 3) {
            Some(&[red, green, blue]) => [blue, green, red],
            _ => [0; 3],
        }),
        Pixels::Bgr8(all) => Box::new(move |at| match all.get(at * 3..at * 3 + 3) {
            Some(&[blue, green, red]) => [blue, green, red],
            _ => [0; 3],
        }),
        Pixels::Grey8(all) => {
            let stretch = GreyStretch::of(all.iter().map(|value| u16::from(*value)));
            Box::new(move |at| stretch.grey(u16::from(all.get(at).copied().unwrap_or(0))))
        }
        Pixels::Grey16(all) => {
            let stretch = GreyStretch::of(all.iter().copied());
            Box::new(move |at| stretch.grey(all.get(at).copied().unwrap_or(0)))
        }
        _ => return None,
    })
}

/// Whether three equal channels are one.
fn is_grey(all: &[u8]) -> bool {
    all.chunks_exact(3).all(|pixel| pixel[0] == pixel[1] && pixel[1] == pixel[2])
}

/// The range of values that becomes black to white.
struct GreyStretch {
    low: u16,
    span: f32,
}

impl GreyStretch {
    fn of(values: impl Iterator<Item = u16>) -> GreyStretch {
        let mut counts = vec![0u64; 1 << 16];
        values.for_each(|value| counts[usize::from(value)] += 1);
        let all: u64 = counts.iter().sum();
        let aside = (all as f64 * OUTLIERS) as u64;
        let low = past(counts.iter().enumerate(), aside);
        let high = past(counts.iter().enumerate().rev(), aside);
        GreyStretch { low, span: f32::from(high.saturating_sub(low)).max(1.0) }
    }

    fn grey(&self, value: u16) -> [u8; 3] {
        [(f32::from(value.saturating_sub(self.low)) / self.span * 255.0).min(255.0) as u8; 3]
    }
}

/// The first value that has more than `aside` pixels up to it.
fn past<'a>(mut counts: impl Iterator<Item = (usize, &'a u64)>, aside: u64) -> u16 {
    let mut sum = 0;
    let found = counts.find(|(_, count)| {
        sum += **count;
        sum > aside
    });
    found.map_or(0, |(value, _)| value as u16)
}

/// A bitmap of 24 bits, rows from the bottom, each padded to four bytes.
fn bitmap(columns: usize, rows: usize, colour: impl Fn(usize, usize) -> [u8; 3]) -> Vec<u8> {
    const HEADER: usize = 54;
    let row = (columns * 3).next_multiple_of(4);
    let mut bytes = Vec::with_capacity(HEADER + row * rows);
    let word = |bytes: &mut Vec<u8>, value: usize| {
        bytes.extend_from_slice(&(value as u32).to_le_bytes());
    };
    bytes.extend_from_slice(b"BM");
    for value in [HEADER + row * rows, 0, HEADER, 40, columns, rows] {
        word(&mut bytes, value);
    }
    bytes.extend_from_slice(&[1, 0, 24, 0]);
    for value in [0, row * rows, 2835, 2835, 0, 0] {
        word(&mut bytes, value);
    }
    for y in (0..rows).rev() {
        for x in 0..columns {
            bytes.extend_from_slice(&colour(x, y));
        }
        bytes.resize(bytes.len() + row - columns * 3, 0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_infer::decode::{Keypoint, OrientedBox};
    use std::time::Duration;

    #[test]
    fn a_bitmap_has_the_length_that_it_says() {
        let bytes = bitmap(3, 2, |x, y| [x as u8, y as u8, 9]);
        assert_eq!(bytes.len(), 54 + 12 * 2);
        assert_eq!(bytes[2..6], (bytes.len() as u32).to_le_bytes());
        assert_eq!(bytes[54..57], [0, 1, 9], "the last row comes first");
    }

    #[test]
    fn a_dim_thermal_frame_becomes_visible() {
        // Values of a thermal camera: a few of 65536, and one hot pixel.
        let mut values: Vec<u16> = (0..400).map(|at| 29_000 + (at % 20) * 10).collect();
        values[17] = 60_000;
        for pixels in [
            Pixels::Grey16(values.clone()),
            Pixels::Rgb8(
                values.iter().flat_map(|v| [(100 + (v - 29_000) / 10) as u8; 3]).collect(),
            ),
        ] {
            let frame = Frame::new(pixels, (20, 20), Duration::ZERO, "t".into());
            let colour = colours(&frame).unwrap();
            let bright: Vec<u8> = (0..20).map(|at| colour(at)[0]).collect();
            assert!(bright[1] < 30 && bright[19] > 225, "{bright:?}");
        }
    }

    #[test]
    fn turned_boxes_keypoints_and_classes_are_drawn_as_what_they_are() {
        let of = |detail| Detection { detail, ..Detection::boxed([1.0, 2.0, 5.0, 8.0], 0.9, 3) };
        let names = ["a".to_string()];
        let turned = OrientedBox { centre: [3.0, 5.0], size: [4.0, 2.0], angle: 0.5 };
        let shown = item(&of(Detail::Oriented(turned)), &names);
        assert_eq!(shown.corners, turned.corners());
        assert_eq!(shown.label, "class 3 0.90");
        let point = |confidence| Keypoint { x: 2.0, y: 3.0, confidence };
        let points = vec![point(Some(0.9)), point(Some(0.1)), point(None)];
        assert_eq!(item(&of(Detail::Keypoints(points)), &names).points.len(), 2);
        assert!(item(&of(Detail::Frame), &names).corners.is_empty());
        assert_eq!(item(&of(Detail::Box), &names).corners.len(), 4);
    }
}
