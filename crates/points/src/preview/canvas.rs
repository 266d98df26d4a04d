//! Pixels, and letters on them.

use std::io::{self, BufWriter, Write};

use font8x8::legacy::BASIC_LEGACY;

/// Pixels of a letter, both ways.
pub(super) const LETTER: usize = 8;
/// Pixels from one line to the next.
pub(super) const LINE: usize = 14;

pub(super) const PAPER: [u8; 3] = [18, 18, 24];

/// A picture in memory.
pub(super) struct PreviewCanvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl PreviewCanvas {
    pub(super) fn new(width: usize, height: usize) -> PreviewCanvas {
        PreviewCanvas { width, height, pixels: PAPER.repeat(width * height) }
    }

    /// Colours a pixel; what lies outside is not seen.
    pub(super) fn set(&mut self, x: usize, y: usize, colour: [u8; 3]) {
        let place = (y * self.width + x) * 3;
        if x < self.width
            && let Some(pixel) = self.pixels.get_mut(place..place + 3)
        {
            pixel.copy_from_slice(&colour);
        }
    }

    #[cfg(test)]
    pub(super) fn pixels(&self) -> impl Iterator<Item = [u8; 3]> {
        self.pixels.as_chunks().0.iter().copied()
    }

    pub(super) fn write_text(&mut self, left: usize, top: usize, text: &str, colour: [u8; 3]) {
        for (place, letter) in text.bytes().enumerate() {
            let glyph = BASIC_LEGACY.get(usize::from(letter)).copied().unwrap_or_default();
            for (row, bits) in glyph.into_iter().enumerate() {
                let inked = (0..LETTER).filter(|column| bits >> column & 1 == 1);
                inked.for_each(|x| self.set(left + place * LETTER + x, top + row, colour));
            }
        }
    }

    /// Writes it as PNG.
    pub(super) fn write(&self, file: impl Write) -> io::Result<()> {
        let mut file = BufWriter::new(file);
        let mut encoder = png::Encoder::new(&mut file, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().map_err(io::Error::other)?;
        writer.write_image_data(&self.pixels).map_err(io::Error::other)?;
        writer.finish().map_err(io::Error::other)?;
        file.flush()
    }
}
