//! A file that is being written: it gets its name when it is complete.
//!
//! Where the system supports unnamed files (`O_TMPFILE`), nothing is left behind, however the
//! program ends. Elsewhere it is a hidden file beside the target. Dropping it deletes it; only a
//! killed program leaves it behind.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use plimsoll_machine::files::followed;
use plimsoll_memory::{Error, Result};
use tempfile::TempPath;

use super::{failed, folder_of};

/// A part-written file that will be called `path`.
#[derive(Debug)]
pub struct Partial {
    path: PathBuf,
    file: File,
    /// Its temporary name, if the system has no unnamed files.
    name: Option<TempPath>,
}

impl Partial {
    /// Creates the file; `field` is what error messages call it.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where no file can or may be there, [`Error::Device`] where it cannot be made.
    pub fn create(path: &Path, field: &'static str) -> Result<Partial> {
        let path = &followed(path);
        // A device or a pipe is nothing that a file may take the place of.
        if path.exists() && !path.is_file() || !folder_of(path).is_dir() {
            return Err(Error::Config {
                field,
                value: path.display().to_string(),
                range: "a file in a folder that is there",
            });
        }
        match unnamed(folder_of(path)) {
            Some(file) => Ok(Partial { path: path.to_path_buf(), file, name: None }),
            None => Partial::named(path).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    let range = "a file in a folder that may be written to";
                    Error::Config { field, value: path.display().to_string(), range }
                }
                _ => failed(path, &error),
            }),
        }
    }

    fn named(path: &Path) -> io::Result<Partial> {
        let (file, name) =
            hidden(path, |builder| builder.tempfile_in(folder_of(path)))?.into_parts();
        Ok(Partial { path: path.to_path_buf(), file, name: Some(name) })
    }

    /// The file itself.
    #[must_use]
    pub fn as_file(&self) -> &File {
        &self.file
    }

    /// Gives it its name; whatever had it before is gone.
    ///
    /// # Errors
    ///
    /// What the system says; nothing has changed then.
    pub fn finish(self) -> io::Result<()> {
        let Partial { path, file, name } = self;
        let name = match name {
            Some(name) => name,
            // A name of its own comes first: only a renamed file takes another's place.
            None => {
                hidden(&path, |builder| builder.make_in(folder_of(&path), |at| link(&file, at)))?
                    .into_temp_path()
            }
        };
        name.persist(&path).map_err(|error| error.error)
    }
}

impl Read for Partial {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.file.read(bytes)
    }
}

impl Write for Partial {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for Partial {
    fn seek(&mut self, place: SeekFrom) -> io::Result<u64> {
        self.file.seek(place)
    }
}

/// Makes something under a hidden name of its own.
fn hidden<T>(
    path: &Path,
    make: impl FnOnce(&tempfile::Builder<'_, '_>) -> io::Result<T>,
) -> io::Result<T> {
    let prefix = format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy());
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".partial");
    super::readable(&mut builder);
    // Its error names the hidden file, which nobody has heard of.
    make(&builder).map_err(|error| error.kind().into())
}

/// Where the system lists the files of this process, through which they can be named.
#[cfg(target_os = "linux")]
const OWN_FILES: &str = "/proc/self/fd";

/// A file without a name in a folder; none where there are no such files.
#[cfg(target_os = "linux")]
fn unnamed(folder: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    Path::new(OWN_FILES).is_dir().then(|| open(folder, flags, mode).ok().map(File::from)).flatten()
}

#[cfg(not(target_os = "linux"))]
fn unnamed(_: &Path) -> Option<File> {
    None
}

#[cfg(target_os = "linux")]
fn link(file: &File, name: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, linkat};
    use std::os::fd::AsRawFd;
    let own = format!("{OWN_FILES}/{}", file.as_raw_fd());
    Ok(linkat(CWD, own, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(not(target_os = "linux"))]
fn link(_: &File, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn it_takes_its_place_when_it_is_whole_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.npy");
        for (round, begin) in [Partial::named as fn(&Path) -> _, |path| {
            Partial::create(path, "out").map_err(io::Error::other)
        }]
        .into_iter()
        .enumerate()
        {
            let before = fs::read(&path).ok();
            let mut file = begin(&path).unwrap();
            write!(file, "round {round}").unwrap();
            assert_eq!(fs::read(&path).ok(), before, "not yet");
            drop(begin(&path).unwrap());
            file.finish().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("round {round}"));
            assert_eq!(names(folder.path()), ["out.npy"]);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_and_what_it_leads_to_is_replaced() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (link, there) = (folder.path().join("out.npy"), other.path().join("there.npy"));
        std::os::unix::fs::symlink(&there, &link).unwrap();
        for text in ["where it leads to nothing yet", "and where it does"] {
            let mut file = Partial::create(&link, "out").unwrap();
            write!(file, "{text}").unwrap();
            file.finish().unwrap();
            assert!(link.is_symlink());
            assert_eq!(fs::read_to_string(&there).unwrap(), text);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn where_files_need_no_name_there_is_none_to_leave() {
        let folder = tempfile::tempdir().unwrap();
        if unnamed(folder.path()).is_none() {
            return;
        }
        let file = Partial::create(&folder.path().join("out.npy"), "out").unwrap();
        assert!(names(folder.path()).is_empty());
        drop(file);
    }
}
