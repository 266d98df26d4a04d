//! Tells the words of `plimsoll bench MODEL… [SOURCE…]` apart: which are weights, which are
//! sources. What a word is decides, not its place: its form, a folder, a file's ending, and for
//! other files their first bytes.

use std::io::Read;
use std::path::{Path, PathBuf};

use plimsoll::files;
use plimsoll_infer::find_weights;
use plimsoll_infer::source::is_picture;

use crate::outcome::BadInput;

/// What only sources begin with.
const SOURCES: [&str; 7] =
    ["synthetic:", "image_dir=", "video=", "camera=", "gst=", "rtsp://", "rtsps://"];
/// How the names of weights end.
const WEIGHTS: [&str; 5] = ["onnx", "pt", "pth", "engine", "plan"];
/// How the names of videos end.
const VIDEOS: [&str; 13] =
    ["mp4", "m4v", "mov", "avi", "mkv", "webm", "ts", "m2ts", "mpg", "mpeg", "h264", "wmv", "flv"];
/// How pictures and videos begin, and where.
const FRAMES: [(usize, &[u8]); 8] = [
    (0, b"\xff\xd8\xff"),
    (0, b"\x89PNG"),
    (0, b"BM"),
    (0, b"II*\0"),
    (0, b"MM\0*"),
    (4, b"ftyp"),
    (0, b"\x1a\x45\xdf\xa3"),
    (0, b"RIFF"),
];

/// Words, told apart.
#[derive(Debug, Default, PartialEq)]
pub(super) struct BenchWords {
    pub(super) models: Vec<PathBuf>,
    pub(super) sources: Vec<String>,
}

impl BenchWords {
    /// Tells words apart.
    ///
    /// # Errors
    /// A word that is neither, or of which that cannot be told, with what to write instead.
    pub(super) fn read(words: &[String]) -> Result<BenchWords, BadInput> {
        let mut found = BenchWords::default();
        for word in words {
            match kind(word) {
                Ok(WordKind::Model) => found.models.push(word.into()),
                Ok(WordKind::Source) => found.sources.push(word.clone()),
                Err(why) => return Err(BadInput::new(format!("{word}: {why}"))),
            }
        }
        Ok(found)
    }
}

enum WordKind {
    Model,
    Source,
}

const FORMS: &str = "a model is a .onnx, .pt or .engine file; a source is a folder of pictures, a \
                     picture, a video, camera=N, rtsp://…, gst='PIPELINE' or synthetic";

fn kind(word: &str) -> Result<WordKind, String> {
    if word == "synthetic" || SOURCES.iter().any(|start| word.starts_with(start)) {
        return Ok(WordKind::Source);
    }
    let path = Path::new(word);
    if path.is_dir() {
        return Ok(WordKind::Source);
    }
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let ends = |known: &[&str]| known.iter().any(|one| one.eq_ignore_ascii_case(ending));
    if ends(&WEIGHTS) {
        return Ok(WordKind::Model);
    }
    if !path.exists() {
        // The stem of weights, as `yolo11n` for `yolo11n.onnx`.
        return match find_weights(path) {
            Ok(_) => Ok(WordKind::Model),
            Err(_) => Err(format!("there is no such file or folder; {FORMS}")),
        };
    }
    if is_picture(path) || ends(&VIDEOS) {
        return Ok(WordKind::Source);
    }
    by_content(path).ok_or_else(|| {
        format!(
            "it cannot be told whether this is a model or a source; {FORMS}. For any other file \
             say --model0 {word} or --source {word}"
        )
    })
}

/// By the first bytes of a file.
fn by_content(path: &Path) -> Option<WordKind> {
    let mut start = Vec::new();
    files::open(path).ok()?.take(16).read_to_end(&mut start).ok()?;
    let begins =
        |(at, magic): &(usize, &[u8])| start.get(*at..).is_some_and(|s| s.starts_with(magic));
    if FRAMES.iter().any(begins) {
        return Some(WordKind::Source);
    }
    // A checkpoint is a zip file; an ONNX file begins with its version, a small number.
    let onnx = matches!(start[..], [0x08, 1..=32, 0x12 | 0x1a | 0x22 | 0x3a, ..]);
    (start.starts_with(b"PK\x03\x04") || onnx).then_some(WordKind::Model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart_by_what_they_are() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = place.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path.display().to_string()
        };
        let models = [
            file("a.onnx", b""),
            file("b.PT", b""),
            file("zip", b"PK\x03\x04rest"),
            file("onnx", b"\x08\x09\x12\x07pytorch"),
            place.path().join("none.engine").display().to_string(),
            place.path().join("a").display().to_string(),
        ];
        let sources = [
            place.path().display().to_string(),
            file("c.mp4", b""),
            file("d.JPG", b""),
            file("film", b"\0\0\0\x20ftypisom"),
            file("scan", b"\x89PNG\r\n"),
            "synthetic".to_string(),
            "synthetic:thermal".to_string(),
            "rtsp://h/x".to_string(),
            "camera=0".to_string(),
        ];
        // In any order.
        let words: Vec<String> = sources.iter().chain(&models).cloned().collect();
        let found = BenchWords::read(&words).unwrap();
        assert_eq!(found.models, models.map(PathBuf::from));
        assert_eq!(found.sources, sources);
        for (word, says) in [
            (file("notes.txt", b"hello"), "--model0"),
            ("nowhere".to_string(), "no such file or folder"),
            ("nowhere.mp4".to_string(), "no such file or folder"),
        ] {
            let error = BenchWords::read(&[word]).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
