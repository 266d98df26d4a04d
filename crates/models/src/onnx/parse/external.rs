//! Weights in files beside the graph: whether those are there and long enough.

use std::fmt::Display;
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
        if location.is_empty() {
            return Err(self.wire.damaged("weights in a file without a name"));
        }
        let number = |text: &String, what| text.parse().map_err(|_| self.wire.damaged(what));
        let offset: u64 =
            get("offset").map_or(Ok(0), |text| number(text, "an offset that is no number"))?;
        let length =
            get("length").map(|text| number(text, "a length that is no number")).transpose()?;
        if length.is_some_and(|length: u64| length < bytes) {
            return Err(self.wire.damaged("a tensor with less data than its extents say"));
        }
        let end = offset.saturating_add(length.unwrap_or(bytes));
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
            let wrong = |why: &dyn Display| {
                OnnxError::Wrong(format!("its weights are in {}: {why}", path.display()))
            };
            let there = fs::metadata(&path).map_err(|error| wrong(&error))?;
            if !there.is_file() {
                return Err(wrong(&"that is no regular file"));
            }
            let have = there.len();
            if have < need {
                return Err(OnnxError::Truncated { name: path.display().to_string(), have, need });
            }
        }
        Ok(())
    }
}
