//! One file of a batch: what its header says, and how its clouds come into memory.

use std::ops::Range;
use std::path::PathBuf;

use plimsoll::{Bytes, Error, Result};

use super::flaw::{Flaw, Read};
use super::{FileShape, Format, clouds_in, map, npy, npz, pcd, shape_of};
use crate::backend::left_on_host;
use crate::cloud::Cloud;

/// No packing makes less than one byte of so many.
const MOST_PACKED: u64 = 1100;

/// So much is not asked after.
const ALWAYS_THERE: Bytes = Bytes(64 << 20);

#[derive(Debug)]
pub(super) struct FileEntry {
    pub(super) path: PathBuf,
    format: Format,
    pub(super) counts: Vec<u64>,
    pub(super) features: usize,
    /// The number of its first cloud in the batch.
    pub(super) first: u64,
    /// Whether its floats stay where they are.
    in_place: bool,
}

/// What must be in memory of clouds while they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Loaded {
    /// Of every cloud of a chunk.
    pub(crate) each: u64,
    /// Of a file that is read as a whole.
    pub(crate) file: u64,
}

impl FileEntry {
    /// Reads the header of a file, whose first cloud has this number, and says whether it has
    /// an axis for clouds.
    pub(super) fn open(path: PathBuf, format: Format, first: u64) -> Result<(FileEntry, bool)> {
        let bytes = map(&path)?;
        let flaw = |flaw: Flaw| flaw.of(&path);
        let FileShape { counts, features, stacked } = shape_of(format, &bytes).map_err(flaw)?;
        let in_place = in_place(format, &bytes).map_err(flaw)?.is_some();
        Ok((FileEntry { path, format, counts, features, first, in_place }, stacked))
    }

    /// What must be in memory of it.
    pub(super) fn loaded(&self, features: bool) -> Loaded {
        if self.in_place {
            return Loaded::default();
        }
        let features = if self.leaves_out(features) { 0 } else { self.features as u64 };
        let bytes = |points: u64| points.saturating_mul(4 * (3 + features));
        match self.format {
            Format::Npz => {
                let points = self.counts.iter().fold(0u64, |all, count| all.saturating_add(*count));
                Loaded { each: 0, file: bytes(points) }
            }
            _ => Loaded { each: bytes(self.counts.iter().copied().max().unwrap_or(0)), file: 0 },
        }
    }

    fn leaves_out(&self, features: bool) -> bool {
        !features && matches!(self.format, Format::Ply | Format::Pcd)
    }

    /// The clouds that are wanted, or more of the file where that is no dearer, and which.
    pub(super) fn read(
        &self,
        wanted: Range<usize>,
        features: bool,
    ) -> Result<(Range<usize>, Vec<Cloud>)> {
        let (path, format, all) = (&self.path, self.format, 0..self.counts.len());
        let flaw = |flaw: Flaw| flaw.of(path);
        let bytes = map(path)?;
        if let Some((data, [clouds, points, stride])) = in_place(format, &bytes).map_err(flaw)? {
            let clouds = Cloud::mapped(bytes, data, clouds, points, stride);
            return Ok((all, clouds.unwrap_or_default()));
        }
        let shape = shape_of(format, &bytes).map_err(flaw)?;
        let leaves_out = self.leaves_out(features);
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

/// Where floats that can stay in the file lie: clouds, points of each, floats of a point.
fn in_place(format: Format, bytes: &[u8]) -> Read<Option<(Range<usize>, [usize; 3])>> {
    let (data, [clouds, points, stride]) = match format {
        Format::Npy => {
            let header = npy::Header::parse(bytes)?;
            let end = header.data.saturating_add(header.data_bytes());
            if !header.is_plain() || end > bytes.len() {
                return Ok(None);
            }
            (header.data..end, header.extents())
        }
        Format::Bin => (0..bytes.len(), [1, bytes.len() / 16, 4]),
        _ => return Ok(None),
    };
    let lies_well = bytes
        .get(data.clone())
        .is_some_and(|numbers| bytemuck::try_cast_slice::<u8, f32>(numbers).is_ok());
    let whole = data.len() == clouds * points * stride * 4 && !cfg!(target_endian = "big");
    Ok((lies_well && whole).then_some((data, [clouds, points, stride])))
}
