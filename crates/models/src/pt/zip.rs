//! The zip file around a checkpoint, read with suspicion.
//!
//! PyTorch stores its entries as they are, so this hands out slices of a file in memory, or
//! reads from one on disk what is asked for; an entry that somebody packed again is inflated,
//! within a bound. What a well-made zip never has
//! is refused: entries that lie over each other or over the directory, two of one name, a
//! local header that disagrees with the directory, encryption, a checksum that is wrong.
//! Nothing is made from a size before it was held against the file.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use flate2::Crc;
use flate2::read::DeflateDecoder;

/// The most entries: YOLO11x has about 1,500.
const MOST_ENTRIES: usize = 1 << 17;
/// What packed entries may become beyond twenty times the file.
const INFLATED: usize = 64 << 20;

const END: [u8; 4] = *b"PK\x05\x06";
const END64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR64: [u8; 4] = *b"PK\x06\x07";
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";

/// Where a zip file is.
#[derive(Debug)]
pub(super) enum Source<'a> {
    Memory(&'a [u8]),
    /// A file and its length.
    Disk(RefCell<Disk>, usize),
}

/// A file, and what was read of it last: fields stand side by side.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    at: usize,
    last: Vec<u8>,
}

/// So much is read where less is asked for.
const AT_ONCE: usize = 4 << 10;

impl Disk {
    fn bytes(&mut self, at: usize, count: usize, length: usize) -> std::io::Result<Vec<u8>> {
        let known = at.checked_sub(self.at).and_then(|from| self.last.get(from..from + count));
        if let Some(bytes) = known {
            return Ok(bytes.to_vec());
        }
        let mut bytes = vec![0; count.max(AT_ONCE.min(length - at))];
        self.file.seek(SeekFrom::Start(at as u64))?;
        self.file.read_exact(&mut bytes)?;
        if count <= AT_ONCE {
            (self.at, self.last) = (at, bytes.clone());
            bytes.truncate(count);
        }
        Ok(bytes)
    }
}

impl Source<'_> {
    /// A file of which only what is asked for is read.
    pub(super) fn disk(file: File) -> std::io::Result<Source<'static>> {
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        Ok(Source::Disk(RefCell::new(Disk { file, at: 0, last: Vec::new() }), length))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Source::Memory(file) => file.len(),
            Source::Disk(_, length) => *length,
        }
    }

    pub(super) fn bytes(&self, at: usize, count: usize) -> Result<Cow<'_, [u8]>> {
        let end = at.checked_add(count).ok_or("an offset that is past everything")?;
        if end > self.len() {
            return Err("cut short".into());
        }
        match self {
            Source::Memory(file) => Ok(Cow::Borrowed(&file[at..end])),
            Source::Disk(disk, length) => {
                let read = disk.borrow_mut().bytes(at, count, *length);
                read.map(Cow::Owned).map_err(|why| why.to_string().into())
            }
        }
    }
}

/// A zip file.
#[derive(Debug)]
pub(super) struct Archive<'a> {
    file: &'a Source<'a>,
    entries: HashMap<String, Entry>,
    /// Whose checksum was found right.
    checked: RefCell<HashSet<usize>>,
    /// Packed entries, once inflated.
    inflated: RefCell<Inflated>,
}

/// Packed entries by where they begin, and how much they were meant to become.
#[derive(Debug, Default)]
struct Inflated {
    done: HashMap<usize, Arc<[u8]>>,
    used: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    start: usize,
    packed: usize,
    size: usize,
    crc: u32,
    deflated: bool,
}

/// The contents of an entry: of the file itself, or inflated.
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

type Result<T> = std::result::Result<T, Cow<'static, str>>;

/// Reads little-endian fields at any place of the file, or says no.
#[derive(Clone, Copy)]
struct View<'a>(&'a Source<'a>);

impl<'a> View<'a> {
    fn bytes(self, at: usize, count: usize) -> Result<Cow<'a, [u8]>> {
        self.0.bytes(at, count)
    }

    fn number(self, at: usize, width: usize) -> Result<u64> {
        let bytes = self.bytes(at, width)?;
        Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn size(self, at: usize, width: usize) -> Result<usize> {
        usize::try_from(self.number(at, width)?)
            .map_err(|_| "a size that is past everything".into())
    }

    fn is(self, at: usize, signature: [u8; 4]) -> bool {
        self.bytes(at, 4).is_ok_and(|found| *found == signature)
    }
}

/// Where the directory is.
struct Directory {
    start: usize,
    end: usize,
    entries: usize,
}

impl<'a> Archive<'a> {
    /// Reads the directory of a zip file.
    pub(super) fn open(file: &'a Source<'a>) -> Result<Archive<'a>> {
        let view = View(file);
        let directory = find_directory(view)?;
        let mut entries = HashMap::with_capacity(directory.entries);
        let mut spans = Vec::with_capacity(directory.entries);
        let mut at = directory.start;
        for _ in 0..directory.entries {
            let (name, entry, header, next) = read_entry(view, at, directory.start)?;
            if next > directory.end {
                return Err("a directory that runs past its end".into());
            }
            spans.push((header, entry.start + entry.packed));
            if entries.contains_key(&name) {
                return Err(format!("two entries named {:?}", shorten(&name)).into());
            }
            entries.insert(name, entry);
            at = next;
        }
        spans.sort_unstable();
        if spans.windows(2).any(|pair| pair[1].0 < pair[0].1) {
            return Err("entries that lie over each other".into());
        }
        let (checked, inflated) = (RefCell::default(), RefCell::default());
        Ok(Archive { file, entries, checked, inflated })
    }

    /// The names of all entries.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// How large the contents of an entry are.
    pub(super) fn size(&self, name: &str) -> Option<usize> {
        self.entries.get(name).map(|entry| entry.size)
    }

    /// The contents of an entry, its checksum found right; `None` where there is no such.
    pub(super) fn read(&self, name: &str) -> Option<Result<Contents<'a>>> {
        self.entries.get(name).map(|entry| self.contents(name, *entry))
    }

    fn contents(&self, name: &str, entry: Entry) -> Result<Contents<'a>> {
        let raw = View(self.file).bytes(entry.start, entry.packed)?;
        if entry.deflated {
            return self.inflate(name, entry, &raw).map(Contents::Inflated);
        }
        if self.checked.borrow_mut().insert(entry.start) {
            check(name, &raw, entry.crc)?;
        }
        Ok(Contents::Stored(raw))
    }

    fn inflate(&self, name: &str, entry: Entry, raw: &[u8]) -> Result<Arc<[u8]>> {
        let Inflated { done, used } = &mut *self.inflated.borrow_mut();
        if let Some(bytes) = done.get(&entry.start) {
            return Ok(Arc::clone(bytes));
        }
        *used = used.saturating_add(entry.size);
        if *used > INFLATED.saturating_add(self.file.len().saturating_mul(20)) {
            return Err(format!("{:?} would become too large unpacked", shorten(name)).into());
        }
        let mut bytes = Vec::with_capacity(entry.size);
        let read = DeflateDecoder::new(raw).take(entry.size as u64 + 1).read_to_end(&mut bytes);
        if read.is_err() || bytes.len() != entry.size {
            return Err(format!("{:?} cannot be unpacked", shorten(name)).into());
        }
        check(name, &bytes, entry.crc)?;
        let bytes: Arc<[u8]> = bytes.into();
        done.insert(entry.start, Arc::clone(&bytes));
        Ok(bytes)
    }
}

fn check(name: &str, bytes: &[u8], wanted: u32) -> Result<()> {
    let mut crc = Crc::new();
    crc.update(bytes);
    match crc.sum() == wanted {
        true => Ok(()),
        false => Err(format!("{:?} has another checksum than it should", shorten(name)).into()),
    }
}

/// Finds the end record, behind which there may be a comment of at most 65,535 bytes.
fn find_directory(view: View<'_>) -> Result<Directory> {
    let last = view.0.len().checked_sub(22).ok_or("too short for a zip file")?;
    let first = last.saturating_sub(0xffff);
    let tail = view.bytes(first, view.0.len() - first)?;
    let ends = |at: &usize| {
        let comment = |n: [u8; 2]| usize::from(u16::from_le_bytes(n));
        tail[*at..].starts_with(&END)
            && tail[*at..].get(20..22).and_then(|n| n.try_into().ok()).map(comment)
                == Some(tail.len() - at - 22)
    };
    let end = (0..=last - first).rev().find(ends).map(|at| first + at);
    let end = end.ok_or("no zip directory at its end: cut short, or no zip file")?;
    let disks = (view.number(end + 4, 2)?, view.number(end + 6, 2)?);
    let (here, all) = (view.number(end + 8, 2)?, view.number(end + 10, 2)?);
    let (mut entries, mut size) = (view.size(end + 10, 2)?, view.size(end + 12, 4)?);
    let (mut start, mut stop) = (view.size(end + 16, 4)?, end);
    let wide = end.checked_sub(20).filter(|&at| view.is(at, LOCATOR64));
    if let Some(locator) = wide {
        stop = view.size(locator + 8, 8)?;
        if !view.is(stop, END64) || stop >= locator {
            return Err("a zip64 locator that points at nothing".into());
        }
        entries = view.size(stop + 32, 8)?;
        size = view.size(stop + 40, 8)?;
        start = view.size(stop + 48, 8)?;
    } else if disks != (0, 0) || here != all {
        return Err("one part of a zip file in several".into());
    }
    let end = start.checked_add(size).filter(|&end| end <= stop);
    let end = end.ok_or("a directory that lies outside the file")?;
    // An entry of the directory takes at least 46 bytes.
    if entries > MOST_ENTRIES || entries > size / 46 {
        return Err(format!("{entries} entries").into());
    }
    Ok(Directory { start, end, entries })
}

/// One entry of the directory: its name, what is known of it, where its local header is
/// and where the next entry begins.
fn read_entry(
    view: View<'_>,
    at: usize,
    directory: usize,
) -> Result<(String, Entry, usize, usize)> {
    if !view.is(at, CENTRAL) {
        return Err("a directory entry that is none".into());
    }
    let (flags, method) = (view.number(at + 8, 2)?, view.number(at + 10, 2)?);
    let (name_length, extra_length) = (view.size(at + 28, 2)?, view.size(at + 30, 2)?);
    let raw_name = view.bytes(at + 46, name_length)?;
    let name = std::str::from_utf8(&raw_name).map_err(|_| "a name that is not UTF-8")?;
    let refuse = |what: &str| Err(format!("{:?} {what}", shorten(name)).into());
    if name.starts_with('/') || name.contains(['\\', '\0']) || name.split('/').any(|s| s == "..") {
        return refuse("is a name that leads out of the file");
    }
    if flags & 1 != 0 {
        return refuse("is encrypted");
    }
    if method != 0 && method != 8 {
        return refuse("is packed in a way that PyTorch does not use");
    }
    let mut fields = [view.size(at + 24, 4)?, view.size(at + 20, 4)?, view.size(at + 42, 4)?];
    let extra = view.bytes(at + 46 + name_length, extra_length)?;
    widen(View(&Source::Memory(&extra)), &mut fields)?;
    let [size, packed, header] = fields;
    if !view.is(header, LOCAL)
        || view.bytes(header + 30, name_length)? != raw_name
        || view.size(header + 26, 2)? != name_length
    {
        return refuse("is not where the directory says");
    }
    let start = header + 30 + name_length + view.size(header + 28, 2)?;
    if start.checked_add(packed).is_none_or(|end| end > directory) {
        return refuse("runs past the end of the file");
    }
    // Deflate cannot do better than 1032 to one.
    let deflated = method == 8;
    let fits = if deflated { size / 1100 <= packed } else { size == packed };
    if !fits {
        return refuse("has a size that cannot be");
    }
    let entry = Entry { start, packed, size, crc: view.number(at + 16, 4)? as u32, deflated };
    let next = at + 46 + name_length + extra_length + view.size(at + 32, 2)?;
    Ok((name.to_string(), entry, header, next))
}

/// Fields that are too wide for the directory stand in an extra field, in this order.
fn widen(extra: View<'_>, fields: &mut [usize; 3]) -> Result<()> {
    const NARROW: usize = 0xffff_ffff;
    if !fields.contains(&NARROW) {
        return Ok(());
    }
    let mut at = 0;
    while at + 4 <= extra.0.len() {
        let (kind, length) = (extra.number(at, 2)?, extra.size(at + 2, 2)?);
        if kind == 1 {
            extra.bytes(at + 4, length)?;
            let wide = fields.iter_mut().filter(|field| **field == NARROW);
            for (field, place) in wide.zip((0..).step_by(8)) {
                if place + 8 > length {
                    return Err("cut short".into());
                }
                *field = extra.size(at + 4 + place, 8)?;
            }
            return Ok(());
        }
        at += 4 + length;
    }
    Ok(())
}

/// What a message may quote of a stranger's name.
fn shorten(name: &str) -> String {
    name.chars().take(60).collect()
}

#[cfg(test)]
#[path = "zip_tests.rs"]
pub(super) mod tests;
