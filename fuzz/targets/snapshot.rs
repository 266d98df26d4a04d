//! Any bytes as a memory snapshot: refused, or a trace that csv can carry.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll::trace::Trace;

fuzz_target!(|bytes: &[u8]| {
    for device in [None, Some(0), Some(1)] {
        let Ok(trace) = Trace::from_snapshot(bytes, device) else { continue };
        let again = Trace::from_csv(trace.to_csv().as_bytes()).expect("our own csv");
        assert_eq!(again.events(), trace.events());
    }
});
