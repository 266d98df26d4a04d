//! The zip file around a checkpoint, with the checks that untrusted files need.
//!
//! The `zip` crate reads the directory, inflates and compares checksums. It is lenient where a
//! checkpoint must not be, so this module adds what it does not check:
//!
//! - [`zip_directory`](plimsoll_machine::zip_directory) bounds the search for the end record and
//!   the number of entries before the crate sees the file, and shows it the directory only;
//! - entries must not overlap each other or the directory, and no two may have one name, of
//!   which the crate would keep the last one;
//! - the local header of an entry must agree with the directory;
//! - sizes must be possible, and what is inflated is bounded for the file as a whole.
//!
//! PyTorch stores its entries without compression, so their contents are slices of a file in
//! memory.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use plimsoll_machine::zip_directory::{DirectoryView, ZipDirectory};
use zip::read::{ArchiveOffset, Config, ZipFile};
use zip::{CompressionMethod, ZipArchive};

use super::file::CheckpointFile;

/// How many bytes compressed entries may inflate to beyond twenty times the file.
const INFLATED: usize = 64 << 20;

pub(super) type ArchiveResult<T> = Result<T, Cow<'static, str>>;

/// A zip file whose directory was checked.
#[derive(Debug)]
pub(super) struct CheckpointArchive<'a> {
    file: &'a CheckpointFile<'a>,
    zip: ZipArchive<DirectoryView<ZipInput<'a>>>,
    entries: HashMap<String, ZipEntry>,
    /// Entries whose checksum was right, by index.
    checked: RefCell<HashSet<usize>>,
    inflated: RefCell<InflatedEntries>,
}

/// The contents of compressed entries by index, and the bytes that were claimed for them.
#[derive(Debug, Default)]
struct InflatedEntries {
    done: HashMap<usize, Arc<[u8]>>,
    used: usize,
}

/// An entry of the directory.
#[derive(Debug, Clone, Copy)]
struct ZipEntry {
    index: usize,
    /// Offset of its local header.
    header: usize,
    /// Offset of its contents.
    start: usize,
    packed: usize,
    size: usize,
    deflated: bool,
}

/// The contents of an entry: a part of the file, or inflated.
#[derive(Debug, Clone)]
pub(super) enum Contents<'a> {
    Stored(Cow<'a, [u8]>),
    Inflated(Arc<[u8]>),
}

impl std::ops::Deref for Contents<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Contents::Stored(bytes) => bytes,
            Contents::Inflated(bytes) => bytes,
        }
    }
}

/// The file as the `zip` crate reads it.
#[derive(Debug, Clone)]
struct ZipInput<'a> {
    file: &'a CheckpointFile<'a>,
    at: u64,
}

impl Read for ZipInput<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let at = usize::try_from(self.at).unwrap_or(usize::MAX);
        let count = into.len().min(self.file.len().saturating_sub(at));
        let bytes = self.file.bytes(at.min(self.file.len()), count).map_err(io::Error::other)?;
        into[..count].copy_from_slice(&bytes);
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for ZipInput<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(step) => (self.file.len() as u64).checked_add_signed(step),
            SeekFrom::Current(step) => self.at.checked_add_signed(step),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl<'a> CheckpointArchive<'a> {
    /// Reads the directory of a zip file.
    pub(super) fn open(file: &'a CheckpointFile<'a>) -> ArchiveResult<CheckpointArchive<'a>> {
        let directory = ZipDirectory::find(&mut ZipInput { file, at: 0 })?;
        let mut zip = open_zip(file, &directory)?;
        let mut entries = HashMap::with_capacity(zip.len());
        let mut spans = Vec::with_capacity(zip.len());
        let start = offset(directory.start);
        let mut last = start;
        for index in 0..zip.len() {
            let raw = zip.by_index_raw(index);
            let raw = raw.map_err(|_| format!("entry {index} is not where the directory says"))?;
            let (name, entry) = check_entry(file, &raw, index, start)?;
            last = last.max(offset(raw.central_header_start()));
            spans.push((entry.header, entry.start + entry.packed));
            entries.insert(name, entry);
        }
        if (entries.len() as u64) < directory.entries {
            return Err("two entries of one name".into());
        }
        if !entries.is_empty() && directory_entry_end(file, last)? > offset(directory.end) {
            return Err("a directory that runs past its end".into());
        }
        spans.sort_unstable();
        if spans.windows(2).any(|pair| pair[1].0 < pair[0].1) {
            return Err("entries that lie over each other".into());
        }
        let (checked, inflated) = (RefCell::default(), RefCell::default());
        Ok(CheckpointArchive { file, zip, entries, checked, inflated })
    }

    /// The names of all entries.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// How large the contents of an entry are.
    pub(super) fn size(&self, name: &str) -> Option<usize> {
        self.entries.get(name).map(|entry| entry.size)
    }

    /// The contents of an entry whose checksum is right; `None` where there is no such entry.
    pub(super) fn read(&self, name: &str) -> Option<ArchiveResult<Contents<'a>>> {
        self.entries.get(name).map(|entry| self.contents(name, *entry))
    }

    fn contents(&self, name: &str, entry: ZipEntry) -> ArchiveResult<Contents<'a>> {
        if entry.deflated {
            return self.inflate(name, entry).map(Contents::Inflated);
        }
        if self.checked.borrow_mut().insert(entry.index) {
            let mut zip = self.zip.clone();
            let stored = zip.by_index(entry.index).map_err(io::Error::from);
            // The crate compares the checksum when it gets to the end.
            stored
                .and_then(|mut stored| io::copy(&mut stored, &mut io::sink()))
                .map_err(|_| format!("{:?} has another checksum than it should", shorten(name)))?;
        }
        self.file.bytes(entry.start, entry.packed).map(Contents::Stored)
    }

    fn inflate(&self, name: &str, entry: ZipEntry) -> ArchiveResult<Arc<[u8]>> {
        let InflatedEntries { done, used } = &mut *self.inflated.borrow_mut();
        if let Some(bytes) = done.get(&entry.index) {
            return Ok(Arc::clone(bytes));
        }
        *used = used.saturating_add(entry.size);
        if *used > INFLATED.saturating_add(self.file.len().saturating_mul(20)) {
            return Err(format!("{:?} would become too large unpacked", shorten(name)).into());
        }
        let mut bytes = Vec::with_capacity(entry.size);
        let mut zip = self.zip.clone();
        let packed = zip.by_index(entry.index).map_err(io::Error::from);
        let read = packed.and_then(|file| file.take(entry.size as u64 + 1).read_to_end(&mut bytes));
        match read {
            Ok(count) if count == entry.size => {}
            Ok(_) => return Err(format!("{:?} cannot be unpacked", shorten(name)).into()),
            Err(why) => {
                return Err(format!("{:?} cannot be unpacked: {why}", shorten(name)).into());
            }
        }
        let bytes: Arc<[u8]> = bytes.into();
        done.insert(entry.index, Arc::clone(&bytes));
        Ok(bytes)
    }
}

/// Has the crate read a directory that was found.
fn open_zip<'a>(
    file: &'a CheckpointFile<'a>,
    directory: &ZipDirectory,
) -> ArchiveResult<ZipArchive<DirectoryView<ZipInput<'a>>>> {
    let (view, contents) = DirectoryView::new(ZipInput { file, at: 0 }, directory);
    let from_start = Config { archive_offset: ArchiveOffset::Known(0) };
    let zip =
        ZipArchive::with_config(from_start, view).map_err(|_| "a zip directory that is damaged")?;
    if zip.len() as u64 > directory.entries
        || (!zip.is_empty() && zip.central_directory_start() != directory.start)
    {
        return Err("two end records that disagree".into());
    }
    contents.show();
    Ok(zip)
}

/// The name of an entry and what is known of it, checked against its local header and the
/// directory, which begins at `directory`.
fn check_entry(
    file: &CheckpointFile<'_>,
    raw: &ZipFile<'_, DirectoryView<ZipInput<'_>>>,
    index: usize,
    directory: usize,
) -> ArchiveResult<(String, ZipEntry)> {
    let name = std::str::from_utf8(raw.name_raw()).map_err(|_| "a name that is not UTF-8")?;
    let refuse = |what: &str| Err(format!("{:?} {what}", shorten(name)).into());
    if name.starts_with('/') || name.contains(['\\', '\0']) || name.split('/').any(|s| s == "..") {
        return refuse("is a name that leads out of the file");
    }
    if raw.encrypted() {
        return refuse("is encrypted");
    }
    let deflated = raw.compression() == CompressionMethod::Deflated;
    if !deflated && raw.compression() != CompressionMethod::Stored {
        return refuse("is packed in a way that PyTorch does not use");
    }
    let (header, start) = (offset(raw.header_start()), offset(raw.data_start()));
    let (packed, size) = (offset(raw.compressed_size()), offset(raw.size()));
    if file.number(header + 26, 2)? != name.len()
        || *file.bytes(header + 30, name.len())? != *name.as_bytes()
    {
        return refuse("is not where the directory says");
    }
    if start.checked_add(packed).is_none_or(|end| end > directory) {
        return refuse("runs past the end of the file");
    }
    // Deflate cannot do better than 1032 to one.
    let fits = if deflated { size / 1100 <= packed } else { size == packed };
    if !fits {
        return refuse("has a size that cannot be");
    }
    Ok((name.to_string(), ZipEntry { index, header, start, packed, size, deflated }))
}

fn offset(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Where the directory's entry at `at` ends: behind its name, its extra fields and its comment.
fn directory_entry_end(file: &CheckpointFile<'_>, at: usize) -> ArchiveResult<usize> {
    let lengths = [28, 30, 32].into_iter().map(|field| file.number(at + field, 2));
    lengths.sum::<ArchiveResult<usize>>().map(|all| at + 46 + all)
}

/// What a message may quote of a name in an untrusted file.
fn shorten(name: &str) -> String {
    name.chars().take(60).collect()
}

#[cfg(test)]
pub(super) mod tests;
