//! GStreamer pipelines through `gst-launch-1.0`: how a Jetson reaches its cameras and decoder.
//!
//! The pipeline is the user's; we append a conversion and a pipe. Raw frames say neither size
//! nor time, and the elements that would pack them are often not installed, so both come from
//! the words of `-v`: the caps of the sink, and a line for each buffer of an `identity`. A
//! shell swaps the descriptors, so that frames and words do not share a pipe.

use std::process::Command;
use std::time::Duration;

use super::child::{ChildDecoder, Heard, VideoShape};
use super::steady::Steady;
use super::{Frame, Pixels, Source, SourceInfo, Stopper, pam};
use crate::error::{InferError, InferResult};

const REMEDY: &str = "install GStreamer's tools (Debian, Ubuntu, JetPack: apt install \
                      gstreamer1.0-tools gstreamer1.0-plugins-base)";
const TIMES: &str = "plimsoll-times";

/// A running pipeline.
pub(super) struct Gst {
    info: SourceInfo,
    decoder: ChildDecoder,
    shown: u64,
    steady: Steady,
    ended: bool,
}

/// Starts a pipeline.
pub(super) fn open(name: &str, pipeline: &str) -> InferResult<Gst> {
    let refuse =
        |why: &str| InferError::Source { source_name: name.to_owned(), why: why.to_owned() };
    let words = split(pipeline).ok_or_else(|| refuse("a quotation mark is not closed"))?;
    if words.is_empty() {
        return Err(refuse("the pipeline is empty"));
    }
    if !is_installed("gst-launch-1.0") {
        let what = "gst-launch-1.0".to_owned();
        return Err(InferError::Unavailable { what, why: REMEDY.to_owned() });
    }
    let mut command = Command::new("sh");
    command.args(["-c", r#"exec "$0" "$@" 3>&1 1>&2"#, "gst-launch-1.0", "-v"]);
    command.args(words.iter().filter(|word| !word.is_empty()));
    command.args(["!", "videoconvert", "!"]);
    command.args(["video/x-raw,format=(string){RGB,GRAY16_LE,GRAY8}", "!"]);
    command.args(["identity", "silent=false", &format!("name={TIMES}"), "!"]);
    command.args(["fdsink", "fd=3", "sync=false"]);
    let decoder = ChildDecoder::start(command, REMEDY, hear)?;
    let info = SourceInfo { name: name.to_owned(), kind: "gst", frames: None, rate: None };
    Ok(Gst { info, decoder, shown: 0, steady: Steady::default(), ended: false })
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

impl Gst {
    fn end(&mut self, why: Option<String>) -> Option<InferResult<Frame>> {
        self.ended = true;
        let source_name = self.info.name.clone();
        why.map(|why| Err(InferError::Source { source_name, why }))
    }

    fn read(&mut self, shape: VideoShape) -> Result<Pixels, String> {
        // Rows are padded to whole words of four bytes.
        let row = shape.width * shape.deep;
        let padded = row.next_multiple_of(4);
        let data = pam::bytes(&mut self.decoder.out, padded * shape.height)?;
        let rows = data.chunks_exact(padded).flat_map(|line| &line[..row]).copied();
        Ok(match shape.deep {
            3 => Pixels::Rgb8(rows.collect()),
            1 => Pixels::Grey8(rows.collect()),
            _ => {
                let bytes: Vec<u8> = rows.collect();
                let pairs = bytes.chunks_exact(2);
                Pixels::Grey16(pairs.map(|p| u16::from_le_bytes([p[0], p[1]])).collect())
            }
        })
    }
}

impl Source for Gst {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_frame(&mut self) -> Option<InferResult<Frame>> {
        if self.ended {
            return None;
        }
        if !self.decoder.has_more() {
            let why = self.decoder.reason(false);
            return self.end(why);
        }
        let time = self.decoder.time();
        let Some(shape) = self.decoder.shape() else {
            return self.end(Some("the pipeline did not say the size of its frames".to_owned()));
        };
        let pixels = match self.read(shape) {
            Ok(pixels) => pixels,
            Err(why) => return self.end(Some(why)),
        };
        self.info.rate = self.info.rate.or_else(|| self.decoder.rate());
        let rate = self.info.rate.unwrap_or(30.0);
        let guess = || Duration::try_from_secs_f64(self.shown as f64 / rate).unwrap_or_default();
        let timestamp = time.unwrap_or_else(guess);
        let name = self.shown.to_string();
        self.shown += 1;
        let VideoShape { width, height, .. } = shape;
        let frame = Frame::new(pixels, (width, height), timestamp, name);
        Some(self.steady.check(frame))
    }

    fn stopper(&self) -> Option<Stopper> {
        Some(self.decoder.stopper())
    }
}

/// Words as a shell would split them, quotation marks taken off.
fn split(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    for c in text.chars() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// Understands a line of gst-launch's.
fn hear(line: &str) -> Heard {
    if line.contains(TIMES) && line.contains("last-message") {
        let time = line.split_once("pts: ").and_then(|(_, rest)| clock(rest));
        return time.map_or(Heard::Nothing, Heard::Time);
    }
    if line.contains("GstFdSink") && line.contains("caps = video/x-raw") {
        return shape(line).map_or(Heard::Nothing, Heard::Shape);
    }
    if line.contains("GstCapsFilter") && line.contains("framerate=(fraction)") {
        return rate(line).map_or(Heard::Nothing, Heard::Rate);
    }
    let reasons = ["ERROR", "WARNING", "error", "could not", "Additional debug", "no element"];
    if reasons.iter().any(|word| line.contains(word)) { Heard::Words } else { Heard::Nothing }
}

fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(key)?;
    rest.split([',', ' ', ';']).next()
}

fn shape(line: &str) -> Option<VideoShape> {
    let width = field(line, "width=(int)")?.parse().ok().filter(|w| (1..=16_384).contains(w))?;
    let height = field(line, "height=(int)")?.parse().ok().filter(|h| (1..=16_384).contains(h))?;
    let deep = match field(line, "format=(string)")? {
        "RGB" => 3,
        "GRAY8" => 1,
        "GRAY16_LE" => 2,
        _ => return None,
    };
    Some(VideoShape { width, height, deep })
}

fn rate(line: &str) -> Option<f64> {
    let (above, below) = field(line, "framerate=(fraction)")?.split_once('/')?;
    let rate = above.parse::<f64>().ok()? / below.parse::<f64>().ok()?;
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

/// `0:00:01.033333333` as a time.
fn clock(text: &str) -> Option<Duration> {
    let word = text.split([',', ' ']).next()?;
    let mut seconds = 0.0;
    for part in word.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipelines_are_split_as_a_shell_does() {
        let words = split("a  ! b name='x y' \"video/x-raw, width=1\" ''").unwrap();
        assert_eq!(words, ["a", "!", "b", "name=x y", "video/x-raw, width=1", ""]);
        assert_eq!(split("a 'b"), None);
    }

    #[test]
    fn sizes_times_and_rates_are_heard() {
        let caps = "/GstPipeline:pipeline0/GstFdSink:fdsink0.GstPad:sink: caps = video/x-raw, \
                    width=(int)33, height=(int)24, framerate=(fraction)30/1, format=(string)RGB";
        assert_eq!(hear(caps), Heard::Shape(VideoShape { width: 33, height: 24, deep: 3 }));
        let time = "/GstPipeline:pipeline0/GstIdentity:plimsoll-times: last-message = chain   \
                    ******* (plimsoll-times:sink) (2400 bytes, dts: none, pts: 0:01:00.500000000, ";
        assert_eq!(hear(time), Heard::Time(Duration::from_millis(60_500)));
        let rate = "/GstPipeline:pipeline0/GstCapsFilter:f.GstPad:src: caps = video/x-raw, \
                    framerate=(fraction)25/2, format=(string)RGB";
        assert_eq!(hear(rate), Heard::Rate(12.5));
        assert_eq!(hear("ERROR: from element x: Internal data stream error."), Heard::Words);
        assert_eq!(hear("Setting pipeline to PLAYING ..."), Heard::Nothing);
    }
}
