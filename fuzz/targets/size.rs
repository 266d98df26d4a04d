//! Any text as a size: refused, or one that its plain number gives back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll::Bytes;

fuzz_target!(|text: &str| {
    let Ok(size) = text.parse::<Bytes>() else { return };
    assert_eq!(size.get().to_string().parse::<Bytes>(), Ok(size));
    assert!(!size.to_string().is_empty());
});
