use proptest::prelude::*;

use super::*;

const HEADER: &str = "op,id,size,stream,t_us\n";

fn csv(lines: &str) -> Result<Trace> {
    Trace::parse(format!("{HEADER}{lines}").as_bytes())
}

#[test]
fn an_event_is_24_bytes() {
    assert_eq!(size_of::<TraceEvent>(), 24);
}

#[test]
fn slots_are_used_again() {
    let trace = csv("a,9,1,0,0\na,8,2,0,1\nf,9,1,0,2\na,7,4,5,3\nf,7,,5,4\na,9,8,0,5\n").unwrap();
    let ids: Vec<_> = trace.events().iter().map(|event| event.id).collect();
    assert_eq!(ids, [0, 1, 0, 0, 0, 0]);
    assert_eq!(trace.slots(), 2);
    assert_eq!(trace.streams(), [0, 5]);
    assert_eq!(trace.peak_live(), Bytes(10));
    assert_eq!(
        trace.never_freed(),
        [UnfreedBlock { id: 8, size: Bytes(2) }, UnfreedBlock { id: 9, size: Bytes(8) }]
    );
    assert!(trace.is_timed());
}

#[test]
fn csv_takes_other_orders_and_line_ends() {
    let plain = csv("a,1,512,0,5\nf,1,512,0,9\n").unwrap();
    for text in [
        "op,id,size,stream,t_us\r\na,1,512,0,5\r\nf,1,512,0,9\r\n\r\n",
        "t_us,note,size,id,op,stream\n5,x,512,1,a,0\n9,,512,1,f,0",
        "\u{feff}op,id,size,stream,t_us\na,1,512,0,5\n\nf,1,,0,9\n\n",
    ] {
        assert_eq!(Trace::parse(text.as_bytes()).unwrap(), plain, "{text:?}");
    }
    assert!(Trace::parse(HEADER.as_bytes()).unwrap().events().is_empty());
}

#[test]
fn errors_name_the_line_and_the_remedy() {
    for (lines, what, part) in [
        ("a,1,5,0,0\nf,2,5,0,1\n", "line 3", "no line before allocates it"),
        ("a,1,5,0,0\nf,1,5,0,1\nf,1,5,0,2\n", "line 4", "was freed before"),
        ("a,1,5,0,0\na,1,5,0,1\n", "line 3", "while it is live"),
        ("a,1,5,0,0\nf,1,6,0,1\n", "line 3", "was allocated with 5"),
        ("a,1,18446744073709551615,0,0\na,2,1,0,1\n", "line 3", "2^64"),
        ("a,1,18446744073709551616,0,0\n", "line 2", "below 2^64"),
        ("a,1,-5,0,0\n", "line 2", "size is \"-5\""),
        ("a,1,,0,0\n", "line 2", "size is \"\""),
        ("x,1,5,0,0\n", "line 2", "must be a or f"),
        ("a,1,5,0\n", "line 2", "4 fields"),
        ("a,1,5,0,0,7\n", "line 2", "6 fields"),
        ("a,1,5,0,100\nf,1,5,0,1", "line 3", "cut short"),
        ("a,1,5,0,100\nf,1,5,0", "line 3", "cut short"),
        ("a,1,5,0,100\nf,1,5,0,", "line 3", "t_us is \"\""),
    ] {
        let error = csv(lines).unwrap_err();
        let Error::Malformed { what: found, why } = &error else { panic!("{error:?}") };
        assert!(found == what && why.contains(part), "{lines:?}: {error}");
    }
}

#[test]
fn files_of_other_kinds_are_told_apart() {
    for (bytes, part) in [
        (&b""[..], "empty"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"PK\x03\x04", "zip"),
        (b"{\"segments\": []}", "json"),
        (b"a,1,2,3,4\n", "no column op"),
        (b"op,op,id,size,stream,t_us\n", "twice"),
        (b"\n\n", "no header"),
    ] {
        let error = Trace::parse(bytes).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn too_many_streams_are_refused() {
    let mut builder = Trace::builder();
    for n in 0..65_536 {
        builder.allocate(n, Bytes(1), n, n).unwrap();
    }
    assert!(builder.allocate(70_000, Bytes(1), 70_000, 0).is_err());
    assert_eq!(builder.finish().streams().len(), 65_536);
}

/// Any well-formed trace: each step allocates, or frees one of what is live.
fn any_trace() -> impl Strategy<Value = Trace> {
    let step = (any::<bool>(), any::<prop::sample::Index>(), 0..1u64 << 40, 0..4u64, 0..99u64);
    prop::collection::vec(step, 0..200).prop_map(|steps| {
        let mut builder = Trace::builder();
        let (mut live, mut time) = (Vec::new(), 0);
        for (next, (free, which, size, stream, pause)) in steps.into_iter().enumerate() {
            time += pause;
            if free && !live.is_empty() {
                let id = live.swap_remove(which.index(live.len()));
                builder.free(id, stream, time).unwrap();
            } else {
                let id = next as u64 + 1;
                builder.allocate(id, Bytes(size), stream, time).unwrap();
                live.push(id);
            }
        }
        builder.finish()
    })
}

proptest! {
    #[test]
    fn csv_round_trip(trace in any_trace()) {
        let again = Trace::parse(trace.to_csv().as_bytes()).unwrap();
        prop_assert_eq!(again.events(), trace.events());
        prop_assert_eq!(again.streams(), trace.streams());
        prop_assert_eq!(again.peak_live(), trace.peak_live());
        prop_assert_eq!(again.slots(), trace.slots());
        prop_assert_eq!(again.to_csv(), trace.to_csv());
    }

    #[test]
    fn a_variant_differs_in_sizes_alone(trace in any_trace(), seed in any::<u64>()) {
        let variant = corpus::variant(&trace, seed)?;
        let without_sizes = |trace: &Trace| -> Vec<_> {
            trace.events().iter().map(|event| (event.op, event.id, event.stream)).collect()
        };
        prop_assert_eq!(without_sizes(&variant), without_sizes(&trace));
        for (resized, event) in variant.events().iter().zip(trace.events()) {
            let times = resized.size as f64 / event.size.max(1) as f64;
            prop_assert!(event.size < 1 << 20 || (0.44..=2.21).contains(&times), "{times}");
        }
    }

    #[test]
    fn live_blocks_never_share_a_slot(trace in any_trace()) {
        let mut held = vec![false; trace.slots()];
        for event in trace.events() {
            let slot = &mut held[event.id as usize];
            prop_assert_eq!(*slot, event.op == TraceOp::Free);
            *slot = !*slot;
        }
        prop_assert_eq!(held.iter().filter(|held| **held).count(), trace.never_freed().len());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Trace::from_csv(&bytes);
        let _ = Trace::from_snapshot(&bytes, Some(0));
    }

    #[test]
    fn damaged_csv_is_read_or_refused(
        trace in any_trace(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = trace.to_csv().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = Trace::parse(&bytes);
        let _ = Trace::parse(&bytes[..cut.index(bytes.len())]);
    }
}
