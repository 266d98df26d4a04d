//! Frames with what was found in them: boxes, turned boxes, keypoints. Masks are part of the
//! picture itself.

use maud::{Markup, html};
use plimsoll::text::one_line;

use super::section;

/// A frame to show, with what was found in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// Its name: which frame of which slot.
    pub name: String,
    /// The encoded picture.
    pub bytes: Vec<u8>,
    /// What it is encoded as.
    pub format: PictureFormat,
    /// Columns of the frame.
    pub width: usize,
    /// Rows of the frame.
    pub height: usize,
    /// What was found.
    pub found: Vec<PictureItem>,
}

/// Something that was found, in frame pixels.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PictureItem {
    /// The corners of its box, in order around it; none of a class of the whole frame.
    pub corners: Vec<[f32; 2]>,
    /// Its keypoints.
    pub points: Vec<[f32; 2]>,
    /// Its class and confidence.
    pub label: String,
    /// Its class, which decides the colour.
    pub class: u32,
}

impl PictureItem {
    /// A box: left, top, right, bottom.
    #[must_use]
    pub fn boxed([left, top, right, bottom]: [f32; 4], label: String, class: u32) -> PictureItem {
        let corners = vec![[left, top], [right, top], [right, bottom], [left, bottom]];
        PictureItem { corners, points: Vec::new(), label, class }
    }
}

/// How a picture is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureFormat {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// Windows bitmap, which needs no encoder.
    Bmp,
}

impl PictureFormat {
    fn mime(self) -> &'static str {
        match self {
            PictureFormat::Jpeg => "image/jpeg",
            PictureFormat::Png => "image/png",
            PictureFormat::Bmp => "image/bmp",
        }
    }
}

/// The colours of classes, in turn: readable on pictures, light and dark.
pub const CLASS_COLOURS: [[u8; 3]; 8] = [
    [61, 220, 132],
    [255, 176, 59],
    [90, 170, 255],
    [255, 105, 120],
    [200, 140, 255],
    [90, 225, 225],
    [255, 235, 90],
    [255, 150, 210],
];

pub(super) fn frames(pictures: &[Picture]) -> Markup {
    let body = html! { div.plots.frames { @for picture in pictures { (frame(picture)) } } };
    section("Frames", &body)
}

/// A picture with what was found in it.
fn frame(picture: &Picture) -> Markup {
    let (w, h) = (picture.width, picture.height);
    let size = (w as f32 / 36.0).max(6.0);
    html! {
        figure {
            figcaption { (one_line(&picture.name)) }
            svg.frame viewBox={ "0 0 " (w) " " (h) } {
                image href={ "data:" (picture.format.mime()) ";base64," (base64(&picture.bytes)) }
                    width=(w) height=(h) {}
                @for (at, item) in picture.found.iter().enumerate() { (found(item, at, size)) }
            }
        }
    }
}

fn found(item: &PictureItem, number: usize, size: f32) -> Markup {
    let [red, green, blue] = CLASS_COLOURS[item.class as usize % CLASS_COLOURS.len()];
    let colour = format!("rgb({red},{green},{blue})");
    let place = |value: f32| format!("{value:.1}");
    let corners = item.corners.iter().map(|[x, y]| format!("{x:.1},{y:.1}"));
    let corners = corners.collect::<Vec<_>>().join(" ");
    // The name stands over the box; that of a class of the whole frame in a list.
    let least = |axis: usize| item.corners.iter().map(|at| at[axis]).reduce(f32::min);
    let x = least(0).unwrap_or(size * 0.4).max(0.0);
    let y = match least(1) {
        Some(top) => (top - size * 0.3).max(size),
        None => size * 1.2 * (number as f32 + 1.0),
    };
    html! {
        @if !item.corners.is_empty() { polygon.box points=(corners) stroke=(colour) {} }
        @for [x, y] in &item.points {
            circle cx=(place(*x)) cy=(place(*y)) r=(place(size * 0.22)) fill=(colour) {}
        }
        text.box-name x=(place(x)) y=(place(y)) font-size=(place(size)) fill=(colour) {
            (one_line(&item.label))
        }
    }
}

/// Bytes as base64 with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(chunk.get(at).copied().unwrap_or(0)));
        let all = a << 16 | b << 8 | c;
        for at in 0..4 {
            let letter = LETTERS[(all >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_as_in_the_standard() {
        let cases = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let want = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        assert_eq!(cases.map(|text| base64(text.as_bytes())), want);
    }
}
