//! What happened in the run, for people.

use plimsoll::Bytes;

use super::answer::{BlockReport, RunDevice, RunReport};
use super::frame::frame_name;
use super::picture::NO_PYTHON_LINES;
use crate::output::Answer;
use crate::page::{SizeUnit, TextCell, TextPage, TextTone, UNKNOWN};

/// How many of a list are shown.
const SHOWN: usize = 5;
/// How many processes are shown.
const PROCESSES: usize = 20;

impl Answer for RunReport {
    fn page(&self, page: &mut TextPage) {
        page.line(&format!("plimsoll: {}", self.headline()));
        for device in &self.devices {
            page.table(&rows(device, self.limit.limit_bytes));
            self.picture(device, page);
            self.places(device, page);
        }
        self.processes(page);
        self.lists(page);
        let headline = self.headline();
        for warning in self.warnings.iter().skip(self.shown).filter(|text| **text != headline) {
            page.line(&format!("  note: {warning}"));
        }
        if self.lacks_python_lines() {
            page.line(&format!("  note: {NO_PYTHON_LINES}"));
        }
        for process in self.escaped() {
            let (pid, program, why) = (process.pid, &process.program, &process.why);
            page.line(&format!("  not limited: {program} ({pid}): {why}"));
        }
    }
}

impl RunReport {
    /// What is shown even with `-q`: memory that the limit did not cover, or may not have covered,
    /// and requests that were refused.
    pub(super) fn alarms(&self, page: &mut TextPage) {
        let alarm = self.is_over() || self.escaped().next().is_some();
        if alarm {
            page.line(&format!("plimsoll: {}", self.headline()));
        }
        let headline = self.headline();
        let more = self.alarming.iter().filter(|why| !alarm || **why != headline);
        more.for_each(|why| page.line(&format!("plimsoll: {why}")));
        let refused = |name: fn(&RunDevice) -> u64| self.devices.iter().map(name).sum::<u64>();
        let bytes = Bytes(refused(|device| device.refused_bytes));
        match refused(|device| device.refused) {
            0 => {}
            1 => page.line(&format!("plimsoll: one request for {bytes} was refused")),
            n => page.line(&format!("plimsoll: {n} requests for {bytes} in all were refused")),
        }
    }

    pub(super) fn headline(&self) -> String {
        if let Some(why) = self.uncounted {
            return why.to_string();
        }
        if !self.cuda.used {
            return match (self.escaped().count(), self.cuda.guarded_programs) {
                (1.., _) => {
                    "the guard did not limit processes that may have used the GPU".to_string()
                }
                (0, 0) => "the guard reached no program; GPU memory was not watched".to_string(),
                (0, _) => {
                    "no program used the CUDA driver through the guard; there was nothing to limit"
                        .to_string()
                }
            };
        }
        let over = self.is_over();
        let mut line = match (self.limit.effective_limit_bytes.or(self.limit.limit_bytes), over) {
            (None, _) => "GPU memory was counted, with no limit".to_string(),
            (Some(limit), false) if self.devices.iter().all(|d| d.limit_bytes == Some(limit)) => {
                format!("GPU memory stayed within {}", Bytes(limit))
            }
            (Some(_), false) => "GPU memory stayed within the limit of every device".to_string(),
            (Some(_), true) => {
                let over = self.over().map(|device| match device.limit_bytes {
                    Some(limit) => format!("{} on {}", Bytes(limit), device.device),
                    None => device.device.clone(),
                });
                let over = over.collect::<Vec<_>>().join(" and ");
                format!("the driver itself took GPU memory past {over}; raise --reserve")
            }
        };
        match self.escaped().count() {
            0 => {}
            1 => line += "; one process was not limited",
            n => line += &format!("; {n} processes were not limited"),
        }
        line
    }

    fn processes(&self, page: &mut TextPage) {
        let mut table = Vec::new();
        if !self.processes.is_empty() {
            let names = ["process", "peak", "allocated", "freed", "refused", "never freed"];
            table.push(names.map(TextCell::from).to_vec());
        }
        let sizes = self.processes.iter().flat_map(|p| [p.peak_bytes, Some(p.never_freed_bytes)]);
        let unit = SizeUnit::of(sizes);
        for process in self.processes.iter().take(PROCESSES) {
            table.push(vec![
                format!("{} {}", process.pid, process.program).into(),
                unit.figure(process.peak_bytes),
                TextCell::figure(Some(process.allocations)),
                TextCell::figure(Some(process.frees)),
                TextCell::figure(Some(process.refused)),
                unit.figure(Some(process.never_freed_bytes)),
            ]);
        }
        page.table(&table);
        if let Some(more @ 1..) = self.processes.len().checked_sub(PROCESSES) {
            page.line(&format!("  and {more} more; --json and --report have them all"));
        }
    }

    fn lists(&self, page: &mut TextPage) {
        let list = |page: &mut TextPage, name: &str, blocks: &[BlockReport]| {
            let unit = SizeUnit::of(blocks.iter().map(|block| Some(block.bytes)));
            if !blocks.is_empty() {
                page.raw(&format!("  {name}\n"));
                let mut before: &[String] = &[];
                for block in blocks.iter().take(SHOWN) {
                    show(page, block, before, unit);
                    before = &block.stack;
                }
            }
        };
        list(page, "largest blocks", &self.largest);
        if self.never_freed.blocks > 0 {
            let (bytes, blocks) = (Bytes(self.never_freed.bytes), self.never_freed.blocks);
            let name = match blocks {
                1 => format!("never freed: {bytes} in one block"),
                _ => format!("never freed: {bytes} in {blocks} blocks"),
            };
            list(page, &name, &self.never_freed.largest);
        }
    }
}

/// One block, and where it was allocated, unless the one before was from the same place.
fn show(page: &mut TextPage, block: &BlockReport, before: &[String], unit: SizeUnit) {
    let until = block.to_seconds.map_or_else(|| UNKNOWN.to_string(), |to| format!("{to:.3} s"));
    let size = unit.text(block.bytes);
    let line = format!("    {size}  {}  {:.3} s to {until}", block.kind, block.from_seconds);
    if !before.is_empty() && block.stack == before {
        return page.raw(&format!("{line}, from the same place\n"));
    }
    page.raw(&format!("{line}\n"));
    for frame in block.stack.iter().take(8) {
        page.raw(&format!("      {}\n", frame_name(frame)));
    }
}

/// Why a device's limit is below what was asked for.
pub(super) fn lowered(device: &RunDevice, asked: Option<u64>) -> Option<String> {
    let asked = asked.filter(|asked| device.unified && device.limit_bytes < Some(*asked))?;
    Some(format!("{} was asked for; the GPU shares the system's memory", Bytes(asked)))
}

fn rows(device: &RunDevice, asked: Option<u64>) -> Vec<Vec<TextCell>> {
    let sizes = [device.limit_bytes, Some(device.peak_bytes), Some(device.refused_bytes)];
    let unit = SizeUnit::of(sizes);
    let row = |name: &str, bytes: Option<u64>, note: String| {
        vec![name.into(), unit.figure(bytes), TextCell::new(note, TextTone::Faint)]
    };
    let refused = match device.refused {
        0 => "nothing was refused".to_string(),
        1 => "in 1 request that was refused".to_string(),
        n => format!("in {n} requests that were refused"),
    };
    let drivers = match device.driver_bytes {
        Some(_) => "measured, and part of the peak",
        None => "could not be measured, so it is not in the peak",
    };
    vec![
        vec![device.device.as_str().into()],
        row("limit", device.limit_bytes, lowered(device, asked).unwrap_or_default()),
        row(
            "peak",
            Some(device.peak_bytes),
            format!("counted; at {:.3} s", device.peak_at_seconds),
        ),
        row("the driver's own", device.driver_bytes, drivers.into()),
        row("refused", Some(device.refused_bytes), refused),
        row("residue", device.residue_bytes, "what the driver reported beyond it, at most".into()),
    ]
}
