//! What a program that watches costs.

use super::ticks::parse_process;
use crate::probe::sample::HelperCost;
use crate::sys::process::page_size;
use crate::units::Bytes;

/// The kernel counts processor time in hundredths of a second.
const TICKS_A_SECOND: f64 = 100.0;

impl HelperCost {
    /// What the process of this number has cost so far; `None` where there is none, or none
    /// that can be looked at.
    #[must_use]
    pub fn of(program: &str, pid: u32) -> Option<HelperCost> {
        let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        let found = parse_process(&text)?;
        Some(HelperCost {
            program: program.to_string(),
            pid,
            cpu_s: found.ticks as f64 / TICKS_A_SECOND,
            resident: found.resident_pages.checked_mul(page_size()).map(Bytes),
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_no_process_has_none() {
        let own = HelperCost::of("own", std::process::id());
        assert!(own.is_some_and(|cost| cost.resident > Some(Bytes::ZERO) && cost.cpu_s >= 0.0));
        assert_eq!(HelperCost::of("none", u32::MAX), None);
    }
}
