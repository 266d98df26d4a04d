//! A sparse result: where voxels with points are, and what they hold.
//!
//! `coords` has a row for every voxel: cloud, depth, height, width (without the cloud where
//! there is only one), as 32-bit integers, in order. `values` has its count, or its features,
//! and is not there for occupancy. A `.npz` holds both; a `.npy` only coordinates.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use plimsoll_memory::{Error, Result};

use super::npz::{begin, complete, pack};
use super::{Partial, Sink, failed, header};
use crate::backend::Filled;
use crate::spec::{VoxelMode, VoxelSpec};

/// Voxels with points, written as they come.
#[derive(Debug)]
pub struct SparseFile {
    path: PathBuf,
    spec: VoxelSpec,
    stacked: bool,
    archive: bool,
    coordinates: BufWriter<Partial>,
    values: BufWriter<Partial>,
    rows: u64,
}

impl SparseFile {
    /// Begins the files of a result; `stacked` says whether it has an axis for clouds.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where the name ends in neither `.npz` nor, for occupancy, `.npy`;
    /// [`Error::Device`] where the folder cannot be written to.
    pub fn create(path: &Path, spec: &VoxelSpec, stacked: bool) -> Result<SparseFile> {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        let archive = match (ending.as_deref(), spec.mode()) {
            (Some("npz"), _) => true,
            (Some("npy"), VoxelMode::Occupancy) => false,
            _ => {
                return Err(Error::Config {
                    field: "out",
                    value: path.display().to_string(),
                    range: "a name that ends in .npz for sparse results (or .npy for the \
                            coordinates of occupancy)",
                });
            }
        };
        Ok(SparseFile {
            path: path.to_path_buf(),
            spec: *spec,
            stacked,
            archive,
            coordinates: begin(path)?,
            values: begin(path)?,
            rows: 0,
        })
    }

    /// Voxels written so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Writes headers, puts the archive together and gives the file its name.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] where that fails; nothing is left then.
    pub fn finish(self) -> Result<()> {
        let SparseFile { path, spec, stacked, archive, coordinates, values, rows } = self;
        let end = || -> io::Result<Partial> {
            let columns = if stacked { 4 } else { 3 };
            let coordinates = complete(coordinates, &header("<i4", &[rows, columns]))?;
            if !archive {
                return Ok(coordinates);
            }
            let values = match spec.mode() {
                VoxelMode::Occupancy => None,
                VoxelMode::Count => Some(complete(values, &header("<u4", &[rows]))?),
                _ => Some(complete(values, &header("<f4", &[rows, spec.planes()]))?),
            };
            let values = values.map(|values| ("values.npy", values));
            pack(&path, [("coords.npy", coordinates)].into_iter().chain(values))
        };
        end().and_then(Partial::finish).map_err(|error| failed(&path, &error))
    }

    fn write(&mut self, cloud: u64, filled: &Filled) -> io::Result<()> {
        let number = |n: u64| {
            let n = i32::try_from(n).map_err(|_| io::Error::other("more than 2³¹ clouds"))?;
            Ok::<_, io::Error>(n.to_le_bytes())
        };
        for voxel in &filled.voxels {
            if self.stacked {
                self.coordinates.write_all(&number(cloud)?)?;
            }
            for extent in self.spec.grid().place(*voxel) {
                self.coordinates.write_all(&extent.to_le_bytes())?;
            }
        }
        match self.spec.mode() {
            VoxelMode::Occupancy => {}
            VoxelMode::Count => self.values.write_all(bytemuck::cast_slice(&filled.counts))?,
            VoxelMode::Mean | VoxelMode::Max => {
                self.values.write_all(bytemuck::cast_slice(&filled.values))?
            }
        }
        self.rows += filled.voxels.len() as u64;
        Ok(())
    }
}

impl Sink for SparseFile {
    fn dense(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::Config {
            field: "dtype",
            value: "dense".to_string(),
            range: "sparse for a file of coordinates",
        })
    }

    fn sparse(&mut self, cloud: u64, filled: &Filled) -> Result<()> {
        self.write(cloud, filled).map_err(|error| failed(&self.path, &error))
    }
}
