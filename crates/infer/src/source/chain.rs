//! Several sources, read one after the other as if they were one.

use std::collections::VecDeque;

use super::ahead::Ahead;
use super::{Frame, Source, SourceInfo, SourceOptions, open};
use crate::error::{InferError, InferResult};

/// Opens sources that are read one after the other; one alone is opened as [`open`] does.
/// Frames are decoded ahead also from one source to the next. Only the last of several may be
/// live, as a live source does not end.
///
/// # Errors
/// Those of [`open`]; a source that cannot be opened when its turn comes ends the frames.
pub fn open_all(specs: &[String], options: &SourceOptions) -> InferResult<Box<dyn Source>> {
    let (first, rest) = match specs {
        [only] => return open(only, options),
        [first, rest @ ..] => (first, rest),
        [] => {
            let why = "no source was named".to_owned();
            return Err(InferError::Source { source_name: String::new(), why });
        }
    };
    // The thread that decodes ahead is around all of them.
    let alone = SourceOptions { ahead: 0, ..options.clone() };
    let current = open(first, &alone)?;
    let mut info = current.info().clone();
    info.name = specs.iter().map(|spec| super::redact(spec)).collect::<Vec<_>>().join(", ");
    // How many the others have is known when they are open.
    info.frames = None;
    let chain = Chain { info, current, waiting: rest.iter().cloned().collect(), options: alone };
    if options.ahead == 0 {
        return Ok(Box::new(chain));
    }
    Ok(Box::new(Ahead::new(Box::new(chain), options, None)?))
}

struct Chain {
    info: SourceInfo,
    current: Box<dyn Source>,
    waiting: VecDeque<String>,
    options: SourceOptions,
}

impl Source for Chain {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_frame(&mut self) -> Option<InferResult<Frame>> {
        loop {
            if let Some(frame) = self.current.next_frame() {
                return Some(frame);
            }
            let next = self.waiting.pop_front()?;
            match open(&next, &self.options) {
                Ok(source) => self.current = source,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_follow_each_other_and_pictures_are_sources() {
        let place = tempfile::tempdir().unwrap();
        let picture = image::GrayImage::from_pixel(8, 6, image::Luma([7]));
        let path = |name: &str| place.path().join(name).display().to_string();
        for name in ["b.png", "a.png"] {
            picture.save(path(name)).unwrap();
        }
        let specs = [path("b.png"), "synthetic:frames=2,size=64x64".to_owned(), path("a.png")];
        for ahead in [0, 4] {
            let options = SourceOptions { ahead, ..SourceOptions::default() };
            let mut source = open_all(&specs, &options).unwrap();
            let frames = std::iter::from_fn(|| source.next_frame());
            let names: Vec<String> = frames.map(|frame| frame.unwrap().name).collect();
            assert_eq!((names.len(), names[0].as_str()), (4, "b.png"), "{names:?}");
            assert_eq!(names[3], "a.png");
        }
        assert!(open_all(&[], &SourceOptions::default()).is_err());
        let missing = [path("a.png"), path("none.png")];
        let mut source = open_all(&missing, &SourceOptions::default()).unwrap();
        assert!(source.next_frame().unwrap().is_ok());
        assert!(source.next_frame().unwrap().is_err(), "a source that is not there is said");
    }
}
