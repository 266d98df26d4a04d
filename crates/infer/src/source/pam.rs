//! The "portable arbitrary map": pixels behind a few lines that say how many.
//!
//! ffmpeg can write frames so. Unlike bare pixels, each frame then says its own size and
//! depth: nothing has to be asked beforehand, and a stream that changes cannot go unnoticed.

use std::io::{BufRead, Read};

use super::Pixels;

/// The most pixels that a frame may have.
const LARGEST: usize = 16_384 * 16_384;

/// Reads one frame: pixels, columns, rows.
///
/// # Errors
/// What is wrong, in words; the stream cannot be used after that.
pub(super) fn read(input: &mut impl BufRead) -> Result<(Pixels, usize, usize), String> {
    let (mut width, mut height, mut depth, mut most) = (0, 0, 0, 0);
    for number in 0.. {
        let line = line(input)?;
        if number == 0 && line != "P7" {
            return Err("the pipe holds something other than frames".to_owned());
        }
        if line == "ENDHDR" {
            break;
        }
        let (key, value) = line.split_once(' ').unwrap_or((&line, ""));
        let value = || value.trim().parse::<usize>().map_err(|_| format!("{line:?} is no number"));
        match key {
            "WIDTH" => width = value()?,
            "HEIGHT" => height = value()?,
            "DEPTH" => depth = value()?,
            "MAXVAL" => most = value()?,
            _ if number > 16 => return Err("a header does not end".to_owned()),
            _ => {}
        }
    }
    let count = width.checked_mul(height).filter(|&n| n > 0 && n <= LARGEST);
    let count = count.ok_or_else(|| format!("a frame of {width}x{height} pixels"))?;
    let pixels = match (depth, most) {
        (3, 255) => Pixels::Rgb8(bytes(input, count * 3)?),
        (1, 255) => Pixels::Grey8(bytes(input, count)?),
        (1, 65_535) => Pixels::Grey16(
            bytes(input, count * 2)?
                .chunks_exact(2)
                .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
                .collect(),
        ),
        _ => return Err(format!("frames of {depth} channels up to {most}")),
    };
    Ok((pixels, width, height))
}

/// Exactly this many bytes; memory is taken as they come, not as they are promised.
pub(super) fn bytes(input: &mut impl Read, count: usize) -> Result<Vec<u8>, String> {
    let mut data = Vec::with_capacity(count.min(1 << 24));
    input.take(count as u64).read_to_end(&mut data).map_err(|e| e.to_string())?;
    if data.len() < count {
        return Err("the frame is cut off".to_owned());
    }
    Ok(data)
}

fn line(input: &mut impl BufRead) -> Result<String, String> {
    let mut line = Vec::new();
    input.take(256).read_until(b'\n', &mut line).map_err(|e| e.to_string())?;
    if line.pop() != Some(b'\n') {
        return Err("a header is cut off".to_owned());
    }
    String::from_utf8(line).map_err(|_| "a header is no text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(depth: usize, most: usize) -> Vec<u8> {
        format!("P7\nWIDTH 2\nHEIGHT 1\nDEPTH {depth}\nMAXVAL {most}\nTUPLTYPE X\nENDHDR\n").into()
    }

    #[test]
    fn colour_and_grey_of_both_depths_are_read() {
        let read = |depth, most, pixels: &[u8]| {
            let mut input = &[header(depth, most), pixels.to_vec()].concat()[..];
            super::read(&mut input)
        };
        assert_eq!(read(3, 255, &[1; 6]), Ok((Pixels::Rgb8(vec![1; 6]), 2, 1)));
        assert_eq!(read(1, 255, &[1, 2]), Ok((Pixels::Grey8(vec![1, 2]), 2, 1)));
        assert_eq!(read(1, 65_535, &[1, 2, 0, 4]), Ok((Pixels::Grey16(vec![258, 4]), 2, 1)));
        assert!(read(1, 65_535, &[1, 2, 0]).is_err());
        assert!(read(4, 255, &[0; 8]).is_err());
    }

    #[test]
    fn lies_are_errors_and_take_no_memory() {
        for text in ["", "P6\n", "P7\nWIDTH x\n", "P7\nWIDTH 99999999999\nHEIGHT 9\nENDHDR\n"] {
            assert!(super::read(&mut text.as_bytes()).is_err(), "{text}");
        }
        let huge = "P7\nWIDTH 16384\nHEIGHT 16384\nDEPTH 3\nMAXVAL 255\nENDHDR\nxx";
        assert!(super::read(&mut huge.as_bytes()).is_err());
        let endless = format!("P7\n{}", "A 1\n".repeat(100));
        assert!(super::read(&mut endless.as_bytes()).is_err());
    }
}
