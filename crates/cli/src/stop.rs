//! Signals: on Ctrl-C, SIGTERM or a closed terminal, verbs clean up first; a file that may not grow any
//! more is an error and no end.

use std::ffi::c_int;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

/// What shells say of a program that Ctrl-C ended.
pub(crate) const STOPPED: u8 = 130;

/// Ctrl-C, SIGTERM, and a terminal or connection that is closed.
const SIGNALS: [c_int; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The process that has started this one and waits for it, by its number.
#[cfg(target_os = "linux")]
const STARTED_BY: &str = "PLIMSOLL_STARTED_BY";

/// Asks the kernel for SIGTERM when the process that waits for this one ends: nobody would see the
/// answer. Children that inherit the variable have another parent.
pub(crate) fn end_with_starter() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, getppid, set_parent_process_death_signal};
        let named = std::env::var(STARTED_BY).ok().and_then(|number| number.parse().ok());
        let is_parent = || getppid().map(|pid| pid.as_raw_nonzero().get()) == named;
        if named.is_some() && is_parent() {
            // Where the kernel refuses, the process goes on to its end as before.
            let asked = set_parent_process_death_signal(Some(Signal::TERM));
            if asked.is_ok() && !is_parent() {
                // It ended before the kernel was asked.
                std::process::exit(i32::from(STOPPED));
            }
        }
    }
}

/// From now on, writing past the limit of a file's size (`ulimit -f`) is refused as on a full disk, and
/// does not end the program with half a file behind it. By a handler, which a program that is started
/// does not inherit.
pub(crate) fn survive_large_files() {
    for signal in not_ignored(&[SIGXFSZ]) {
        // Where it cannot be handled, it ends the program as before.
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
}

/// The first signal sets the flag; the next one ends the process.
pub(crate) fn listen(stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    for signal in not_ignored(&SIGNALS) {
        // In this order: the flag that the first one sets is what arms the second.
        signal_hook::flag::register_conditional_shutdown(
            signal,
            i32::from(STOPPED),
            Arc::clone(stop),
        )
        .and_then(|_| signal_hook::flag::register(signal, Arc::clone(stop)))
        .context("cannot listen for Ctrl-C")?;
    }
    Ok(())
}

/// From now on the first signal is left for the end of the program, which is near, as a file is about to
/// get its name; the next one ends the process.
pub(crate) fn end_after_this() {
    static LISTENS: Once = Once::new();
    // Where there can be no handler, a signal ends the process as before.
    LISTENS.call_once(|| drop(listen(&Arc::default())));
}

/// Every signal sets the flag, for work that looks at it all the time.
pub(crate) fn listen_each_time(stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    for signal in not_ignored(&SIGNALS) {
        signal_hook::flag::register(signal, Arc::clone(stop))
            .context("cannot listen for signals")?;
    }
    Ok(())
}

/// Those of the signals that are to be handled: one that this program was started to ignore (`nohup`) stays ignored.
fn not_ignored(signals: &[c_int]) -> impl Iterator<Item = c_int> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status);
    signals.iter().copied().filter(move |signal| ignored & 1 << (signal - 1) == 0)
}

/// The ignored signals in the kernel's file, a bit each; none where it cannot be read.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::ignored;

    #[test]
    fn ignored_signals_are_bits() {
        assert_eq!(ignored("SigBlk:\t0\nSigIgn:\t0000000000001001\nSigCgt:\t0"), 0x1001);
        assert_eq!(ignored(""), 0);
    }
}
