//! Files that clouds come in: `.npy`, `.npz`, `.ply`, `.pcd` and KITTI's `.bin`.
//!
//! The header of a file alone says how many clouds and points it has, so that work can be
//! planned before any of it is read. Floats that lie in the file as they are used stay there and
//! are read in passing; everything else is gathered when its turn comes. A file that is cut
//! short meanwhile is an error.
//!
//! The readers take bytes and can be asked about any: [`clouds_in`].

mod columns;
mod entry;
mod find;
mod flaw;
mod kitti;
mod lines;
mod lzf;
mod npy;
mod npz;
mod pcd;
mod ply;

use std::io::Cursor;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_memory::{Error, Result};

use entry::FileEntry;
pub(crate) use entry::LoadedBytes;
pub use entry::clouds_from;
pub use flaw::{Flaw, FlawPlace, Read};

use crate::cloud::{Cloud, StopFlag};

/// The kinds of file, by their endings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloudFormat {
    /// One array of numpy.
    Npy,
    /// Arrays of numpy in an archive.
    Npz,
    /// Stanford's polygons, of which the vertices are read.
    Ply,
    /// The clouds of PCL.
    Pcd,
    /// KITTI's scans: x, y, z and intensity as floats.
    Bin,
}

impl CloudFormat {
    /// By the ending of a file's name.
    #[must_use]
    pub fn of(path: &Path) -> Option<CloudFormat> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        Some(match ending.as_str() {
            "npy" => CloudFormat::Npy,
            "npz" => CloudFormat::Npz,
            "ply" => CloudFormat::Ply,
            "pcd" => CloudFormat::Pcd,
            "bin" => CloudFormat::Bin,
            _ => return None,
        })
    }

    /// Whether files say which column is what, so that features can be left out.
    fn names_columns(self) -> bool {
        matches!(self, CloudFormat::Ply | CloudFormat::Pcd)
    }
}

/// What is known of a file before its points are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileShape {
    /// Points of each cloud.
    pub counts: Vec<u64>,
    /// Numbers of a point beside its coordinates.
    pub features: usize,
    /// Whether the file has an axis for clouds: [B, N, 3] and not [N, 3].
    pub stacked: bool,
}

/// The most files that are open at once: processes may have 1,024, or fewer.
const MOST_OPEN: usize = 128;

/// The most clouds of one file: what is kept of each before any is read must fit.
const MOST_CLOUDS: usize = 1 << 24;

/// Clouds, points and features, from the headers alone.
///
/// # Errors
///
/// The place and the reason where the bytes are not of this format.
pub fn shape_of(format: CloudFormat, bytes: &[u8]) -> Read<FileShape> {
    match format {
        CloudFormat::Npz => npz::shape(Cursor::new(bytes)),
        _ => shape_by_start(format, bytes, bytes.len()),
    }
}

/// The same from the first bytes of a file of such a length, where that is not an archive.
fn shape_by_start(format: CloudFormat, start: &[u8], length: usize) -> Read<FileShape> {
    match format {
        CloudFormat::Npy => {
            let header = npy::NpyHeader::parse(start)?;
            header.whole(length)?;
            Ok(header.shape())
        }
        CloudFormat::Npz => Err(Flaw::at(0, "an archive is read from its end")),
        CloudFormat::Ply => Ok(ply::PlyHeader::parse(start)?.shape()),
        CloudFormat::Pcd => Ok(pcd::PcdHeader::parse(start)?.shape()),
        CloudFormat::Bin => kitti::shape(length),
    }
}

/// The floats of every cloud in a file's bytes. Formats that name what they hold can leave
/// the features out; the others have them all the same.
///
/// # Errors
///
/// As [`shape_of`].
pub fn clouds_in(format: CloudFormat, bytes: &[u8], features: bool) -> Read<Vec<Vec<f32>>> {
    match format {
        CloudFormat::Npy => {
            let header = npy::NpyHeader::parse(bytes)?;
            header.read(bytes, 0..header.extents()[0])
        }
        CloudFormat::Npz => npz::read(Cursor::new(bytes)),
        CloudFormat::Ply => ply::PlyHeader::parse(bytes)?.read(bytes, features),
        CloudFormat::Pcd => pcd::PcdHeader::parse(bytes)?.read(bytes, features),
        CloudFormat::Bin => kitti::read(bytes),
    }
}

/// Clouds in files: one, a folder of them or all that match a pattern. Or clouds that are in
/// memory already.
#[derive(Debug)]
pub struct Batch {
    files: Vec<FileEntry>,
    /// Where there are no files: the clouds.
    held: Vec<Cloud>,
    stacked: bool,
    /// What was read last, which the next chunk mostly begins with.
    last: Mutex<Option<HeldPoints>>,
    stop: StopFlag,
}

/// Some clouds of a file.
#[derive(Debug)]
struct HeldPoints {
    file: usize,
    range: Range<usize>,
    clouds: Vec<Cloud>,
}

impl HeldPoints {
    fn get(&self, file: usize, wanted: &Range<usize>) -> Option<Vec<Cloud>> {
        let from = wanted.start.checked_sub(self.range.start)?;
        let to = wanted.end.checked_sub(self.range.start)?;
        self.clouds.get(from..to).filter(|_| self.file == file).map(<[Cloud]>::to_vec)
    }
}

impl Batch {
    /// Finds the files and reads their headers. A folder means the files in it that can be
    /// read, in natural order (2 before 10); `*`, `?` and `[]` make a pattern. Hidden files are
    /// meant by neither.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where there is nothing to read, [`Error::Malformed`] with the
    /// file and the place where one is not what its name says.
    pub fn open(input: &Path) -> Result<Batch> {
        Batch::open_all(&[input])
    }

    /// The same of several, in this order.
    ///
    /// # Errors
    ///
    /// As [`Batch::open`].
    pub fn open_all<P: AsRef<Path>>(inputs: &[P]) -> Result<Batch> {
        let (mut paths, mut many) = (Vec::new(), inputs.len() > 1);
        for input in inputs {
            let (found, several) = find::files(input.as_ref())?;
            paths.extend(found);
            many |= several;
        }
        let mut files: Vec<FileEntry> = Vec::new();
        let (mut stacked, mut first) = (many, 0);
        for path in paths {
            let format = CloudFormat::of(&path).ok_or_else(|| unknown(&path))?;
            let (file, axis) = FileEntry::open(path, format, first)?;
            stacked |= axis;
            first += file.counts.len() as u64;
            files.push(file);
        }
        let (last, stop) = (Mutex::new(None), StopFlag::default());
        Ok(Batch { files, held: Vec::new(), stacked, last, stop })
    }

    /// Clouds that are there already. `stacked` says whether the result has an axis for them.
    #[must_use]
    pub fn of(clouds: Vec<Cloud>, stacked: bool) -> Batch {
        let (last, stop) = (Mutex::new(None), StopFlag::default());
        Batch { files: Vec::new(), held: clouds, stacked, last, stop }
    }

    /// Ends the reading of points in files with an error, however many there are, soon after
    /// somebody sets this.
    #[must_use]
    pub fn stopped_by(self, stop: &Arc<AtomicBool>) -> Batch {
        Batch { stop: StopFlag(Some(Arc::clone(stop))), ..self }
    }

    /// The files, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// How many clouds.
    #[must_use]
    pub fn clouds(&self) -> u64 {
        let in_files = self.files.last().map_or(0, |file| file.first + file.counts.len() as u64);
        in_files + self.held.len() as u64
    }

    /// Points of each cloud, in order.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        let held = self.held.iter().map(|cloud| cloud.len() as u64);
        self.files.iter().flat_map(|file| file.counts.iter().copied()).chain(held)
    }

    /// Numbers of a point beside its coordinates. Files may differ in them where nobody asks.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] with the first file that has others than those before it.
    pub fn features(&self) -> Result<usize> {
        let held = self.held.first().map_or(0, Cloud::features);
        let all = self.files.first().map_or(held, |file| file.features);
        match self.files.iter().find(|file| file.features != all) {
            None => Ok(all),
            Some(other) => Err(Error::Malformed {
                what: format!("{}, header", other.path.display()),
                why: format!(
                    "points of {} features, where the files before have {all}; a mean or a \
                     maximum wants as many in each, and so do voxels of --hard (occupancy and counts do not)",
                    other.features
                ),
            }),
        }
    }

    /// What must be in memory of the clouds while they are used.
    pub(crate) fn loaded(&self, features: bool) -> LoadedBytes {
        let all = self.files.iter().map(|file| file.loaded(features));
        all.fold(LoadedBytes::default(), LoadedBytes::max)
    }

    /// Clouds of a chunk at most, as each may be a file that is open.
    pub(crate) fn most_at_once(&self) -> u64 {
        if self.files.len() > MOST_OPEN { MOST_OPEN as u64 } else { u64::MAX }
    }

    /// Whether the result has an axis for clouds: every input but one file of [N, 3].
    #[must_use]
    pub fn is_stacked(&self) -> bool {
        self.stacked
    }

    /// Reads some clouds. `features` are left out where that can be had and they are not
    /// wanted.
    ///
    /// # Errors
    ///
    /// As [`Batch::open`].
    pub fn load(&self, range: Range<u64>, features: bool) -> Result<Vec<Cloud>> {
        let held = range.start as usize..range.end.min(self.held.len() as u64) as usize;
        let mut clouds = self.held.get(held).unwrap_or_default().to_vec();
        for (index, file) in self.files.iter().enumerate() {
            let end = file.first + file.counts.len() as u64;
            let (from, to) = (range.start.max(file.first), range.end.min(end));
            if from < to {
                let of_file = (from - file.first) as usize..(to - file.first) as usize;
                clouds.extend(self.file(index, of_file, features)?);
            }
        }
        Ok(clouds)
    }

    fn file(&self, index: usize, wanted: Range<usize>, features: bool) -> Result<Vec<Cloud>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(clouds) = last.as_ref().and_then(|held| held.get(index, &wanted)) {
            return Ok(clouds);
        }
        // Not two of them at once.
        *last = None;
        let Some(file) = self.files.get(index) else { return Ok(Vec::new()) };
        let (range, clouds) = file.read(wanted.clone(), features, &self.stop)?;
        let counts = file.counts.get(range.clone()).unwrap_or_default();
        if clouds.iter().map(|cloud| cloud.len() as u64).ne(counts.iter().copied()) {
            let why = format!("{}: it changed while it was read", file.path.display());
            return Err(Error::Device { call: "reading", why });
        }
        let held = last.insert(HeldPoints { file: index, range, clouds });
        Ok(held.get(index, &wanted).unwrap_or_default())
    }
}

fn cannot(path: &Path, error: &std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::NotFound {
        let (value, range) = (format!("{}: there is no such file", path.display()), FILES);
        return Error::Config { field: "input", value, range };
    }
    Error::Unavailable { what: path.display().to_string(), why: error.to_string() }
}

fn unknown(path: &Path) -> Error {
    if let Err(error) = path.metadata() {
        return cannot(path, &error);
    }
    no_reader(path)
}

/// What can be given as clouds.
const FILES: &str = "a file, a folder or a pattern such as 'scans/*.bin'";

fn no_reader(path: &Path) -> Error {
    Error::Unavailable {
        what: format!("a reader for {}", path.display()),
        why: "files that end in .npy, .npz, .ply, .pcd and .bin are read".to_string(),
    }
}

#[cfg(test)]
mod tests;
