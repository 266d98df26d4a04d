//! `report.html`: one file that opens without a network, in light and dark. Its style and
//! plots are those of `bench`; every text that came from outside is escaped.

use std::fmt::Write as _;

use plimsoll::Bytes;
use plimsoll_bench::report::html::STYLE;
use plimsoll_bench::report::svg::{self, Series, escape};

use super::answer::{BlockReport, Cuda, DeviceReport, Report};
use super::page::lowered;
use super::tree::Unguarded;
use crate::page::UNKNOWN;

const GIB: f64 = (1u64 << 30) as f64;

/// The report as one HTML file.
pub(super) fn render(report: &Report) -> String {
    let title = format!("plimsoll run: {}", report.program.join(" "));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{0}</title><style>{STYLE}{WORDS}</style></head>\n<body><main>\n\
         <header><h1>{0}</h1><p class=\"sub\">{1:.2} s, exit code {2}</p></header>\n",
        escape(&title),
        report.duration_seconds,
        report.exit_code
    );
    page += &safety(report);
    for device in &report.devices {
        page += &device_section(report, device);
    }
    page += &processes(report);
    page += &blocks("Largest blocks", &report.largest);
    page += &blocks("Never freed", &report.never_freed.largest);
    page += &refused(report);
    page + &unheld(report) + "</main></body></html>\n"
}

fn section(name: &str, body: &str) -> String {
    format!("<section><h2>{}</h2>{body}</section>\n", escape(name))
}

fn facts<N: AsRef<str>>(rows: impl IntoIterator<Item = (N, String)>) -> String {
    let line = |(name, value): (N, String)| {
        let (name, value) = (escape(name.as_ref()), escape(&value));
        format!("<tr><th scope=\"row\">{name}</th><td>{value}</td></tr>")
    };
    format!("<table class=\"facts\">{}</table>", rows.into_iter().map(line).collect::<String>())
}

/// A program's name may be long: it is broken, and the figures stay in sight. On a phone they
/// stand below it, each with the name of its column.
const WORDS: &str = "\
h1,li,.facts th{overflow-wrap:anywhere}.wide+h3{margin-top:16px}\
.numbers th{white-space:normal}\
.numbers td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:8em}\
@media (max-width:600px){\
.numbers tr{display:flex;flex-wrap:wrap;gap:0 16px;padding:6px 0;border-bottom:1px solid var(--rule)}\
.numbers tr:first-child{display:none}\
.numbers td{border:0;padding:0}\
.numbers td:first-child{flex-basis:100%}\
.numbers td[data-name]::before{content:attr(data-name) \" \";color:var(--dim)}}";

fn numbers(names: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let cell = |(place, (name, text)): (usize, (&&str, String))| match place {
        0 => format!("<td>{}</td>", escape(&text)),
        _ => format!("<td data-name=\"{}\">{}</td>", escape(name), escape(&text)),
    };
    let row = |row: Vec<String>| {
        let cells: String = names.iter().zip(row).enumerate().map(cell).collect();
        format!("<tr>{cells}</tr>")
    };
    let body: String = rows.map(row).collect();
    if body.is_empty() {
        return String::new();
    }
    let head: String = names.iter().map(|name| format!("<th>{}</th>", escape(name))).collect();
    format!("<div class=\"wide\"><table class=\"numbers\"><tr>{head}</tr>{body}</table></div>")
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| UNKNOWN.to_string(), |bytes| Bytes(bytes).to_string())
}

fn safety(report: &Report) -> String {
    let over = report.devices.iter().any(|device| device.within_limit == Some(false));
    let escaped = report.escaped().next().is_some();
    let tone = match (over, report.cuda.used && !escaped && report.passed.is_none()) {
        (true, _) => "bad",
        (false, true) => "good",
        (false, false) => "unknown",
    };
    let limit = &report.limit;
    let effective = limit.effective_limit_bytes.filter(|line| Some(*line) != limit.limit_bytes);
    let held_by = match limit.methods_applied.as_slice() {
        [] => UNKNOWN.to_string(),
        all => all.join(", "),
    };
    let mut rows = vec![
        ("limit", size(limit.limit_bytes)),
        ("effective", size(effective.or(limit.limit_bytes))),
        ("limit type", limit.limit_type.to_string()),
        ("verified", if limit.verified { "yes" } else { "no" }.to_string()),
        ("held by", held_by),
        ("held back for the driver", size(limit.limit_bytes.map(|_| limit.reserve_bytes))),
        ("driver", driver(&report.cuda)),
    ];
    rows.extend(report.warnings.iter().map(|warning| ("note", warning.clone())));
    let headline = escape(&report.headline());
    section("Memory", &format!("<p class=\"note {tone}\">{headline}</p>{}", facts(rows)))
}

fn driver(cuda: &Cuda) -> String {
    match (&cuda.driver_version, cuda.driver_found) {
        (Some(version), _) => version.clone(),
        (None, true) => format!("{UNKNOWN} (it was not used)"),
        (None, false) => "none: libcuda.so.1 is not on this machine".to_string(),
    }
}

fn device_section(report: &Report, device: &DeviceReport) -> String {
    let refused = match device.refused {
        0 => "nothing".to_string(),
        1 => format!("{} in one request", Bytes(device.refused_bytes)),
        n => format!("{} in {n} requests", Bytes(device.refused_bytes)),
    };
    let why = lowered(device, report.limit.limit_bytes).map(|why| format!("; {why}"));
    let mut body = facts([
        ("limit", size(device.limit_bytes) + &why.unwrap_or_default()),
        (
            "peak (counted)",
            format!("{} at {:.3} s", Bytes(device.peak_bytes), device.peak_at_seconds),
        ),
        ("of it the driver's own (measured)", Bytes(device.driver_bytes).to_string()),
        ("held for 20 ms or longer", size(device.lasting_peak_bytes)),
        ("refused", refused),
        ("residue at most", size(device.residue_bytes)),
        (
            "device",
            format!(
                "{}{}",
                Bytes(device.total_bytes),
                if device.unified { ", unified" } else { "" }
            ),
        ),
    ]);
    let points = report.history.courses.get(&device.place).map_or(&[][..], |(points, _)| points);
    let series = [Series { name: "charged", points }];
    let limit = device.limit_bytes.map(|limit| limit as f64 / GIB);
    let plot = svg::over_time("GPU memory over time", "GiB", &series, limit);
    if let Some(plot) = plot.map(|plot| plot.into_string()) {
        let _ = write!(
            body,
            "<figure class=\"wide\"><figcaption>GPU memory that was charged, over time</figcaption>{plot}</figure>"
        );
    }
    section(&device.device, &body)
}

fn processes(report: &Report) -> String {
    let names = ["process", "peak", "allocated", "freed", "refused", "failed", "never freed"];
    let rows = report.processes.iter().map(|process| {
        vec![
            format!("{} {}", process.pid, process.program),
            size(process.peak_bytes),
            process.allocations.to_string(),
            process.frees.to_string(),
            process.refused.to_string(),
            process.failed_by_driver.to_string(),
            Bytes(process.never_freed_bytes).to_string(),
        ]
    });
    match numbers(&names, rows) {
        table if table.is_empty() => String::new(),
        table => section("Processes", &table),
    }
}

fn blocks(name: &str, blocks: &[BlockReport]) -> String {
    let rows = blocks.iter().map(|block| {
        vec![
            format!("{} ({})", block.kind, block.pid),
            Bytes(block.bytes).to_string(),
            format!("{:.3} s", block.from_seconds),
            block.to_seconds.map_or_else(|| UNKNOWN.to_string(), |to| format!("{to:.3} s")),
        ]
    });
    let mut body = numbers(&["how", "size", "from", "to"], rows);
    if body.is_empty() {
        return String::new();
    }
    let mut shown: Vec<&[String]> = Vec::new();
    for block in blocks.iter().filter(|block| !block.stack.is_empty()) {
        if shown.len() == 5 || shown.contains(&block.stack.as_slice()) {
            continue;
        }
        shown.push(&block.stack);
        let frames: String =
            block.stack.iter().map(|f| format!("<li>{}</li>", escape(f))).collect();
        let _ = write!(body, "<h3>{} by {}</h3><ul>{frames}</ul>", Bytes(block.bytes), block.kind);
    }
    section(name, &body)
}

fn refused(report: &Report) -> String {
    let rows = report.refused.iter().map(|refusal| {
        let (size, at) = (Bytes(refusal.bytes).to_string(), format!("{:.3} s", refusal.at_seconds));
        vec![format!("{} ({})", refusal.kind, refusal.pid), size, at]
    });
    match numbers(&["how", "size", "at"], rows) {
        table if table.is_empty() => String::new(),
        table => section("Refused", &table),
    }
}

fn unheld(report: &Report) -> String {
    if report.unguarded.is_empty() {
        return String::new();
    }
    let row = |process: &Unguarded| {
        let cuda = match process.uses_cuda {
            Some(true) => "uses CUDA",
            Some(false) => "does not use CUDA",
            None => "may use CUDA",
        };
        (format!("{} {}", process.pid, process.program), format!("{cuda}; {}", process.why))
    };
    section("Not reached by the guard", &facts(report.unguarded.iter().map(row)))
}
