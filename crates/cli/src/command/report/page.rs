//! The report for people.

use plimsoll::Bytes;

use super::{DeviceReport, MachineReport};
use crate::output::Answer;
use crate::page::{TextCell, TextPage, TextTone, or_unknown};

impl Answer for MachineReport {
    /// What is used of what there is: the devices that have memory of their own, and the system.
    fn bare(&self, page: &mut TextPage) {
        let of = |used: Option<u64>, total: Option<u64>| {
            format!("{} of {} used", or_unknown(used.map(Bytes)), or_unknown(total.map(Bytes)))
        };
        for device in self.devices.iter().filter(|device| device.unified == Some(false)) {
            let used = of(device.used_bytes, Some(device.total_bytes));
            page.raw(&format!("{}: {used}\n", device.device));
        }
        let system = &self.system;
        page.raw(&format!("system: {}\n", of(system.used_bytes, system.total_bytes)));
    }

    fn page(&self, page: &mut TextPage) {
        for device in &self.devices {
            self.device(device, page);
        }
        self.system(page);
        page.heading("Recommendations");
        self.recommendations.iter().for_each(|advice| page.line(&format!("  - {advice}")));
        if !self.absent.is_empty() {
            page.heading("Not here");
            let row = |absent: &super::Absent| {
                vec![absent.backend.into(), TextCell::new(&absent.why, TextTone::Faint)]
            };
            page.table(&self.absent.iter().map(row).collect::<Vec<_>>());
        }
    }
}

impl MachineReport {
    fn device(&self, device: &DeviceReport, page: &mut TextPage) {
        let how = &device.how;
        page.heading(&format!("Memory report ({})", device.device));
        let mut rows = vec![vec![TextCell::from("Device"), device.name.clone().into()]];
        if let Some(capability) = &device.compute_capability {
            rows.push(vec!["Compute capability".into(), capability.clone().into()]);
        }
        // On unified memory the device has no figures of its own: the system's follow below.
        if device.unified != Some(true) {
            rows.push(size("Total memory", Some(device.total_bytes), how));
            rows.push(size("Used memory", device.used_bytes, how));
            rows.push(size("Free memory", device.free_bytes, how));
            let share = device.utilisation.map(|share| format!("{:.1} %", share * 100.0));
            rows.push(vec!["Utilisation".into(), TextCell::figure(share), faint(how)]);
        }
        page.table(&rows);
        let pool = &device.allocator;
        page.heading(&format!("Allocator of this process ({})", device.device));
        page.table(&[
            size("Allocated", Some(pool.allocated_bytes), &pool.how),
            size("Reserved", Some(pool.reserved_bytes), &pool.how),
            size("Peak", Some(pool.peak_bytes), &pool.how),
            size("May hold", Some(pool.may_hold_bytes), "fraction and reserve of the default"),
            vec!["Pressure".into(), TextCell::figure(Some(&device.pressure))],
        ]);
        device.recommendations.iter().for_each(|advice| page.line(&format!("  - {advice}")));
    }

    fn system(&self, page: &mut TextPage) {
        let (system, how) = (&self.system, self.system.how);
        let unified = self.unified == Some(true);
        let board = self.board.as_ref().map_or(String::new(), |board| format!(" ({board})"));
        page.heading(&match unified {
            true => format!("System memory, which the GPU shares{board}"),
            false => "System memory".to_string(),
        });
        let sampled = |name, bytes: Option<u64>| {
            size(name, bytes, if bytes.is_some() { how } else { "unknown" })
        };
        let mut rows =
            vec![sampled("Total", system.total_bytes), sampled("Used", system.used_bytes)];
        if let Some(part) = system.gpu_codecs_cameras_bytes {
            let rest = system.used_bytes.and_then(|used| used.checked_sub(part));
            let share = system.used_bytes.filter(|used| *used > 0);
            let share = share.map(|used| format!("{:.1} %", part as f64 / used as f64 * 100.0));
            let note = format!("{} of what is used", share.as_deref().unwrap_or("a part"));
            rows.push(size("├─ GPU, codecs, cameras", Some(part), &note));
            rows.push(size("└─ everything else", rest, "the rest"));
        }
        rows.push(size("Available", system.available_bytes, "the measure of safety"));
        if unified {
            let about = "for one GPU allocation: MemFree, without the page cache";
            rows.push(size("Largest single", system.largest_single_bytes, about));
        }
        if let Some(all) = self.used_in_all_bytes {
            rows.push(size("Used with the GPUs'", Some(all), "memory of its own is added"));
        }
        let word = match self.unified {
            Some(true) => "unified memory",
            Some(false) => "discrete GPU",
            None => "not known",
        };
        rows.push(vec!["Architecture".into(), word.into(), faint(&self.because)]);
        page.table(&rows);
    }
}

fn size(name: &str, bytes: Option<u64>, how: &str) -> Vec<TextCell> {
    vec![name.into(), TextCell::figure(bytes.map(Bytes)), faint(how)]
}

fn faint(text: &str) -> TextCell {
    TextCell::new(or_unknown(Some(text)), TextTone::Faint)
}
