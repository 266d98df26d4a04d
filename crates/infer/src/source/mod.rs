//! Where frames come from: one file for each kind, named as users name it.
//!
//! [`open`] takes what the user wrote. What it returns decodes ahead on a thread of its own
//! ([`ahead`]) and never panics on what it reads: a bad frame is one [`crate::InferError::Frame`],
//! a source that is gone is one [`crate::InferError::Source`] with its reason. Pictures and H.264
//! in MP4 are decoded in here; all other video, cameras and pipelines come from a child
//! process (`ffmpeg`, `gst-launch-1.0`), so that their decoders' faults stay outside.

pub mod ahead;
mod chain;
mod child;
mod ffmpeg;
mod gst;
mod image_dir;
pub mod mp4;
pub mod pair;
mod pam;
mod redact;
mod spec;
mod staged;
mod steady;
pub mod synthetic;
mod video;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use self::chain::open_all;
pub use self::image_dir::{decode_image, is_picture};
pub use self::redact::redact;
pub use self::spec::Spec;
pub use self::staged::{Staged, Stager};
use self::synthetic::{SceneKind, Synthetic};
use crate::error::{InferError, InferResult};

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
    /// Where an engine finds its pixels more quickly.
    pub staged: Staged,
}

impl Frame {
    /// A picture of this many columns and rows.
    #[must_use]
    pub fn new(
        pixels: Pixels,
        (width, height): (usize, usize),
        timestamp: Duration,
        name: String,
    ) -> Frame {
        Frame { pixels, width, height, timestamp, name, truth: None, staged: Staged::default() }
    }
}

/// What a source is.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct SourceInfo {
    /// As the user wrote it, without passwords and tokens ([`redact`]).
    pub name: String,
    /// `image_dir`, `video`, `camera`, `rtsp`, `gst` or `synthetic`.
    pub kind: &'static str,
    /// How many frames it has, where that is known.
    pub frames: Option<u64>,
    /// Frames a second by its own account.
    pub rate: Option<f64>,
}

/// A sequence of frames. `Err` of kind [`crate::InferError::Frame`] is one bad frame: go on;
/// any other error ends the source; `None` is its natural end.
pub trait Source: Send {
    /// What it is.
    fn info(&self) -> &SourceInfo;
    /// The next frame.
    fn next_frame(&mut self) -> Option<InferResult<Frame>>;
    /// How long the last frame took to decode, where a clock was handed in.
    fn decode_time(&self) -> Option<Duration> {
        None
    }
    /// Something that makes a [`next_frame`](Source::next_frame) end that waits on another
    /// thread; `None` where it never waits for long.
    fn stopper(&self) -> Option<Stopper> {
        None
    }
}

/// Ends a source from another thread.
pub type Stopper = Arc<dyn Fn() + Send + Sync>;

/// A clock: the time since some beginning.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// How a source is to be opened.
#[derive(Clone)]
#[non_exhaustive]
pub struct SourceOptions {
    /// The camera of `synthetic` where the user names none.
    pub scenes: SceneKind,
    /// How many frames may be decoded ahead; 0 decodes on the caller's thread.
    pub ahead: usize,
    /// How long a camera or a stream may be silent before it counts as gone.
    pub timeout: Duration,
    /// What decoding is timed with, if it is to be timed.
    pub clock: Option<Clock>,
    /// Where frames are brought to as they are decoded ahead, if an engine wants that.
    pub stager: Option<Stager>,
    /// Whether [`open_all`] starts over at the end.
    pub start_over: bool,
}

impl Default for SourceOptions {
    fn default() -> Self {
        SourceOptions {
            scenes: SceneKind::Rgb,
            ahead: 4,
            timeout: Duration::from_secs(15),
            clock: None,
            stager: None,
            start_over: false,
        }
    }
}

impl fmt::Debug for SourceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceOptions")
            .field("scenes", &self.scenes)
            .field("ahead", &self.ahead)
            .field("timeout", &self.timeout)
            .field("clock", &self.clock.is_some())
            .field("stager", &self.stager.is_some())
            .field("start_over", &self.start_over)
            .finish()
    }
}

/// Opens what the user wrote: `image_dir=D`, `video=F`, `camera=N`, `rtsp://…`,
/// `gst='PIPELINE'`, `synthetic[:key=value,…]`, or a bare path to a directory or a video.
///
/// # Errors
/// [`crate::InferError::Source`] where it cannot be read or understood,
/// [`crate::InferError::Unavailable`] where this machine lacks what it takes.
pub fn open(spec: &str, options: &SourceOptions) -> InferResult<Box<dyn Source>> {
    let parsed = Spec::parse(spec, options.scenes)?;
    let live = parsed.is_live();
    // What is shown; only the decoders get the address itself.
    let name = &*redact(spec);
    let source: Box<dyn Source> = match parsed {
        Spec::ImageDir(path) => Box::new(image_dir::ImageDir::open(name, &path)?),
        Spec::Video(path) => video::open(name, &path)?,
        Spec::Camera(device) => Box::new(ffmpeg::camera(name, &device)?),
        Spec::Rtsp(address) => Box::new(ffmpeg::rtsp(name, &address)?),
        Spec::Gst(pipeline) => Box::new(gst::open(name, &pipeline)?),
        Spec::Synthetic(scenes) => Box::new(Synthetic::new(scenes).named(name)),
    };
    if options.ahead == 0 {
        return Ok(source);
    }
    let timeout = live.then_some(options.timeout);
    Ok(Box::new(ahead::Ahead::new(source, options, timeout)?))
}

/// Understands what the user wrote, and looks whether it is there and can be what it is said to
/// be, as far as names and headers tell. Nothing is decoded and nothing is started.
///
/// # Errors
/// [`crate::InferError::Source`] where it is not there or cannot be read or understood.
pub fn check(spec: &str, scenes: SceneKind) -> InferResult<Spec> {
    let parsed = Spec::parse(spec, scenes)?;
    let name = &*redact(spec);
    match &parsed {
        Spec::ImageDir(path) => drop(image_dir::ImageDir::open(name, path)?),
        Spec::Video(path) => video::check(name, path)?,
        Spec::Camera(device) if !device.exists() => {
            let why = format!("there is no device {}; see ls /dev/video*", device.display());
            return Err(InferError::Source { source_name: name.to_owned(), why });
        }
        Spec::Camera(_) | Spec::Rtsp(_) | Spec::Gst(_) | Spec::Synthetic(_) => {}
    }
    Ok(parsed)
}

/// The files that frames are read from; none of what comes from elsewhere.
#[must_use]
pub fn files(spec: &Spec) -> Vec<PathBuf> {
    match spec {
        Spec::ImageDir(path) => image_dir::pictures(path).unwrap_or_default(),
        Spec::Video(path) => vec![path.clone()],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
