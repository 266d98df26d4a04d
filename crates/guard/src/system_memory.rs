//! On unified memory: how much the system has available, and how much of that must stay. The figure
//! is read again after ten milliseconds or 64 MiB granted.
//!
//! What was granted a moment ago may not be in the system's figure yet. So all processes add up, in
//! the ledger, the bytes that were admitted and the bytes whose request has ended. Every request
//! that had not ended *before* the figure was read is subtracted from it. A request is admitted by
//! one compare-and-swap: of two at the same time, the second sees the first.

use core::ffi::CStr;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::ledger::GuardLedger;
use crate::lock::ThreadLock;
use crate::sys;

/// How long a reading is valid, in nanoseconds. The clock that events are logged by could be as
/// late as that, so it is not used here.
const FRESH: u64 = 10_000_000;
/// The most that is granted on one reading.
const STALE: u64 = 64 << 20;

/// What this process last read; only the holder of the lock changes it.
#[derive(Debug)]
pub(crate) struct SystemMemoryReading {
    lock: ThreadLock,
    /// What the system had available; 0 before it was read.
    available: AtomicU64,
    /// When it was read.
    at: AtomicU64,
    /// The bytes whose request had ended before it was read.
    ended: AtomicU64,
}

impl SystemMemoryReading {
    pub(crate) const fn new() -> SystemMemoryReading {
        let [available, at, ended] = [const { AtomicU64::new(0) }; 3];
        SystemMemoryReading { lock: ThreadLock::new(), available, at, ended }
    }

    /// Whether the system, with `bytes` less, keeps what must stay available. If so, [`ended`] must
    /// follow when the driver has answered. An old reading refuses nobody: it is read again first.
    #[inline(never)]
    pub(crate) fn allows(&self, ledger: &GuardLedger, bytes: u64) -> bool {
        let keep = ledger.keep_free.load(Relaxed);
        if keep == 0 {
            return true;
        }
        let _held = self.lock.lock();
        let mut just_read = false;
        loop {
            let admitted = ledger.system_admitted.load(Acquire);
            let more = admitted.wrapping_sub(self.ended.load(Relaxed)).saturating_add(bytes);
            let fits = self.available.load(Relaxed).saturating_sub(more) >= keep;
            let decided = just_read || fits && self.is_fresh(more);
            just_read = true;
            if !decided && self.read_again(ledger) {
                continue;
            }
            if decided && !fits {
                return false;
            }
            let after = admitted.wrapping_add(bytes);
            let swapped = ledger.system_admitted.compare_exchange(admitted, after, AcqRel, Relaxed);
            if swapped.is_ok() {
                return true;
            }
        }
    }

    fn is_fresh(&self, more: u64) -> bool {
        let age = sys::now_exactly().saturating_sub(self.at.load(Relaxed));
        age < FRESH && more <= STALE
    }

    /// Reads what the system has available; returns whether that worked.
    fn read_again(&self, ledger: &GuardLedger) -> bool {
        let ended = ledger.system_ended.load(Acquire);
        let now = sys::now_exactly();
        let Some(available) = read(ledger) else { return false };
        self.available.store(available, Relaxed);
        self.at.store(now, Relaxed);
        self.ended.store(ended, Relaxed);
        true
    }
}

/// Ends a request that was allowed, whether or not the driver granted it.
pub(crate) fn ended(ledger: &GuardLedger, bytes: u64) {
    if ledger.keep_free.load(Relaxed) != 0 {
        ledger.system_ended.fetch_add(bytes, AcqRel);
    }
}

/// What may be granted until only what must stay available is left.
pub(crate) fn left(ledger: &GuardLedger) -> u64 {
    match ledger.keep_free.load(Relaxed) {
        0 => u64::MAX,
        keep => read(ledger).map_or(u64::MAX, |available| available.saturating_sub(keep)),
    }
}

/// What the system has available now.
pub(crate) fn read(ledger: &GuardLedger) -> Option<u64> {
    field(ledger, b"MemAvailable:")
}

/// The most that the system could ever grant beside what must stay available. A limit above that
/// would have no effect.
pub(crate) fn most(ledger: &GuardLedger) -> Option<u64> {
    Some(field(ledger, b"MemTotal:")?.saturating_sub(ledger.keep_free.load(Relaxed)))
}

fn field(ledger: &GuardLedger, name: &[u8]) -> Option<u64> {
    let path = CStr::from_bytes_until_nul(&ledger.meminfo).ok()?;
    let mut text = [0; 2048];
    let count = sys::read_file(path, &mut text)?;
    parse(&text[..count], name)
}

/// The value of the line with this name, in bytes.
fn parse(text: &[u8], name: &[u8]) -> Option<u64> {
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    let digits = line.trim_ascii_start().iter().take_while(|byte| byte.is_ascii_digit());
    let kib = digits.fold(None, |sum: Option<u64>, &digit| {
        sum.unwrap_or(0).checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    });
    kib?.checked_mul(1024)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::watch::{GuardSettings, GuardWatch};

    #[test]
    fn meminfo_is_read() {
        let text = b"MemTotal: 9 kB\nMemAvailable:    7802096 kB\nX: 1";
        assert_eq!(parse(text, b"MemAvailable:"), Some(7802096 << 10));
        assert_eq!(parse(text, b"MemTotal:"), Some(9 << 10));
        assert_eq!(parse(b"MemTotal: 9 kB\n", b"MemAvailable:"), None);
        assert_eq!(parse(b"MemAvailable: kB", b"MemAvailable:"), None);
    }

    #[test]
    fn of_two_who_ask_before_either_has_its_memory_one_is_refused() {
        const MIB: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let meminfo = folder.path().join("meminfo");
        let say = |mib: u64| {
            std::fs::write(&meminfo, format!("MemAvailable: {} kB\n", mib << 10)).unwrap();
        };
        say(1000);
        let settings = GuardSettings {
            keep_free: 300 * MIB,
            meminfo: meminfo.clone(),
            ..GuardSettings::default()
        };
        let watch = GuardWatch::create(folder.path(), &settings).unwrap();
        let ledger = watch.ledger();
        // Two processes that have read nothing yet.
        let (one, two) = (SystemMemoryReading::new(), SystemMemoryReading::new());
        assert!(one.allows(ledger, 400 * MIB));
        assert!(!two.allows(ledger, 400 * MIB), "the first is under way");
        assert!(two.allows(ledger, 200 * MIB));
        ended(ledger, 400 * MIB);
        ended(ledger, 200 * MIB);
        say(400);
        assert!(!one.allows(ledger, 200 * MIB), "it has less now");
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(one.allows(ledger, 100 * MIB));
        ended(ledger, 100 * MIB);
        assert_eq!(
            ledger.system_admitted.load(Relaxed),
            ledger.system_ended.load(Relaxed),
            "nothing is under way"
        );
    }
}
