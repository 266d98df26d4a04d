//! Hard voxels: `voxels`, `coordinates` and `num_points` in one archive.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use plimsoll_memory::{Error, Result};

use super::npz::{begin, complete, pack};
use super::{Partial, check_room, failed, header};
use crate::network::{HardSpec, HardVoxels};

/// Hard voxels, written as they come.
#[derive(Debug)]
pub struct HardFile {
    path: PathBuf,
    spec: HardSpec,
    columns: usize,
    voxels: BufWriter<Partial>,
    coordinates: BufWriter<Partial>,
    num_points: BufWriter<Partial>,
    rows: u64,
}

impl HardFile {
    /// Begins the files of a result, of points of so many columns; there are at most `most` voxels.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where the name does not end in `.npz`, or the disk has no room for the
    /// largest result; [`Error::Device`] where the folder cannot be written to.
    pub fn create(path: &Path, spec: &HardSpec, columns: usize, most: u64) -> Result<HardFile> {
        if path.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("npz")) {
            return Err(Error::Config {
                field: "out",
                value: path.display().to_string(),
                range: "a name that ends in .npz for hard voxels",
            });
        }
        let file = HardFile {
            path: path.to_path_buf(),
            spec: *spec,
            columns,
            voxels: begin(path)?,
            coordinates: begin(path)?,
            num_points: begin(path)?,
            rows: 0,
        };
        // Once in files of their own, once in the archive.
        check_room(path, most.saturating_mul(spec.voxel_bytes(columns)).saturating_mul(2))?;
        Ok(file)
    }

    /// Voxels written so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Writes voxels behind those that are there.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] where they cannot be written.
    pub fn write(&mut self, made: &HardVoxels) -> Result<()> {
        let HardFile { voxels, coordinates, num_points, .. } = self;
        let written = voxels
            .write_all(bytemuck::cast_slice(&made.voxels))
            .and_then(|()| coordinates.write_all(bytemuck::cast_slice(&made.coordinates)))
            .and_then(|()| num_points.write_all(bytemuck::cast_slice(&made.num_points)));
        self.rows += made.num_points.len() as u64;
        written.map_err(|error| failed(&self.path, &error))
    }

    /// Writes headers, puts the archive together and gives the file its name.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] where that fails; nothing is left then.
    pub fn finish(self) -> Result<()> {
        let HardFile { path, spec, columns, voxels, coordinates, num_points, rows } = self;
        let end = || -> io::Result<Partial> {
            let shape = [rows, u64::from(spec.max_points()), columns as u64];
            let voxels = complete(voxels, &header("<f4", &shape))?;
            let shape = [rows, spec.form().columns() as u64];
            let coordinates = complete(coordinates, &header("<i4", &shape))?;
            let num_points = complete(num_points, &header("<i4", &[rows]))?;
            let members = [
                ("voxels.npy", voxels),
                ("coordinates.npy", coordinates),
                ("num_points.npy", num_points),
            ];
            pack(&path, members.into_iter())
        };
        end().and_then(Partial::finish).map_err(|error| failed(&path, &error))
    }
}
