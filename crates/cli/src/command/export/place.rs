//! A file that is written completely or not at all.
//!
//! It gets its name only when it is on the disk ([`Partial`]): after a full disk, a kill or a
//! failed build the earlier file is still there. Where the file system needs a name from the
//! start, the name is a hidden one, and Ctrl-C and SIGTERM remove the file.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use plimsoll_points::write::Partial;

use crate::outcome::BadInput;
use crate::stop::listen;

/// This much is written before it is asked again whether to stop.
const WRITE_SIZE: usize = 8 << 20;

/// Where a file is to be.
#[derive(Debug)]
pub(super) struct ExportPlace {
    path: PathBuf,
    folder: PathBuf,
}

impl ExportPlace {
    /// Refuses what can never be written, before the work is done.
    pub(super) fn new(path: &Path) -> anyhow::Result<ExportPlace> {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        if !folder.is_dir() {
            let why = format!("there is no folder {}; make it first", folder.display());
            return Err(BadInput::new(why).into());
        }
        if path.is_dir() {
            return Err(BadInput::new(format!("{} is a folder", path.display())).into());
        }
        Ok(ExportPlace { path: path.to_path_buf(), folder })
    }

    /// Writes a file of these bytes; `false` where a signal stopped it.
    pub(super) fn write(self, bytes: &[u8]) -> anyhow::Result<bool> {
        let stop = Arc::new(AtomicBool::new(false));
        listen(&stop)?;
        self.write_unless(bytes, &stop)
    }

    fn write_unless(self, bytes: &[u8], stop: &AtomicBool) -> anyhow::Result<bool> {
        let mut file = Partial::create(&self.path, "to").with_context(|| self.cannot())?;
        for part in bytes.chunks(WRITE_SIZE) {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            file.write_all(part).with_context(|| self.cannot())?;
        }
        file.as_file().sync_all().with_context(|| self.cannot())?;
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        file.finish().with_context(|| self.cannot())?;
        // The name is on the disk once its folder is; where that cannot be asked, so be it.
        let _ = fs::File::open(&self.folder).and_then(|folder| folder.sync_all());
        Ok(true)
    }

    fn cannot(&self) -> String {
        format!("cannot write {}; nothing was changed", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stopped_leaves_nothing() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("a.onnx");
        fs::write(&path, b"the old one")?;
        let write = |stop| ExportPlace::new(&path)?.write_unless(b"new", &AtomicBool::new(stop));
        assert!(!write(true)?);
        assert_eq!(fs::read(&path)?, b"the old one");
        assert_eq!(fs::read_dir(folder.path())?.count(), 1);
        assert!(write(false)?);
        assert_eq!(fs::read(&path)?, b"new");
        Ok(())
    }
}
