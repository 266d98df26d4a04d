//! A dense result: one array of numpy.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use plimsoll_memory::{Error, Result};

use super::{HEADER, Partial, Sink, check_room, failed, header};
use crate::backend::Filled;
use crate::spec::{Cells, VoxelSpec};

/// An array that is written piece by piece.
#[derive(Debug)]
pub struct GridFile {
    path: PathBuf,
    file: Partial,
    header: Vec<u8>,
    bytes: u64,
}

impl GridFile {
    /// Begins the file of a result; `clouds` is none where the result has no axis for them.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where there is no such folder or its disk has no room for the result,
    /// [`Error::Device`] where it cannot be written to.
    pub fn create(path: &Path, spec: &VoxelSpec, clouds: Option<u64>) -> Result<GridFile> {
        let bytes = spec.cloud_bytes(spec.grid().voxels()).saturating_mul(clouds.unwrap_or(1));
        let number = match spec.cells() {
            Cells::U8 | Cells::Bits => "|u1",
            Cells::U32 => "<u4",
            Cells::F32 | Cells::Sparse => "<f4",
        };
        let file = Partial::create(path, "out")?;
        let length = HEADER.saturating_add(bytes);
        check_room(path, length)?;
        // Takes no room yet, and shows at once where the file system has no files so large.
        file.as_file().set_len(length).map_err(|error| failed(path, &error))?;
        let header = header(number, &shape(spec, clouds));
        Ok(GridFile { path: path.to_path_buf(), file, header, bytes })
    }

    /// Bytes of the whole result, its header not counted.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes the header and gives the file its name.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] where that fails; nothing is left then.
    pub fn finish(mut self) -> Result<()> {
        let start = self.file.seek(SeekFrom::Start(0));
        let written = start.and_then(|_| self.file.write_all(&self.header));
        written.and_then(|()| self.file.finish()).map_err(|error| failed(&self.path, &error))
    }
}

impl Sink for GridFile {
    fn dense(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let place = SeekFrom::Start(HEADER.saturating_add(at));
        let written = self.file.seek(place).and_then(|_| self.file.write_all(bytes));
        written.map_err(|error| failed(&self.path, &error))
    }

    fn sparse(&mut self, _: u64, _: &Filled) -> Result<()> {
        Err(Error::Config {
            field: "dtype",
            value: "sparse".to_string(),
            range: "f32, u8, u32 or bits for a dense file",
        })
    }
}

/// Clouds, features, depth, height, width; what is not there has no axis. Bits have eight
/// voxels of a row in a byte, or, where rows are no whole bytes, one row for a cloud.
fn shape(spec: &VoxelSpec, clouds: Option<u64>) -> Vec<u64> {
    let mut shape: Vec<u64> = clouds.into_iter().collect();
    if spec.mode().of_features() {
        shape.push(spec.planes());
    }
    let [depth, height, width] = spec.grid().dims().map(u64::from);
    match spec.cells() {
        Cells::Bits if width % 8 == 0 => shape.extend([depth, height, width / 8]),
        Cells::Bits => shape.push(spec.plane_bytes(spec.grid().voxels())),
        _ => shape.extend([depth, height, width]),
    }
    shape
}
