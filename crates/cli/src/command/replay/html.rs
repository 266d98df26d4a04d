//! A replay as a page: live and reserved memory over the trace, and the blocks at the peak.

use maud::{Markup, html};
use plimsoll_bench::report::svg::{self, Series, TimeMark};

use super::answer::ReplayReport;
use super::course::TraceCourse;
use crate::html::{document, facts, figure, safe, section, share_bar, size};
use crate::page::{SizeUnit, UNKNOWN};

const GIB: f64 = (1u64 << 30) as f64;
/// How many sizes of blocks are listed.
const SIZES: usize = 24;

/// The replay as one file.
pub(super) fn render(report: &ReplayReport, course: &TraceCourse) -> String {
    let subtitle = format!(
        "{} events, {} packing on {}",
        report.events, report.setting.packing, report.setting.backend
    );
    let body = html! { (outcome(report)) (plot(report, course)) (peak(course)) };
    document(&format!("plimsoll replay: {}", report.trace), &subtitle, None, &body)
}

fn outcome(report: &ReplayReport) -> Markup {
    let unit = SizeUnit::of([Some(report.peak_live_bytes), report.peak_reserved_bytes]);
    let nanos =
        |ns: Option<f64>| ns.map_or_else(|| UNKNOWN.to_string(), |ns| format!("{ns:.1} ns"));
    let ratio = report.ratio.map_or_else(|| UNKNOWN.to_string(), |ratio| format!("{ratio:.4}"));
    let rows = [
        ("peak live", unit.text(report.peak_live_bytes)),
        ("peak reserved", size(unit, report.peak_reserved_bytes)),
        ("reserved / live", ratio),
        ("an event, warm", nanos(report.times.warm_ns_per_event)),
        ("an event, cold", nanos(report.times.cold_ns_per_event)),
        (
            "never freed",
            format!(
                "{} in {} blocks",
                unit.text(report.leaks.never_freed_bytes),
                report.leaks.never_freed_count
            ),
        ),
    ];
    let note = match &report.failure {
        Some(failure) => html! {
            p.note.bad { "It does not complete: event " (failure.event) " of " (report.events) " asks for " (unit.text(failure.requested_bytes)) }
        },
        None => {
            html! { p.note.good { "It completes on a device of " (unit.text(report.setting.device_bytes)) } }
        }
    };
    section("Memory and time", &html! { (note) (facts(rows)) })
}

fn plot(report: &ReplayReport, course: &TraceCourse) -> Markup {
    let series = [
        Series { name: "live", points: &course.live },
        Series { name: "reserved", points: &course.reserved },
    ];
    let across = if course.is_timed { "s" } else { "thousand events" };
    let limit = Some(report.setting.device_bytes as f64 / GIB);
    let marks: Vec<TimeMark> = report
        .failure
        .as_ref()
        .and_then(|failure| {
            let end = course.reserved.last()?.t;
            let detail = format!("event {} asked for what is not there", failure.event);
            Some(TimeMark { t: end, label: "ends".to_string(), detail })
        })
        .into_iter()
        .collect();
    let name = "Live and reserved memory";
    let Some(plot) = svg::over_time_with_marks(name, (across, "GiB"), &series, limit, &marks)
    else {
        return html! {};
    };
    let caption = html! {
        p.why.keys { span.key.s0 { "live: what the program holds" } span.key.s1 { "reserved: what the pool has taken from the device, first pass" } }
    };
    section("Over the trace", &html! { (caption) (figure(name, &plot)) })
}

fn peak(course: &TraceCourse) -> Markup {
    let peak = &course.peak;
    let unit = SizeUnit::of([Some(peak.bytes)]);
    let block_unit = SizeUnit::of(peak.sizes.iter().map(|size| Some(size.bytes)));
    let share = |bytes: u64| bytes as f64 / peak.bytes.max(1) as f64;
    let rest: u64 =
        peak.sizes.iter().skip(SIZES).fold(0, |sum, size| size.together.saturating_add(sum));
    let table = html! {
        p.why { (peak.blocks) " blocks are live at event " (peak.event + 1) ", " (unit.text(peak.bytes)) " in all; by size, those that take the most first." }
        div.wide {
            table.numbers.holders {
                tr { th.name { "size of a block" } th { "blocks" } th { "together" } th { "share" } th {} }
                @for size in peak.sizes.iter().take(SIZES) {
                    tr {
                        td.name { (block_unit.text(size.bytes)) }
                        td data-name="blocks" { (size.blocks) }
                        td data-name="together" { (unit.text(size.together)) }
                        td data-name="share" { (format!("{:.1} %", share(size.together) * 100.0)) }
                        td.bar-cell { (share_bar(share(size.together))) }
                    }
                }
                @if rest > 0 {
                    tr.rest { td.name { "other sizes" } td {} td data-name="together" { (unit.text(rest)) } td data-name="share" { (format!("{:.1} %", share(rest) * 100.0)) } td {} }
                }
            }
        }
    };
    section(&safe("Blocks at the peak"), &table)
}
