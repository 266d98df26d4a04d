//! Files that clouds come in: `.npy`, `.npz`, `.ply`, `.pcd` and KITTI's `.bin`.
//!
//! A file is mapped, and its header alone says how many clouds and points it has, so that work
//! can be planned before any of it is read. Floats that lie in the file as they are used stay
//! there; everything else is gathered when its turn comes. A file that is cut short by another
//! program while it is mapped ends the process: that is how mapped files are.
//!
//! The readers take bytes and can be asked about any: [`clouds_in`].

mod columns;
mod find;
mod flaw;
mod kitti;
mod lines;
mod lzf;
mod npy;
mod npz;
mod pcd;
mod ply;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use memmap2::Mmap;
use plimsoll::{Bytes, Error, Result};

pub use flaw::{Flaw, Place, Read};

use crate::backend::left_on_host;
use crate::cloud::Cloud;
use crate::sys;

/// The kinds of file, by their endings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
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

impl Format {
    /// By the ending of a file's name.
    #[must_use]
    pub fn of(path: &Path) -> Option<Format> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        Some(match ending.as_str() {
            "npy" => Format::Npy,
            "npz" => Format::Npz,
            "ply" => Format::Ply,
            "pcd" => Format::Pcd,
            "bin" => Format::Bin,
            _ => return None,
        })
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

/// The most clouds of one file: what is kept of each before any is read must fit.
const MOST_CLOUDS: usize = 1 << 24;

/// No packing makes less than one byte of so many.
const MOST_PACKED: u64 = 1100;

/// So much is not asked after.
const ALWAYS_THERE: Bytes = Bytes(64 << 20);

/// Clouds, points and features, from the headers alone.
///
/// # Errors
///
/// The place and the reason where the bytes are not of this format.
pub fn shape_of(format: Format, bytes: &[u8]) -> Read<FileShape> {
    match format {
        Format::Npy => {
            let header = npy::Header::parse(bytes)?;
            header.whole(bytes)?;
            Ok(header.shape())
        }
        Format::Npz => npz::shape(bytes),
        Format::Ply => Ok(ply::Header::parse(bytes)?.shape()),
        Format::Pcd => Ok(pcd::Header::parse(bytes)?.shape()),
        Format::Bin => kitti::shape(bytes),
    }
}

/// The floats of every cloud in a file's bytes. Formats that name what they hold can leave
/// the features out; the others have them all the same.
///
/// # Errors
///
/// As [`shape_of`].
pub fn clouds_in(format: Format, bytes: &[u8], features: bool) -> Read<Vec<Vec<f32>>> {
    match format {
        Format::Npy => {
            let header = npy::Header::parse(bytes)?;
            header.read(bytes, 0..header.extents()[0])
        }
        Format::Npz => npz::read(bytes),
        Format::Ply => ply::Header::parse(bytes)?.read(bytes, features),
        Format::Pcd => pcd::Header::parse(bytes)?.read(bytes, features),
        Format::Bin => kitti::read(bytes),
    }
}

/// Clouds in files: one, a folder of them or all that match a pattern.
#[derive(Debug)]
pub struct Batch {
    files: Vec<FileEntry>,
    stacked: bool,
    /// What was read last, which the next chunk mostly begins with.
    last: Mutex<Option<Held>>,
}

/// Some clouds of a file.
#[derive(Debug)]
struct Held {
    file: usize,
    range: Range<usize>,
    clouds: Vec<Cloud>,
}

impl Held {
    fn get(&self, file: usize, wanted: &Range<usize>) -> Option<Vec<Cloud>> {
        let from = wanted.start.checked_sub(self.range.start)?;
        let to = wanted.end.checked_sub(self.range.start)?;
        self.clouds.get(from..to).filter(|_| self.file == file).map(<[Cloud]>::to_vec)
    }
}

#[derive(Debug)]
struct FileEntry {
    path: PathBuf,
    format: Format,
    counts: Vec<u64>,
    features: usize,
    /// The number of its first cloud in the batch.
    first: u64,
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
        let (paths, many) = find::files(input)?;
        let mut files: Vec<FileEntry> = Vec::new();
        let (mut stacked, mut first) = (many, 0);
        for path in paths {
            let format = Format::of(&path).ok_or_else(|| unknown(&path))?;
            let shape = shape_of(format, &map(&path)?).map_err(|flaw| flaw.of(&path))?;
            stacked |= shape.stacked;
            let FileShape { counts, features, .. } = shape;
            let clouds = counts.len() as u64;
            files.push(FileEntry { path, format, counts, features, first });
            first += clouds;
        }
        Ok(Batch { files, stacked, last: Mutex::new(None) })
    }

    /// The files, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// How many clouds.
    #[must_use]
    pub fn clouds(&self) -> u64 {
        self.files.last().map_or(0, |file| file.first + file.counts.len() as u64)
    }

    /// Points of each cloud, in order.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        self.files.iter().flat_map(|file| file.counts.iter().copied())
    }

    /// Numbers of a point beside its coordinates. Files may differ in them where nobody asks.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] with the first file that has others than those before it.
    pub fn features(&self) -> Result<usize> {
        let all = self.files.first().map_or(0, |file| file.features);
        match self.files.iter().find(|file| file.features != all) {
            None => Ok(all),
            Some(other) => Err(Error::Malformed {
                what: format!("{}, header", other.path.display()),
                why: format!(
                    "points of {} features, where the files before have {all}; a mean or a \
                     maximum wants as many in each (occupancy and counts do not)",
                    other.features
                ),
            }),
        }
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
        let mut clouds = Vec::new();
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
        let (range, clouds) = file.read(wanted.clone(), features)?;
        let counts = file.counts.get(range.clone()).unwrap_or_default();
        if clouds.iter().map(|cloud| cloud.len() as u64).ne(counts.iter().copied()) {
            let what = format!("{}, header", file.path.display());
            return Err(Error::Malformed { what, why: "it changed while it was read".to_string() });
        }
        let held = last.insert(Held { file: index, range, clouds });
        Ok(held.get(index, &wanted).unwrap_or_default())
    }
}

impl FileEntry {
    /// The clouds that are wanted, or more of the file where that is no dearer, and which.
    fn read(&self, wanted: Range<usize>, features: bool) -> Result<(Range<usize>, Vec<Cloud>)> {
        let (path, format, all) = (&self.path, self.format, 0..self.counts.len());
        let flaw = |flaw: Flaw| flaw.of(path);
        let bytes = match in_place(format, map(path)?).map_err(flaw)? {
            Ok(clouds) => return Ok((all, clouds)),
            Err(bytes) => bytes,
        };
        let shape = shape_of(format, &bytes).map_err(flaw)?;
        let leaves_out = !features && matches!(format, Format::Ply | Format::Pcd);
        let features = if leaves_out { 0 } else { shape.features };
        let range = if format == Format::Npy { wanted } else { all };
        let unpacked = unpacked_bytes(format, &bytes).map_err(flaw)?;
        self.check_room(&range, features, unpacked, bytes.len() as u64)?;
        let floats = match format {
            Format::Npy => npy::Header::parse(&bytes).and_then(|h| h.read(&bytes, range.clone())),
            _ => clouds_in(format, &bytes, !leaves_out),
        };
        let clouds = floats.map_err(flaw)?.into_iter();
        let clouds = clouds.map(|floats| Cloud::from_points(floats, features));
        Ok((range, clouds.collect::<Result<_>>()?))
    }

    /// Points that must be in memory, beside what they are unpacked from, and can never be there
    /// are refused: a control group would end the process, and halving helps no cloud. More
    /// points than a file of so many bytes can have are left to its reader, which says where
    /// they end.
    fn check_room(
        &self,
        range: &Range<usize>,
        features: usize,
        unpacked: u64,
        file: u64,
    ) -> Result<()> {
        let counts = self.counts.get(range.clone()).unwrap_or_default();
        let points = counts.iter().fold(0u64, |all, count| all.saturating_add(*count));
        let floats = points.saturating_mul((3 + features as u64) * 4);
        let needed = Bytes(floats.saturating_add(unpacked));
        if needed < ALWAYS_THERE || points / MOST_PACKED > file {
            return Ok(());
        }
        match left_on_host().filter(|left| *left < needed) {
            None => Ok(()),
            Some(left) => Err(Error::Config {
                field: "input",
                value: format!(
                    "{}, whose points take {needed} in memory, where {left} are left",
                    self.path.display()
                ),
                range: "clouds that fit, or a .npy of little-endian f32, which stays on the disk",
            }),
        }
    }
}

/// What is unpacked at once, beside the floats that are made of it.
fn unpacked_bytes(format: Format, bytes: &[u8]) -> Read<u64> {
    match format {
        Format::Npz => npz::largest_bytes(bytes),
        Format::Pcd => Ok(pcd::Header::parse(bytes)?.unpacked_bytes()),
        Format::Npy | Format::Ply | Format::Bin => Ok(0),
    }
}

/// The clouds of a file whose floats can stay where they are; otherwise its bytes back.
fn in_place(format: Format, bytes: Mmap) -> Read<std::result::Result<Vec<Cloud>, Mmap>> {
    let (data, [clouds, points, stride]) = match format {
        Format::Npy => {
            let header = npy::Header::parse(&bytes)?;
            let end = header.data.saturating_add(header.data_bytes());
            if !header.is_plain() || end > bytes.len() {
                return Ok(Err(bytes));
            }
            (header.data..end, header.extents())
        }
        Format::Bin => (0..bytes.len(), [1, bytes.len() / 16, 4]),
        _ => return Ok(Err(bytes)),
    };
    let lies_well = bytes
        .get(data.clone())
        .is_some_and(|numbers| bytemuck::try_cast_slice::<u8, f32>(numbers).is_ok());
    if !lies_well || data.len() != clouds * points * stride * 4 || cfg!(target_endian = "big") {
        return Ok(Err(bytes));
    }
    Ok(Ok(Cloud::mapped(bytes, data, clouds, points, stride).unwrap_or_default()))
}

fn map(path: &Path) -> Result<Mmap> {
    File::open(path).and_then(|file| sys::map(&file)).map_err(|error| cannot(path, &error))
}

fn cannot(path: &Path, error: &std::io::Error) -> Error {
    Error::Unavailable { what: path.display().to_string(), why: error.to_string() }
}

fn unknown(path: &Path) -> Error {
    if let Err(error) = path.metadata() {
        return cannot(path, &error);
    }
    Error::Unavailable {
        what: format!("a reader for {}", path.display()),
        why: "files that end in .npy, .npz, .ply, .pcd and .bin are read".to_string(),
    }
}

#[cfg(test)]
mod tests;
