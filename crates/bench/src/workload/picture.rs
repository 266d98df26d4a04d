//! A frame as a small picture for the report. It is a bitmap, which needs no encoder.

use plimsoll_infer::{Detection, Frame, Pixels};

use crate::report::html::{Picture, PictureFormat};

/// Pictures are shown small, and make the report larger.
const WIDEST: usize = 320;

/// The picture of a frame with its boxes.
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
    let bytes = bitmap(columns, rows, |x, y| colour(y * step * width + x * step));
    let label = |found: &Detection| {
        let class = names.get(found.class as usize).cloned();
        let class = class.unwrap_or_else(|| format!("class {}", found.class));
        format!("{class} {:.2}", found.confidence)
    };
    let boxes = detections.iter().take(50).map(|found| (found.bounds, label(found))).collect();
    Some(Picture { name, bytes, format: PictureFormat::Bmp, width, height, boxes })
}

/// Blue, green and red of a pixel by its place.
fn colours(frame: &Frame) -> Option<Box<dyn Fn(usize) -> [u8; 3] + '_>> {
    Some(match &frame.pixels {
        Pixels::Rgb8(all) => Box::new(move |at| match all.get(at * 3..at * 3 + 3) {
            Some(&[red, green, blue]) => [blue, green, red],
            _ => [0; 3],
        }),
        Pixels::Bgr8(all) => Box::new(move |at| match all.get(at * 3..at * 3 + 3) {
            Some(&[blue, green, red]) => [blue, green, red],
            _ => [0; 3],
        }),
        Pixels::Grey8(all) => Box::new(move |at| [all.get(at).copied().unwrap_or(0); 3]),
        Pixels::Grey16(all) => {
            let low = all.iter().min().copied().unwrap_or(0);
            let span = f32::from(all.iter().max().copied().unwrap_or(0) - low).max(1.0);
            Box::new(move |at| {
                let value = all.get(at).copied().unwrap_or(low);
                [(f32::from(value - low) / span * 255.0) as u8; 3]
            })
        }
        _ => return None,
    })
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

    #[test]
    fn a_bitmap_has_the_length_that_it_says() {
        let bytes = bitmap(3, 2, |x, y| [x as u8, y as u8, 9]);
        assert_eq!(bytes.len(), 54 + 12 * 2);
        assert_eq!(bytes[2..6], (bytes.len() as u32).to_le_bytes());
        assert_eq!(bytes[54..57], [0, 1, 9], "the last row comes first");
    }
}
