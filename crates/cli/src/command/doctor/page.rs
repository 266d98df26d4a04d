//! The doctor's report for people.

use std::path::PathBuf;

use plimsoll::Bytes;

use super::backends::{Backend, Found, Gpu};
use super::limits::Limits;
use super::machine::{Machine, Memory};
use super::{Fact, Report};
use crate::output::Answer;
use crate::page::{Cell, Page, Tone, UNKNOWN, or_unknown};

impl Answer for Report {
    /// What can be used here, and what was required and cannot.
    fn bare(&self, page: &mut Page) {
        let available = self.backends.iter().filter(|backend| backend.available);
        let names: Vec<_> = available.map(|backend| backend.name.word()).collect();
        page.raw(&format!("{}\n", names.join(" ")));
        if !self.lacks.is_empty() {
            let lacks: Vec<_> = self.lacks.iter().map(|name| name.word()).collect();
            page.raw(&format!("missing: {}\n", lacks.join(" ")));
        }
    }

    fn page(&self, page: &mut Page) {
        page.heading("Machine");
        page.table(&machine(&self.machine));
        page.heading("Memory");
        page.table(&memory(&self.memory));
        self.gpus_page(page);
        page.heading("Backends");
        page.table(&self.backends.iter().map(backend).collect::<Vec<_>>());
        let devices: Vec<_> =
            self.backends.iter().flat_map(|backend| &backend.devices).map(device).collect();
        if !devices.is_empty() {
            page.heading("Devices");
            page.table(&devices);
        }
        page.heading("Limit");
        page.table(&limit(&self.limits));
        page.heading("Driver libraries");
        let library = |l: &super::Library| found(l.name, l.opens, l.path.as_ref(), l.remedy);
        page.table(&self.libraries.iter().map(library).collect::<Vec<_>>());
        page.advice("Looked for as files; whether they work stands under Backends.");
        page.heading("Tools");
        let tool = |t: &super::Tool| found(t.name, t.serves, t.path.as_ref(), t.remedy);
        page.table(&self.tools.iter().map(tool).collect::<Vec<_>>());
        self.permissions_page(page);
        if !self.lacks.is_empty() {
            let lacks = self.lacks.iter().map(|name| name.word()).collect::<Vec<_>>().join(", ");
            page.heading("Required, and unavailable");
            page.table(&[vec![Cell::new(lacks, Tone::Doubt)]]);
        }
    }
}

impl Report {
    fn gpus_page(&self, page: &mut Page) {
        page.heading("GPUs, by NVML");
        match (&self.gpus, &self.no_nvml) {
            (Some(gpus), _) if gpus.is_empty() => {
                page.table(&[vec![Cell::new("none", Tone::Doubt)]]);
            }
            (Some(gpus), _) => page.table(&gpus.iter().map(gpu).collect::<Vec<_>>()),
            (None, why) => {
                page.table(&[vec![
                    UNKNOWN.into(),
                    Cell::new(or_unknown(why.as_ref()), Tone::Faint),
                ]]);
            }
        }
    }

    fn permissions_page(&self, page: &mut Page) {
        if self.permissions.is_empty() {
            return;
        }
        page.heading("Permissions");
        let row = |p: &super::Permission| {
            let state = match p.readable {
                true => Cell::new("readable", Tone::Good),
                false => Cell::new("denied", Tone::Doubt),
            };
            let remedy = Cell::new(p.remedy.unwrap_or_default(), Tone::Faint);
            vec![p.path.into(), state, p.serves.into(), remedy]
        };
        page.table(&self.permissions.iter().map(row).collect::<Vec<_>>());
    }
}

fn machine(machine: &Machine) -> Vec<Vec<Cell>> {
    let mut rows = vec![
        text("system", &machine.distribution),
        text("kernel", &machine.os),
        text("release", &machine.kernel),
        text("arch", &machine.arch),
        text("processor", &machine.cpu_model),
        text("processors", &machine.cpus),
        text("usable here", &machine.cpus_usable),
        text("board", &machine.board),
    ];
    if machine.jetson {
        rows.push(text("Jetson Linux", &machine.l4t));
    }
    let unified = machine.unified.value.map(|yes| if yes { "yes" } else { "no" });
    rows.push(row("unified", or_unknown(unified).into(), &machine.unified));
    rows
}

fn memory(memory: &Memory) -> Vec<Vec<Cell>> {
    if let Some(why) = &memory.unreadable {
        return vec![vec![UNKNOWN.into(), Cell::new(why, Tone::Faint)]];
    }
    let mut rows = vec![
        size("total", &memory.total_bytes),
        size("available", &memory.available_bytes),
        size("free", &memory.free_bytes),
        size("swap", &memory.swap_total_bytes),
        size("swap free", &memory.swap_free_bytes),
    ];
    if memory.nvmap_used_bytes.value.is_some() {
        rows.push(size("of it GPU, codecs, cameras", &memory.nvmap_used_bytes));
    }
    rows
}

fn gpu(gpu: &Gpu) -> Vec<Cell> {
    let capability = gpu.compute_capability.as_ref().map(|cc| format!("compute {cc}"));
    vec![
        gpu.name.clone().into(),
        or_unknown(capability).into(),
        Cell::figure(gpu.total_bytes.map(Bytes)),
        format!("memory: {}", gpu.memory).into(),
        Cell::new(gpu.addressing.unwrap_or_default(), Tone::Faint),
    ]
}

fn backend(backend: &Backend) -> Vec<Cell> {
    let state = match backend.available {
        true => Cell::new("available", Tone::Good),
        false => Cell::new("unavailable", Tone::Doubt),
    };
    vec![backend.name.word().into(), state, Cell::new(&backend.why, Tone::Faint)]
}

fn device(found: &Found) -> Vec<Cell> {
    let unified =
        found.unified.map(|yes| if yes { "the system's memory" } else { "its own memory" });
    let about = match &found.problem {
        Some(problem) => problem.clone(),
        None => or_unknown(unified),
    };
    vec![
        found.device.clone().into(),
        or_unknown(found.name.as_ref()).into(),
        Cell::figure(found.total_bytes.map(Bytes)),
        format!("{} free", or_unknown(found.free_bytes.map(Bytes))).into(),
        Cell::new(about, Tone::Faint),
    ]
}

fn limit(limits: &Limits) -> Vec<Vec<Cell>> {
    let tone = if limits.limit_type == "hard" { Tone::Good } else { Tone::Doubt };
    let tried = if limits.verified { "tried, and held" } else { "not tried" };
    let mut rows = vec![
        vec![
            "limit type".into(),
            Cell::new(&limits.limit_type, tone),
            Cell::new(tried, Tone::Faint),
        ],
        vec![
            "default line".into(),
            Cell::figure(limits.limit_bytes.map(Bytes)),
            Cell::new(
                format!("effective {}", or_unknown(limits.effective_limit_bytes.map(Bytes))),
                Tone::Faint,
            ),
        ],
    ];
    let device = |limit: &super::limits::DeviceLimit| {
        vec![
            limit.device.clone().into(),
            limit.limit_type.clone().into(),
            Cell::new(&limit.why, Tone::Faint),
        ]
    };
    rows.extend(limits.devices.iter().map(device));
    let warning = |text| vec!["but".into(), Cell::default(), Cell::new(text, Tone::Faint)];
    rows.extend(limits.warnings.iter().map(warning));
    if let Some(remedy) = &limits.remedy {
        rows.push(vec!["remedy".into(), Cell::default(), Cell::new(remedy, Tone::Faint)]);
    }
    rows
}

fn found(name: &str, serves: &str, path: Option<&PathBuf>, remedy: Option<&str>) -> Vec<Cell> {
    let (state, more) = match path {
        Some(path) => (Cell::new("found", Tone::Good), path.display().to_string()),
        None => (Cell::new("not found", Tone::Doubt), remedy.unwrap_or(UNKNOWN).to_string()),
    };
    vec![name.into(), state, serves.into(), Cell::new(more, Tone::Faint)]
}

fn text<T: ToString>(name: &str, fact: &Fact<T>) -> Vec<Cell> {
    row(name, or_unknown(fact.value.as_ref().map(ToString::to_string)).into(), fact)
}

fn size(name: &str, fact: &Fact<u64>) -> Vec<Cell> {
    row(name, Cell::figure(fact.value.map(Bytes)), fact)
}

fn row<T>(name: &str, value: Cell, fact: &Fact<T>) -> Vec<Cell> {
    let how = fact.how.map_or("unknown", super::How::word);
    let origin = Cell::new(format!("{how}: {}", fact.source), Tone::Faint);
    vec![name.into(), value, origin]
}
