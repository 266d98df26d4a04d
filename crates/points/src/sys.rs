//! Files as memory.
//!
//! A mapped file is read where it lies: a batch of gigabytes costs no copy and no memory that
//! the kernel cannot take back.

#![expect(unsafe_code, reason = "mapping a file is behind an unsafe call")]

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// Maps a file for reading.
pub(crate) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is private and only read. Bytes that another process changes under
    // it are numbers of a point either way, and every use of them is bounded; a file that is
    // cut short meanwhile ends the process, which is said in the documentation of `read`.
    unsafe { Mmap::map(file) }
}
