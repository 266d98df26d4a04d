//! The library itself: small, without dependencies, and cheap.

use crate::stage::{Stage, built, text};

/// It loads on C libraries from long before glibc 2.31: it names no version of any symbol, and no
/// library but the one that every program has.
#[test]
fn the_library_asks_for_no_version_of_anything() {
    let bytes = plimsoll_guard::LIBRARY;
    assert!((20_000..400_000).contains(&bytes.len()), "{} bytes", bytes.len());
    let names = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(!names("GLIBC_2.") && !names("libgcc_s") && !names("libpthread"), "it needs more");
    assert!(names("cuMemAlloc_v2") && names("dlvsym"));
}

/// The bound is the promised cost times what a busy machine may add; the record for the promise is
/// made on a quiet machine.
#[test]
fn a_pair_costs_little() {
    let cost = |guarded: bool| -> [f64; 2] {
        let stage = Stage::new().set("FAKE_QUICK", 1);
        let mut command = if guarded { stage.guarded("linked") } else { stage.bare("linked") };
        let found = text(command.arg("pairs").output().unwrap());
        let mut numbers = found.split_whitespace().map(|number| number.parse().unwrap());
        [numbers.next().unwrap(), numbers.next().unwrap()]
    };
    let (plain, guarded) = (cost(false), cost(true));
    for (what, at) in [("at best", 0), ("in the middle", 1)] {
        let added = guarded[at] - plain[at];
        eprintln!(
            "a pair {what}: {} ns bare, {} ns guarded, {added:.1} ns added",
            plain[at], guarded[at]
        );
    }
    let added = guarded[0] - plain[0];
    assert!(added < 1000.0, "{added} ns");
    assert!(built().exists());
}
