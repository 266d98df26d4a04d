//! `.npz`: arrays of numpy in a zip archive, deflated or not.
//!
//! An array called `points` is taken and the rest left alone; without one, every array is a
//! cloud, or a stack of clouds, in the order of the archive.

use std::io::{Cursor, Read as _};

use zip::ZipArchive;
use zip::result::ZipError;

use super::FileShape;
use super::flaw::{Flaw, Read};
use super::npy::Header;

/// More than a header of numpy has; enough to know a shape without inflating the rest.
const HEAD: u64 = 16 << 10;

type Archive<'a> = ZipArchive<Cursor<&'a [u8]>>;

/// Clouds, points and features, from the headers alone.
pub(crate) fn shape(bytes: &[u8]) -> Read<FileShape> {
    let mut archive = open(bytes)?;
    let members = members(&archive);
    let mut shapes = Vec::new();
    for &member in &members {
        let (head, at) = inflate(&mut archive, member, Some(HEAD))?;
        shapes.push(Header::parse(&head).map_err(|flaw| inside(&flaw, at))?.shape());
    }
    together(shapes)
}

/// The floats of every cloud.
pub(crate) fn read(bytes: &[u8]) -> Read<Vec<Vec<f32>>> {
    let mut archive = open(bytes)?;
    let mut clouds = Vec::new();
    for member in members(&archive) {
        let (array, at) = inflate(&mut archive, member, None)?;
        let read = Header::parse(&array).and_then(|header| header.read(&array));
        clouds.extend(read.map_err(|flaw| inside(&flaw, at))?);
    }
    Ok(clouds)
}

fn open(bytes: &[u8]) -> Read<Archive<'_>> {
    ZipArchive::new(Cursor::new(bytes)).map_err(|error| broken(&error, 0))
}

fn members(archive: &Archive<'_>) -> Vec<usize> {
    match archive.index_for_name("points.npy") {
        Some(points) => vec![points],
        None => (0..archive.len()).collect(),
    }
}

/// The bytes of a member, or the first of them, and where it stands in the archive.
fn inflate(archive: &mut Archive<'_>, member: usize, most: Option<u64>) -> Read<(Vec<u8>, usize)> {
    let file = archive.by_index(member).map_err(|error| broken(&error, 0))?;
    let at = usize::try_from(file.header_start()).unwrap_or(usize::MAX);
    // What the archive says of the size is a stranger's word: memory grows with what comes.
    let most = most.unwrap_or_else(|| file.size());
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

fn broken(error: &ZipError, at: usize) -> Flaw {
    Flaw::at(at, format!("no archive that can be read: {error}"))
}
