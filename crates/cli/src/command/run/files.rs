//! The files of a report. Each is written completely or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use plimsoll_guard::launch::remove_on_signal;
use tempfile::NamedTempFile;

use super::answer::RunReport;
use super::html;

/// The files of a report.
const REPORT: &str = "report.json";
const PAGE: &str = "report.html";
pub(super) const TRACE: &str = "trace.csv";

/// A file that gets its name only when it is complete.
pub(super) struct PartialFile {
    file: BufWriter<NamedTempFile>,
    path: PathBuf,
}

impl PartialFile {
    /// Begins a file in this folder, which the program may have removed. Only one is written at a
    /// time: a signal that ends this process removes it.
    pub(super) fn begin(folder: &Path, name: &str) -> anyhow::Result<PartialFile> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join(name);
        let open = |path: &Path| -> io::Result<File> {
            remove_on_signal(Some(path));
            OpenOptions::new().read(true).write(true).create_new(true).open(path)
        };
        let file = tempfile::Builder::new().make_in(folder, open);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(PartialFile { file: BufWriter::with_capacity(1 << 16, file), path })
    }

    /// Gives it its name.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        let text = || format!("cannot write {}", self.path.display());
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error);
        file.with_context(text)?.persist(&self.path).with_context(text)?;
        remove_on_signal(None);
        Ok(())
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes `report.json` and `report.html`.
pub(super) fn write(report: &RunReport, folder: &Path) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(report)? + "\n";
    for (name, text) in [(REPORT, json), (PAGE, html::render(report))] {
        let mut file = PartialFile::begin(folder, name)?;
        let written = file.write_all(text.as_bytes());
        written.with_context(|| format!("cannot write {}", folder.join(name).display()))?;
        file.finish()?;
    }
    Ok(())
}

/// Creates the folder and a file in it before the program is started, so that a folder that
/// cannot be written to is found before the run and not after it.
pub(super) fn prepare(folder: &Path) -> anyhow::Result<()> {
    let shown = folder.display();
    if folder.exists() && !folder.is_dir() {
        bail!("{shown} is not a folder; --report needs one, or a name that is still free");
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {shown}"))?;
    tempfile::tempfile_in(folder).with_context(|| format!("cannot write into {shown}"))?;
    match [REPORT, PAGE, TRACE].into_iter().find(|name| folder.join(name).is_dir()) {
        Some(name) => bail!("{name} is a folder in {shown}; remove it, or name another folder"),
        None => Ok(()),
    }
}
