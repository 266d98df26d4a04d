//! A machine as a tree of files, with where each value came from.

use std::path::Path;

use plimsoll::machine::Machine;

use super::{Fact, How};

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
    pub(super) fn how(&self) -> How {
        if self.is_live() { How::Sampled } else { How::Recorded }
    }

    /// A value found in `path`, or not.
    pub(super) fn fact<T>(&self, value: Option<T>, source: impl Into<String>) -> Fact<T> {
        Fact { how: value.is_some().then(|| self.how()), value, source: source.into() }
    }

    /// The first of these files that is there and not empty.
    pub(super) fn first(&self, paths: &[&str]) -> Fact<String> {
        let found = paths.iter().find_map(|path| {
            let text = self.machine.read(path).filter(|text| !text.is_empty())?;
            Some((text, *path))
        });
        match found {
            Some((text, path)) => self.fact(Some(text), path),
            None => self.fact(None, paths.join(", ")),
        }
    }
}
