//! A slot's memory, once a frame.
//!
//! On a GPU the engine's allocator is asked. On the host it is the resident memory of the
//! process: one read of an open file, a microsecond or two, so that it can be done at every
//! frame without being seen in the figures. Two slots at once would both show the whole
//! process: there a slot has what the process gained while it alone was loaded and tried.

use plimsoll::Bytes;
use plimsoll_infer::Engine;

use super::event::Teller;

/// Reads the resident memory of this process.
#[derive(Debug)]
pub(super) struct Resident {
    file: std::fs::File,
    page: u64,
}

impl Resident {
    /// `None` where the system has no such file.
    pub(super) fn open() -> Option<Resident> {
        let page = page_size(&std::fs::read("/proc/self/auxv").ok()?)?;
        Some(Resident { file: std::fs::File::open("/proc/self/statm").ok()?, page })
    }

    #[cfg(unix)]
    pub(super) fn read(&self) -> Option<Bytes> {
        use std::os::unix::fs::FileExt;
        let mut text = [0u8; 128];
        let length = self.file.read_at(&mut text, 0).ok()?;
        let second = text[..length].split(|&byte| byte == b' ').nth(1)?;
        let pages: u64 = std::str::from_utf8(second).ok()?.parse().ok()?;
        pages.checked_mul(self.page).map(Bytes)
    }

    #[cfg(not(unix))]
    pub(super) fn read(&self) -> Option<Bytes> {
        None
    }
}

/// The kernel hands every process pairs of words; 6 is the size of a page.
fn page_size(auxiliary: &[u8]) -> Option<u64> {
    const PAGE_SIZE: u64 = 6;
    const WORD: usize = size_of::<usize>();
    let word =
        |bytes: &[u8]| bytes.iter().rev().fold(0u64, |value, &byte| (value << 8) | u64::from(byte));
    let word = |bytes: &[u8]| {
        if cfg!(target_endian = "big") {
            bytes.iter().fold(0u64, |value, &byte| (value << 8) | u64::from(byte))
        } else {
            word(bytes)
        }
    };
    let pairs = auxiliary.chunks_exact(2 * WORD);
    pairs
        .map(|pair| (word(&pair[..WORD]), word(&pair[WORD..])))
        .find(|(kind, _)| *kind == PAGE_SIZE)
        .map(|(_, size)| size)
        .filter(|size| size.is_power_of_two())
}

/// Who is asked for a slot's memory.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) teller: Teller,
    resident: Option<Resident>,
    grown: Option<Bytes>,
}

impl Probe {
    /// `before` is what the process held before the engine, where two slots run at once.
    pub(super) fn new(engine: &dyn Engine, before: Option<Bytes>) -> Probe {
        let on_gpu = !engine.info().device.starts_with("cpu");
        let tells = engine.memory().is_some();
        let resident = Resident::open();
        let teller = match (on_gpu, tells) {
            (true, true) => Teller::EngineOnGpu,
            // The process's memory says nothing about a GPU's.
            (true, false) => Teller::Nobody,
            // A CPU engine's arena is only part of what it takes; but where the engine
            // only claims memory (echo) the process's is not the slot's.
            (false, true) if engine.info().name == "echo" => Teller::EngineOnHost,
            (false, _) if resident.is_some() && before.is_some() => Teller::Growth,
            (false, _) if resident.is_some() => Teller::Process,
            (false, _) => Teller::Nobody,
        };
        let now = resident.as_ref().and_then(Resident::read);
        let grown =
            now.zip(before).map(|(now, before)| Bytes(now.get().saturating_sub(before.get())));
        Probe { teller, resident, grown }
    }

    /// What the slot holds now.
    pub(super) fn read(&self, engine: &dyn Engine) -> Option<Bytes> {
        match self.teller {
            Teller::Nobody => None,
            Teller::Process => self.resident.as_ref()?.read(),
            Teller::Growth => self.grown,
            Teller::EngineOnGpu | Teller::EngineOnHost => {
                let memory = engine.memory()?;
                memory.reserved.or(memory.in_use).map(Bytes)
            }
        }
    }

    /// What the engine counted as its peak.
    pub(super) fn peak(&self, engine: &dyn Engine) -> Option<Bytes> {
        match self.teller {
            Teller::EngineOnGpu | Teller::EngineOnHost => engine.memory()?.peak.map(Bytes),
            Teller::Nobody | Teller::Process | Teller::Growth => None,
        }
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
