//! A machine as a tree of files: this one (`/`), or a recorded one.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Fact, How};

/// Far above any file that the doctor reads; a recorded tree may hold anything.
const MOST_READ: u64 = 4 << 20;

pub(super) struct Root {
    folder: PathBuf,
}

impl Root {
    pub(super) fn new(folder: &Path) -> Root {
        Root { folder: folder.to_path_buf() }
    }

    /// Whether it is the machine that runs this program.
    pub(super) fn is_live(&self) -> bool {
        self.folder == Path::new("/")
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// How values from here were obtained.
    pub(super) fn how(&self) -> How {
        if self.is_live() { How::Sampled } else { How::Recorded }
    }

    /// Where an absolute path of that machine lies on this one.
    pub(super) fn on_disk(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    pub(super) fn has_file(&self, path: &str) -> bool {
        self.on_disk(path).is_file()
    }

    /// The text of a file, without the NULs and blanks that device trees end with.
    pub(super) fn read(&self, path: &str) -> Option<String> {
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

    /// The absolute paths of the files in a folder of that machine, sorted.
    pub(super) fn list(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.on_disk(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .map(|name| format!("{folder}/{name}"))
            .collect();
        names.sort();
        names
    }

    /// A value found in `path`, or not.
    pub(super) fn fact<T>(&self, value: Option<T>, source: impl Into<String>) -> Fact<T> {
        Fact { how: value.is_some().then(|| self.how()), value, source: source.into() }
    }

    /// The first of these files that is there and not empty.
    pub(super) fn first(&self, paths: &[&str]) -> Fact<String> {
        let found = paths.iter().find_map(|path| {
            let text = self.read(path).filter(|text| !text.is_empty())?;
            Some((text, *path))
        });
        match found {
            Some((text, path)) => self.fact(Some(text), path),
            None => self.fact(None, paths.join(", ")),
        }
    }
}
