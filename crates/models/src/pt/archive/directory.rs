//! The end record of a zip file, which says where the directory of its entries is.
//!
//! The `zip` crate has its own search, which does too much for an untrusted file: it scans the
//! whole file, tries one end record after the other, and reserves memory for as many entries as
//! a record claims. This module looks for the record first, within bounds, so that the crate only
//! sees files whose numbers are possible.

use super::{ArchiveResult, CheckpointFile};

/// The most entries: YOLO11x has about 1,500.
const MOST_ENTRIES: usize = 1 << 17;

const END: [u8; 4] = *b"PK\x05\x06";
const END64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR64: [u8; 4] = *b"PK\x06\x07";

/// Where the directory is, and how many entries it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct ZipDirectory {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) entries: usize,
}

impl ZipDirectory {
    /// Finds the end record, behind which there may be a comment of at most 65,535 bytes.
    pub(super) fn find(file: &CheckpointFile<'_>) -> ArchiveResult<ZipDirectory> {
        let last = file.len().checked_sub(22).ok_or("too short for a zip file")?;
        let first = last.saturating_sub(0xffff);
        let tail = file.bytes(first, file.len() - first)?;
        let end = tail.windows(4).rposition(|bytes| *bytes == END).map(|at| first + at);
        // The comment must reach to the end of the file.
        let end = end.filter(|&end| {
            file.number(end + 20, 2).is_ok_and(|comment| end + 22 + comment == file.len())
        });
        let end = end.ok_or("no zip directory at its end: cut short, or no zip file")?;
        let disks = (file.number(end + 4, 2)?, file.number(end + 6, 2)?);
        let (here, mut entries) = (file.number(end + 8, 2)?, file.number(end + 10, 2)?);
        let (mut size, mut start) = (file.number(end + 12, 4)?, file.number(end + 16, 4)?);
        let mut stop = end;
        let wide = end.checked_sub(20).filter(|&at| file.has(at, LOCATOR64));
        if let Some(locator) = wide {
            stop = file.number(locator + 8, 8)?;
            if !file.has(stop, END64) || stop >= locator {
                return Err("a zip64 locator that points at nothing".into());
            }
            entries = file.number(stop + 32, 8)?;
            size = file.number(stop + 40, 8)?;
            start = file.number(stop + 48, 8)?;
        } else if disks != (0, 0) || here != entries {
            return Err("one part of a zip file in several".into());
        }
        let end = start.checked_add(size).filter(|&end| end <= stop);
        let end = end.ok_or("a directory that lies outside the file")?;
        // An entry of the directory takes at least 46 bytes.
        if entries > MOST_ENTRIES || entries > size / 46 {
            return Err(format!("{entries} entries").into());
        }
        Ok(ZipDirectory { start, end, entries })
    }
}
