//! Any text as what a machine says of itself: figures that agree, or none.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll::machine::parse_mps_limit;
use plimsoll::platform::parse_meminfo;

fuzz_target!(|text: &str| {
    let memory = parse_meminfo(text);
    if let (Some(used), Some(total)) = (memory.used(), memory.total) {
        assert!(used <= total);
    }
    for device in 0..3 {
        if let Some(limit) = parse_mps_limit(text, device) {
            assert_eq!(limit.get() % (1 << 20), 0, "counted in MiB or GiB");
        }
    }
});
