//! The files of a report: each written whole, or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tempfile::NamedTempFile;

use super::answer::Report;
use super::{html, signals};

/// A file that has its name only when it is whole.
pub(super) struct Unfinished {
    file: BufWriter<NamedTempFile>,
    path: PathBuf,
}

impl Unfinished {
    /// Begins one, in its folder, which the program may have removed. Only one is written at a
    /// time: it is removed where a signal ends this process.
    pub(super) fn begin(folder: &Path, name: &str) -> anyhow::Result<Unfinished> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join(name);
        let open = |path: &Path| -> io::Result<File> {
            signals::remove_at_end(Some(path));
            OpenOptions::new().read(true).write(true).create_new(true).open(path)
        };
        let file = tempfile::Builder::new().make_in(folder, open);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Unfinished { file: BufWriter::with_capacity(1 << 16, file), path })
    }

    /// Gives it its name.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        let text = || format!("cannot write {}", self.path.display());
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error);
        file.with_context(text)?.persist(&self.path).with_context(text)?;
        signals::remove_at_end(None);
        Ok(())
    }
}

impl Write for Unfinished {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes `report.json` and `report.html`.
pub(super) fn write(report: &Report, folder: &Path) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(report)? + "\n";
    for (name, text) in [("report.json", json), ("report.html", html::render(report))] {
        let mut file = Unfinished::begin(folder, name)?;
        let written = file.write_all(text.as_bytes());
        written.with_context(|| format!("cannot write {}", folder.join(name).display()))?;
        file.finish()?;
    }
    Ok(())
}

/// Makes the folder before the program is started, and a file in it, so that a wrong name costs
/// no run.
pub(super) fn prepare(folder: &Path) -> anyhow::Result<()> {
    let shown = folder.display();
    if folder.exists() && !folder.is_dir() {
        bail!("{shown} is not a folder; --report needs one, or a name that is still free");
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {shown}"))?;
    tempfile::tempfile_in(folder).with_context(|| format!("cannot write into {shown}"))?;
    Ok(())
}
