//! The doctor's report for people.

use std::path::PathBuf;

use plimsoll::Bytes;

use super::backends::{BackendName, DoctorBackend, DoctorDevice, DoctorGpu};
use super::engines::DoctorEngine;
use super::files::NO_JETSON;
use super::limits::DoctorLimits;
use super::machine::{DoctorMachine, DoctorMemory};
use super::{DoctorReport, Fact};
use crate::output::Answer;
use crate::page::{SizeUnit, TextCell, TextPage, TextTone, UNKNOWN, fold, or_unknown};
use crate::reason::brief;

impl Answer for DoctorReport {
    /// What can be used here, and what was required and cannot.
    fn bare(&self, page: &mut TextPage) {
        let available = self.backends.iter().filter(|backend| backend.available);
        let names: Vec<_> = available.map(|backend| backend.name.word()).collect();
        page.raw(&format!("{}\n", names.join(" ")));
        bare_lacks(&self.lacks, page);
    }

    fn page(&self, page: &mut TextPage) {
        let how = self.how();
        page.heading(&format!("Machine ({how})"));
        page.table(&machine(&self.machine, page.is_verbose()));
        let unified = self.machine.unified.value.map(|yes| if yes { "yes" } else { "no" });
        let because = &self.machine.unified.source;
        page.advice(&format!("unified memory: {}; {because}", or_unknown(unified)));
        page.heading(&format!("Memory ({how})"));
        page.table(&memory(&self.memory, page.is_verbose()));
        self.gpus_page(page);
        self.backends_page(page);
        page.heading("Limit");
        page.table(&limit(&self.limits, self.hardware.any));
        self.engines_page(page);
        self.files_page(page);
        self.permissions_page(page);
        lacks_page(&self.lacks, page);
        self.end_page(page);
    }
}

/// What was required and cannot be used, as `--quiet` shows it.
pub(super) fn bare_lacks(lacks: &[BackendName], page: &mut TextPage) {
    if !lacks.is_empty() {
        page.raw(&format!("missing: {}\n", words(lacks).join(" ")));
    }
}

/// The same under a heading of its own.
pub(super) fn lacks_page(lacks: &[BackendName], page: &mut TextPage) {
    if !lacks.is_empty() {
        page.heading("Required, and unavailable");
        page.table(&[vec![TextCell::new(words(lacks).join(", "), TextTone::Bad)]]);
    }
}

fn words(names: &[BackendName]) -> Vec<String> {
    names.iter().map(|name| name.word()).collect()
}

impl DoctorReport {
    /// How the values of this machine were obtained; those that are not known are dashes.
    fn how(&self) -> &'static str {
        if self.is_recorded() { "recorded" } else { "sampled" }
    }

    fn backends_page(&self, page: &mut TextPage) {
        page.heading("Backends");
        let verbose = page.is_verbose();
        let rows: Vec<_> = self
            .backends
            .iter()
            .map(|found| backend(found, self.matters(found.name.word().as_str()), verbose))
            .collect();
        page.table(&rows);
        let all = || self.backends.iter().flat_map(|backend| &backend.devices);
        let unit = SizeUnit::of(all().flat_map(|device| [device.total_bytes, device.free_bytes]));
        let devices: Vec<_> = all().map(|found| device(found, unit)).collect();
        if !devices.is_empty() {
            page.heading("Devices");
            page.table(&devices);
        }
    }

    /// Whether this machine has hardware that the thing of this name is for.
    fn matters(&self, name: &str) -> bool {
        let (hardware, jetson) = (self.hardware, self.machine.jetson);
        match name {
            "cuda" | "libcuda.so.1" => hardware.nvidia,
            "nvidia-smi" | "libnvidia-ml.so.1" => hardware.nvidia && !jetson,
            "rocm" | "libamdhip64.so" => hardware.amd,
            "tegrastats" | "nvpmodel" | "nvarguscamerasrc" | "nvv4l2decoder" => jetson,
            _ => false,
        }
    }

    fn engines_page(&self, page: &mut TextPage) {
        page.heading("Engines for models");
        let row = |engine: &DoctorEngine| {
            let more = match (&engine.path, &engine.remedy) {
                (Some(path), None) => path.display().to_string(),
                (Some(path), Some(remedy)) => format!("{}; {remedy}", path.display()),
                (None, remedy) => remedy.clone().unwrap_or_default(),
            };
            let state = state(engine.found, engine.matters);
            let about = match more.is_empty() {
                true => engine.serves.to_string(),
                false => format!("{}: {more}", engine.serves),
            };
            vec![engine.name.into(), state, TextCell::new(about, TextTone::Faint)]
        };
        page.table(&self.engines.iter().map(row).collect::<Vec<_>>());
        let verbose = page.is_verbose();
        for engine in self.engines.iter().filter(|engine| verbose && !engine.found) {
            page.advice(&format!("{} was looked for in {}", engine.name, engine.looked.join(", ")));
        }
    }

    /// Driver libraries and tools; those that are missing and serve nothing here are only named.
    fn files_page(&self, page: &mut TextPage) {
        let verbose = page.is_verbose();
        let libraries = self.libraries.iter().map(|l| (l.name, l.opens, l.path.as_ref(), l.remedy));
        let tools = self.tools.iter().map(|t| (t.name, t.serves, t.path.as_ref(), t.remedy));
        let lists: [(&str, Vec<_>); 2] =
            [("Driver libraries", libraries.collect()), ("Tools", tools.collect())];
        for (title, all) in lists {
            page.heading(title);
            let idle = |(name, _, path, remedy): &(&str, &str, Option<&PathBuf>, Option<&str>)| {
                path.is_none() && !self.matters(name) && *remedy == Some(NO_JETSON)
            };
            let shown = all.iter().filter(|item| verbose || !idle(item));
            let rows = shown.map(|(name, serves, path, remedy)| {
                found(name, serves, *path, *remedy, self.matters(name))
            });
            page.table(&rows.collect::<Vec<_>>());
            let names: Vec<&str> =
                all.iter().filter(|item| !verbose && idle(item)).map(|item| item.0).collect();
            if !names.is_empty() {
                page.advice(&format!("not needed, as this is no Jetson: {}", names.join(", ")));
            }
        }
        if verbose {
            page.advice("Looked for as files; whether they work: see Backends.");
        }
    }

    /// What works, and what to do next.
    fn end_page(&self, page: &mut TextPage) {
        page.heading(match self.is_recorded() {
            true => "You can, as far as recorded files tell:",
            false => "You can:",
        });
        let width = page.width().unwrap_or(usize::MAX).saturating_sub(4);
        for ability in &self.you_can {
            for (at, line) in fold(ability, width).iter().enumerate() {
                page.line(&format!("  {} {line}", if at == 0 { '-' } else { ' ' }));
            }
        }
        page.heading("Do this next:");
        for (at, next) in self.do_next.iter().enumerate() {
            for (line_at, line) in fold(&next.why, width.saturating_sub(1)).iter().enumerate() {
                let number = if line_at == 0 { format!("{}.", at + 1) } else { "  ".to_string() };
                page.line(&format!("  {number} {line}"));
            }
            page.unbroken(&format!("       {}", next.command), TextTone::Strong);
        }
    }

    fn gpus_page(&self, page: &mut TextPage) {
        page.heading("GPUs, by NVML");
        match (&self.gpus, &self.no_nvml) {
            (Some(gpus), _) if gpus.is_empty() => {
                let tone = if self.hardware.nvidia { TextTone::Doubt } else { TextTone::Faint };
                page.table(&[vec![TextCell::new("none", tone)]]);
            }
            (Some(gpus), _) => {
                let unit = SizeUnit::of(gpus.iter().map(|gpu| gpu.total_bytes));
                page.table(&gpus.iter().map(|found| gpu(found, unit)).collect::<Vec<_>>());
            }
            (None, why) => {
                let why = why.as_deref().unwrap_or(UNKNOWN);
                page.table(&[vec![
                    UNKNOWN.into(),
                    TextCell::new(reason(why, page.is_verbose()), TextTone::Faint),
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

fn machine(machine: &DoctorMachine, verbose: bool) -> Vec<Vec<TextCell>> {
    let mut rows = vec![
        text("system", &machine.distribution, verbose),
        text("kernel", &machine.os, verbose),
        text("release", &machine.kernel, verbose),
        text("arch", &machine.arch, verbose),
        text("processor", &machine.cpu_model, verbose),
        text("processors", &machine.cpus, verbose),
        text("usable here", &machine.cpus_usable, verbose),
        text("board", &machine.board, verbose),
    ];
    if machine.jetson {
        rows.push(text("Jetson Linux", &machine.l4t, verbose));
    }
    rows
}

fn memory(memory: &DoctorMemory, verbose: bool) -> Vec<Vec<TextCell>> {
    if let Some(why) = &memory.unreadable {
        return vec![vec![UNKNOWN.into(), TextCell::new(why, TextTone::Faint)]];
    }
    let mut shown = vec![
        ("total", &memory.total_bytes),
        ("available", &memory.available_bytes),
        ("free", &memory.free_bytes),
        ("swap", &memory.swap_total_bytes),
        ("swap free", &memory.swap_free_bytes),
    ];
    if memory.nvmap_used_bytes.value.is_some() {
        shown.push(("of it GPU, codecs, cameras", &memory.nvmap_used_bytes));
    }
    let unit = SizeUnit::of(shown.iter().map(|(_, fact)| fact.value));
    shown
        .into_iter()
        .map(|(name, fact)| row(name, unit.figure(fact.value), fact, verbose))
        .collect()
}

fn gpu(gpu: &DoctorGpu, unit: SizeUnit) -> Vec<TextCell> {
    let capability = gpu.compute_capability.as_ref().map(|cc| format!("compute {cc}"));
    vec![
        gpu.name.clone().into(),
        or_unknown(capability).into(),
        unit.figure(gpu.total_bytes),
        format!("memory: {}", gpu.memory).into(),
        TextCell::new(gpu.addressing.unwrap_or_default(), TextTone::Faint),
    ]
}

/// A reason, without the files that were tried unless the reader wants all of it.
fn reason(why: &str, verbose: bool) -> String {
    if verbose { why.to_string() } else { brief(why) }
}

fn backend(backend: &DoctorBackend, matters: bool, verbose: bool) -> Vec<TextCell> {
    let state = match (backend.available, matters) {
        (true, _) => TextCell::new("available", TextTone::Good),
        (false, true) => TextCell::new("unavailable", TextTone::Doubt),
        (false, false) => TextCell::new("unavailable", TextTone::Faint),
    };
    let why = TextCell::new(reason(&backend.why, verbose), TextTone::Faint);
    vec![backend.name.word().into(), state, why]
}

/// Yellow is for what is missing although the machine has a use for it.
fn state(found: bool, matters: bool) -> TextCell {
    match (found, matters) {
        (true, _) => TextCell::new("found", TextTone::Good),
        (false, true) => TextCell::new("not found", TextTone::Doubt),
        (false, false) => TextCell::new("not found", TextTone::Faint),
    }
}

fn device(found: &DoctorDevice, unit: SizeUnit) -> Vec<TextCell> {
    let unified =
        found.unified.map(|yes| if yes { "the system's memory" } else { "its own memory" });
    let name = or_unknown(found.name.as_ref());
    let about = match (&found.problem, unified) {
        (Some(problem), _) => format!("{name}: {problem}"),
        (None, Some(unified)) => format!("{name}: {unified}"),
        (None, None) => name,
    };
    vec![
        found.device.clone().into(),
        unit.figure(found.total_bytes),
        format!("{} free", or_unknown(found.free_bytes.map(|free| unit.text(free)))).into(),
        TextCell::new(about, TextTone::Faint),
    ]
}

fn limit(limits: &DoctorLimits, has_gpu: bool) -> Vec<Vec<TextCell>> {
    let tone = match (limits.limit_type.as_str(), has_gpu) {
        ("hard", _) => TextTone::Good,
        (_, true) => TextTone::Doubt,
        (_, false) => TextTone::Plain,
    };
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

fn found(
    name: &str,
    serves: &str,
    path: Option<&PathBuf>,
    remedy: Option<&str>,
    matters: bool,
) -> Vec<TextCell> {
    let more = match path {
        Some(path) => path.display().to_string(),
        None => remedy.unwrap_or(UNKNOWN).to_string(),
    };
    let state = state(path.is_some(), matters);
    vec![name.into(), state, TextCell::new(format!("{serves}: {more}"), TextTone::Faint)]
}

fn text<T: ToString>(name: &str, fact: &Fact<T>, verbose: bool) -> Vec<TextCell> {
    row(name, or_unknown(fact.value.as_ref().map(ToString::to_string)).into(), fact, verbose)
}

/// A value; `sourced` adds how it was obtained, and the file that it was read or looked for in.
fn row<T>(name: &str, value: TextCell, fact: &Fact<T>, sourced: bool) -> Vec<TextCell> {
    let mut row = vec![name.into(), value];
    if sourced {
        let how = fact.how.map_or("unknown", super::FactSource::word);
        row.push(TextCell::new(format!("{how}: {}", fact.source), TextTone::Faint));
    }
    row
}
