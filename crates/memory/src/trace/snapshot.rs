//! PyTorch's memory snapshot as a trace.
//!
//! The file is a pickled dict. `device_traces` has a list for each device, of dicts
//! with `action`, `addr`, `size`, `stream`, `time_us` and the stack (`frames`), which is
//! most of the file and nothing to a replay. A block is known by its address, which is
//! used again after each free; the builder takes ids on those terms.

use super::build::{Builder, Raw};
use super::{Op, Trace};
use crate::error::{Error, Result};
use crate::pickle::{Items, Pickle, Policy, Ref};

/// PyTorch writes a dozen keys. A file may mention one huge dict a million times, and
/// looking through it as often would never end.
const MOST_KEYS: usize = 64;

const RECORD: &str = "call torch.cuda.memory._record_memory_history() before the work, and \
                      torch.cuda.memory._dump_snapshot(path) after it";

pub(super) fn read(bytes: &[u8], device: Option<usize>) -> Result<Trace> {
    let pickle = Pickle::parse(bytes, Policy::DataOnly)?;
    let traces = pickle.root().get("device_traces").and_then(Ref::items).ok_or_else(|| {
        let kind = pickle.root().kind();
        bad("snapshot", format!("{kind} without a list of device_traces; {RECORD}"))
    })?;
    let (device, events) = choose(traces, device)?;
    let mut builder = Builder::default();
    let mut first_time = None;
    for (index, entry) in events.enumerate() {
        let place = || format!("snapshot, device_traces[{device}][{index}]");
        let Some(mut raw) = event(entry).map_err(|why| bad(place(), why))? else { continue };
        // PyTorch's times are those of the wall clock; a trace's begin at 0.
        let start = *first_time.get_or_insert(raw.time_us);
        raw.time_us = raw.time_us.zip(start).map(|(time, start)| time.saturating_sub(start));
        if raw.op == Op::Free && !builder.is_live(raw.id) {
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
fn choose<'p>(traces: Items<'p>, device: Option<usize>) -> Result<(usize, Items<'p>)> {
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
fn event(entry: Ref<'_>) -> Result<Option<Raw>, String> {
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
        Some("alloc") => Op::Allocate,
        Some("free_completed") => Op::Free,
        Some(_) => return Ok(None),
        None => return Err("no action in the event".into()),
    };
    let id = number("addr", addr)?;
    // Old versions of PyTorch log the rounded size on a free and the asked one before.
    let size = if op == Op::Allocate { Some(number("size", size)?) } else { None };
    let stream = handle(stream)?;
    let time_us = time_us.map(|time| number("time_us", Some(time))).transpose()?;
    Ok(Some(Raw { op, id, size, stream, time_us }))
}

fn number(key: &str, value: Option<Ref<'_>>) -> Result<u64, String> {
    let value = value.ok_or_else(|| format!("no {key} in the event"))?;
    value.as_u64().ok_or_else(|| {
        format!("{key} is {}; it must be an integer from 0 to 2^64 - 1", value.kind())
    })
}

/// A stream is a pointer, which PyTorch writes as a signed integer.
fn handle(value: Option<Ref<'_>>) -> Result<u64, String> {
    match value.and_then(Ref::as_i64) {
        Some(signed) => Ok(signed.cast_unsigned()),
        None => number("stream", value),
    }
}
