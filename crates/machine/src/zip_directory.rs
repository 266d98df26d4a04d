//! Where the directory of a zip file is, found within bounds, for files of strangers.
//!
//! The `zip` crate searches too much of an untrusted file: it scans the whole file, tries one end
//! record after the other, and reserves memory for as many entries as a record states. So callers
//! find the directory here first ([`ZipDirectory::find`]), and let the crate open a
//! [`DirectoryView`], which shows nothing before the directory: the crate then sees one end
//! record, whose numbers are possible. The crate must be told that the file begins at 0
//! (`ArchiveOffset::Known(0)`).

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;

/// The most entries: YOLO11x has about 1,500.
const MOST_ENTRIES: u64 = 1 << 17;
/// The most bytes of a directory.
const MOST_BYTES: u64 = 64 << 20;

const END: [u8; 4] = *b"PK\x05\x06";
const END64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR64: [u8; 4] = *b"PK\x06\x07";

/// A reason to refuse the file, without the file's name.
type ZipRefusal = Cow<'static, str>;

/// Where the directory is, and how many entries it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZipDirectory {
    /// The offset of its first byte.
    pub start: u64,
    /// The offset behind its last byte.
    pub end: u64,
    /// How many entries the end record states; the directory is large enough for them.
    pub entries: u64,
}

impl ZipDirectory {
    /// Finds the end record, behind which there may be a comment of at most 65,535 bytes.
    ///
    /// # Errors
    /// What is wrong with the file, or why it could not be read.
    pub fn find(file: &mut (impl Read + Seek)) -> Result<ZipDirectory, ZipRefusal> {
        let length = file.seek(SeekFrom::End(0)).map_err(|why| why.to_string())?;
        let last = length.checked_sub(22).ok_or("too short for a zip file")?;
        let first = last.saturating_sub(0xffff);
        let tail = bytes(file, first, length - first)?;
        let end = tail.windows(4).rposition(|bytes| *bytes == END);
        // The comment must reach to the end of the file.
        let record = end.and_then(|at| tail.get(at..)?.split_first_chunk::<22>());
        let record = record.filter(|(record, rest)| number(*record, 20, 2) == rest.len() as u64);
        let (record, rest) =
            record.ok_or("no zip directory at its end: cut short, or no zip file")?;
        let end = length - (record.len() + rest.len()) as u64;
        let directory = match end.checked_sub(20) {
            Some(at) if bytes(file, at, 4)? == LOCATOR64 => wide(file, at)?,
            _ => narrow(record, end)?,
        };
        // A second record would be the crate's next choice.
        let seen = bytes(file, directory.start, length - directory.start)?;
        match seen.windows(4).filter(|bytes| *bytes == END).count() {
            1 => Ok(directory),
            _ => Err("two end records that disagree about its directory".into()),
        }
    }

    /// The directory at `start`, which must end before `stop`.
    fn checked(start: u64, size: u64, entries: u64, stop: u64) -> Result<ZipDirectory, ZipRefusal> {
        let end = start.checked_add(size).filter(|&end| end <= stop);
        let end = end.ok_or("a directory that lies outside the file")?;
        // An entry of the directory takes at least 46 bytes.
        if entries > MOST_ENTRIES || entries > size / 46 {
            return Err(format!("{entries} entries").into());
        }
        // What lies between the directory and the end record is searched too.
        if stop - start > MOST_BYTES {
            return Err(format!("a directory of {} bytes", stop - start).into());
        }
        Ok(ZipDirectory { start, end, entries })
    }
}

/// The directory of an end record at `end`.
fn narrow(record: &[u8], end: u64) -> Result<ZipDirectory, ZipRefusal> {
    let disks = (number(record, 4, 2), number(record, 6, 2));
    let (here, entries) = (number(record, 8, 2), number(record, 10, 2));
    if disks != (0, 0) || here != entries {
        return Err("one part of a zip file in several".into());
    }
    ZipDirectory::checked(number(record, 16, 4), number(record, 12, 4), entries, end)
}

/// The directory of a zip64 end record, by its locator.
fn wide(file: &mut (impl Read + Seek), locator: u64) -> Result<ZipDirectory, ZipRefusal> {
    let at = number(&bytes(file, locator + 8, 8)?, 0, 8);
    let inside = at.checked_add(56).is_some_and(|end| end <= locator);
    let record = if inside { bytes(file, at, 56)? } else { Vec::new() };
    if !record.starts_with(&END64) {
        return Err("a zip64 locator that points at nothing".into());
    }
    ZipDirectory::checked(
        number(&record, 48, 8),
        number(&record, 40, 8),
        number(&record, 32, 8),
        at,
    )
}

fn bytes(file: &mut (impl Read + Seek), at: u64, count: u64) -> Result<Vec<u8>, ZipRefusal> {
    let mut read = || {
        file.seek(SeekFrom::Start(at))?;
        let mut bytes = vec![0; usize::try_from(count).unwrap_or(usize::MAX)];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|why: io::Error| why.to_string().into())
}

/// A little-endian number of `width` bytes; 0 outside the record.
fn number(record: &[u8], at: usize, width: usize) -> u64 {
    let bytes = record.get(at..at + width).unwrap_or_default();
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// A zip file that shows its directory and what follows, until [`HiddenContents::show`].
#[derive(Debug, Clone)]
pub struct DirectoryView<F> {
    file: F,
    at: u64,
    /// The first byte that is shown.
    first: Rc<Cell<u64>>,
}

/// Shows the contents of a [`DirectoryView`] once its directory was read.
#[derive(Debug)]
pub struct HiddenContents(Rc<Cell<u64>>);

impl HiddenContents {
    /// Shows the whole file from now on.
    pub fn show(self) {
        self.0.set(0);
    }
}

impl<F: Read + Seek> DirectoryView<F> {
    /// A view of the file from the directory on.
    #[must_use]
    pub fn new(file: F, directory: &ZipDirectory) -> (DirectoryView<F>, HiddenContents) {
        let first = Rc::new(Cell::new(directory.start));
        (DirectoryView { file, at: 0, first: Rc::clone(&first) }, HiddenContents(first))
    }
}

impl<F: Read + Seek> Read for DirectoryView<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let hidden = self.first.get().saturating_sub(self.at);
        let count = if hidden == 0 {
            self.file.read(into)?
        } else if hidden >= into.len() as u64 {
            return Err(io::Error::other("only the directory may be read yet"));
        } else {
            // The crate reads whole buffers backwards, and may begin before the directory.
            let count = usize::try_from(hidden).unwrap_or(usize::MAX);
            into[..count].fill(0);
            self.file.seek(SeekFrom::Start(self.first.get()))?;
            count
        };
        self.at += count as u64;
        Ok(count)
    }
}

impl<F: Read + Seek> Seek for DirectoryView<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = self.file.seek(to)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// A zip file of `before` bytes and a directory of `size` bytes that states `entries`.
    fn zip(before: usize, size: usize, entries: u16) -> Vec<u8> {
        let mut file = vec![1; before + size];
        file.extend(b"PK\x05\x06\0\0\0\0");
        file.extend([entries.to_le_bytes(), entries.to_le_bytes()].concat());
        file.extend((size as u32).to_le_bytes());
        file.extend((before as u32).to_le_bytes());
        file.extend([0, 0]);
        file
    }

    #[test]
    fn a_directory_is_found_and_its_numbers_are_possible() {
        let find = |file: Vec<u8>| ZipDirectory::find(&mut Cursor::new(file));
        let found = find(zip(10, 92, 2)).unwrap();
        assert_eq!((found.start, found.end, found.entries), (10, 102, 2));
        assert!(find(zip(10, 91, 2)).unwrap_err().contains("2 entries"));
        assert!(find(zip(0, 65 << 20, 2)).unwrap_err().contains("directory of"));
        let end = zip(10, 92, 2)[102..].to_vec();
        let twice = [zip(10, 92, 2), end].concat();
        assert!(find(twice).unwrap_err().contains("two end records"));
    }

    #[test]
    fn what_lies_before_the_directory_is_hidden_at_first() {
        let mut file = Cursor::new(zip(3000, 46, 1));
        let directory = ZipDirectory::find(&mut file).unwrap();
        let (mut view, contents) = DirectoryView::new(file, &directory);
        let mut bytes = [9; 4];
        view.seek(SeekFrom::Start(2998)).unwrap();
        view.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 1, 1]);
        view.seek(SeekFrom::Start(2996)).unwrap();
        assert!(view.read_exact(&mut bytes).is_err());
        contents.show();
        view.seek(SeekFrom::Start(2996)).unwrap();
        view.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [1; 4]);
    }
}
