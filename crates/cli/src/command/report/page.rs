//! The report for people.

use plimsoll::Bytes;

use super::answer::{MachineReport, MostHeld};
use super::holders::{GpuHolders, MemoryHolder};
use crate::chart::{bar, gauge};
use crate::output::Answer;
use crate::page::{SizeUnit, TextCell, TextPage, TextTone, cut, fold, or_unknown};
use crate::reason::brief;

/// The width of a page that no terminal bounds.
const USUAL_WIDTH: usize = 100;
/// How many processes of a memory are shown; --json has more.
const SHOWN: usize = 8;

impl Answer for MachineReport {
    /// What is used of what there is: the devices that have memory of their own, by their drivers or
    /// else by the probes, and the system.
    fn bare(&self, page: &mut TextPage) {
        let of = |used: Option<u64>, total: Option<u64>| {
            format!("{} of {} used", or_unknown(used.map(Bytes)), or_unknown(total.map(Bytes)))
        };
        let separate = self.devices.iter().filter(|device| device.unified == Some(false));
        let told: Vec<_> = separate.filter(|device| device.used_bytes.is_some()).collect();
        for device in &told {
            let used = of(device.used_bytes, Some(device.total_bytes));
            page.raw(&format!("{}: {used}\n", device.device));
        }
        for gpu in self.gpus.iter().filter(|gpu| told.is_empty() && !gpu.unified) {
            page.raw(&format!("GPU {}: {}\n", gpu.index, of(gpu.used_bytes, gpu.total_bytes)));
        }
        let system = &self.system;
        page.raw(&format!("system: {}\n", of(system.used_bytes, system.total_bytes)));
    }

    fn page(&self, page: &mut TextPage) {
        if let Some(most) = &self.most {
            headline(most, page);
        }
        for gpu in &self.gpus {
            gpu_page(gpu, page);
        }
        self.system_page(page);
        self.devices_page(page);
        page.heading("What to do");
        let width = page.width().unwrap_or(USUAL_WIDTH).saturating_sub(4);
        for action in &self.actions {
            for (at, line) in fold(&action.why, width).iter().enumerate() {
                page.line(&format!("  {} {line}", if at == 0 { '-' } else { ' ' }));
            }
            page.unbroken(&format!("      {}", action.command), TextTone::Strong);
        }
        if !self.absent.is_empty() {
            page.heading("Not here");
            let verbose = page.is_verbose();
            let row = |absent: &super::devices::Absent| {
                let why = if verbose { absent.why.clone() } else { brief(&absent.why) };
                vec![absent.backend.into(), TextCell::new(why, TextTone::Faint)]
            };
            page.table(&self.absent.iter().map(row).collect::<Vec<_>>());
        }
    }
}

/// Who holds the most, and what ends it.
fn headline(most: &MostHeld, page: &mut TextPage) {
    let width = page.width().unwrap_or(USUAL_WIDTH);
    let unit = SizeUnit::of([Some(most.bytes)]);
    let share = most
        .share
        .map_or_else(String::new, |share| format!(", {:.0} % of what is in use", share * 100.0));
    page.heading(&cut(&format!("Process {} holds the most: {}", most.pid, most.title), width));
    page.line(&format!("  {} of {}{share}", unit.text(most.bytes), most.place()));
    let more: Vec<String> = [
        most.user.as_ref().map(|user| format!("user {user}")),
        most.container.as_ref().map(|container| format!("container {container}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !more.is_empty() {
        page.line(&format!("  {}", more.join(", ")));
    }
    match &most.end_command {
        Some(command) => page.unbroken(&format!("  to end it: {command}"), TextTone::Strong),
        None => page.line("  it draws the desktop: to end it ends the session"),
    }
}

/// A device's name and how full it is, in one line.
fn used_line(name: &str, used: Option<u64>, total: Option<u64>, page: &mut TextPage) {
    let unit = SizeUnit::of([used, total]);
    let share = used.zip(total).filter(|(_, total)| *total > 0).map(|(u, t)| u as f64 / t as f64);
    let amount = match total {
        Some(total) => {
            format!("{} of {}", or_unknown(used.map(|used| unit.number(used))), unit.text(total))
        }
        None => or_unknown(used.map(|used| unit.text(used))),
    };
    let full = share.map_or_else(String::new, |share| format!(", {:.0} %", share * 100.0));
    let width = page.width().unwrap_or(USUAL_WIDTH);
    let line = format!("{name}: {amount} used{full}");
    if page.width().is_some_and(|width| line.chars().count() > width) {
        page.heading(&cut(name, width));
        page.line(&format!("  {amount} used{full}"));
    } else {
        page.heading(&line);
    }
    let Some(share) = share else { return };
    let tone = match share {
        full if full >= 0.95 => TextTone::Bad,
        high if high >= 0.8 => TextTone::Doubt,
        _ => TextTone::Good,
    };
    page.toned(&format!("  {}", gauge(share, width.saturating_sub(2).min(76))), tone);
}

fn gpu_page(gpu: &GpuHolders, page: &mut TextPage) {
    let name = gpu.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let name = format!("GPU {}{name}", gpu.index);
    used_line(&name, gpu.used_bytes, gpu.total_bytes, page);
    let mut rest = Vec::new();
    if let Some(bytes) = gpu.driver_bytes {
        rest.push((bytes, "the driver, and processes that this user cannot see"));
    }
    if let Some(bytes) = gpu.free_bytes {
        rest.push((bytes, "free; no driver reports how much of it is in one piece"));
    }
    holders_table(&gpu.processes, &rest, gpu.used_bytes, page);
    if gpu.hides_its_processes() {
        page.advice("no process can be seen here: see below");
    }
}

/// Processes with bars, and lines for what is left.
fn holders_table(
    holders: &[MemoryHolder],
    rest: &[(u64, &str)],
    used: Option<u64>,
    page: &mut TextPage,
) {
    let width = page.width().unwrap_or(USUAL_WIDTH);
    let shown = &holders[..holders.len().min(SHOWN)];
    let sizes = shown.iter().map(|holder| holder.bytes).chain(rest.iter().map(|(bytes, _)| *bytes));
    let unit = SizeUnit::of(sizes.map(Some).chain([used]));
    if !shown.is_empty() {
        page.table(&HolderColumns::new(shown, width).rows(shown, unit));
    }
    if holders.len() > SHOWN {
        page.advice(&format!("and {} more; --json has them", holders.len() - SHOWN));
    }
    let row = |(bytes, what): &(u64, &str)| {
        vec![unit.figure(Some(*bytes)), TextCell::new(what, TextTone::Faint)]
    };
    page.table(&rest.iter().map(row).collect::<Vec<_>>());
}

/// Which columns a table of holders has, and how wide those are that give way.
struct HolderColumns {
    bar: usize,
    name: usize,
    has_users: bool,
    has_containers: bool,
    /// Whether there is room for who runs a container, beside its number.
    says_runtime: bool,
}

impl HolderColumns {
    fn new(shown: &[MemoryHolder], width: usize) -> HolderColumns {
        let widest = |of: fn(&MemoryHolder) -> Option<&String>| {
            shown.iter().filter_map(of).map(|text| text.chars().count()).max()
        };
        let users = widest(|holder| holder.user.as_ref());
        let containers = widest(|holder| holder.container.as_ref());
        let bar = if width >= 100 { 20 } else { 10 };
        let says_runtime = width >= 100;
        // Two blanks before each column; size, share and number take 8, 5 and 7.
        let mut taken = (2 + 8) + (2 + bar) + (2 + 5) + (2 + 7) + 2;
        taken += users.map_or(0, |width| width.max(4) + 2);
        taken += containers.map_or(0, |width| if says_runtime { width + 2 } else { 14 });
        HolderColumns {
            bar,
            name: width.saturating_sub(taken).max(16),
            has_users: users.is_some(),
            has_containers: containers.is_some(),
            says_runtime,
        }
    }

    fn rows(&self, shown: &[MemoryHolder], unit: SizeUnit) -> Vec<Vec<TextCell>> {
        let mut names: Vec<TextCell> = vec![TextCell::figure(Some(unit.name())), "".into()];
        names.extend(["share", "pid"].map(|name| TextCell::figure(Some(name))));
        names.extend(self.has_users.then(|| TextCell::from("user")));
        names.push("process".into());
        names.extend(self.has_containers.then(|| TextCell::from("container")));
        let names = names.into_iter().map(|cell| cell.toned(TextTone::Faint)).collect();
        std::iter::once(names).chain(shown.iter().map(|holder| self.row(holder, unit))).collect()
    }

    fn row(&self, holder: &MemoryHolder, unit: SizeUnit) -> Vec<TextCell> {
        let mut row = vec![
            TextCell::figure(Some(unit.number(holder.bytes))),
            bar(holder.share.unwrap_or(0.0), self.bar).into(),
            TextCell::figure(holder.share.map(|share| format!("{:.0} %", share * 100.0))),
            TextCell::figure(Some(holder.pid)).toned(TextTone::Strong),
        ];
        row.extend(self.has_users.then(|| or_unknown(holder.user.as_ref()).into()));
        row.push(cut(holder.title(), self.name).into());
        let container = holder.container.as_deref().map(|text| match text.split_once(' ') {
            Some((_, id)) if !self.says_runtime => id,
            _ => text,
        });
        let container = || TextCell::new(or_unknown(container), TextTone::Faint);
        row.extend(self.has_containers.then(container));
        row
    }
}

impl MachineReport {
    fn system_page(&self, page: &mut TextPage) {
        let system = &self.system;
        let unified = self.unified == Some(true);
        let board = self.board.as_ref().map_or(String::new(), |board| format!(" ({board})"));
        let name = match unified {
            true => format!("System memory, which the GPU shares{board}"),
            false => "System memory".to_string(),
        };
        used_line(&name, system.used_bytes, system.total_bytes, page);
        let unit = SizeUnit::of([system.total_bytes, system.used_bytes]);
        let size = |name: &str, bytes: Option<u64>, how: &str| {
            vec![name.into(), unit.figure(bytes), TextCell::new(how, TextTone::Faint)]
        };
        let mut rows = Vec::new();
        if let Some(part) = system.gpu_codecs_cameras_bytes {
            let rest = system.used_bytes.and_then(|used| used.checked_sub(part));
            let share = system.used_bytes.filter(|used| *used > 0);
            let share = share.map(|used| format!("{:.1} %", part as f64 / used as f64 * 100.0));
            let note = format!("{} of what is used", share.as_deref().unwrap_or("a part"));
            rows.push(size("used by GPU, codecs, cameras", Some(part), &note));
            rows.push(size("used by everything else", rest, "the rest"));
        }
        rows.push(size("available", system.available_bytes, "what programs can still get"));
        if system.page_cache_bytes.is_some() {
            let about =
                "files that the kernel drops when programs need memory; not counted as used";
            rows.push(size("page cache", system.page_cache_bytes, about));
        }
        if unified {
            let about =
                "the most that one GPU allocation can have: MemFree, without the page cache";
            rows.push(size("largest free", system.largest_single_bytes, about));
        }
        if let Some(all) = self.used_in_all_bytes {
            rows.push(size("used with the GPUs'", Some(all), "memory of their own is added"));
        }
        page.table(&rows);
        let on_gpus = self.gpus.iter().any(|gpu| !gpu.processes.is_empty());
        // Where the GPUs have holders, those are what the reader came for.
        let holders = if on_gpus {
            &system.processes[..system.processes.len().min(3)]
        } else {
            &system.processes[..]
        };
        if !holders.is_empty() {
            holders_table(holders, &[], system.used_bytes, page);
            page.advice(
                "resident memory, sampled: pages that processes share count for each of them",
            );
        }
        if self.unified.is_none() || page.is_verbose() {
            page.advice(&format!(
                "unified memory: {}; {}",
                match self.unified {
                    Some(true) => "yes",
                    Some(false) => "no",
                    None => "not known",
                },
                self.because
            ));
        }
    }

    /// Devices as their drivers report them, in one table.
    fn devices_page(&self, page: &mut TextPage) {
        let shown: Vec<_> = self
            .devices
            .iter()
            .filter(|device| device.device != "cpu" || page.is_verbose())
            .collect();
        if shown.is_empty() {
            return;
        }
        page.heading("Devices, as their drivers report them");
        let sizes = shown.iter().flat_map(|d| [Some(d.total_bytes), d.used_bytes, d.free_bytes]);
        let unit = SizeUnit::of(sizes);
        // A later report of a watch has no figures of use, and no columns for them.
        let has_use = shown.iter().any(|device| device.pressure.is_some());
        let columns = |cells: [TextCell; 6]| -> Vec<TextCell> {
            let of_use = [false, true, true, false, true, false];
            let kept = cells.into_iter().zip(of_use).filter(|(_, of_use)| has_use || !of_use);
            kept.map(|(cell, _)| cell).collect()
        };
        let names = ["device", "used", "free", "total", "pressure", "name"];
        let mut rows = vec![columns(names.map(|name| TextCell::new(name, TextTone::Faint)))];
        for device in &shown {
            let capability = device.compute_capability.as_ref();
            let capability = capability.map_or_else(String::new, |cc| format!(", compute {cc}"));
            rows.push(columns([
                device.device.clone().into(),
                unit.figure(device.used_bytes),
                unit.figure(device.free_bytes),
                unit.figure(Some(device.total_bytes)),
                or_unknown(device.pressure.as_ref()).into(),
                format!("{}{capability}", device.name).into(),
            ]));
        }
        page.table(&rows);
        let verbose = page.is_verbose();
        for pool in shown.iter().filter(|_| verbose).map(|device| &device.allocator) {
            let [held, peak, most] = [pool.reserved_bytes, pool.peak_bytes, pool.may_hold_bytes]
                .map(|bytes| unit.text(bytes));
            page.advice(&format!(
                "our own {} reserves {held} ({}), {peak} at most, and may hold {most}",
                pool.name, pool.how
            ));
        }
    }
}
