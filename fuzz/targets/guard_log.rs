//! Any bytes as a list of events that a guarded process has left: read with a bound, and no
//! more events than there were places.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_guard::process::parse_stat;
use plimsoll_guard::watch::parse_log;

fuzz_target!(|bytes: &[u8]| {
    let _ = parse_stat(bytes);
    if let Ok(log) = parse_log(bytes, 1, &[true, false]) {
        assert!(log.events.len() <= bytes.len() / 32);
    }
});
