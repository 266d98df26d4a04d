//! A replay for people.

use plimsoll::Bytes;

use super::answer::ReplayReport;
use crate::output::Answer;
use crate::page::{SizeUnit, TextCell, TextPage, TextTone, or_unknown};

impl Answer for ReplayReport {
    fn bare(&self, page: &mut TextPage) {
        let reserved = or_unknown(self.peak_reserved_bytes.map(Bytes));
        page.raw(&match &self.failure {
            Some(failure) => format!("ends at event {} of {}\n", failure.event, self.events),
            None => {
                let warm = nanos(self.times.warm_ns_per_event);
                format!("{warm} an event, {reserved} reserved\n")
            }
        });
        if self.cap_sought {
            let smallest = or_unknown(self.smallest_cap_bytes.map(Bytes));
            page.raw(&format!("{smallest} is the smallest device\n"));
        }
    }

    fn page(&self, page: &mut TextPage) {
        title(self).iter().for_each(|line| page.line(line));
        if let Some(failure) = &self.failure {
            let sizes = [failure.requested_bytes, failure.live_bytes, failure.reserved_bytes];
            let unit = SizeUnit::of(sizes.map(Some));
            page.heading("Does not complete");
            page.table(&[
                row("pass", failure.pass.to_string(), if failure.pass == 0 { "cold" } else { "" }),
                row("event", failure.event.to_string(), &format!("of {}", self.events)),
                row("requested", unit.text(failure.requested_bytes), ""),
                row("live", unit.text(failure.live_bytes), ""),
                row("reserved", unit.text(failure.reserved_bytes), ""),
            ]);
            page.advice(&failure.why);
        } else {
            page.heading("Time an event");
            page.table(&times(self));
        }
        page.heading("Memory");
        page.table(&memory(self));
        if self.completed {
            page.heading("The pool");
            page.table(&pool(self));
        }
        if !self.cold_device_calls.is_empty() {
            page.heading("Calls for memory, first pass");
            page.table(&calls(self));
        }
        if self.leaks.never_freed_count > 0 {
            page.heading("Never freed");
            page.table(&never_freed(self));
        }
        if let Some(rows) = &self.thread_scaling {
            page.heading("Threads");
            page.table(&rows.iter().map(threads).collect::<Vec<_>>());
            page.advice("By the clock alone; what the device charges is not in it.");
        }
        if self.cap_sought {
            page.heading("Smallest device");
            page.table(&smallest_cap(self));
        }
    }
}

fn title(report: &ReplayReport) -> [String; 2] {
    let streams = if report.streams == 1 { "stream" } else { "streams" };
    let mapping = if report.setting.can_map { "mapped by the page" } else { "not mapped" };
    let costs = match report.setting.latencies {
        Some("off") => ", calls cost nothing",
        Some(_) => ", calls cost as measured",
        None if report.setting.kernels => ", kernels in flight",
        None => "",
    };
    let (name, events) = (&report.trace, report.events);
    let size = Bytes(report.setting.device_bytes);
    let (packing, backend) = (&report.setting.packing, &report.setting.backend);
    [
        format!("{name}: {events} events on {} {streams}", report.streams),
        format!("{packing} packing on {backend} ({size}, {mapping}{costs})"),
    ]
}

fn row(name: &str, value: String, note: &str) -> Vec<TextCell> {
    vec![name.into(), TextCell::figure(Some(value)), TextCell::new(note, TextTone::Faint)]
}

fn nanos(ns: Option<f64>) -> String {
    or_unknown(ns.map(|ns| format!("{ns:.1} ns")))
}

fn times(report: &ReplayReport) -> Vec<Vec<TextCell>> {
    let charged =
        |ns: Option<f64>| match ns.filter(|_| report.setting.latencies == Some("measured")) {
            Some(ns) => format!("; {ns:.1} ns of it charged by the device"),
            None => String::new(),
        };
    let fastest = match report.passes {
        1 => "the second pass".to_string(),
        passes => format!("the fastest of {passes} passes"),
    };
    let ratio = |ratio: Option<f64>| or_unknown(ratio.map(|ratio| format!("{ratio:.2}")));
    let malloc = report.times.malloc_note.clone().unwrap_or_else(|| fastest.clone());
    vec![
        row(
            "cold",
            nanos(report.times.cold_ns_per_event),
            &format!("the first pass{}", charged(report.times.cold_charged_ns_per_event)),
        ),
        row(
            "warm",
            nanos(report.times.warm_ns_per_event),
            &format!("{fastest}{}", charged(report.times.warm_charged_ns_per_event)),
        ),
        row(
            "warm, unmapped",
            nanos(report.times.warm_unmapped_ns_per_event),
            "events that needed nothing from the device",
        ),
        row("malloc", nanos(report.times.malloc_ns_per_event), &malloc),
        row("unmapped / malloc", ratio(report.times.malloc_ratio), ""),
        row("warm / malloc", ratio(report.times.warm_malloc_ratio), ""),
    ]
}

fn memory(report: &ReplayReport) -> Vec<Vec<TextCell>> {
    let unit = SizeUnit::of([Some(report.peak_live_bytes), report.peak_reserved_bytes]);
    let reserved = report.peak_reserved_bytes.map(|bytes| unit.text(bytes));
    vec![
        row("peak live", unit.text(report.peak_live_bytes), ""),
        row("peak reserved", or_unknown(reserved), ""),
        row("reserved / live", or_unknown(report.ratio.map(|ratio| format!("{ratio:.4}"))), ""),
    ]
}

fn smallest_cap(report: &ReplayReport) -> Vec<Vec<TextCell>> {
    let ratio = report.smallest_cap_ratio.map(|ratio| format!("{ratio:.4} of peak live"));
    let none = || "no device is large enough".to_string();
    vec![
        row(
            "completes on",
            or_unknown(report.smallest_cap_bytes.map(Bytes)),
            &ratio.unwrap_or_else(none),
        ),
        row("cold there", nanos(report.smallest_cap_cold_ns_per_event), ""),
        row("warm there", nanos(report.smallest_cap_warm_ns_per_event), ""),
    ]
}

fn pool(report: &ReplayReport) -> Vec<Vec<TextCell>> {
    let counts = |name: &str, cold: Option<u64>, warm: Option<u64>| {
        vec![name.into(), TextCell::figure(cold), TextCell::figure(warm)]
    };
    let warm = &report.warm;
    vec![
        vec!["".into(), TextCell::figure(Some("cold")), TextCell::figure(Some("warm"))],
        counts("taken from the device", report.cold.cold_taken_from_device, warm.taken_from_device),
        counts("returned to it", report.cold.cold_returned_to_device, warm.returned_to_device),
        counts("remapped handles", report.cold.cold_remapped_handles, warm.remapped_handles),
        counts("waits for a stream", report.cold.cold_sync_waits, warm.sync_waits),
        counts("hits", report.cold.cold_pool_hits, warm.pool_hits),
        counts("misses", report.cold.cold_pool_misses, warm.pool_misses),
    ]
}

/// Times are left out where the simulated device charges nothing.
fn calls(report: &ReplayReport) -> Vec<Vec<TextCell>> {
    let timed = report.setting.latencies != Some("off");
    let time = |time: String| TextCell::figure(timed.then_some(time));
    let head = ["calls", "each", "in all"].map(|name| TextCell::figure(Some(name)));
    let mut rows = vec![[vec!["".into()], head.into()].concat()];
    rows.extend(report.cold_device_calls.iter().map(|cost| {
        let total = cost.total_ns as f64;
        let each = time(format!("{:.1} µs", total / cost.calls as f64 / 1e3));
        let total = time(format!("{:.2} ms", total / 1e6));
        vec![cost.call.name().into(), TextCell::figure(Some(cost.calls)), each, total]
    }));
    rows
}

fn never_freed(report: &ReplayReport) -> Vec<Vec<TextCell>> {
    let blocks = if report.leaks.never_freed_count == 1 { "block" } else { "blocks" };
    let count = format!("{} {blocks}", report.leaks.never_freed_count);
    let unit = SizeUnit::of([Some(report.leaks.never_freed_bytes)]);
    let mut rows = vec![row("in all", unit.text(report.leaks.never_freed_bytes), &count)];
    rows.extend(
        report
            .leaks
            .never_freed_largest
            .iter()
            .map(|block| row(&format!("id {}", block.id), unit.text(block.size_bytes), "")),
    );
    rows
}

fn threads(scaling: &super::threads::Scaling) -> Vec<TextCell> {
    let rate = scaling.events_per_s.map(|rate| format!("{:.2} M events/s", rate / 1e6));
    let note = match (&scaling.why, scaling.ratio) {
        (Some(why), _) => why.clone(),
        (None, Some(ratio)) => format!("{ratio:.2} of one thread"),
        (None, None) => String::new(),
    };
    row(&scaling.threads.to_string(), or_unknown(rate), &note)
}
