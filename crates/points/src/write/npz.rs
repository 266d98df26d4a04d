//! Arrays of numpy in one archive: each is written to a file of its own first, as nobody knows how
//! long it will be.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use plimsoll_memory::Result;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::{HEADER, Partial, failed};

/// The file of an array, with room for its header.
pub(super) fn begin(path: &Path) -> Result<BufWriter<Partial>> {
    let mut file = BufWriter::with_capacity(1 << 20, Partial::create(path, "out")?);
    let blank = [0; HEADER as usize];
    file.write_all(&blank).map_err(|error| failed(path, &error))?;
    Ok(file)
}

/// Writes the header of an array that is there, and goes back to its start.
pub(super) fn complete(file: BufWriter<Partial>, header: &[u8]) -> io::Result<Partial> {
    let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(header)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// Puts arrays into one archive, under these names.
pub(super) fn pack(
    path: &Path,
    members: impl Iterator<Item = (&'static str, Partial)>,
) -> io::Result<Partial> {
    let whole = Partial::create(path, "out").map_err(io::Error::other)?;
    let mut archive = ZipWriter::new(whole);
    for (name, mut file) in members {
        // Without the larger form of sizes an archive ends at 4 GiB.
        let large = length(file.as_file())? >= u64::from(u32::MAX);
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(large);
        archive.start_file(name, options)?;
        copy(&mut file, &mut archive)?;
    }
    Ok(archive.finish()?)
}

fn length(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..count])?;
    }
}
