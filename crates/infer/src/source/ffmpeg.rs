//! Any video, V4L2 cameras and RTSP streams through `ffmpeg`.
//!
//! Frames come as portable arbitrary maps ([`super::pam`]), of the depth that is nearest to
//! what the stream has: colour, 8 or 16 bits of grey. Their times come from the filter
//! `showinfo`, which tells each frame's on the pipe of words.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::child::{ChildDecoder, Heard};
use super::steady::Steady;
use super::{Frame, Source, SourceInfo, Stopper, pam};
use crate::error::{InferError, InferResult};

const REMEDY: &str = "install ffmpeg (Debian, Ubuntu, JetPack: apt install ffmpeg)";

/// A running ffmpeg.
pub(super) struct Ffmpeg {
    info: SourceInfo,
    decoder: ChildDecoder,
    endless: bool,
    shown: u64,
    steady: Steady,
    ended: bool,
}

/// A file; `why` says why it is not decoded in here.
pub(super) fn file(name: &str, path: &Path, why: &str) -> InferResult<Ffmpeg> {
    let mut command = command();
    // A name that begins with a dash or looks like an address is still a file.
    command.arg("-i").arg(format!("file:{}", path.display()));
    let made = start(name, "video", command, false);
    made.map_err(|error| match error {
        InferError::Unavailable { what, why: missing } => InferError::Unavailable {
            what,
            why: format!("{missing}; {name} needs it, since {why}"),
        },
        other => other,
    })
}

/// A V4L2 device.
pub(super) fn camera(name: &str, device: &Path) -> InferResult<Ffmpeg> {
    if !device.exists() {
        let why = format!("there is no {}; `ls /dev/video*` shows the cameras", device.display());
        return Err(InferError::Unavailable { what: name.to_owned(), why });
    }
    let mut command = command();
    command.args(["-f", "v4l2", "-i"]).arg(device);
    start(name, "camera", command, true)
}

/// A network stream, over TCP so that lost packets do not tear frames.
pub(super) fn rtsp(name: &str, address: &str) -> InferResult<Ffmpeg> {
    let mut command = command();
    command.args(["-rtsp_transport", "tcp", "-i", address]);
    start(name, "rtsp", command, true)
}

fn command() -> Command {
    let mut command = Command::new("ffmpeg");
    command.args(["-nostdin", "-hide_banner", "-nostats", "-loglevel", "info"]);
    command.args(["-fflags", "+discardcorrupt"]);
    command
}

fn start(
    name: &str,
    kind: &'static str,
    mut command: Command,
    endless: bool,
) -> InferResult<Ffmpeg> {
    command.args(["-map", "0:v:0", "-an", "-vf"]);
    command.arg("showinfo=checksum=0,format=pix_fmts=rgb24|gray|gray16be");
    // Each frame once, as it comes, at its own size: the options have changed over time.
    match version()? {
        ..5 => command.args(["-vsync", "passthrough"]),
        5 => command.args(["-vsync", "passthrough", "-autoscale", "0"]),
        6.. => command.args(["-fps_mode", "passthrough", "-autoscale", "0"]),
    };
    command.args(["-f", "image2pipe", "-c:v", "pam", "pipe:1"]);
    let decoder = ChildDecoder::start(command, REMEDY, hear)?;
    let info = SourceInfo { name: name.to_owned(), kind, frames: None, rate: None };
    Ok(Ffmpeg { info, decoder, endless, shown: 0, steady: Steady::default(), ended: false })
}

/// The major version of the ffmpeg at hand; builds without a number are new.
fn version() -> InferResult<u32> {
    let said = Command::new("ffmpeg").arg("-version").stdin(Stdio::null()).output();
    let said = said.map_err(|e| InferError::Unavailable {
        what: "ffmpeg".to_owned(),
        why: format!("{e}: {REMEDY}"),
    })?;
    Ok(major(&String::from_utf8_lossy(&said.stdout)).unwrap_or(u32::MAX))
}

fn major(said: &str) -> Option<u32> {
    said.strip_prefix("ffmpeg version ")?.split(['.', '-', ' ']).next()?.parse().ok()
}

impl Ffmpeg {
    fn end(&mut self, why: Option<String>) -> Option<InferResult<Frame>> {
        self.ended = true;
        let source_name = self.info.name.clone();
        why.map(|why| Err(InferError::Source { source_name, why }))
    }
}

impl Source for Ffmpeg {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_frame(&mut self) -> Option<InferResult<Frame>> {
        if self.ended {
            return None;
        }
        if !self.decoder.has_more() {
            let why = self.decoder.reason(self.endless);
            return self.end(why);
        }
        let (pixels, width, height) = match pam::read(&mut self.decoder.out) {
            Ok(read) => read,
            Err(why) => return self.end(Some(why)),
        };
        self.info.rate = self.info.rate.or_else(|| self.decoder.rate());
        let rate = self.info.rate.unwrap_or(30.0);
        let guess = || Duration::try_from_secs_f64(self.shown as f64 / rate).unwrap_or_default();
        let timestamp = self.decoder.time().unwrap_or_else(guess);
        let name = self.shown.to_string();
        self.shown += 1;
        let frame = Frame::new(pixels, (width, height), timestamp, name);
        Some(self.steady.check(frame))
    }

    fn stopper(&self) -> Option<Stopper> {
        Some(self.decoder.stopper())
    }
}

/// Understands a line of ffmpeg's.
fn hear(line: &str) -> Heard {
    if line.contains("showinfo") {
        let time = line.split_once("pts_time:").and_then(|(_, rest)| seconds(rest));
        return time.map_or(Heard::Nothing, Heard::Time);
    }
    if line.starts_with("Stream #0") && line.contains("Video:") {
        let rate = line.split(", ").find_map(|part| part.strip_suffix(" fps")?.parse().ok());
        return rate.map_or(Heard::Nothing, Heard::Rate);
    }
    // The last is of our own option, which old ones need and newer ones complain of.
    let usual =
        ["Stream ", "Input #", "Output #", "Metadata:", "Duration:", "Press ", "video:", "-vsync "];
    if usual.iter().any(|start| line.starts_with(start)) || line.contains(" : ") {
        return Heard::Nothing;
    }
    Heard::Words
}

fn seconds(text: &str) -> Option<Duration> {
    let word = text.split_whitespace().next()?;
    Duration::try_from_secs_f64(word.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_are_heard_and_reasons_kept() {
        let info = "[Parsed_showinfo_0 @ 0x5] n:   1 pts:    512 pts_time:0.04    duration: 512";
        assert_eq!(hear(info), Heard::Time(Duration::from_millis(40)));
        let stream = "Stream #0:0(und): Video: h264 (High), yuv420p, 64x48, 25 fps, 25 tbr";
        assert_eq!(hear(stream), Heard::Rate(25.0));
        assert_eq!(hear("-vsync is deprecated. Use -fps_mode"), Heard::Nothing);
        assert_eq!(hear("encoder         : Lavf59"), Heard::Nothing);
        assert_eq!(hear("x.avi: Invalid data found"), Heard::Words);
        assert_eq!(major("ffmpeg version 5.1.9-0+deb12u1 Copyright"), Some(5));
        assert_eq!(major("ffmpeg version N-1234-gabc Copyright"), None);
    }
}
