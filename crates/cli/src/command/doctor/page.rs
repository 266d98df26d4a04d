//! The doctor's report for people.

use std::path::PathBuf;

use plimsoll::Bytes;

use super::machine::{Machine, Memory};
use super::{Fact, Report};
use crate::output::Answer;
use crate::page::{Cell, Page, Tone, UNKNOWN, or_unknown};

impl Answer for Report {
    fn page(&self, page: &mut Page) {
        page.heading("Machine");
        page.table(&machine(&self.machine));
        page.heading("Memory");
        page.table(&memory(&self.memory));
        page.heading("Backends");
        page.table(&self.backends.iter().map(backend).collect::<Vec<_>>());
        page.heading("Driver libraries");
        let library = |l: &super::Library| found(l.name, l.opens, l.path.as_ref(), l.remedy);
        page.table(&self.libraries.iter().map(library).collect::<Vec<_>>());
        page.advice("Looked for as files; none was loaded.");
        page.heading("Tools");
        let tool = |t: &super::Tool| found(t.name, t.serves, t.path.as_ref(), t.remedy);
        page.table(&self.tools.iter().map(tool).collect::<Vec<_>>());
        if !self.lacks.is_empty() {
            let lacks = self.lacks.iter().map(|name| name.word()).collect::<Vec<_>>().join(", ");
            page.heading("Required, and unavailable");
            page.table(&[vec![Cell::new(lacks, Tone::Doubt)]]);
        }
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

fn backend(backend: &super::Backend) -> Vec<Cell> {
    let state = match backend.available {
        true => Cell::new("available", Tone::Good),
        false => Cell::new("unavailable", Tone::Doubt),
    };
    vec![backend.name.word().into(), state, Cell::new(&backend.why, Tone::Faint)]
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
