//! Video files: H.264 in MP4 with cargo alone, everything else through ffmpeg.
//!
//! A decoder gives pictures in the order in which they are shown, and later than it was given
//! the samples. So the times of the samples that went in wait in a heap, and each picture
//! that comes out takes the smallest.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use openh264::OpenH264API;
use openh264::decoder::{DecodeOptions, DecodedYUV, Decoder, DecoderConfig, Flush};
use openh264::formats::YUVSource;

use super::mp4::{self, Film, Sample, Track};
use super::steady::Steady;
use super::{Frame, Pixels, Source, SourceInfo, ffmpeg};
use crate::error::{InferError, InferResult};

/// The largest coded picture that is read.
const LARGEST_SAMPLE: u32 = 64 << 20;

/// Opens a video with a decoder that can read it.
pub(super) fn open(name: &str, path: &Path) -> InferResult<Box<dyn Source>> {
    match look(name, path)? {
        (file, Film::H264(track)) => Ok(Box::new(H264::new(name, file, track)?)),
        (_, Film::Other(why)) => Ok(Box::new(ffmpeg::file(name, path, why)?)),
    }
}

/// Whether there is such a file, and its index is none that lies. What is inside of another
/// kind of file is known to whoever decodes it.
pub(super) fn check(name: &str, path: &Path) -> InferResult<()> {
    look(name, path).map(drop)
}

fn look(name: &str, path: &Path) -> InferResult<(File, Film)> {
    let refuse = |why: String| InferError::Source { source_name: name.to_owned(), why };
    let mut file = plimsoll::files::open(path).map_err(|e| refuse(e.to_string()))?;
    if !is_mp4(&mut file) {
        return Ok((file, Film::Other("it is no MP4 file")));
    }
    let film = mp4::read(&mut file).map_err(refuse)?;
    Ok((file, film))
}

fn is_mp4(file: &mut File) -> bool {
    let mut head = [0; 8];
    file.read_exact(&mut head).is_ok() && &head[4..] == b"ftyp"
}

/// H.264 from an MP4 file.
struct H264 {
    info: SourceInfo,
    file: File,
    /// Bytes of the file when it was opened.
    length: u64,
    track: Track,
    decoder: Decoder,
    /// The next sample to decode.
    next: usize,
    /// The next picture to hand out, for its name.
    shown: u64,
    /// The times of samples that went in and whose pictures have not come out.
    waiting: BinaryHeap<Reverse<i64>>,
    /// What the decoder still held at the end.
    last: Option<VecDeque<(Pixels, usize, usize)>>,
    steady: Steady,
}

impl H264 {
    fn new(name: &str, file: File, track: Track) -> InferResult<H264> {
        let refuse = |why: String| InferError::Source { source_name: name.to_owned(), why };
        if track.samples.is_empty() {
            return Err(refuse("it holds no pictures".to_owned()));
        }
        let length = file.metadata().map_err(|e| refuse(e.to_string()))?.len();
        let config = DecoderConfig::new().flush_after_decode(Flush::NoFlush);
        let mut decoder = Decoder::with_api_config(OpenH264API::from_source(), config)
            .map_err(|e| refuse(e.to_string()))?;
        // A file whose parameters are broken may still bring good ones with its samples.
        drop(decoder.decode(&track.parameters));
        let last = track.samples.iter().map(|s| s.shown).max().unwrap_or(0);
        let seconds = last as f64 / f64::from(track.timescale);
        let info = SourceInfo {
            name: name.to_owned(),
            kind: "video",
            frames: Some(track.samples.len() as u64),
            rate: (seconds > 0.0).then(|| (track.samples.len() - 1) as f64 / seconds),
        };
        let (waiting, steady) = (BinaryHeap::new(), Steady::default());
        Ok(H264 {
            info,
            file,
            length,
            track,
            decoder,
            next: 0,
            shown: 0,
            waiting,
            last: None,
            steady,
        })
    }

    /// Decodes the next sample; `None` within where no picture came out yet.
    fn decode(&mut self, sample: Sample) -> Result<Option<Frame>, String> {
        let packet = packet(&mut self.file, sample, self.track.length_bytes)?;
        let options = DecodeOptions::new().flush_after_decode(Flush::NoFlush);
        let picture = self
            .decoder
            .decode_with_options(&packet, options)
            .map_err(|e| e.to_string())?
            .map(|picture| rgb(&picture));
        self.waiting.push(Reverse(sample.shown));
        Ok(picture.map(|picture| self.frame(picture)))
    }

    fn frame(&mut self, (pixels, width, height): (Pixels, usize, usize)) -> Frame {
        let ticks = self.waiting.pop().map_or(0, |Reverse(ticks)| ticks);
        let seconds = ticks as f64 / f64::from(self.track.timescale);
        let timestamp = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let name = self.shown.to_string();
        self.shown += 1;
        Frame::new(pixels, (width, height), timestamp, name)
    }

    /// Whether a sample is not there any more because the file was cut after it was opened. A
    /// file that was short from the beginning has bad frames instead.
    fn cut_before(&mut self, sample: Sample) -> Option<InferError> {
        let now = self.file.metadata().ok()?.len();
        let end = sample.offset.saturating_add(u64::from(sample.size));
        if end <= now || now >= self.length {
            return None;
        }
        let (all, left) = (self.track.samples.len(), self.track.samples.len() - self.next);
        self.next = all;
        self.waiting.clear();
        self.last = Some(VecDeque::new());
        let why = format!(
            "the file was cut from {} to {now} bytes while it was read; {left} of {all} frames \
             are gone",
            self.length
        );
        Some(InferError::Vanished { source_name: self.info.name.clone(), why })
    }

    fn flush(&mut self) -> VecDeque<(Pixels, usize, usize)> {
        let left = self.decoder.flush_remaining();
        left.map(|pictures| pictures.iter().map(rgb).collect()).unwrap_or_default()
    }
}

impl Source for H264 {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_frame(&mut self) -> Option<InferResult<Frame>> {
        while let Some(&sample) = self.track.samples.get(self.next) {
            if let Some(gone) = self.cut_before(sample) {
                return Some(Err(gone));
            }
            self.next += 1;
            match self.decode(sample) {
                Ok(None) => {}
                Ok(Some(frame)) => return Some(self.steady.check(frame)),
                Err(why) => {
                    let frame = format!("sample {}", self.next - 1);
                    return Some(Err(InferError::Frame { frame, why }));
                }
            }
        }
        if self.last.is_none() {
            self.last = Some(self.flush());
        }
        if let Some(picture) = self.last.as_mut().and_then(VecDeque::pop_front) {
            let frame = self.frame(picture);
            return Some(self.steady.check(frame));
        }
        // What went in and never came out is a bad frame too.
        self.waiting.pop().map(|Reverse(ticks)| {
            let why = "the decoder made no picture of it".to_owned();
            Err(InferError::Frame { frame: format!("at tick {ticks}"), why })
        })
    }
}

/// Reads a sample and puts a start code in place of each length.
fn packet(file: &mut File, sample: Sample, length_bytes: usize) -> Result<Vec<u8>, String> {
    if sample.size > LARGEST_SAMPLE {
        return Err(format!("a sample of {} bytes is too large", sample.size));
    }
    let words = |e: std::io::Error| format!("sample at byte {}: {e}", sample.offset);
    let end = file.seek(SeekFrom::End(0)).map_err(words)?;
    if sample.offset.saturating_add(u64::from(sample.size)) > end {
        return Err("the file ends before the sample does".to_owned());
    }
    file.seek(SeekFrom::Start(sample.offset)).map_err(words)?;
    let mut coded = vec![0; sample.size as usize];
    file.read_exact(&mut coded).map_err(words)?;
    let mut packet = Vec::with_capacity(coded.len() + 16);
    let mut rest = coded.as_slice();
    while rest.len() > length_bytes {
        let (length, after) = rest.split_at(length_bytes);
        let length = length.iter().fold(0_usize, |sum, &b| sum << 8 | usize::from(b));
        let unit = after.get(..length).ok_or("a unit is longer than its sample")?;
        packet.extend_from_slice(&[0, 0, 0, 1]);
        packet.extend_from_slice(unit);
        rest = &after[length..];
    }
    if packet.is_empty() {
        return Err("the sample is empty".to_owned());
    }
    Ok(packet)
}

fn rgb(picture: &DecodedYUV<'_>) -> (Pixels, usize, usize) {
    let (width, height) = picture.dimensions();
    let mut pixels = vec![0; width * height * 3];
    picture.write_rgb8(&mut pixels);
    (Pixels::Rgb8(pixels), width, height)
}
