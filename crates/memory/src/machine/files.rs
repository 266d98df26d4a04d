//! Reading a machine's files, each with a bound: a recorded tree may hold anything.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

use super::Machine;

/// Far above any file that is read here.
const MOST_READ: u64 = 4 << 20;

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
        if !on_disk.is_file() {
            tracing::debug!("{} is not there", on_disk.display());
            return None;
        }
        tracing::debug!("reading {}", on_disk.display());
        let mut bytes = Vec::new();
        File::open(on_disk).ok()?.take(MOST_READ).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        Some(text.trim_end_matches(['\0', '\n', ' ']).to_string())
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
