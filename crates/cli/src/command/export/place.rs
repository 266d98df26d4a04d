//! A file that is written whole or not at all.
//!
//! It is written beside its place under another name, brought to the disk, and renamed:
//! a full disk, a kill or a failed build leaves what was there before.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::{Builder, NamedTempFile};

use crate::outcome::BadInput;

/// Where a file is to be.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    folder: PathBuf,
}

impl Place {
    /// Refuses what can never be written, before the work is done.
    pub(super) fn new(path: &Path) -> anyhow::Result<Place> {
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
        Ok(Place { path: path.to_path_buf(), folder })
    }

    /// A file beside the place, which vanishes unless it is [`Place::keep`]'s.
    pub(super) fn beside(&self) -> anyhow::Result<NamedTempFile> {
        let mut builder = Builder::new();
        builder.prefix(".plimsoll-").suffix(".new");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As any new file: the umask takes from it.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        builder.tempfile_in(&self.folder).with_context(|| self.cannot())
    }

    /// Puts a finished file into its place.
    pub(super) fn keep(self, file: NamedTempFile) -> anyhow::Result<()> {
        file.as_file().sync_all().with_context(|| self.cannot())?;
        file.persist(&self.path).with_context(|| self.cannot())?;
        // The name is on the disk once its folder is; where that cannot be asked, so be it.
        let _ = fs::File::open(&self.folder).and_then(|folder| folder.sync_all());
        Ok(())
    }

    /// Writes a file of these bytes.
    pub(super) fn write(self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut file = self.beside()?;
        file.write_all(bytes).with_context(|| self.cannot())?;
        self.keep(file)
    }

    fn cannot(&self) -> String {
        format!("cannot write {}; nothing was changed", self.path.display())
    }
}
