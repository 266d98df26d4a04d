//! On unified memory: what the system still has, read at most every ten milliseconds or 64
//! MiB granted, and what must stay of it.

use core::ffi::CStr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::ledger::Ledger;
use crate::sys;

/// How long a reading is good for, in nanoseconds. The clock that events are noted by could be
/// as much behind.
const FRESH: u64 = 10_000_000;
/// Granted on the word of an old reading at most.
const STALE: u64 = 64 << 20;

/// Whether the system stays at or above what must be kept, with so much less.
#[inline(never)]
pub(crate) fn allows(ledger: &Ledger, bytes: u64) -> bool {
    let keep = ledger.keep_free.load(Relaxed);
    if keep == 0 {
        return true;
    }
    let since = ledger.granted_since.fetch_add(bytes, AcqRel).saturating_add(bytes);
    let now = sys::now_exactly();
    let age = now.saturating_sub(ledger.available_at.load(Acquire));
    let known = ledger.available.load(Acquire);
    let fresh = known > 0 && age < FRESH && since <= STALE;
    if fresh {
        let fits = known.saturating_sub(since) >= keep;
        if !fits {
            ledger.granted_since.fetch_sub(bytes, AcqRel);
        }
        return fits;
    }
    let Some(available) = read(ledger) else { return true };
    ledger.available.store(available, Release);
    ledger.available_at.store(now, Release);
    let fits = available.saturating_sub(bytes) >= keep;
    ledger.granted_since.store(if fits { bytes } else { 0 }, Release);
    fits
}

/// What may be granted before the system has no more than must be kept.
pub(crate) fn left(ledger: &Ledger) -> u64 {
    match ledger.keep_free.load(Relaxed) {
        0 => u64::MAX,
        keep => read(ledger).map_or(u64::MAX, |available| available.saturating_sub(keep)),
    }
}

/// What the system has available now.
pub(crate) fn read(ledger: &Ledger) -> Option<u64> {
    field(ledger, b"MemAvailable:")
}

/// The most that the system could ever give, with what must be kept of it. A line above that
/// would never bind.
pub(crate) fn most(ledger: &Ledger) -> Option<u64> {
    let most = field(ledger, b"MemTotal:")?.saturating_sub(ledger.keep_free.load(Relaxed));
    (most > 0).then_some(most)
}

fn field(ledger: &Ledger, name: &[u8]) -> Option<u64> {
    let path = CStr::from_bytes_until_nul(&ledger.meminfo).ok()?;
    let mut text = [0; 2048];
    let count = sys::read_file(path, &mut text)?;
    parse(&text[..count], name)
}

/// A line of this name, in bytes.
fn parse(text: &[u8], name: &[u8]) -> Option<u64> {
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    let digits = line.trim_ascii_start().iter().take_while(|byte| byte.is_ascii_digit());
    let kib = digits.fold(None, |sum: Option<u64>, &digit| {
        sum.unwrap_or(0).checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    });
    kib?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text = b"MemTotal: 9 kB\nMemAvailable:    7802096 kB\nX: 1";
        assert_eq!(parse(text, b"MemAvailable:"), Some(7802096 << 10));
        assert_eq!(parse(text, b"MemTotal:"), Some(9 << 10));
        assert_eq!(parse(b"MemTotal: 9 kB\n", b"MemAvailable:"), None);
        assert_eq!(parse(b"MemAvailable: kB", b"MemAvailable:"), None);
    }
}
