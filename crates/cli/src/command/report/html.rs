//! The report as a page: the same order as in the terminal.

use std::time::Duration;

use maud::{Markup, html};

use super::answer::MachineReport;
use super::holders::{GpuHolders, MemoryHolder};
use crate::html::{document, facts, safe, section, share_bar, size};
use crate::page::{SizeUnit, cut, or_unknown};

/// As much of a command line says what a process is; one may fill a screen.
const LONGEST_TITLE: usize = 160;

/// The report as one file. A page that is written again and again loads itself as often.
pub(super) fn render(report: &MachineReport, again: Option<Duration>) -> String {
    let refresh = again.map(|interval| interval.as_secs().max(1));
    let title = match &report.most {
        Some(most) => format!("Process {} holds the most memory", most.pid),
        None => "Who holds the memory".to_string(),
    };
    let body = html! {
        (headline(report))
        @for gpu in &report.gpus { (gpu_section(gpu)) }
        (system_section(report))
        (actions(report))
    };
    document(&title, &format!("plimsoll report, {}", report.system.how), refresh, &body)
}

fn headline(report: &MachineReport) -> Markup {
    let Some(most) = &report.most else { return html! {} };
    let unit = SizeUnit::of([Some(most.bytes)]);
    let share = most
        .share
        .map_or_else(String::new, |share| format!(", {:.0} % of what is in use", share * 100.0));
    let mut rows = vec![
        ("process", format!("{} {}", most.pid, cut(&most.title, LONGEST_TITLE))),
        ("holds", format!("{} of {}{share}", unit.text(most.bytes), most.place())),
    ];
    rows.extend(most.user.as_ref().map(|user| ("user", user.clone())));
    rows.extend(most.container.as_ref().map(|container| ("container", container.clone())));
    section(
        "Most memory",
        &html! {
            (facts(rows))
            @match &most.end_command {
                Some(command) => { p.why { "To end it:" } code.do { (safe(command)) } },
                None => p.why { "It draws the desktop: to end it ends the session." },
            }
        },
    )
}

fn used_text(used: Option<u64>, total: Option<u64>) -> String {
    let unit = SizeUnit::of([used, total]);
    match total {
        Some(total) => {
            format!("{} of {}", or_unknown(used.map(|used| unit.number(used))), unit.text(total))
        }
        None => size(unit, used),
    }
}

fn gauge(used: Option<u64>, total: Option<u64>) -> Markup {
    let share = used.zip(total).filter(|(_, total)| *total > 0).map(|(u, t)| u as f64 / t as f64);
    html! {
        p { (used_text(used, total)) " used" @if let Some(share) = share { (format!(", {:.0} %", share * 100.0)) } }
        @if let Some(share) = share { (share_bar(share)) }
    }
}

fn gpu_section(gpu: &GpuHolders) -> Markup {
    let name = gpu.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let mut rest = Vec::new();
    rest.extend(
        gpu.driver_bytes
            .map(|bytes| (bytes, "the driver, and processes that this user cannot see")),
    );
    rest.extend(gpu.free_bytes.map(|bytes| (bytes, "free")));
    section(
        &format!("GPU {}{name}", gpu.index),
        &html! {
            (gauge(gpu.used_bytes, gpu.total_bytes))
            (holders(&gpu.processes, &rest, gpu.used_bytes))
            @if gpu.hides_its_processes() { p.why { "No process can be seen here: see below." } }
        },
    )
}

fn holders(all: &[MemoryHolder], rest: &[(u64, &str)], used: Option<u64>) -> Markup {
    if all.is_empty() && rest.is_empty() {
        return html! {};
    }
    let unit = SizeUnit::of(
        all.iter().map(|h| Some(h.bytes)).chain(rest.iter().map(|r| Some(r.0))).chain([used]),
    );
    let shares = |holder: &MemoryHolder| {
        or_unknown(holder.share.map(|share| format!("{:.0} %", share * 100.0)))
    };
    html! {
        div.wide {
            table.numbers.holders {
                tr { th.name { "process" } th { "pid" } th { "holds" } th { "share" } th {} th { "user" } th { "container" } }
                @for holder in all {
                    tr {
                        td.name { (safe(&cut(holder.title(), LONGEST_TITLE))) }
                        td data-name="pid" { b { (holder.pid) } }
                        td data-name="holds" { (unit.text(holder.bytes)) }
                        td data-name="share" { (shares(holder)) }
                        td.bar-cell { (share_bar(holder.share.unwrap_or(0.0))) }
                        td data-name="user" { (safe(&or_unknown(holder.user.as_ref()))) }
                        td data-name="container" { (safe(&or_unknown(holder.container.as_ref()))) }
                    }
                }
                @for (bytes, what) in rest {
                    tr.rest { td.name { (what) } td {} td data-name="holds" { (unit.text(*bytes)) } td {} td {} td {} td {} }
                }
            }
        }
    }
}

fn system_section(report: &MachineReport) -> Markup {
    let system = &report.system;
    let unit = SizeUnit::of([system.total_bytes]);
    let mut rows = vec![("available", size(unit, system.available_bytes))];
    rows.extend(
        system.page_cache_bytes.map(|bytes| ("page cache, not counted as used", unit.text(bytes))),
    );
    rows.extend(
        system
            .gpu_codecs_cameras_bytes
            .map(|bytes| ("of it GPU, codecs, cameras", unit.text(bytes))),
    );
    rows.extend(
        system
            .largest_single_bytes
            .filter(|_| report.unified == Some(true))
            .map(|bytes| ("largest free, for one GPU allocation", unit.text(bytes))),
    );
    let name = if report.unified == Some(true) {
        "System memory, which the GPU shares"
    } else {
        "System memory"
    };
    section(
        name,
        &html! {
            (gauge(system.used_bytes, system.total_bytes))
            (facts(rows))
            (holders(&system.processes, &[], system.used_bytes))
            @if !system.processes.is_empty() {
                p.why { "Resident memory: pages that processes share count for each of them." }
            }
        },
    )
}

fn actions(report: &MachineReport) -> Markup {
    let list = html! {
        ul.actions {
            @for action in &report.actions {
                li { (safe(&action.why)) code.do { (safe(&action.command)) } }
            }
        }
    };
    section("What to do", &list)
}
