//! The doctor's report for people.

use std::path::PathBuf;

use plimsoll::Bytes;

use super::backends::{DoctorBackend, DoctorDevice, DoctorGpu};
use super::limits::DoctorLimits;
use super::machine::{DoctorMachine, DoctorMemory};
use super::{DoctorReport, Fact};
use crate::output::Answer;
use crate::page::{TextCell, TextPage, TextTone, UNKNOWN, or_unknown};

impl Answer for DoctorReport {
    /// What can be used here, and what was required and cannot.
    fn bare(&self, page: &mut TextPage) {
        let available = self.backends.iter().filter(|backend| backend.available);
        let names: Vec<_> = available.map(|backend| backend.name.word()).collect();
        page.raw(&format!("{}\n", names.join(" ")));
        if !self.lacks.is_empty() {
            let lacks: Vec<_> = self.lacks.iter().map(|name| name.word()).collect();
            page.raw(&format!("missing: {}\n", lacks.join(" ")));
        }
    }

    fn page(&self, page: &mut TextPage) {
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
        let library = |l: &super::DoctorLibrary| found(l.name, l.opens, l.path.as_ref(), l.remedy);
        page.table(&self.libraries.iter().map(library).collect::<Vec<_>>());
        page.advice("Looked for as files; whether they work: see Backends.");
        page.heading("Tools");
        let tool = |t: &super::Tool| found(t.name, t.serves, t.path.as_ref(), t.remedy);
        page.table(&self.tools.iter().map(tool).collect::<Vec<_>>());
        self.permissions_page(page);
        if !self.lacks.is_empty() {
            let lacks = self.lacks.iter().map(|name| name.word()).collect::<Vec<_>>().join(", ");
            page.heading("Required, and unavailable");
            page.table(&[vec![TextCell::new(lacks, TextTone::Doubt)]]);
        }
    }
}

impl DoctorReport {
    fn gpus_page(&self, page: &mut TextPage) {
        page.heading("GPUs, by NVML");
        match (&self.gpus, &self.no_nvml) {
            (Some(gpus), _) if gpus.is_empty() => {
                page.table(&[vec![TextCell::new("none", TextTone::Doubt)]]);
            }
            (Some(gpus), _) => page.table(&gpus.iter().map(gpu).collect::<Vec<_>>()),
            (None, why) => {
                page.table(&[vec![
                    UNKNOWN.into(),
                    TextCell::new(or_unknown(why.as_ref()), TextTone::Faint),
                ]]);
            }
        }
    }

    fn permissions_page(&self, page: &mut TextPage) {
        if self.permissions.is_empty() {
            return;
        }
        page.heading("Permissions");
        let row = |p: &super::Permission| {
            let state = match p.readable {
                true => TextCell::new("readable", TextTone::Good),
                false => TextCell::new("denied", TextTone::Doubt),
            };
            let remedy = TextCell::new(p.remedy.unwrap_or_default(), TextTone::Faint);
            vec![p.path.into(), state, p.serves.into(), remedy]
        };
        page.table(&self.permissions.iter().map(row).collect::<Vec<_>>());
    }
}

fn machine(machine: &DoctorMachine) -> Vec<Vec<TextCell>> {
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

fn memory(memory: &DoctorMemory) -> Vec<Vec<TextCell>> {
    if let Some(why) = &memory.unreadable {
        return vec![vec![UNKNOWN.into(), TextCell::new(why, TextTone::Faint)]];
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

fn gpu(gpu: &DoctorGpu) -> Vec<TextCell> {
    let capability = gpu.compute_capability.as_ref().map(|cc| format!("compute {cc}"));
    vec![
        gpu.name.clone().into(),
        or_unknown(capability).into(),
        TextCell::figure(gpu.total_bytes.map(Bytes)),
        format!("memory: {}", gpu.memory).into(),
        TextCell::new(gpu.addressing.unwrap_or_default(), TextTone::Faint),
    ]
}

fn backend(backend: &DoctorBackend) -> Vec<TextCell> {
    let state = match backend.available {
        true => TextCell::new("available", TextTone::Good),
        false => TextCell::new("unavailable", TextTone::Doubt),
    };
    vec![backend.name.word().into(), state, TextCell::new(&backend.why, TextTone::Faint)]
}

fn device(found: &DoctorDevice) -> Vec<TextCell> {
    let unified =
        found.unified.map(|yes| if yes { "the system's memory" } else { "its own memory" });
    let about = match &found.problem {
        Some(problem) => problem.clone(),
        None => or_unknown(unified),
    };
    vec![
        found.device.clone().into(),
        or_unknown(found.name.as_ref()).into(),
        TextCell::figure(found.total_bytes.map(Bytes)),
        format!("{} free", or_unknown(found.free_bytes.map(Bytes))).into(),
        TextCell::new(about, TextTone::Faint),
    ]
}

fn limit(limits: &DoctorLimits) -> Vec<Vec<TextCell>> {
    let tone = if limits.limit_type == "hard" { TextTone::Good } else { TextTone::Doubt };
    let tried = if limits.verified { "tested and enforced" } else { "not tested" };
    let mut rows = vec![
        vec![
            "limit type".into(),
            TextCell::new(&limits.limit_type, tone),
            TextCell::new(tried, TextTone::Faint),
        ],
        vec![
            "default limit".into(),
            TextCell::figure(limits.limit_bytes.map(Bytes)),
            TextCell::new(
                format!("effective {}", or_unknown(limits.effective_limit_bytes.map(Bytes))),
                TextTone::Faint,
            ),
        ],
    ];
    let device = |limit: &super::limits::DoctorDeviceLimit| {
        vec![
            limit.device.clone().into(),
            limit.limit_type.clone().into(),
            TextCell::new(&limit.why, TextTone::Faint),
        ]
    };
    rows.extend(limits.devices.iter().map(device));
    let warning =
        |text| vec!["but".into(), TextCell::default(), TextCell::new(text, TextTone::Faint)];
    rows.extend(limits.warnings.iter().map(warning));
    if let Some(remedy) = &limits.remedy {
        rows.push(vec![
            "remedy".into(),
            TextCell::default(),
            TextCell::new(remedy, TextTone::Faint),
        ]);
    }
    rows
}

fn found(name: &str, serves: &str, path: Option<&PathBuf>, remedy: Option<&str>) -> Vec<TextCell> {
    let (state, more) = match path {
        Some(path) => (TextCell::new("found", TextTone::Good), path.display().to_string()),
        None => {
            (TextCell::new("not found", TextTone::Doubt), remedy.unwrap_or(UNKNOWN).to_string())
        }
    };
    vec![name.into(), state, serves.into(), TextCell::new(more, TextTone::Faint)]
}

fn text<T: ToString>(name: &str, fact: &Fact<T>) -> Vec<TextCell> {
    row(name, or_unknown(fact.value.as_ref().map(ToString::to_string)).into(), fact)
}

fn size(name: &str, fact: &Fact<u64>) -> Vec<TextCell> {
    row(name, TextCell::figure(fact.value.map(Bytes)), fact)
}

fn row<T>(name: &str, value: TextCell, fact: &Fact<T>) -> Vec<TextCell> {
    let how = fact.how.map_or("unknown", super::FactSource::word);
    let origin = TextCell::new(format!("{how}: {}", fact.source), TextTone::Faint);
    vec![name.into(), value, origin]
}
