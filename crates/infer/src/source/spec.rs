//! What the user wrote, understood.

use std::path::{Path, PathBuf};

use super::synthetic::{Background, SceneKind, SceneOptions};
use super::{is_picture, redact};
use crate::error::{InferError, InferResult};

/// A source as users write it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Spec {
    /// A directory of pictures, or one picture.
    ImageDir(PathBuf),
    /// A video file.
    Video(PathBuf),
    /// A V4L2 device: a file under `/dev`.
    Camera(PathBuf),
    /// A network stream.
    Rtsp(String),
    /// A GStreamer pipeline without its sink.
    Gst(String),
    /// Scenes of our own.
    Synthetic(SceneOptions),
}

impl Spec {
    /// Reads `image_dir=D`, `video=F`, `camera=N`, `rtsp://…`, `gst='PIPELINE'`,
    /// `synthetic[:key=value,…]` or a bare path.
    ///
    /// # Errors
    /// [`InferError::Source`] where it is none of these.
    pub fn parse(text: &str, scenes: SceneKind) -> InferResult<Spec> {
        let refuse =
            |why: String| InferError::Source { source_name: redact(text).into_owned(), why };
        if text.starts_with("rtsp://") || text.starts_with("rtsps://") {
            return Ok(Spec::Rtsp(text.to_owned()));
        }
        if text == "synthetic" {
            return Ok(Spec::Synthetic(SceneOptions::new(scenes)));
        }
        if let Some(settings) = text.strip_prefix("synthetic:") {
            return synthetic(settings, scenes).map(Spec::Synthetic).map_err(refuse);
        }
        match text.split_once('=') {
            Some((_, "")) => Err(refuse("nothing follows the equals sign".to_owned())),
            Some(("image_dir", path)) => Ok(Spec::ImageDir(path.into())),
            Some(("video", path)) => Ok(Spec::Video(path.into())),
            Some(("camera", number)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                Ok(Spec::Camera(format!("/dev/video{number}").into()))
            }
            Some(("camera", path)) if path.starts_with('/') => Ok(Spec::Camera(path.into())),
            Some(("camera", _)) => {
                Err(refuse("a camera is a number (0 for /dev/video0) or a device file".to_owned()))
            }
            Some(("gst", pipeline)) => Ok(Spec::Gst(unquote(pipeline).to_owned())),
            _ => bare(text).ok_or_else(|| {
                refuse(
                    "there is no such file or directory, and it is none of image_dir=D, video=F, \
                     camera=N, rtsp://…, gst='PIPELINE', synthetic"
                        .to_owned(),
                )
            }),
        }
    }

    /// Whether frames come when they like, and not when they are asked for.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self, Spec::Camera(_) | Spec::Rtsp(_) | Spec::Gst(_))
    }
}

fn bare(text: &str) -> Option<Spec> {
    let path = Path::new(text);
    if path.is_dir() || path.is_file() && is_picture(path) {
        return Some(Spec::ImageDir(path.to_owned()));
    }
    path.exists().then(|| Spec::Video(path.to_owned()))
}

fn unquote(text: &str) -> &str {
    let text = text.trim();
    ['\'', '"']
        .iter()
        .find_map(|&quote| text.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(text)
}

fn synthetic(settings: &str, kind: SceneKind) -> Result<SceneOptions, String> {
    let mut options = SceneOptions::new(kind);
    for setting in settings.split(',').filter(|s| !s.is_empty()) {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        let wrong = || format!("{value:?} is no value for {key}");
        match key {
            "rgb" | "thermal" => {
                let kind = if key == "rgb" { SceneKind::Rgb } else { SceneKind::Thermal };
                let fresh = SceneOptions::new(kind);
                (options.kind, options.width, options.height) = (kind, fresh.width, fresh.height);
            }
            "seed" => options.seed = value.parse().map_err(|_| wrong())?,
            "frames" => {
                let frames = value.parse().ok().filter(|frames| *frames > 0);
                options.frames = Some(frames.ok_or_else(wrong)?);
            }
            "rate" => {
                let rate: f64 = value.parse().map_err(|_| wrong())?;
                if !(rate > 0.0 && rate <= 100_000.0) {
                    return Err(wrong());
                }
                options.rate = rate;
            }
            "size" => (options.width, options.height) = pair(value, 'x').ok_or_else(wrong)?,
            "objects" => {
                let (low, high): (u32, u32) = pair(value, '-').ok_or_else(wrong)?;
                if low > high || high > 64 {
                    return Err(wrong());
                }
                options.objects = low..=high;
            }
            "backgrounds" => {
                let one = |name| Background::ALL.into_iter().find(|b| b.name() == name);
                options.backgrounds =
                    value.split('+').map(one).collect::<Option<_>>().ok_or_else(wrong)?;
            }
            _ => return Err(format!("synthetic scenes have no setting {key:?}")),
        }
    }
    Ok(options)
}

/// `A-B` or `AxB`; `A` alone is both.
fn pair<T: std::str::FromStr + Copy>(value: &str, between: char) -> Option<(T, T)> {
    match value.split_once(between) {
        Some((one, two)) => Some((one.parse().ok()?, two.parse().ok()?)),
        None => value.parse().ok().map(|both| (both, both)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> InferResult<Spec> {
        Spec::parse(text, SceneKind::Rgb)
    }

    #[test]
    fn every_form_is_understood() {
        assert_eq!(parse("image_dir=a/b").unwrap(), Spec::ImageDir("a/b".into()));
        assert_eq!(parse("video=a=b.mp4").unwrap(), Spec::Video("a=b.mp4".into()));
        assert_eq!(parse("camera=3").unwrap(), Spec::Camera("/dev/video3".into()));
        assert_eq!(parse("camera=/dev/v4l/x").unwrap(), Spec::Camera("/dev/v4l/x".into()));
        assert_eq!(parse("rtsp://h/x?a=b").unwrap(), Spec::Rtsp("rtsp://h/x?a=b".into()));
        assert_eq!(parse("gst='a ! b c=d'").unwrap(), Spec::Gst("a ! b c=d".into()));
        assert_eq!(parse("gst=a ! b").unwrap(), Spec::Gst("a ! b".into()));
        assert!(matches!(parse("synthetic"), Ok(Spec::Synthetic(_))));
        let here = tempfile::tempdir().unwrap();
        let path = here.path().to_str().unwrap();
        assert_eq!(parse(path).unwrap(), Spec::ImageDir(path.into()));
    }

    #[test]
    fn what_is_nothing_is_refused_with_the_forms() {
        for text in ["", "=", "nosuch", "camera=x", "camera=", "image_dir=", "what=ever"] {
            let said = parse(text).unwrap_err().to_string();
            assert!(said.contains("source"), "{text}: {said}");
        }
    }

    #[test]
    fn settings_of_scenes_are_read_and_checked() {
        let text = "synthetic:thermal,seed=9,objects=2-3,frames=5,rate=10,size=100x90,backgrounds=tiles+mottle";
        let Ok(Spec::Synthetic(options)) = parse(text) else { panic!("{text}") };
        assert_eq!((options.kind, options.seed), (SceneKind::Thermal, 9));
        assert_eq!((options.objects, options.frames), (2..=3, Some(5)));
        assert_eq!((options.width, options.height), (100, 90));
        assert_eq!(options.backgrounds, [Background::Tiles, Background::Mottle]);
        for bad in [
            "seed=x",
            "objects=3-2",
            "rate=0",
            "frames=0",
            "rate=nan",
            "backgrounds=sea",
            "colour=1",
        ] {
            assert!(parse(&format!("synthetic:{bad}")).is_err(), "{bad}");
        }
    }
}
