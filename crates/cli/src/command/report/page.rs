//! The report for people.

use plimsoll::Bytes;

use super::{DeviceReport, Report};
use crate::output::Answer;
use crate::page::{Cell, Page, Tone, or_unknown};

impl Answer for Report {
    fn page(&self, page: &mut Page) {
        for device in &self.devices {
            self.device(device, page);
        }
        self.system(page);
        page.heading("Recommendations");
        self.recommendations.iter().for_each(|advice| page.line(&format!("  - {advice}")));
        if !self.absent.is_empty() {
            page.heading("Not here");
            let row = |absent: &super::Absent| {
                vec![absent.backend.into(), Cell::new(&absent.why, Tone::Faint)]
            };
            page.table(&self.absent.iter().map(row).collect::<Vec<_>>());
        }
    }
}

impl Report {
    fn device(&self, device: &DeviceReport, page: &mut Page) {
        let how = &device.how;
        page.heading(&format!("Memory report ({})", device.device));
        let mut rows = vec![vec![Cell::from("Device"), device.name.clone().into()]];
        if let Some(capability) = &device.compute_capability {
            rows.push(vec!["Compute capability".into(), capability.clone().into()]);
        }
        // On unified memory the device has no figures of its own: the system's follow below.
        if device.unified != Some(true) {
            rows.push(size("Total memory", Some(device.total_bytes), how));
            rows.push(size("Used memory", device.used_bytes, how));
            rows.push(size("Free memory", device.free_bytes, how));
            let share = device.utilisation.map(|share| format!("{:.1} %", share * 100.0));
            rows.push(vec!["Utilisation".into(), Cell::figure(share), faint(how)]);
        }
        page.table(&rows);
        let pool = &device.allocator;
        page.heading(&format!("Allocator of this process ({})", device.device));
        page.table(&[
            size("Allocated", Some(pool.allocated_bytes), &pool.how),
            size("Reserved", Some(pool.reserved_bytes), &pool.how),
            size("Peak", Some(pool.peak_bytes), &pool.how),
            size("May hold", Some(pool.may_hold_bytes), "fraction and reserve of the default"),
            vec!["Pressure".into(), Cell::figure(Some(&device.pressure))],
        ]);
        device.recommendations.iter().for_each(|advice| page.line(&format!("  - {advice}")));
    }

    fn system(&self, page: &mut Page) {
        let (system, how) = (&self.system, self.system.how);
        let unified = self.unified == Some(true);
        page.heading(if unified { "System memory, which the GPU shares" } else { "System memory" });
        let sampled = |name, bytes: Option<u64>| {
            size(name, bytes, if bytes.is_some() { how } else { "unknown" })
        };
        let mut rows =
            vec![sampled("Total", system.total_bytes), sampled("Used", system.used_bytes)];
        if let Some(part) = system.gpu_codecs_cameras_bytes {
            let rest = system.used_bytes.and_then(|used| used.checked_sub(part));
            rows.push(size("├─ GPU, codecs, cameras", Some(part), "a part of what is used"));
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

fn size(name: &str, bytes: Option<u64>, how: &str) -> Vec<Cell> {
    vec![name.into(), Cell::figure(bytes.map(Bytes)), faint(how)]
}

fn faint(text: &str) -> Cell {
    Cell::new(or_unknown(Some(text)), Tone::Faint)
}
