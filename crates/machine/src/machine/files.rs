//! Reading a machine's files, each with a bound: a recorded tree may hold anything.

use std::fs;
use std::path::PathBuf;

use super::Machine;
use crate::platform::read_at_most;

/// Far above any file that is read here.
const MOST_READ: u64 = 4 << 20;
/// Longer than any name of a board, a processor or a distribution.
const LONGEST_NAME: usize = 256;

impl Machine {
    /// Where an absolute path of that machine lies on this one.
    #[must_use]
    pub fn on_disk(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether there is such a file.
    #[must_use]
    pub fn has_file(&self, path: &str) -> bool {
        self.on_disk(path).is_file()
    }

    /// The text of a file, without the NULs and blanks that device trees end with.
    #[must_use]
    pub fn read(&self, path: &str) -> Option<String> {
        let on_disk = self.on_disk(path);
        match read_at_most(&on_disk, MOST_READ) {
            Ok(text) => {
                tracing::debug!("read {}", on_disk.display());
                Some(text.trim_end_matches(['\0', '\n', '\r', ' ']).to_string())
            }
            Err(error) => {
                tracing::debug!("{}: {error}", on_disk.display());
                None
            }
        }
    }

    /// The absolute paths of what a folder of that machine holds, sorted.
    #[must_use]
    pub fn list(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.on_disk(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .map(|name| format!("{folder}/{name}"))
            .collect();
        names.sort();
        names
    }
}

/// A name that a file gives: a line that can be printed, without what surrounds it. Anything
/// else is no name.
///
/// ```
/// use plimsoll_machine::machine::name;
/// assert_eq!(name("NVIDIA Jetson Orin Nano\0\r\n"), Some("NVIDIA Jetson Orin Nano"));
/// assert_eq!(name("a\nb"), None);
/// assert_eq!(name(" "), None);
/// ```
#[must_use]
pub fn name(text: &str) -> Option<&str> {
    let name = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    let is_strange = |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER;
    let is_name = !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(is_strange);
    is_name.then_some(name)
}
