//! `.npz`: arrays of numpy in a zip archive, deflated or not.
//!
//! An array called `points` is taken and the rest left alone; without one, every array is a
//! cloud, or a stack of clouds, in the order of the archive.
//!
//! The file is a stranger's: [`ZipDirectory`] finds the directory of the archive within bounds
//! before the `zip` crate opens it.

use std::io::{Read as _, Seek};

use plimsoll_machine::zip_directory::{DirectoryView, ZipDirectory};
use zip::ZipArchive;
use zip::read::{ArchiveOffset, Config};

use super::flaw::{Flaw, Read};
use super::npy::NpyHeader;
use super::{FileShape, MOST_CLOUDS};

/// More than a header of numpy has; enough to know a shape without inflating the rest.
const HEAD: u64 = 16 << 10;

type NpzArchive<F> = ZipArchive<DirectoryView<F>>;

/// Clouds, points and features, from the headers alone.
pub(crate) fn shape(file: impl std::io::Read + Seek) -> Read<FileShape> {
    let mut archive = open(file)?;
    let members = members(&archive);
    let (mut shapes, mut clouds) = (Vec::new(), 0usize);
    for &member in &members {
        let (header, at) = header(&mut archive, member)?;
        clouds = clouds.saturating_add(header.extents()[0]);
        if clouds > MOST_CLOUDS {
            let why = format!("{clouds} clouds and more; one file has at most {MOST_CLOUDS}");
            return Err(Flaw::at(at, why));
        }
        shapes.push(header.shape());
    }
    together(shapes)
}

/// The floats of every cloud.
pub(crate) fn read(file: impl std::io::Read + Seek) -> Read<Vec<Vec<f32>>> {
    let mut archive = open(file)?;
    let mut clouds = Vec::new();
    for member in members(&archive) {
        // What stands behind the numbers is nobody's, however much it is.
        let (header, _) = header(&mut archive, member)?;
        // One byte more: where the array ends there, its checksum is looked at.
        let most = (header.data.saturating_add(header.data_bytes()) as u64).saturating_add(1);
        let (array, at) = inflate(&mut archive, member, most)?;
        clouds
            .extend(header.read(&array, 0..header.extents()[0]).map_err(|flaw| inside(&flaw, at))?);
    }
    Ok(clouds)
}

/// Bytes of the largest array that is read; one is unpacked at a time.
pub(crate) fn largest_bytes(file: impl std::io::Read + Seek) -> Read<u64> {
    let mut archive = open(file)?;
    let mut most = 0;
    for member in members(&archive) {
        most = most.max(header(&mut archive, member)?.0.data_bytes() as u64);
    }
    Ok(most)
}

/// What an array says of itself, and where it stands in the archive.
fn header<F: std::io::Read + Seek>(
    archive: &mut NpzArchive<F>,
    member: usize,
) -> Read<(NpyHeader, usize)> {
    let (head, at) = inflate(archive, member, HEAD)?;
    Ok((NpyHeader::parse(&head).map_err(|flaw| inside(&flaw, at))?, at))
}

fn open<F: std::io::Read + Seek>(mut file: F) -> Read<NpzArchive<F>> {
    let directory = ZipDirectory::find(&mut file).map_err(|why| broken(&why, 0))?;
    let (view, contents) = DirectoryView::new(file, &directory);
    let from_start = Config { archive_offset: ArchiveOffset::Known(0) };
    let archive = ZipArchive::with_config(from_start, view).map_err(|error| broken(&error, 0))?;
    contents.show();
    Ok(archive)
}

fn members<F: std::io::Read + Seek>(archive: &NpzArchive<F>) -> Vec<usize> {
    match archive.index_for_name("points.npy") {
        Some(points) => vec![points],
        None => (0..archive.len()).collect(),
    }
}

/// The first bytes of a member, at most this many, and where it stands in the archive.
fn inflate<F: std::io::Read + Seek>(
    archive: &mut NpzArchive<F>,
    member: usize,
    most: u64,
) -> Read<(Vec<u8>, usize)> {
    let file = archive.by_index(member).map_err(|error| broken(&error, 0))?;
    let at = usize::try_from(file.header_start()).unwrap_or(usize::MAX);
    // What the archive says of the size is a stranger's word: memory grows with what comes.
    let mut bytes = Vec::new();
    let name = file.name().to_string();
    file.take(most)
        .read_to_end(&mut bytes)
        .map_err(|error| Flaw::at(at, format!("{name} cannot be unpacked: {error}")))?;
    Ok((bytes, at))
}

fn together(shapes: Vec<FileShape>) -> Read<FileShape> {
    let mut shapes = shapes.into_iter();
    let mut all = shapes.next().ok_or_else(|| Flaw::at(0, "an archive of no arrays"))?;
    for shape in shapes {
        if shape.features != all.features {
            let why = format!(
                "arrays of {} and {} columns; call the one to read `points`",
                all.features + 3,
                shape.features + 3
            );
            return Err(Flaw::at(0, why));
        }
        all.counts.extend(shape.counts);
        all.stacked = true;
    }
    Ok(all)
}

fn inside(flaw: &Flaw, member: usize) -> Flaw {
    let why =
        format!("in the array that begins here, {flaw} (an array named points is read alone)");
    Flaw::at(member, why)
}

fn broken(error: &impl std::fmt::Display, at: usize) -> Flaw {
    Flaw::at(at, format!("no archive that can be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Cursor, Write};
    use zip::write::{SimpleFileOptions, ZipWriter};

    fn archive(members: &[(&str, &str, usize)]) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, shape, numbers) in members {
            let head = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}");
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(b"\x93NUMPY\x01\x00").unwrap();
            zip.write_all(&(head.len() as u16).to_le_bytes()).unwrap();
            zip.write_all(head.as_bytes()).unwrap();
            zip.write_all(&vec![0; numbers * 4]).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    #[test]
    fn an_array_is_read_as_far_as_its_numbers_go() {
        let file = archive(&[("points.npy", "(2, 3)", 1 << 20), ("labels.npy", "(9,)", 9)]);
        assert_eq!(shape(Cursor::new(&file)).unwrap().counts, [2]);
        assert_eq!(read(Cursor::new(&file)).unwrap(), [[0.0; 6]]);
        // A number that was changed is found by the checksum.
        let mut changed = archive(&[("points.npy", "(2, 3)", 6)]);
        let place = changed.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
        changed[place + 16] ^= 1;
        assert!(read(Cursor::new(&changed)).unwrap_err().why.contains("checksum"));
        let short = archive(&[("points.npy", "(2, 3)", 5)]);
        assert!(read(Cursor::new(&short)).unwrap_err().why.contains("it ends here"));
        let several = archive(&[("a.npy", "(1, 3)", 3), ("b.npy", "(2, 1, 3)", 6)]);
        assert_eq!(shape(Cursor::new(&several)).unwrap().counts, [1, 1, 1]);
        assert_eq!(largest_bytes(Cursor::new(&several)).unwrap(), 24);
    }

    /// The crate would try each of these records, and would reserve memory by their counts.
    #[test]
    fn a_forged_directory_costs_neither_time_nor_memory() {
        let arrays: Vec<String> = (0..2000).map(|n| format!("{n}.npy")).collect();
        let arrays: Vec<_> = arrays.iter().map(|name| (name.as_str(), "(1, 3)", 3)).collect();
        let mut file = archive(&arrays);
        let last = file.windows(4).rposition(|four| four == b"PK\x01\x02").unwrap();
        file[last] = b'?';
        let end = file[file.len() - 22..].to_vec();
        file.extend(end.repeat(2000));
        let begun = std::time::Instant::now();
        let why = shape(Cursor::new(&file)).unwrap_err().why;
        assert!(why.contains("two end records"), "{why}");
        assert!(begun.elapsed().as_secs() < 2, "{:?}", begun.elapsed());
        let mut many = archive(&[("points.npy", "(2, 3)", 6)]);
        let end = many.len() - 22;
        many[end + 8..end + 12].fill(0xfe);
        let why = read(Cursor::new(&many)).unwrap_err().why;
        assert!(why.contains("65278 entries"), "{why}");
    }

    #[test]
    fn more_clouds_than_can_be_are_refused() {
        let many: Vec<(&str, &str, usize)> =
            ["a.npy", "b.npy"].into_iter().map(|name| (name, "(16000000, 0, 3)", 0)).collect();
        assert_eq!(shape(Cursor::new(archive(&many[..1]))).unwrap().counts.len(), 16_000_000);
        assert!(shape(Cursor::new(archive(&many))).unwrap_err().why.contains("32000000 clouds"));
    }
}
