//! A machine as a tree of files, with where each value came from.

use std::path::Path;

use plimsoll::machine::{self, Machine};

use super::{Fact, FactSource};

/// This machine (`/`), or a recorded one.
pub(super) struct Root {
    machine: Machine,
}

impl Root {
    pub(super) fn new(folder: &Path) -> Root {
        Root { machine: Machine::recorded(folder) }
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Whether it is the machine that runs this program.
    pub(super) fn is_live(&self) -> bool {
        self.machine.is_here()
    }

    /// How values from here were obtained.
    pub(super) fn how(&self) -> FactSource {
        if self.is_live() { FactSource::Sampled } else { FactSource::Recorded }
    }

    /// A value found in `path`, or not.
    pub(super) fn fact<T>(&self, value: Option<T>, source: impl Into<String>) -> Fact<T> {
        Fact { how: value.is_some().then(|| self.how()), value, source: source.into() }
    }

    /// The name in the first of these files that has one.
    pub(super) fn name(&self, paths: &[&str]) -> Fact<String> {
        self.name_in(paths, |text| Some(text))
    }

    /// The name that is part of the first of these files that has it.
    pub(super) fn name_in(&self, paths: &[&str], part: fn(&str) -> Option<&str>) -> Fact<String> {
        let found = paths.iter().find_map(|path| {
            let text = self.machine.read(path)?;
            Some((machine::name(part(&text)?)?.to_string(), *path))
        });
        match found {
            Some((name, path)) => self.fact(Some(name), path),
            None => self.fact(None, paths.join(", ")),
        }
    }
}
