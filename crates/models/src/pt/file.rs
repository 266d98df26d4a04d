//! The bytes of a checkpoint, in memory or on disk.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// The least that is read from disk at once, because the fields of a zip file are small and
/// adjacent.
const READ_AHEAD: usize = 4 << 10;

/// Where a checkpoint is.
#[derive(Debug)]
pub(super) enum CheckpointFile<'a> {
    /// All of it, in memory.
    Memory(&'a [u8]),
    /// A file on disk and its length. Only what is asked for is read.
    Disk(RefCell<BufferedFile>, usize),
}

/// A file with the bytes that were read from it last.
#[derive(Debug)]
pub(super) struct BufferedFile {
    file: File,
    at: usize,
    last: Vec<u8>,
}

impl BufferedFile {
    fn bytes(&mut self, at: usize, count: usize, length: usize) -> std::io::Result<Vec<u8>> {
        let known = at.checked_sub(self.at).and_then(|from| self.last.get(from..from + count));
        if let Some(bytes) = known {
            return Ok(bytes.to_vec());
        }
        let mut bytes = vec![0; count.max(READ_AHEAD.min(length - at))];
        self.file.seek(SeekFrom::Start(at as u64))?;
        self.file.read_exact(&mut bytes)?;
        if count <= READ_AHEAD {
            (self.at, self.last) = (at, bytes.clone());
            bytes.truncate(count);
        }
        Ok(bytes)
    }
}

impl CheckpointFile<'_> {
    /// A file on disk.
    pub(super) fn disk(file: File) -> std::io::Result<CheckpointFile<'static>> {
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        let file = BufferedFile { file, at: 0, last: Vec::new() };
        Ok(CheckpointFile::Disk(RefCell::new(file), length))
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            CheckpointFile::Memory(file) => file.len(),
            CheckpointFile::Disk(_, length) => *length,
        }
    }

    /// `count` bytes from offset `at`.
    pub(super) fn bytes(
        &self,
        at: usize,
        count: usize,
    ) -> Result<Cow<'_, [u8]>, Cow<'static, str>> {
        let end = at.checked_add(count).ok_or("an offset that is past everything")?;
        if end > self.len() {
            return Err("cut short".into());
        }
        match self {
            CheckpointFile::Memory(file) => Ok(Cow::Borrowed(&file[at..end])),
            CheckpointFile::Disk(disk, length) => {
                let read = disk.borrow_mut().bytes(at, count, *length);
                read.map(Cow::Owned).map_err(|why| why.to_string().into())
            }
        }
    }

    /// A little-endian number of `width` bytes at offset `at`.
    pub(super) fn number(&self, at: usize, width: usize) -> Result<usize, Cow<'static, str>> {
        let bytes = self.bytes(at, width)?;
        let number = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
        usize::try_from(number).map_err(|_| "a size that is past everything".into())
    }
}
