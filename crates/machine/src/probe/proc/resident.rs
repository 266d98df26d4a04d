//! The resident memory of this process.

use crate::machine::Machine;
use crate::probe::open_file::OpenFile;
use crate::sys::process::page_size;
use crate::units::Bytes;

/// Reads how much memory of the system this process has resident: one read of an open
/// file, a microsecond or two.
#[derive(Debug)]
pub struct ResidentReader {
    statm: OpenFile,
}

impl ResidentReader {
    /// `None` where the system has no such file.
    #[must_use]
    pub fn open() -> Option<ResidentReader> {
        Some(ResidentReader { statm: OpenFile::open(&Machine::here(), "/proc/self/statm")? })
    }

    /// The resident memory now.
    #[must_use]
    pub fn read(&self) -> Option<Bytes> {
        let mut text = [0u8; 128];
        let second = self.statm.start(&mut text)?.split(' ').nth(1)?;
        second.parse::<u64>().ok()?.checked_mul(page_size()).map(Bytes)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Other tests of the process take and give back memory meanwhile, so the block itself
    /// is the only thing that is sure.
    #[test]
    fn what_is_held_and_touched_is_resident() {
        let resident = ResidentReader::open().unwrap();
        let block = vec![1u8; 64 << 20];
        let held = resident.read().unwrap();
        assert!(held >= Bytes::mib(64), "{held} {}", block[1 << 20]);
        assert!(held < Bytes::gib(64), "{held}: pages were taken for bytes");
    }
}
