//! The resident memory of this process.

use crate::machine::Machine;
use crate::probe::held::Held;
use crate::sys::process::page_size;
use crate::units::Bytes;

/// Reads how much memory of the system this process has resident: one read of an open
/// file, a microsecond or two.
#[derive(Debug)]
pub struct Resident {
    statm: Held,
}

impl Resident {
    /// `None` where the system has no such file.
    #[must_use]
    pub fn open() -> Option<Resident> {
        Some(Resident { statm: Held::open(&Machine::here(), "/proc/self/statm")? })
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

    #[test]
    fn resident_memory_is_read_and_grows_with_what_is_touched() {
        let resident = Resident::open().unwrap();
        let before = resident.read().unwrap();
        let block = vec![1u8; 64 << 20];
        let after = resident.read().unwrap();
        assert!(after >= before + Bytes::mib(48), "{before} {after} {}", block[1 << 20]);
    }
}
