//! PyTorch's memory snapshot as a trace.
//!
//! The file is a pickled dict. `device_traces` has a list for each device, of dicts
//! with `action`, `addr`, `size`, `stream`, `time_us` and the stack (`frames`), which is
//! most of the file and nothing to a replay. A block is known by its address, which is
//! used again after each free; the builder takes ids on those terms.

use super::build::{Raw, TraceBuilder};
use super::{Trace, TraceOp};
use crate::pickle::{Pickle, PickleItems, PickleRef, Policy};
use plimsoll_machine::error::{Error, Result};

/// PyTorch writes a dozen keys. A file may mention one huge dict a million times, and
/// looking through it as often would never end.
const MOST_KEYS: usize = 64;

const RECORD: &str = "call torch.cuda.memory._record_memory_history() before the work, and \
                      torch.cuda.memory._dump_snapshot(path) after it";

pub(super) fn read(bytes: &[u8], device: Option<usize>) -> Result<Trace> {
    let pickle = Pickle::parse(bytes, Policy::DataOnly)?;
    let traces =
        pickle.root().get("device_traces").and_then(PickleRef::items).ok_or_else(|| {
            let kind = pickle.root().kind();
            bad("snapshot", format!("{kind} without a list of device_traces; {RECORD}"))
        })?;
    let (device, events) = choose(traces, device)?;
    let mut builder = TraceBuilder::default();
    let mut first_time = None;
    for (index, entry) in events.enumerate() {
        let place = || format!("snapshot, device_traces[{device}][{index}]");
        let Some(mut raw) = event(entry).map_err(|why| bad(place(), why))? else { continue };
        // PyTorch's times are those of the wall clock; a trace's begin at 0.
        let start = *first_time.get_or_insert(raw.time_us);
        raw.time_us = raw.time_us.zip(start).map(|(time, start)| time.saturating_sub(start));
        if raw.op == TraceOp::Free && !builder.is_live(raw.id) {
            builder.skip_free();
            continue;
        }
        builder.add(raw).map_err(|why| {
            bad(place(), format!("{why} (ids are addresses); record every action, skip none"))
        })?;
    }
    Ok(builder.finish())
}

fn bad(what: impl Into<String>, why: String) -> Error {
    Error::Malformed { what: what.into(), why }
}

/// The events of the device that was asked for, or of the only one that has any.
fn choose<'p>(traces: PickleItems<'p>, device: Option<usize>) -> Result<(usize, PickleItems<'p>)> {
    let mut with_events = Vec::new();
    let mut count = 0;
    for (index, events) in traces.enumerate() {
        let Some(events) = events.items() else {
            let why = format!("{} where a list of events should be", events.kind());
            return Err(bad(format!("snapshot, device_traces[{index}]"), why));
        };
        if device == Some(index) {
            return Ok((index, events));
        }
        if { events }.next().is_some() && with_events.len() < 16 {
            with_events.push((index, events));
        }
        count += 1;
    }
    let list = with_events.iter().map(|(index, _)| index.to_string()).collect::<Vec<_>>();
    let list = list.join(", ");
    match (device, with_events.as_slice()) {
        (None, [only]) => Ok(*only),
        (_, []) => Err(bad("snapshot", format!("no device has events; {RECORD}"))),
        (None, _) => Err(bad("snapshot", format!("devices {list} have events; choose one"))),
        (Some(wanted), _) => Err(bad(
            "snapshot",
            format!("no device {wanted}: there are {count}, and {list} have events"),
        )),
    }
}

/// An event that a replay repeats, or nothing for those that it does not.
fn event(entry: PickleRef<'_>) -> Result<Option<Raw>, String> {
    let pairs = entry.pairs().ok_or_else(|| format!("{} instead of a dict", entry.kind()))?;
    let (mut action, mut addr, mut size) = (None, None, None);
    let (mut stream, mut time_us) = (None, None);
    for (count, (key, value)) in pairs.enumerate() {
        if count == MOST_KEYS {
            return Err(format!("an event of more than {MOST_KEYS} keys; PyTorch writes none"));
        }
        match key.as_str() {
            Some("action") => action = value.as_str(),
            Some("addr") => addr = Some(value),
            Some("size") => size = Some(value),
            Some("stream") => stream = Some(value),
            Some("time_us") => time_us = Some(value),
            _ => {}
        }
    }
    let op = match action {
        Some("alloc") => TraceOp::Allocate,
        Some("free_completed") => TraceOp::Free,
        Some(_) => return Ok(None),
        None => return Err("no action in the event".into()),
    };
    let id = number("addr", addr)?;
    // Old versions of PyTorch log the rounded size on a free and the asked one before.
    let size = if op == TraceOp::Allocate { Some(number("size", size)?) } else { None };
    let stream = handle(stream)?;
    let time_us = time_us.map(|time| number("time_us", Some(time))).transpose()?;
    Ok(Some(Raw { op, id, size, stream, time_us }))
}

fn number(key: &str, value: Option<PickleRef<'_>>) -> Result<u64, String> {
    let value = value.ok_or_else(|| format!("no {key} in the event"))?;
    value.as_u64().ok_or_else(|| {
        format!("{key} is {}; it must be an integer from 0 to 2^64 - 1", value.kind())
    })
}

/// A stream is a pointer, which PyTorch writes as a signed integer.
fn handle(value: Option<PickleRef<'_>>) -> Result<u64, String> {
    match value.and_then(PickleRef::as_i64) {
        Some(signed) => Ok(signed.cast_unsigned()),
        None => number("stream", value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A str of protocol 1.
    fn text(text: &str) -> Vec<u8> {
        [&[b'U', text.len() as u8], text.as_bytes()].concat()
    }

    /// An event with `action` and small numbers under the other keys.
    fn entry(action: &str, numbers: &[(&str, u8)]) -> Vec<u8> {
        let mut out = [b"}(".to_vec(), text("action"), text(action)].concat();
        for (key, number) in numbers {
            out.extend([text(key), vec![b'K', *number]].concat());
        }
        out.push(b'u');
        out
    }

    fn snapshot(events: &[Vec<u8>]) -> Vec<u8> {
        [b"\x80\x02}(".to_vec(), text("device_traces"), b"](](".to_vec(), events.concat()]
            .concat()
            .into_iter()
            .chain(*b"eeu.")
            .collect()
    }

    fn why(events: &[Vec<u8>]) -> String {
        read(&snapshot(events), None).unwrap_err().to_string()
    }

    #[test]
    fn a_snapshot_without_times_says_so() {
        let block = [("addr", 8), ("size", 5), ("stream", 0)];
        let bytes = snapshot(&[entry("alloc", &block), entry("free_completed", &block)]);
        let trace = read(&bytes, None).unwrap();
        assert_eq!((trace.events().len(), trace.is_timed()), (2, false));
    }

    #[test]
    fn a_free_may_log_another_size() {
        let asked = [("addr", 8), ("size", 5), ("stream", 0), ("time_us", 9)];
        let rounded = [("addr", 8), ("size", 16), ("stream", 0), ("time_us", 12)];
        let bytes = snapshot(&[entry("alloc", &asked), entry("free_completed", &rounded)]);
        let free = read(&bytes, None).unwrap().events()[1];
        assert_eq!((free.size, free.time_us), (5, 3));
    }

    #[test]
    fn errors_name_the_event() {
        let block = [("addr", 8), ("size", 5), ("stream", 0)];
        let twice = why(&[entry("alloc", &block), entry("oom", &[]), entry("alloc", &block)]);
        assert!(twice.starts_with("snapshot, device_traces[0][2]: id 8"), "{twice}");
        for (event, part) in [
            (entry("alloc", &[("size", 5), ("stream", 0)]), "no addr"),
            (entry("alloc", &[("addr", 5), ("stream", 0)]), "no size"),
            (entry("alloc", &[("addr", 5), ("size", 0)]), "no stream"),
            (b"}".to_vec(), "no action"),
            (b"N".to_vec(), "None instead of a dict"),
            (entry("alloc", &[("a", 1); 100]), "more than 64 keys"),
        ] {
            assert!(why(std::slice::from_ref(&event)).contains(part), "{part}");
        }
        assert!(why(&[]).contains("_record_memory_history"));
    }
}
