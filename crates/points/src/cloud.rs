//! A cloud: points as floats, one after the other, wherever they lie.
//!
//! Floats that lie in a file as they are used stay there and are read in passing, some thousand
//! points at a time into a buffer that stays in the cache: a cloud may be larger than memory,
//! and a file that is cut short meanwhile is an error. Mapping it would save that copy, and make
//! the same accident the end of the process.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_memory::{Error, Result};

use crate::room;

/// Points of single precision: x, y, z and features of each, one point after the other.
///
/// Cheap to copy: the floats are shared, and may be in a file and not in memory.
#[derive(Debug, Clone)]
pub struct Cloud {
    source: Arc<CloudSource>,
    range: Range<usize>,
    stride: usize,
}

/// Where floats are, and who may end their reading.
#[derive(Debug)]
struct CloudSource {
    floats: Floats,
    stop: StopFlag,
}

/// Ends all reading of points, once somebody sets it; none where nobody can.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag(pub(crate) Option<Arc<AtomicBool>>);

impl StopFlag {
    /// An error where the work is to end.
    pub(crate) fn check(&self) -> Result<()> {
        let is_set = self.0.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed));
        if is_set { Err(interrupted()) } else { Ok(()) }
    }
}

/// Somebody ended the work.
pub(crate) fn interrupted() -> Error {
    let why = "it was interrupted; nothing is left".to_string();
    Error::Device { call: "voxelize", why }
}

/// Bytes that are read between two looks at the flag.
pub(crate) const READ_AT_ONCE: usize = 64 << 20;

enum Floats {
    Owned(Vec<f32>),
    /// Memory of the caller's, such as an array of numpy.
    Shared(SharedFloats),
    InFile(InFile),
}

impl Floats {
    /// Those that are in memory.
    fn in_memory(&self) -> Result<&[f32], &InFile> {
        match self {
            Floats::Owned(floats) => Ok(floats),
            Floats::Shared(floats) => Ok((**floats).as_ref()),
            Floats::InFile(file) => Err(file),
        }
    }
}

/// Floats that somebody else owns.
pub type SharedFloats = Box<dyn AsRef<[f32]> + Send + Sync>;

impl std::fmt::Debug for Floats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.in_memory() {
            Ok(floats) => write!(f, "{} floats in memory", floats.len()),
            Err(file) => file.fmt(f),
        }
    }
}

/// A file that holds floats of this machine's own form from some byte on.
#[derive(Debug)]
pub(crate) struct InFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// Where the floats begin.
    pub(crate) start: u64,
}

impl InFile {
    fn read(&self, range: Range<usize>, to: &mut [f32], stop: &StopFlag) -> Result<()> {
        for (part, to) in to.chunks_mut(READ_AT_ONCE / 4).enumerate() {
            stop.check()?;
            self.read_part(range.start + part * (READ_AT_ONCE / 4), to)?;
        }
        Ok(())
    }

    fn read_part(&self, start: usize, to: &mut [f32]) -> Result<()> {
        let at = self.start + 4 * start as u64;
        read_exact_at(&self.file, bytemuck::cast_slice_mut(to), at).map_err(|error| {
            let why = match error.kind() {
                std::io::ErrorKind::UnexpectedEof => "it was cut while it was read".to_string(),
                _ => format!("it cannot be read any more: {error}"),
            };
            let why = format!("{}, byte {at}: {why}", self.path.display());
            Error::Device { call: "reading", why }
        })
    }
}

/// Fills a buffer from this byte of a file on, without moving the file's position.
#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, to: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, to, at)
}

#[cfg(not(unix))]
pub(crate) fn read_exact_at(mut file: &File, to: &mut [u8], at: u64) -> std::io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    use std::sync::{Mutex, PoisonError};
    // A file has one place that it is read at.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(to)
}

impl Cloud {
    /// Points that are in memory: `3 + features` floats each.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where the floats do not make whole points.
    pub fn from_points(floats: Vec<f32>, features: usize) -> Result<Cloud> {
        let count = floats.len();
        Cloud::whole(Floats::Owned(floats), count, features, StopFlag::default())
    }

    /// The same of memory that somebody else owns, which is not copied.
    ///
    /// # Errors
    ///
    /// As [`Cloud::from_points`].
    pub fn from_shared(floats: SharedFloats, features: usize) -> Result<Cloud> {
        let count = (*floats).as_ref().len();
        Cloud::whole(Floats::Shared(floats), count, features, StopFlag::default())
    }

    /// The points of a file, that were read into memory.
    pub(crate) fn from_file(floats: Vec<f32>, features: usize, stop: &StopFlag) -> Result<Cloud> {
        let count = floats.len();
        Cloud::whole(Floats::Owned(floats), count, features, stop.clone())
    }

    fn whole(floats: Floats, count: usize, features: usize, stop: StopFlag) -> Result<Cloud> {
        let stride = features.saturating_add(3);
        if !count.is_multiple_of(stride) {
            return Err(Error::Config {
                field: "points",
                value: format!("{count} floats"),
                range: "a multiple of 3 + features",
            });
        }
        let source = Arc::new(CloudSource { floats, stop });
        Ok(Cloud { source, range: 0..count, stride })
    }

    /// The clouds of a file, `points` points each.
    pub(crate) fn in_file(
        file: InFile,
        [clouds, points, stride]: [usize; 3],
        stop: &StopFlag,
    ) -> Vec<Cloud> {
        let source = CloudSource { floats: Floats::InFile(file), stop: stop.clone() };
        let (source, each) = (Arc::new(source), points * stride);
        let one = |cloud: usize| Cloud {
            source: Arc::clone(&source),
            range: cloud * each..(cloud + 1) * each,
            stride,
        };
        (0..clouds).map(one).collect()
    }

    /// The floats of some points, [`stride`](Cloud::stride) for each. `buffer` is where they
    /// are read to where they are in a file.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] where the file is shorter than it was, cannot be read any more, or the
    /// work was interrupted; [`Error::OutOfMemory`] where there is no room for them.
    pub fn read<'a>(&'a self, points: Range<usize>, buffer: &'a mut Vec<f32>) -> Result<&'a [f32]> {
        let place = |point: usize| {
            let place = point.saturating_mul(self.stride).saturating_add(self.range.start);
            place.min(self.range.end)
        };
        let range = place(points.start)..place(points.end);
        let CloudSource { floats, stop } = &*self.source;
        stop.check()?;
        match floats.in_memory() {
            Ok(floats) => Ok(floats.get(range).unwrap_or_default()),
            Err(file) => {
                room::resize(buffer, range.len())?;
                file.read(range, buffer, stop)?;
                Ok(buffer)
            }
        }
    }

    /// All floats, read into memory where they are in a file.
    ///
    /// # Errors
    ///
    /// As [`Cloud::read`].
    pub fn floats(&self) -> Result<Cow<'_, [f32]>> {
        match self.source.floats.in_memory() {
            Ok(floats) => Ok(Cow::Borrowed(floats.get(self.range.clone()).unwrap_or_default())),
            Err(_) => {
                let mut buffer = Vec::new();
                self.read(0..self.len(), &mut buffer)?;
                Ok(Cow::Owned(buffer))
            }
        }
    }

    /// Floats of a point: three coordinates and its features.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Numbers of a point beside its coordinates.
    #[must_use]
    pub fn features(&self) -> usize {
        self.stride - 3
    }

    /// How many points.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len() / self.stride
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// What it takes of the memory: nothing where the points are read from a file in passing.
    #[must_use]
    pub fn bytes_in_memory(&self) -> u64 {
        if self.source.floats.in_memory().is_ok() { self.range.len() as u64 * 4 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_that_are_no_whole_points_are_refused() {
        assert!(Cloud::from_points(vec![0.0; 7], 0).is_err());
        let cloud = Cloud::from_points(vec![0.0; 8], 1).unwrap();
        assert_eq!((cloud.len(), cloud.features(), cloud.is_empty()), (2, 1, false));
        assert!(Cloud::from_points(Vec::new(), 5).unwrap().is_empty());
    }

    #[test]
    fn memory_of_others_is_read_where_it_is() {
        let floats: Arc<[f32]> = (0..12).map(|n| n as f32).collect();
        struct Of(Arc<[f32]>);
        impl AsRef<[f32]> for Of {
            fn as_ref(&self) -> &[f32] {
                &self.0
            }
        }
        let shared = |floats: &Arc<[f32]>| Box::new(Of(Arc::clone(floats))) as SharedFloats;
        assert!(Cloud::from_shared(shared(&floats), 2).is_err());
        let cloud = Cloud::from_shared(shared(&floats), 1).unwrap();
        let mut buffer = Vec::new();
        assert_eq!(cloud.read(1..2, &mut buffer).unwrap(), [4.0, 5.0, 6.0, 7.0]);
        assert_eq!(cloud.floats().unwrap().as_ptr(), floats.as_ptr(), "not copied");
        assert_eq!(cloud.bytes_in_memory(), 48);
    }

    #[test]
    fn a_file_that_is_cut_is_an_error() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let floats: Vec<f32> = (0..12).map(|n| n as f32).collect();
        std::io::Write::write_all(
            &mut file,
            bytemuck::cast_slice(&[&[9.0f32], &floats[..]].concat()),
        )
        .unwrap();
        let held = InFile { file: file.reopen().unwrap(), path: file.path().into(), start: 4 };
        let clouds = Cloud::in_file(held, [2, 2, 3], &StopFlag::default());
        let mut buffer = Vec::new();
        assert_eq!(clouds[1].read(1..2, &mut buffer).unwrap(), [9.0, 10.0, 11.0]);
        assert_eq!(clouds[0].floats().unwrap()[..], floats[..6]);
        file.as_file().set_len(40).unwrap();
        assert_eq!(clouds[1].read(0..1, &mut buffer).unwrap(), [6.0, 7.0, 8.0]);
        let error = clouds[1].read(1..2, &mut buffer).unwrap_err().to_string();
        assert!(error.contains("cut while it was read") && error.contains("byte 40"), "{error}");
    }
}
