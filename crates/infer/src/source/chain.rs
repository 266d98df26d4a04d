//! Several sources, read one after the other as if they were one, and a source that starts over.

use super::ahead::Ahead;
use super::{Frame, Source, SourceInfo, SourceOptions, open, redact};
use crate::error::{InferError, InferResult};

/// Opens sources that are read one after the other, and start over at the end where the options
/// say so. Frames are decoded ahead also from one source to the next. A live source does not end,
/// so nothing comes after it.
///
/// # Errors
/// Those of [`open`]. A source that cannot be opened when its turn comes ends the frames.
pub fn open_all(specs: &[String], options: &SourceOptions) -> InferResult<Box<dyn Source>> {
    let first = match specs {
        [only] if !options.start_over => return open(only, options),
        [first, ..] => first,
        [] => {
            let why = "no source was named".to_owned();
            return Err(InferError::Source { source_name: String::new(), why });
        }
    };
    // The thread that decodes ahead is around all of them.
    let alone = SourceOptions { ahead: 0, ..options.clone() };
    let current = open(first, &alone)?;
    let mut info = current.info().clone();
    if specs.len() > 1 {
        info.name = specs.iter().map(|spec| redact(spec)).collect::<Vec<_>>().join(", ");
        // How many the others have is known when they are open.
        info.frames = None;
    }
    let specs = specs.to_vec();
    let chain = SourceChain { info, current, specs, next: 1, good: false, options: alone };
    if options.ahead == 0 {
        return Ok(Box::new(chain));
    }
    Ok(Box::new(Ahead::new(Box::new(chain), options, None)?))
}

struct SourceChain {
    info: SourceInfo,
    current: Box<dyn Source>,
    specs: Vec<String>,
    /// The source that comes next.
    next: usize,
    /// Whether there was a good frame since the first source began; without one, starting over
    /// would never end.
    good: bool,
    options: SourceOptions,
}

impl Source for SourceChain {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_frame(&mut self) -> Option<InferResult<Frame>> {
        loop {
            if let Some(frame) = self.current.next_frame() {
                self.good |= frame.is_ok();
                return Some(frame);
            }
            if self.next >= self.specs.len() && self.options.start_over && self.good {
                (self.next, self.good) = (0, false);
            }
            let next = self.specs.get(self.next)?;
            self.next += 1;
            match open(next, &self.options) {
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

    #[test]
    fn sources_start_over_until_a_pass_gives_nothing() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        image::GrayImage::from_pixel(8, 6, image::Luma([7])).save(path("b.png")).unwrap();
        std::fs::write(path("a.png"), "no picture").unwrap();
        let specs = [place.path().display().to_string()];
        let options = SourceOptions { start_over: true, ..SourceOptions::default() };
        let mut source = open_all(&specs, &options).unwrap();
        for _ in 0..5 {
            assert!(source.next_frame().unwrap().is_err(), "the bad one comes first");
            assert_eq!(source.next_frame().unwrap().unwrap().name, "b.png");
        }
        drop(source);
        std::fs::remove_file(path("b.png")).unwrap();
        let mut source = open_all(&specs, &options).unwrap();
        assert!(source.next_frame().unwrap().is_err());
        assert!(source.next_frame().is_none(), "it would never end");
    }
}
