//! Traces as text, one event a line.
//!
//! Numbers are read straight from the bytes: a trace is millions of short fields, and
//! nothing in it needs a string.

use std::fmt::Write as _;

use super::build::{Raw, TraceBuilder};
use super::{Trace, TraceOp};
use plimsoll_machine::error::{Error, Result};

const COLUMNS: [&str; 5] = ["op", "id", "size", "stream", "t_us"];
const HEADER: &str = "op,id,size,stream,t_us";

/// Which of [`COLUMNS`] stands at each place of a line; `None` is a column to ignore.
type CsvColumns = Vec<Option<usize>>;

pub(super) fn read(bytes: &[u8]) -> Result<Trace> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut builder = TraceBuilder::default();
    // An event takes some twenty bytes: one growth at most for any real file.
    builder.reserve(bytes.len() / 24);
    let mut layout = None;
    let mut rest = bytes;
    let mut number = 0;
    while !rest.is_empty() {
        number += 1;
        let end = rest.iter().position(|&b| b == b'\n');
        let (line, tail) = rest.split_at(end.unwrap_or(rest.len()));
        rest = tail.get(1..).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let read = match &layout {
            None => header(line).map(|found| layout = Some(found)),
            Some(layout) => event(line, layout)
                .and_then(|raw| whole(raw, end.is_some(), &builder))
                .and_then(|raw| builder.add(raw)),
        };
        read.map_err(|why| Error::Malformed { what: format!("line {number}"), why })?;
    }
    if layout.is_none() {
        let why = format!("no header; the first line must be {HEADER}");
        return Err(Error::Malformed { what: "line 1".into(), why });
    }
    Ok(builder.finish())
}

/// A last line without a newline may be whole, or cut within its last number. A cut
/// time has fewer digits, and time that runs backwards gives it away.
fn whole(raw: Raw, ended: bool, builder: &TraceBuilder) -> Result<Raw, String> {
    if !ended && raw.time_us < builder.last_time() {
        return Err("the line has no end and its t_us goes back: the file is cut short".into());
    }
    Ok(raw)
}

fn header(line: &[u8]) -> Result<CsvColumns, String> {
    let mut layout = CsvColumns::new();
    for field in line.split(|&b| b == b',') {
        let column = COLUMNS.iter().position(|name| name.as_bytes() == field.trim_ascii());
        if column.is_some() && layout.contains(&column) {
            return Err(format!("the column {} is there twice", shown(field)));
        }
        layout.push(column);
    }
    match (0..COLUMNS.len()).find(|&column| !layout.contains(&Some(column))) {
        Some(missing) => {
            let missing = COLUMNS[missing];
            Err(format!("no column {missing} in {}; the header must be {HEADER}", shown(line)))
        }
        None => Ok(layout),
    }
}

fn event(line: &[u8], layout: &CsvColumns) -> Result<Raw, String> {
    let mut fields: [&[u8]; COLUMNS.len()] = [b""; COLUMNS.len()];
    let mut count = 0;
    for field in line.split(|&b| b == b',') {
        if let Some(Some(column)) = layout.get(count) {
            fields[*column] = field;
        }
        count += 1;
    }
    if count != layout.len() {
        return Err(format!(
            "{} has {count} fields and the header {}; was the file cut short?",
            shown(line),
            layout.len()
        ));
    }
    let [op, id, size, stream, time] = fields;
    let op = match op {
        b"a" => TraceOp::Allocate,
        b"f" => TraceOp::Free,
        other => return Err(format!("op is {}; it must be a or f", shown(other))),
    };
    let size = match (op, size) {
        (TraceOp::Free, b"") => None,
        (_, size) => Some(whole_number("size", size)?),
    };
    Ok(Raw {
        op,
        id: whole_number("id", id)?,
        size,
        stream: whole_number("stream", stream)?,
        time_us: Some(whole_number("t_us", time)?),
    })
}

fn whole_number(column: &str, field: &[u8]) -> Result<u64, String> {
    let digits = field.iter().try_fold(0u64, |sum, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(digit.into()) }
    });
    digits.filter(|_| !field.is_empty()).ok_or_else(|| {
        format!("{column} is {}; it must be a whole number below 2^64", shown(field))
    })
}

/// A field as a message may show it.
fn shown(field: &[u8]) -> String {
    let text = String::from_utf8_lossy(field.get(..60).unwrap_or(field));
    format!("{text:?}")
}

pub(super) fn write(trace: &Trace) -> String {
    let mut out = String::with_capacity(trace.events().len() * 24 + HEADER.len() + 1);
    out.push_str(HEADER);
    out.push('\n');
    let mut numbers = vec![0u64; trace.slots()];
    let mut next = 0;
    for event in trace.events() {
        let Some(number) = numbers.get_mut(event.id as usize) else { continue };
        let op = match event.op {
            TraceOp::Allocate => {
                next += 1;
                *number = next;
                'a'
            }
            TraceOp::Free => 'f',
        };
        let stream = trace.streams().get(usize::from(event.stream)).copied().unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{op},{number},{},{stream},{}", event.size, event.time_us);
    }
    out
}
