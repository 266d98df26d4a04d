//! Results into files, as they are made.
//!
//! A result may be larger than memory, so each piece is written to its place as soon as it is
//! there. Until the last, all of it lies in a file without a name (`partial`) and without a
//! header; then the header is written and the file gets its name. Whoever finds a file of that
//! name finds a whole one, however the program ended.

mod hard;
mod npy;
mod npz;
mod partial;
mod sparse;

pub use hard::HardFile;
pub use npy::GridFile;
pub use partial::Partial;
pub use sparse::SparseFile;

use std::io;
use std::path::Path;

use plimsoll_memory::{Bytes, Error, Result};

use crate::backend::Filled;

/// Where pieces of a result go.
pub trait Sink {
    /// Bytes of the dense result, from so many on.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] where they cannot be written.
    fn dense(&mut self, at: u64, bytes: &[u8]) -> Result<()>;

    /// The memory that these bytes of the dense result go to, aligned to four, where they may be
    /// made right there: then [`Sink::dense`] is not called for them.
    fn in_place(&mut self, _at: u64, _bytes: u64) -> Option<&mut [u8]> {
        None
    }

    /// Voxels of a cloud; those of one cloud come in order, and clouds do.
    ///
    /// # Errors
    ///
    /// As [`Sink::dense`].
    fn sparse(&mut self, cloud: u64, filled: &Filled) -> Result<()>;
}

/// As any new file: the umask takes from it.
pub(crate) fn readable(builder: &mut tempfile::Builder<'_, '_>) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    #[cfg(not(unix))]
    let _ = builder;
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// A result that the disk has no room for is refused before anything is made.
fn check_room(path: &Path, bytes: u64) -> Result<()> {
    #[cfg(unix)]
    let free = rustix::fs::statvfs(folder_of(path)).ok();
    #[cfg(unix)]
    let free = free.map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    #[cfg(not(unix))]
    let free = None::<u64>;
    match free.filter(|free| *free < bytes) {
        None => Ok(()),
        Some(free) => Err(Error::Config {
            field: "out",
            value: format!(
                "{} of {}, where {} are free",
                path.display(),
                Bytes(bytes),
                Bytes(free)
            ),
            range: "a result that the disk has room for: a smaller grid, bits or sparse as dtype; \
                    for --hard, a smaller --max-points or --max-voxels",
        }),
    }
}

pub(crate) fn failed(path: &Path, error: &io::Error) -> Error {
    Error::Device { call: "writing the result", why: format!("{}: {error}", path.display()) }
}

/// The header of an array of numpy: always 128 bytes, so that it can be written last.
fn header(number: &str, shape: &[u64]) -> Vec<u8> {
    let extents: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
    let extents =
        if shape.len() == 1 { extents.trim_end() } else { extents.trim_end_matches(", ") };
    let text = format!("{{'descr': '{number}', 'fortran_order': False, 'shape': ({extents}), }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(text.as_bytes());
    // Five extents of twenty digits and the words around them stay below 127.
    bytes.resize(HEADER as usize - 1, b' ');
    bytes.push(b'\n');
    bytes
}

/// Bytes of a header.
const HEADER: u64 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_always_as_long() {
        for shape in [&[3][..], &[0, 4], &[u64::MAX >> 20; 5]] {
            let bytes = header("<f4", shape);
            assert_eq!(bytes.len() as u64, HEADER);
            assert_eq!(bytes.last(), Some(&b'\n'));
        }
        assert!(String::from_utf8_lossy(&header("<f4", &[3])).contains("'shape': (3,), }"));
        assert!(String::from_utf8_lossy(&header("<f4", &[2, 3])).contains("'shape': (2, 3), }"));
    }
}
