//! Weights in files beside the graph: whether they are there, and whole.

use std::fs;
use std::io::{Read, Seek};
use std::path::{Component, Path};

use super::super::GraphError;
use super::super::wire::Field;
use super::{Parser, limit};

impl<F: Read + Seek> Parser<'_, F> {
    pub(super) fn entry(&mut self, end: u64) -> Result<(String, String), GraphError> {
        let (mut key, mut value) = (String::new(), String::new());
        while let Some((number, field)) = self.wire.next(end)? {
            let Field::Bytes(stop) = field else { continue };
            match number {
                1 => key = self.wire.text(stop)?,
                2 => value = self.wire.text(stop)?,
                _ => self.wire.go(stop)?,
            }
        }
        Ok((key, value))
    }

    pub(super) fn note_outside(
        &mut self,
        entries: &[(String, String)],
        bytes: u64,
    ) -> Result<(), GraphError> {
        let get = |name: &str| entries.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let Some(location) = get("location") else { return Ok(()) };
        let offset = get("offset").map_or(Ok(0), |text| text.parse::<u64>());
        let offset = offset.map_err(|_| self.wire.damaged("an offset that is no number"))?;
        let end = offset.saturating_add(bytes);
        let last = self.outside.entry(location.clone()).or_default();
        *last = end.max(*last);
        limit(self.outside.len(), 4096, "files of external data")
    }

    /// The files beside this one hold what it says they do.
    pub(super) fn check_outside(&self) -> Result<(), GraphError> {
        let Some(folder) = self.folder else { return Ok(()) };
        for (name, &need) in &self.outside {
            // A file names others in its own folder, and none elsewhere.
            if Path::new(name).components().any(|part| !matches!(part, Component::Normal(_))) {
                return Err(GraphError::Wrong(format!(
                    "its weights are said to be in {name}, outside of its folder: refused"
                )));
            }
            let path = folder.join(name);
            let have = fs::metadata(&path)
                .map_err(|error| {
                    GraphError::Wrong(format!("its weights are in {}: {error}", path.display()))
                })?
                .len();
            if have < need {
                return Err(GraphError::Truncated { name: path.display().to_string(), have, need });
            }
        }
        Ok(())
    }
}
