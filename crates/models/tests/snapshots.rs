//! Snapshots and hostile pickles, as `scripts/make-fixtures` writes them.

use std::path::PathBuf;

use plimsoll_models::pickle::{Pickle, Policy};
use plimsoll_models::trace::{Trace, TraceOp, UnfreedBlock};
use plimsoll_models::{Bytes, Error};
use proptest::prelude::*;

/// Empty where the file is missing, which no test takes for a fixture.
fn fixture(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    std::fs::read(folder.join(format!("{name}.pickle"))).unwrap_or_default()
}

#[test]
fn every_protocol_gives_the_same_trace() {
    let traces = ["snapshot_p2", "snapshot_p4", "snapshot_p5"].map(|name| {
        let bytes = fixture(name);
        assert_eq!(bytes[..2], [0x80, name.as_bytes()[10] - b'0']);
        Trace::parse(&bytes).unwrap()
    });
    assert!(traces.iter().all(|trace| *trace == traces[0]));
    let trace = &traces[0];
    // A weight that stays, and eight activations one after another.
    assert_eq!(trace.events().len(), 1 + 2 * 8);
    assert_eq!(trace.slots(), 2);
    assert_eq!(trace.peak_live(), Bytes(4096 + 2200));
    assert_eq!(trace.never_freed(), [UnfreedBlock { id: 0x7f3a_4000_0000, size: Bytes(4096) }]);
    assert_eq!(trace.skipped_frees(), 1);
    assert_eq!(trace.streams(), [0, 0x5581_22c0_af30]);
    let first = trace.events()[1];
    assert_eq!((first.op, first.id, first.size, first.time_us), (TraceOp::Allocate, 1, 1000, 63));
}

#[test]
fn of_several_devices_one_is_chosen() {
    let bytes = fixture("snapshot_devices");
    let error = Trace::parse(&bytes).unwrap_err().to_string();
    assert!(error.contains("devices 0, 2 have events"), "{error}");
    assert_eq!(Trace::from_snapshot(&bytes, Some(0)).unwrap().events().len(), 5);
    assert_eq!(Trace::from_snapshot(&bytes, Some(2)).unwrap().events().len(), 9);
    assert!(Trace::from_snapshot(&bytes, Some(1)).unwrap().events().is_empty());
    let error = Trace::from_snapshot(&bytes, Some(3)).unwrap_err().to_string();
    assert!(error.contains("no device 3: there are 3"), "{error}");
}

#[test]
fn hostile_files_are_refused_with_the_reason() {
    for (name, part) in [
        ("hostile_code_p0", ".system"),
        ("hostile_code_p4", ".system"),
        ("hostile_deep", "without a list of device_traces"),
        ("hostile_length", "cut short"),
        ("hostile_memo", "memo number 2147483647"),
        ("hostile_cycle", "device_traces[0][0]: a list instead of a dict"),
        ("hostile_cut", "cut short"),
    ] {
        // Asked for by name, for protocol 0 has no first byte of its own.
        let error = Trace::from_snapshot(&fixture(name), None).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{name}: {error:?}");
        let error = error.to_string();
        assert!(error.contains(part), "{name}: {error}");
    }
}

#[test]
fn calls_can_be_kept_and_looked_at() {
    let bytes = fixture("hostile_code_p4");
    let pickle = Pickle::parse(&bytes, Policy::Inert).unwrap();
    let event = pickle
        .root()
        .get("device_traces")
        .and_then(|traces| traces.items()?.next()?.items()?.next());
    assert_eq!(event.unwrap().kind(), "a call");
}

proptest! {
    #[test]
    fn damaged_snapshots_are_read_or_refused(
        name in prop::sample::select(vec!["snapshot_p2", "snapshot_p4", "snapshot_p5"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = fixture(name);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for policy in [Policy::DataOnly, Policy::Inert] {
            let _ = Pickle::parse(&bytes, policy);
        }
        let _ = Trace::from_snapshot(&bytes, Some(1));
        let _ = Trace::from_snapshot(&bytes[..cut.index(bytes.len())], None);
    }
}
