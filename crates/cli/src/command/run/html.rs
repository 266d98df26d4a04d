//! `report.html`: one file that opens without a network, in light and dark. Its style and plots
//! are those of `bench`.

use maud::{Markup, html};
use plimsoll::Bytes;
use plimsoll_bench::report::svg::{self, Plot, Series, TimeMark};
use plimsoll_bench::stats::TimePoint;

use super::answer::{
    BlockReport, CudaReport, PeakReport, PlaceReport, ProcessReport, RefusalReport, RunDevice,
    RunReport, UnguardedReport,
};
use super::flame;
use super::frame::frame_name;
use super::page::lowered;
use super::picture::NO_PYTHON_LINES;
use crate::html::{document, facts, figure, numbers, numbers_section, safe, section, size};
use crate::page::{SizeUnit, UNKNOWN};

const GIB: f64 = (1u64 << 30) as f64;
/// How many call stacks a list of blocks shows.
const STACKS: usize = 5;
/// How many places are in the table below the flame graph.
const PLACES: usize = 12;

/// The report as one HTML file.
pub(super) fn render(report: &RunReport) -> String {
    let title = format!("plimsoll run: {}", report.program.join(" "));
    let mut subtitle = format!("{:.2} s, exit code {}", report.duration_seconds, report.exit_code);
    if report.watched_seconds > report.duration_seconds {
        subtitle += &format!("; child processes until {:.2} s", report.watched_seconds);
    }
    let body = html! {
        (safety(report))
        @for device in &report.devices { (device_section(report, device)) }
        @for device in &report.devices { (peak_section(report, device)) }
        (processes(report))
        (blocks("Largest blocks", &report.largest))
        (blocks("Never freed", &report.never_freed.largest))
        (refused(report))
        (unguarded(report))
    };
    document(&title, &subtitle, None, &body)
}

fn safety(report: &RunReport) -> Markup {
    let over = report.is_over();
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
    let unit = SizeUnit::of([limit.limit_bytes, effective]);
    let mut rows = vec![
        ("limit", size(unit, limit.limit_bytes)),
        ("effective", size(unit, effective)),
        ("limit type", limit.limit_type.to_string()),
        ("verified", if limit.verified { "yes" } else { "no" }.to_string()),
        ("enforced by", enforced_by),
        ("reserved for the driver", size(unit, limit.limit_bytes.map(|_| limit.reserve_bytes))),
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
    let unit = SizeUnit::of([device.limit_bytes, Some(device.peak_bytes)]);
    let why = lowered(device, report.limit.limit_bytes).map(|why| format!("; {why}"));
    let peak = format!("{} at {:.3} s", unit.text(device.peak_bytes), device.peak_at_seconds);
    let unified = if device.unified { ", unified" } else { "" };
    let rows = [
        ("limit", size(unit, device.limit_bytes) + &why.unwrap_or_default()),
        ("peak (counted)", peak),
        ("of it the driver's own (measured)", size(unit, device.driver_bytes)),
        ("peak that lasted 20 ms or longer", size(unit, device.lasting_peak_bytes)),
        ("refused", refused),
        ("residue at most", size(unit, device.residue_bytes)),
        ("device", format!("{}{unified}", Bytes(device.total_bytes))),
    ];
    section(
        &device.device,
        &html! {
            (facts(rows))
            @if let Some(plot) = charge_plot(report, device) {
                (figure("GPU memory in use, as counted; red: a request was refused", &plot))
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
    let marks: Vec<TimeMark> = report
        .refused
        .iter()
        .filter(|refusal| refusal.device == device.device)
        .map(refusal_mark)
        .collect();
    svg::over_time_with_marks("GPU memory in use, as counted", ("s", "GiB"), &series, limit, &marks)
}

/// What was asked for when it was refused.
fn refusal_mark(refusal: &RefusalReport) -> TimeMark {
    let RefusalReport { pid, kind, bytes, at_seconds, .. } = refusal;
    let size = Bytes(*bytes);
    TimeMark {
        t: *at_seconds,
        label: format!("refused: {size}"),
        detail: format!("{size} by {kind} was refused at {at_seconds:.3} s (process {pid})"),
    }
}

/// Live memory at the peak: the flame graph and its largest places.
fn peak_section(report: &RunReport, device: &RunDevice) -> Markup {
    let Some(peak) = device.at_peak.as_ref().filter(|peak| peak.bytes > 0) else {
        return html! {};
    };
    let unit = SizeUnit::of([Some(peak.bytes)]);
    let title = format!(
        "{} at its peak: {} at {:.3} s",
        device.device,
        unit.text(peak.bytes),
        peak.at_seconds
    );
    let graph = flame::render(&peak.places, unit);
    section(
        &title,
        &html! {
            @match graph {
                Some(graph) => { (graph) },
                None => p.why { "With --stacks this is drawn by call stack." },
            }
            (places(peak, unit))
            @if report.lacks_python_lines() { p.why { (NO_PYTHON_LINES) "." } }
        },
    )
}

fn places(peak: &PeakReport, unit: SizeUnit) -> Markup {
    let row = |place: &PlaceReport| {
        let name = match (place.by_driver, place.stack.first()) {
            (true, _) => "the driver itself".to_string(),
            (false, Some(frame)) => frame_name(frame),
            (false, None) => format!("process {}", place.pid),
        };
        let share = place.bytes as f64 / peak.bytes.max(1) as f64 * 100.0;
        vec![name, unit.text(place.bytes), format!("{share:.0} %"), place.blocks.to_string()]
    };
    let mut rows: Vec<_> = peak.places.iter().take(PLACES).map(row).collect();
    let listed: u64 = peak.places.iter().skip(PLACES).map(|place| place.bytes).sum();
    let rest = listed.saturating_add(peak.elsewhere_bytes);
    if rest > 0 {
        let share = rest as f64 / peak.bytes.max(1) as f64 * 100.0;
        rows.push(vec![
            "other places".into(),
            unit.text(rest),
            format!("{share:.0} %"),
            UNKNOWN.into(),
        ]);
    }
    numbers(&["allocated in", "live", "share", "blocks"], &rows)
}

fn processes(report: &RunReport) -> Markup {
    let names = ["process", "peak", "allocated", "freed", "refused", "failed", "never freed"];
    let sizes = report.processes.iter().flat_map(|p| [p.peak_bytes, Some(p.never_freed_bytes)]);
    let unit = SizeUnit::of(sizes);
    let row = |process: &ProcessReport| {
        vec![
            format!("{} {}", process.pid, process.program),
            size(unit, process.peak_bytes),
            process.allocations.to_string(),
            process.frees.to_string(),
            process.refused.to_string(),
            process.failed_by_driver.to_string(),
            unit.text(process.never_freed_bytes),
        ]
    };
    numbers_section("Processes", &names, &report.processes.iter().map(row).collect::<Vec<_>>())
}

fn blocks(title: &str, blocks: &[BlockReport]) -> Markup {
    let unit = SizeUnit::of(blocks.iter().map(|block| Some(block.bytes)));
    let row = |block: &BlockReport| {
        vec![
            format!("{} ({})", block.kind, block.pid),
            unit.text(block.bytes),
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
                ul { @for frame in &block.stack { li { (safe(&frame_name(frame))) } } }
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
    let row = |refusal: &RefusalReport| {
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
