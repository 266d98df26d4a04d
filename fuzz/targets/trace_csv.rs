//! Any bytes as csv: refused, or a trace that its own csv gives back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll::trace::Trace;

fuzz_target!(|bytes: &[u8]| {
    let _ = Trace::parse(bytes);
    let Ok(trace) = Trace::from_csv(bytes) else { return };
    let again = Trace::from_csv(trace.to_csv().as_bytes()).expect("our own csv");
    assert_eq!(again.events(), trace.events());
    assert_eq!(again.streams(), trace.streams());
    assert_eq!(again.peak_live(), trace.peak_live());
});
