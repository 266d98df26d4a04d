//! Any text as the names of classes: refused, or names that our own quoting gives back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_infer::decode::parse_names;

fuzz_target!(|text: &str| {
    let Some(names) = parse_names(text) else { return };
    let quoted: Vec<String> = names
        .iter()
        .map(|name| format!("'{}'", name.replace('\\', "\\\\").replace('\'', "\\'")))
        .collect();
    assert_eq!(parse_names(&format!("[{}]", quoted.join(","))), Some(names));
});
