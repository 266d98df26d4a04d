//! Weights in files beside the graph: whether those are there and long enough.

use std::fs;
use std::io::{Read, Seek};
use std::path::{Component, Path};

use super::super::OnnxError;
use super::super::wire::WireField;
use super::{OnnxParser, limit};

impl<F: Read + Seek> OnnxParser<'_, F> {
    /// A key and its value, which may be `longest` bytes long.
    pub(super) fn entry(
        &mut self,
        end: u64,
        longest: usize,
    ) -> Result<(String, String), OnnxError> {
        let (mut key, mut value) = (String::new(), String::new());
        while let Some((number, field)) = self.wire.next(end)? {
            let WireField::Bytes(stop) = field else { continue };
            match number {
                1 => key = self.wire.text(stop)?,
                2 => value = self.wire.long_text(stop, longest)?,
                _ => self.wire.go(stop)?,
            }
        }
        Ok((key, value))
    }

    pub(super) fn note_external(
        &mut self,
        entries: &[(String, String)],
        bytes: u64,
    ) -> Result<(), OnnxError> {
        let get = |name: &str| entries.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let Some(location) = get("location") else { return Ok(()) };
        let offset = get("offset").map_or(Ok(0), |text| text.parse::<u64>());
        let offset = offset.map_err(|_| self.wire.damaged("an offset that is no number"))?;
        let end = offset.saturating_add(bytes);
        let last = self.external.entry(location.clone()).or_default();
        *last = end.max(*last);
        limit(self.external.len(), 4096, "files of external data")
    }

    /// The files beside this one hold what it says they do.
    pub(super) fn check_external(&self) -> Result<(), OnnxError> {
        let Some(folder) = self.folder else { return Ok(()) };
        for (name, &need) in &self.external {
            // A file names others in its own folder, and none elsewhere.
            if Path::new(name).components().any(|part| !matches!(part, Component::Normal(_))) {
                return Err(OnnxError::Wrong(format!(
                    "its weights are said to be in {name}, outside of its folder: refused"
                )));
            }
            let path = folder.join(name);
            let have = fs::metadata(&path)
                .map_err(|error| {
                    OnnxError::Wrong(format!("its weights are in {}: {error}", path.display()))
                })?
                .len();
            if have < need {
                return Err(OnnxError::Truncated { name: path.display().to_string(), have, need });
            }
        }
        Ok(())
    }
}
