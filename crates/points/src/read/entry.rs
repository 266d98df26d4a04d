//! One file of a batch: what its header says, and how its clouds come into memory.

use std::fs::File;
use std::io::{BufReader, Cursor};
use std::ops::Range;
use std::path::{Path, PathBuf};

use plimsoll_machine::files;
use plimsoll_memory::{Bytes, Error, Result};

use super::flaw::{Flaw, Read};
use super::{
    CloudFormat, FileShape, cannot, clouds_in, no_reader, npy, npz, pcd, shape_by_start, shape_of,
};
use crate::backend::VoxelTally;
use crate::cloud::{Cloud, InFile, READ_AT_ONCE, StopFlag, read_exact_at};
use crate::room::left_on_host;

/// No packing makes less than one byte of this many.
const MOST_PACKED: u64 = 1100;

/// This much is not asked after.
const ALWAYS_THERE: Bytes = Bytes(64 << 20);

/// What is read of a file for its header, and the most where it is longer than any should be.
const START: usize = 64 << 10;
const LONGEST_START: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct FileEntry {
    pub(super) path: PathBuf,
    format: CloudFormat,
    pub(super) counts: Vec<u64>,
    pub(super) features: usize,
    /// The number of its first cloud in the batch.
    pub(super) first: u64,
    /// Whether its floats stay where they are.
    in_place: bool,
    /// What is in memory while its floats are made: the file where it is read as a whole, and
    /// what is unpacked.
    beside: u64,
}

/// What must be in memory of clouds while they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LoadedBytes {
    /// Of every cloud of a chunk.
    pub(crate) each: u64,
    /// What is kept of a file whatever is used of it, its points apart.
    pub(crate) kept: u64,
    /// All points of a file, where they are kept together.
    pub(crate) points: u64,
    /// Beside its points while a file is read.
    pub(crate) beside: u64,
    /// Of a cloud that stays in its file, where the work wants all of it in memory.
    pub(crate) whole: u64,
    /// Of a point that is read in passing.
    pub(crate) point: u64,
}

impl LoadedBytes {
    /// What does not depend on how many clouds are used at a time.
    pub(crate) fn fixed(self) -> u64 {
        self.kept.saturating_add(self.points).saturating_add(self.beside)
    }

    /// What is held while these clouds are used.
    pub(crate) fn held_by(self, clouds: &[Cloud]) -> u64 {
        let points: u64 = clouds.iter().map(Cloud::bytes_in_memory).sum();
        let own = (clouds.len() as u64).saturating_mul(OF_CLOUD).saturating_add(self.kept);
        own.saturating_add(points.max(self.points))
    }

    /// The most of two.
    pub(super) fn max(self, other: LoadedBytes) -> LoadedBytes {
        LoadedBytes {
            each: self.each.max(other.each),
            kept: self.kept.max(other.kept),
            points: self.points.max(other.points),
            beside: self.beside.max(other.beside),
            whole: self.whole.max(other.whole),
            point: self.point.max(other.point),
        }
    }
}

/// What a cloud takes beside its points: itself in the chunk and in the list that this is made from,
/// and what the work says of it.
const OF_CLOUD: u64 = 2 * size_of::<Cloud>() as u64 + size_of::<VoxelTally>() as u64 + 8;
/// Its count, twice while its file is read.
const OF_COUNT: u64 = 2 * size_of::<u64>() as u64;

/// A file that is open.
struct OpenedCloud<'p> {
    file: File,
    path: &'p Path,
    length: usize,
    stop: StopFlag,
}

impl<'p> OpenedCloud<'p> {
    fn new(path: &'p Path, stop: &StopFlag) -> Result<OpenedCloud<'p>> {
        let opened = files::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (length, file) = opened.map_err(|error| cannot(path, &error))?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        Ok(OpenedCloud { file, path, length, stop: stop.clone() })
    }

    /// Some of its bytes.
    fn bytes(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let room = bytes.try_reserve_exact(range.len()).map_err(std::io::Error::from);
        room.map_err(|error| cannot(self.path, &error))?;
        bytes.resize(range.len(), 0);
        for (at, part) in range.step_by(READ_AT_ONCE).zip(bytes.chunks_mut(READ_AT_ONCE)) {
            self.stop.check()?;
            read_exact_at(&self.file, part, at as u64)
                .map_err(|error| cannot(self.path, &error))?;
        }
        Ok(bytes)
    }

    /// What its first bytes say, or more of them where a header is that long.
    fn by_start<T>(&self, parse: impl Fn(&[u8]) -> Read<T>) -> Result<T> {
        let mut parsed = parse(&self.bytes(0..START.min(self.length))?);
        if parsed.is_err() && self.length > START {
            parsed = parse(&self.bytes(0..LONGEST_START.min(self.length))?);
        }
        parsed.map_err(|flaw| flaw.of(self.path))
    }

    fn archive(&self) -> BufReader<&File> {
        BufReader::new(&self.file)
    }

    fn shape(&self, format: CloudFormat) -> Result<FileShape> {
        match format {
            CloudFormat::Npz => npz::shape(self.archive()).map_err(|flaw| flaw.of(self.path)),
            _ => self.by_start(|start| shape_by_start(format, start, self.length)),
        }
    }

    /// What is in memory while the floats are made.
    fn beside(&self, format: CloudFormat) -> Result<u64> {
        let flaw = |flaw: Flaw| flaw.of(self.path);
        Ok(match format {
            CloudFormat::Npy => {
                let header = self.by_start(npy::NpyHeader::parse)?;
                if header.is_together() { 0 } else { header.data_bytes() as u64 }
            }
            CloudFormat::Npz => npz::largest_bytes(self.archive()).map_err(flaw)?,
            CloudFormat::Ply | CloudFormat::Bin => self.length as u64,
            CloudFormat::Pcd => {
                let unpacked = self.by_start(pcd::PcdHeader::parse)?.unpacked_bytes();
                unpacked.saturating_add(self.length as u64)
            }
        })
    }

    /// Where floats that can stay in the file begin: clouds, points of each, floats of a point.
    fn in_place(&self, format: CloudFormat) -> Result<Option<(usize, [usize; 3])>> {
        let place = match format {
            CloudFormat::Npy => {
                let header = self.by_start(npy::NpyHeader::parse)?;
                header.is_plain().then(|| (header.data, header.extents()))
            }
            CloudFormat::Bin => Some((0, [1, self.length / 16, 4])),
            _ => None,
        };
        Ok(place.filter(|_| cfg!(target_endian = "little")))
    }
}

impl FileEntry {
    /// Reads the header of a file, whose first cloud has this number, and says whether it has
    /// an axis for clouds.
    pub(super) fn open(
        path: PathBuf,
        format: CloudFormat,
        first: u64,
    ) -> Result<(FileEntry, bool)> {
        let opened = OpenedCloud::new(&path, &StopFlag::default())?;
        let FileShape { counts, features, stacked } = opened.shape(format)?;
        let in_place = opened.in_place(format)?.is_some();
        let beside = if in_place { 0 } else { opened.beside(format)? };
        Ok((FileEntry { path, format, counts, features, first, in_place, beside }, stacked))
    }

    /// What must be in memory of it.
    pub(super) fn loaded(&self, features: bool) -> LoadedBytes {
        let features = if self.leaves_out(features) { 0 } else { self.features as u64 };
        let bytes = |points: u64| points.saturating_mul(4 * (3 + features));
        let cloud = bytes(self.counts.iter().copied().max().unwrap_or(0));
        let (clouds, beside) = (self.counts.len() as u64, self.beside);
        let own = LoadedBytes { each: OF_CLOUD, kept: clouds * OF_COUNT, ..Default::default() };
        // All clouds of such a file are there at once, with their points or without.
        let all = own.kept.saturating_add(clouds * size_of::<Cloud>() as u64);
        if self.in_place {
            return LoadedBytes { kept: all, whole: cloud, point: bytes(1), ..own };
        }
        match self.format {
            CloudFormat::Npz => {
                let points = self.counts.iter().fold(0u64, |all, count| all.saturating_add(*count));
                LoadedBytes { kept: all, points: bytes(points), beside, ..own }
            }
            _ => LoadedBytes { each: own.each.saturating_add(cloud), beside, ..own },
        }
    }

    fn leaves_out(&self, features: bool) -> bool {
        !features && self.format.names_columns()
    }

    /// The clouds that are wanted, or more of the file if that costs no more, and which.
    pub(super) fn read(
        &self,
        wanted: Range<usize>,
        features: bool,
        stop: &StopFlag,
    ) -> Result<(Range<usize>, Vec<Cloud>)> {
        let all = 0..self.counts.len();
        let opened = OpenedCloud::new(&self.path, stop)?;
        let shape = opened.shape(self.format)?;
        if let Some((start, extents)) = opened.in_place(self.format)? {
            let (file, path) = (opened.file, self.path.clone());
            let floats = InFile { file, path, start: start as u64 };
            return Ok((all, Cloud::in_file(floats, extents, stop)));
        }
        let leaves_out = self.leaves_out(features);
        let features = if leaves_out { 0 } else { shape.features };
        let range = if self.format == CloudFormat::Npy { wanted } else { all };
        let flaw = |flaw: Flaw| flaw.of(&self.path);
        self.check_room(&range, features, opened.length as u64)?;
        let floats = match self.format {
            CloudFormat::Npy => {
                let header = opened.by_start(npy::NpyHeader::parse)?;
                header.read_by_parts(&self.path, range.clone(), |bytes| opened.bytes(bytes))?
            }
            CloudFormat::Npz => npz::read(opened.archive()).map_err(flaw)?,
            format => {
                let bytes = opened.bytes(0..opened.length)?;
                clouds_in(format, &bytes, !leaves_out).map_err(flaw)?
            }
        };
        let clouds = floats.into_iter().map(|floats| Cloud::from_file(floats, features, stop));
        Ok((range, clouds.collect::<Result<_>>()?))
    }

    fn check_room(&self, range: &Range<usize>, features: usize, file: u64) -> Result<()> {
        let counts = self.counts.get(range.clone()).unwrap_or_default();
        check_room(&self.path, counts, features, self.beside, file)
    }
}

/// The points of every cloud in the bytes of a file of this name, and how many features a point
/// has: for files that are not on a file system of this machine. Features are left out where
/// that can be had and they are not wanted.
///
/// # Errors
///
/// [`Error::Unavailable`] where no reader knows the name, [`Error::Malformed`] with the place
/// where the bytes are not what the name says, [`Error::Config`] where the points can never be
/// in memory.
pub fn clouds_from(name: &Path, bytes: &[u8], features: bool) -> Result<(usize, Vec<Vec<f32>>)> {
    let format = CloudFormat::of(name).ok_or_else(|| no_reader(name))?;
    let flaw = |flaw: Flaw| flaw.of(name);
    let shape = shape_of(format, bytes).map_err(flaw)?;
    let leaves_out = !features && format.names_columns();
    let unpacked = match format {
        CloudFormat::Npz => npz::largest_bytes(Cursor::new(bytes)).map_err(flaw)?,
        CloudFormat::Pcd => pcd::PcdHeader::parse(bytes).map_err(flaw)?.unpacked_bytes(),
        _ => 0,
    };
    let of_point = if leaves_out { 0 } else { shape.features };
    check_room(name, &shape.counts, of_point, unpacked, bytes.len() as u64)?;
    Ok((of_point, clouds_in(format, bytes, !leaves_out).map_err(flaw)?))
}

/// Points that must be in memory, beside what they are unpacked from, and can never be there
/// are refused: a control group would end the process, and halving helps no cloud. More
/// points than a file of this many bytes can have are left to its reader, which says where
/// they end.
fn check_room(
    name: &Path,
    counts: &[u64],
    features: usize,
    unpacked: u64,
    file: u64,
) -> Result<()> {
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
                name.display()
            ),
            range: "clouds that fit, or a .npy of little-endian f32, which stays on the disk",
        }),
    }
}
