//! Files that are read again and again.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::machine::Machine;

/// Far above any file that a probe reads; a recorded machine may hold anything.
const MOST_READ: usize = 1 << 20;

/// A file that stays open: the kernel makes its text anew at each reading, and opening
/// costs more than reading.
#[derive(Debug)]
pub(super) struct OpenFile {
    file: File,
    path: PathBuf,
}

impl OpenFile {
    /// A file of this machine; `None` where it cannot be read now.
    pub(super) fn open(machine: &Machine, path: &str) -> Option<OpenFile> {
        OpenFile::open_or_say(machine, path).ok()
    }

    /// The same, with the reason where it cannot be read.
    pub(super) fn open_or_say(machine: &Machine, path: &str) -> io::Result<OpenFile> {
        let path = machine.on_disk(path);
        Ok(OpenFile { file: File::open(&path)?, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its text now, in `buffer`.
    pub(super) fn read<'a>(&self, buffer: &'a mut Vec<u8>) -> io::Result<&'a str> {
        buffer.resize(buffer.capacity().max(8 << 10), 0);
        let mut length = 0;
        loop {
            match read_at(&self.file, &mut buffer[length..], length as u64)? {
                0 => break,
                read => length += read,
            }
            if length == buffer.len() {
                if length >= MOST_READ {
                    break;
                }
                buffer.resize(2 * length, 0);
            }
        }
        std::str::from_utf8(&buffer[..length]).map_err(io::Error::other)
    }

    /// The start of its text, as much of it as there is room for.
    pub(super) fn start<'a>(&self, bytes: &'a mut [u8]) -> Option<&'a str> {
        let length = read_at(&self.file, bytes, 0).ok()?;
        std::str::from_utf8(&bytes[..length]).ok()
    }

    /// The whole number that stands in it.
    pub(super) fn number(&self) -> Option<i64> {
        self.start(&mut [0u8; 64])?.trim().parse().ok()
    }
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, offset)
}

#[cfg(not(unix))]
fn read_at(mut file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    use std::io::{Read, Seek, SeekFrom};
    file.seek(SeekFrom::Start(offset))?;
    file.read(bytes)
}
