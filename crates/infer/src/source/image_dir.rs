//! A directory of pictures, in the order in which people count: `f2` before `f10`.
//!
//! Pictures have no times of their own; they are given 30 a second, so that two directories
//! pair by their places. Their sizes may differ. What a file says of its size is believed only
//! up to a bound: a picture that unpacks to gigabytes is an error.

use std::cmp::Ordering;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::time::Duration;

use image::{DynamicImage, ImageDecoder, ImageReader, Limits};

use super::{Frame, Pixels, Source, SourceInfo};
use crate::error::{InferError, InferResult};

const ENDINGS: [&str; 6] = ["jpg", "jpeg", "png", "bmp", "tif", "tiff"];
/// The longest edge.
const LONGEST: u32 = 16_384;
/// The most bytes that a picture may unpack to, and the largest file.
const LARGEST: u64 = 512 << 20;
const RATE: u32 = 30;

/// The pictures of a directory, one after the other.
#[derive(Debug)]
pub(super) struct ImageDir {
    info: SourceInfo,
    files: Vec<PathBuf>,
    next: usize,
}

impl ImageDir {
    /// Lists a directory; pictures are read when their turn comes.
    pub(super) fn open(name: &str, directory: &Path) -> InferResult<ImageDir> {
        let refuse = |why: String| InferError::Source { source_name: name.to_owned(), why };
        let mut files = pictures(directory).map_err(|e| refuse(e.to_string()))?;
        if files.is_empty() {
            return Err(refuse(format!("it holds no pictures (.{})", ENDINGS.join(", ."))));
        }
        files.sort_by(|a, b| naturally(&label(a), &label(b)).then_with(|| a.cmp(b)));
        let info = SourceInfo {
            name: name.to_owned(),
            kind: "image_dir",
            frames: Some(files.len() as u64),
            rate: None,
        };
        Ok(ImageDir { info, files, next: 0 })
    }
}

impl Source for ImageDir {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_frame(&mut self) -> Option<InferResult<Frame>> {
        let path = self.files.get(self.next)?;
        if !path.exists() && !self.files[self.next..].iter().any(|file| file.exists()) {
            return Some(Err(self.vanished()));
        }
        let timestamp = Duration::from_secs(self.next as u64) / RATE;
        self.next += 1;
        Some(read(path, timestamp))
    }
}

impl ImageDir {
    /// None of the pictures that are left is there any more: a folder that was removed or
    /// unmounted, and not so many bad pictures.
    fn vanished(&mut self) -> InferError {
        let (all, left) = (self.files.len(), self.files.len() - self.next);
        self.next = all;
        let why = format!("{left} of its {all} pictures are not there any more");
        InferError::Vanished { source_name: self.info.name.clone(), why }
    }
}

/// The pictures of a directory, in no order; a picture alone is itself.
pub(super) fn pictures(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    if directory.is_file() && is_picture(directory) {
        return Ok(vec![directory.to_owned()]);
    }
    let paths = std::fs::read_dir(directory)?.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter(|path| is_picture(path)).collect())
}

fn label(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Whether a file's name ends as that of a picture does.
#[must_use]
pub fn is_picture(path: &Path) -> bool {
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    ENDINGS.iter().any(|known| known.eq_ignore_ascii_case(ending))
}

fn read(path: &Path, timestamp: Duration) -> InferResult<Frame> {
    let name = label(path);
    let refuse = |why: String| InferError::Frame { frame: name.clone(), why };
    let about = std::fs::metadata(path).map_err(|e| refuse(e.to_string()))?;
    let length = about.len();
    // A pipe under a picture's name would keep its reader waiting for good.
    if !about.is_file() {
        return Err(refuse("it is no file".to_owned()));
    }
    if length > LARGEST {
        return Err(refuse(format!("a file of {length} bytes is too large for a picture")));
    }
    let bytes = std::fs::read(path).map_err(|e| refuse(e.to_string()))?;
    let (pixels, width, height) = decode_image(&bytes).map_err(&refuse)?;
    Ok(Frame::new(pixels, (width, height), timestamp, name))
}

/// Decodes a JPEG, PNG, BMP or TIFF picture: its pixels, columns and rows. Grey stays grey,
/// 16 bits of grey stay 16; other colours become red, green and blue of 8 bits.
///
/// # Errors
/// What is wrong with the picture, in words.
pub fn decode_image(bytes: &[u8]) -> Result<(Pixels, usize, usize), String> {
    if bytes.starts_with(&[0xff, 0xd8]) && !jpeg_is_whole(bytes) {
        return Err("the JPEG is cut off".to_owned());
    }
    let mut reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|e| e.to_string())?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(LONGEST);
    limits.max_image_height = Some(LONGEST);
    limits.max_alloc = Some(LARGEST);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|e| e.to_string())?;
    if decoder.total_bytes() > LARGEST {
        return Err(format!("it unpacks to {} bytes", decoder.total_bytes()));
    }
    let turned = decoder.orientation().map_err(|e| e.to_string())?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(|e| e.to_string())?;
    image.apply_orientation(turned);
    let (width, height) = (image.width() as usize, image.height() as usize);
    if width == 0 || height == 0 {
        return Err("it is empty".to_owned());
    }
    let pixels = match image {
        DynamicImage::ImageLuma8(grey) => Pixels::Grey8(grey.into_raw()),
        DynamicImage::ImageLuma16(grey) => Pixels::Grey16(grey.into_raw()),
        DynamicImage::ImageRgb8(rgb) => Pixels::Rgb8(rgb.into_raw()),
        other @ DynamicImage::ImageLumaA8(_) => Pixels::Grey8(other.into_luma8().into_raw()),
        other @ DynamicImage::ImageLumaA16(_) => Pixels::Grey16(other.into_luma16().into_raw()),
        other => Pixels::Rgb8(other.into_rgb8().into_raw()),
    };
    Ok((pixels, width, height))
}

/// Decoders fill in what a cut-off JPEG lacks and say nothing. A whole one has an end mark
/// after its last scan; neither mark can occur inside of a scan.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    let last = |mark: u8| bytes.windows(2).rposition(|pair| pair == [0xff, mark]);
    matches!((last(0xda), last(0xd9)), (Some(scan), Some(end)) if end > scan)
}

/// Compares names as people do: runs of digits by their value.
fn naturally(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        let (run_a, run_b) = (digits(a), digits(b));
        if run_a > 0 && run_b > 0 {
            let (number_a, number_b) = (unpadded(&a[..run_a]), unpadded(&b[..run_b]));
            let order = number_a.len().cmp(&number_b.len()).then_with(|| number_a.cmp(number_b));
            if order != Ordering::Equal {
                return order;
            }
            (a, b) = (&a[run_a..], &b[run_b..]);
            continue;
        }
        match (a.split_first(), b.split_first()) {
            (Some((x, rest_a)), Some((y, rest_b))) => {
                let order = x.to_ascii_lowercase().cmp(&y.to_ascii_lowercase());
                if order != Ordering::Equal {
                    return order;
                }
                (a, b) = (rest_a, rest_b);
            }
            (x, y) => return x.is_some().cmp(&y.is_some()),
        }
    }
}

fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|b| b.is_ascii_digit()).count()
}

fn unpadded(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|&&b| b == b'0').count();
    &number[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ordered_as_people_count() {
        let mut names = ["f10.png", "f2.png", "F1.png", "f02b.png", "a100", "a99", "f", ""];
        names.sort_by(|a, b| naturally(a, b));
        assert_eq!(names, ["", "a99", "a100", "f", "F1.png", "f2.png", "f02b.png", "f10.png"]);
    }
}
