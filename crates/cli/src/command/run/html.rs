//! `report.html`: one file that opens without a network, in light and dark. Its style and plots
//! are those of `bench`. maud escapes every text, and [`safe`] removes control characters from
//! texts that the program chose.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use plimsoll::{Bytes, text::one_line};
use plimsoll_bench::report::html::STYLE;
use plimsoll_bench::report::svg::{self, Plot, Series};
use plimsoll_bench::stats::TimePoint;

use super::answer::{BlockReport, CudaReport, RunDevice, RunReport, UnguardedReport};
use super::page::lowered;
use crate::page::UNKNOWN;

const GIB: f64 = (1u64 << 30) as f64;
/// The page loads nothing and runs nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
/// How many call stacks a list of blocks shows.
const STACKS: usize = 5;

/// A program's name may be long: it is broken, so that the figures stay visible. On a phone they
/// are below it, each with the name of its column.
const NAMES_STYLE: &str = "\
h1,li,.facts th{overflow-wrap:anywhere}.wide+h3{margin-top:16px}\
.numbers th{white-space:normal}\
.numbers td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:8em}\
@media (max-width:600px){\
.numbers tr{display:flex;flex-wrap:wrap;gap:0 16px;padding:6px 0;border-bottom:1px solid var(--rule)}\
.numbers tr:first-child{display:none}\
.numbers td{border:0;padding:0}\
.numbers td:first-child{flex-basis:100%}\
.numbers td[data-name]::before{content:attr(data-name) \" \";color:var(--dim)}}";

/// The report as one HTML file.
pub(super) fn render(report: &RunReport) -> String {
    let title = safe(&format!("plimsoll run: {}", report.program.join(" ")));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(NAMES_STYLE)) }
            }
            body {
                main {
                    header {
                        h1 { (title) }
                        p.sub { (format!("{:.2}", report.duration_seconds)) " s, exit code " (report.exit_code) }
                    }
                    (safety(report))
                    @for device in &report.devices { (device_section(report, device)) }
                    (processes(report))
                    (blocks("Largest blocks", &report.largest))
                    (blocks("Never freed", &report.never_freed.largest))
                    (refused(report))
                    (unguarded(report))
                }
            }
        }
    };
    page.into_string() + "\n"
}

/// The text without control characters, on one line.
fn safe(text: &str) -> String {
    one_line(text).into_owned()
}

fn section(name: &str, body: &Markup) -> Markup {
    html! { section { h2 { (name) } (body) } "\n" }
}

fn facts<N: AsRef<str>>(rows: impl IntoIterator<Item = (N, String)>) -> Markup {
    html! {
        table.facts {
            @for (name, value) in rows {
                tr { th scope="row" { (safe(name.as_ref())) } td { (safe(&value)) } }
            }
        }
    }
}

/// A table of figures. The first cell of a row is its name.
fn numbers(names: &[&str], rows: &[Vec<String>]) -> Markup {
    html! {
        div.wide {
            table.numbers {
                tr { @for name in names { th { (name) } } }
                @for row in rows {
                    tr {
                        @for (place, (name, text)) in names.iter().zip(row).enumerate() {
                            td data-name=[(place > 0).then_some(name)] { (safe(text)) }
                        }
                    }
                }
            }
        }
    }
}

/// A section with a table, where the table has rows.
fn numbers_section(title: &str, names: &[&str], rows: &[Vec<String>]) -> Markup {
    if rows.is_empty() {
        html! {}
    } else {
        section(title, &numbers(names, rows))
    }
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| UNKNOWN.to_string(), |bytes| Bytes(bytes).to_string())
}

fn safety(report: &RunReport) -> Markup {
    let over = report.devices.iter().any(|device| device.within_limit == Some(false));
    let escaped = report.escaped().next().is_some();
    let tone = match (over, report.cuda.used && !escaped && report.uncounted.is_none()) {
        (true, _) => "bad",
        (false, true) => "good",
        (false, false) => "unknown",
    };
    let limit = &report.limit;
    let effective = limit.effective_limit_bytes.or(limit.limit_bytes);
    let enforced_by = match limit.methods_applied.as_slice() {
        [] => UNKNOWN.to_string(),
        all => all.join(", "),
    };
    let mut rows = vec![
        ("limit", size(limit.limit_bytes)),
        ("effective", size(effective)),
        ("limit type", limit.limit_type.to_string()),
        ("verified", if limit.verified { "yes" } else { "no" }.to_string()),
        ("enforced by", enforced_by),
        ("reserved for the driver", size(limit.limit_bytes.map(|_| limit.reserve_bytes))),
        ("driver", driver(&report.cuda)),
    ];
    rows.extend(report.warnings.iter().map(|warning| ("note", warning.clone())));
    let headline = safe(&report.headline());
    section("Memory", &html! { p.note.(tone) { (headline) } (facts(rows)) })
}

fn driver(cuda: &CudaReport) -> String {
    match (&cuda.driver_version, cuda.driver_found) {
        (Some(version), _) => version.clone(),
        (None, true) => format!("{UNKNOWN} (it was not used)"),
        (None, false) => "none: libcuda.so.1 is not on this machine".to_string(),
    }
}

fn device_section(report: &RunReport, device: &RunDevice) -> Markup {
    let refused = match device.refused {
        0 => "nothing".to_string(),
        1 => format!("{} in one request", Bytes(device.refused_bytes)),
        n => format!("{} in {n} requests", Bytes(device.refused_bytes)),
    };
    let why = lowered(device, report.limit.limit_bytes).map(|why| format!("; {why}"));
    let peak = format!("{} at {:.3} s", Bytes(device.peak_bytes), device.peak_at_seconds);
    let unified = if device.unified { ", unified" } else { "" };
    let rows = [
        ("limit", size(device.limit_bytes) + &why.unwrap_or_default()),
        ("peak (counted)", peak),
        ("of it the driver's own (measured)", Bytes(device.driver_bytes).to_string()),
        ("peak that lasted 20 ms or longer", size(device.lasting_peak_bytes)),
        ("refused", refused),
        ("residue at most", size(device.residue_bytes)),
        ("device", format!("{}{unified}", Bytes(device.total_bytes))),
    ];
    section(
        &device.device,
        &html! {
            (facts(rows))
            @if let Some(plot) = charge_plot(report, device) {
                figure.wide {
                    figcaption {
                        "GPU memory in use, as counted"
                        @if let Some(note) = &plot.note { span.plot-note { (one_line(note)) } }
                    }
                    (plot.drawing)
                }
            }
        },
    )
}

/// The charge of a device over time, as SVG; nothing where there is none.
fn charge_plot(report: &RunReport, device: &RunDevice) -> Option<Plot> {
    let course = report.history.courses.get(&device.place)?;
    let points: Vec<TimePoint> = course
        .points
        .iter()
        .map(|point| TimePoint {
            t: point.seconds,
            min: point.min,
            mean: point.mean,
            max: point.max,
        })
        .collect();
    let series = [Series { name: "in use", points: &points }];
    let limit = device.limit_bytes.map(|limit| limit as f64 / GIB);
    svg::over_time("GPU memory in use, as counted", "GiB", &series, limit)
}

fn processes(report: &RunReport) -> Markup {
    let names = ["process", "peak", "allocated", "freed", "refused", "failed", "never freed"];
    let row = |process: &super::answer::ProcessReport| {
        vec![
            format!("{} {}", process.pid, process.program),
            size(process.peak_bytes),
            process.allocations.to_string(),
            process.frees.to_string(),
            process.refused.to_string(),
            process.failed_by_driver.to_string(),
            Bytes(process.never_freed_bytes).to_string(),
        ]
    };
    numbers_section("Processes", &names, &report.processes.iter().map(row).collect::<Vec<_>>())
}

fn blocks(title: &str, blocks: &[BlockReport]) -> Markup {
    let row = |block: &BlockReport| {
        vec![
            format!("{} ({})", block.kind, block.pid),
            Bytes(block.bytes).to_string(),
            format!("{:.3} s", block.from_seconds),
            block.to_seconds.map_or_else(|| UNKNOWN.to_string(), |to| format!("{to:.3} s")),
        ]
    };
    if blocks.is_empty() {
        return html! {};
    }
    let rows: Vec<_> = blocks.iter().map(row).collect();
    section(
        title,
        &html! {
            (numbers(&["how", "size", "from", "to"], &rows))
            @for block in with_new_stacks(blocks) {
                h3 { (Bytes(block.bytes)) " by " (block.kind) }
                ul { @for frame in &block.stack { li { (safe(frame)) } } }
            }
        },
    )
}

/// The first blocks with call stacks that are different from each other.
fn with_new_stacks(blocks: &[BlockReport]) -> Vec<&BlockReport> {
    let mut shown: Vec<&BlockReport> = Vec::new();
    for block in blocks.iter().filter(|block| !block.stack.is_empty()) {
        if shown.len() < STACKS && shown.iter().all(|other| other.stack != block.stack) {
            shown.push(block);
        }
    }
    shown
}

fn refused(report: &RunReport) -> Markup {
    let row = |refusal: &super::answer::RefusalReport| {
        let (size, at) = (Bytes(refusal.bytes).to_string(), format!("{:.3} s", refusal.at_seconds));
        vec![format!("{} ({})", refusal.kind, refusal.pid), size, at]
    };
    let rows: Vec<_> = report.refused.iter().map(row).collect();
    numbers_section("Refused", &["how", "size", "at"], &rows)
}

fn unguarded(report: &RunReport) -> Markup {
    if report.unguarded.is_empty() {
        return html! {};
    }
    let row = |process: &UnguardedReport| {
        let cuda = match process.uses_cuda {
            Some(true) => "uses CUDA",
            Some(false) => "does not use CUDA",
            None => "may use CUDA",
        };
        (format!("{} {}", process.pid, process.program), format!("{cuda}; {}", process.why))
    };
    section("Not reached by the guard", &facts(report.unguarded.iter().map(row)))
}
