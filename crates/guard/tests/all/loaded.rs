//! The library itself: small, without needs, and cheap.

use crate::stage::{Stage, built, text};

/// Loads on any C library since long before glibc 2.31: it names no version of any symbol,
/// and no library but the one that every program has.
#[test]
fn the_library_asks_for_no_version_of_anything() {
    let bytes = plimsoll_guard::LIBRARY;
    assert!((20_000..400_000).contains(&bytes.len()), "{} bytes", bytes.len());
    let names = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(!names("GLIBC_2.") && !names("libgcc_s") && !names("libpthread"), "it needs more");
    assert!(names("cuMemAlloc_v2") && names("dlvsym"));
}

/// The bound is that of the promise, times what a shared machine may add; the record of the
/// promise itself is made on a quiet one.
#[test]
fn a_pair_costs_little() {
    let best = |guarded: bool| -> f64 {
        let stage = Stage::new().set("FAKE_QUICK", 1);
        let mut command = if guarded { stage.guarded("linked") } else { stage.bare("linked") };
        text(command.arg("pairs").output().unwrap()).trim().parse().unwrap()
    };
    let (plain, guarded) = (best(false), best(true));
    let added = guarded - plain;
    eprintln!("a pair: {plain} ns bare, {guarded} ns guarded, {added:.1} ns added");
    assert!(added < 1000.0, "{added} ns");
    assert!(built().exists());
}
