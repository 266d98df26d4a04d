//! Where frames come from: one file for each kind, named as users name it.

use std::time::Duration;

use crate::error::Result;

/// The pixels of a frame, rows from the top, no padding.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pixels {
    /// Red, green, blue.
    Rgb8(Vec<u8>),
    /// Blue, green, red.
    Bgr8(Vec<u8>),
    /// One channel.
    Grey8(Vec<u8>),
    /// One channel of 16 bits, as thermal cameras give it.
    Grey16(Vec<u16>),
}

/// A thing that is known to be in a synthetic frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Truth {
    /// Its box in frame pixels: left, top, right, bottom.
    pub bounds: [f32; 4],
    /// Its class.
    pub class: u32,
}

/// A picture with its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// What is seen.
    pub pixels: Pixels,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// When it was taken, since the source began.
    pub timestamp: Duration,
    /// Its name in reports: a file name, or a number.
    pub name: String,
    /// What is known to be in it; `None` where nobody knows.
    pub truth: Option<Vec<Truth>>,
}

/// What a source is.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct SourceInfo {
    /// As the user wrote it.
    pub name: String,
    /// `image_dir`, `video`, `camera`, `rtsp`, `gst` or `synthetic`.
    pub kind: &'static str,
    /// How many frames it has, where that is known.
    pub frames: Option<u64>,
    /// Frames a second by its own account.
    pub rate: Option<f64>,
}

/// A sequence of frames. `Err` of kind [`crate::Error::Frame`] is one bad frame: go on;
/// any other error ends the source; `None` is its natural end.
pub trait Source: Send {
    /// What it is.
    fn info(&self) -> &SourceInfo;
    /// The next frame.
    fn next_frame(&mut self) -> Option<Result<Frame>>;
}
