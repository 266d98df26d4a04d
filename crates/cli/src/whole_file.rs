//! Files that are written whole or not at all, and refused before any work where they never can be.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use anyhow::Context;
use plimsoll::files::followed;

use crate::outcome::{BadInput, OrBadInput};

/// Refuses a place where no file can be written, before the work is done.
pub(crate) fn check_place(flag: &str, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let why = match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => format!("there is no folder {}; make it first", folder.display()),
        None if path.is_dir() => "it is a folder".to_string(),
        None => return Ok(()),
    };
    Err(BadInput::new(format!("cannot write {flag} {}: {why}", path.display())).into())
}

/// Writes a file so that a reader never finds half of it, and what was there stays if it fails. A link
/// stays, and what it leads to is replaced; a device or a pipe is written to as it is. A
/// place that cannot be written to is the caller's to put right; a full disk is not.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    match write_whole(path, bytes) {
        Err(error) if is_of_place(error.kind()) => Err(error).or_bad_input(cannot),
        done => done.with_context(cannot),
    }
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if path.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    // Names of files that are open are links to what may have no name.
    let open = ["/dev/fd", "/dev/stdout", "/dev/stderr", "/proc"];
    let is_open = open.iter().any(|place| path.starts_with(place));
    if is_open || path.exists() && !path.is_file() {
        return File::options().write(true).open(path)?.write_all(bytes);
    }
    let path = &followed(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::Builder::new();
    #[cfg(unix)]
    file.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
    let file = file.tempfile_in(folder.unwrap_or(Path::new(".")));
    // Its error names the file that would have been there meanwhile, which nobody has heard of.
    let mut file = file.map_err(|error| io::Error::from(error.kind()))?;
    file.write_all(bytes).map_err(|error| io::Error::from(error.kind()))?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// Whether another place would be the remedy.
fn is_of_place(kind: ErrorKind) -> bool {
    use ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    matches!(kind, IsADirectory | NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::FaultKind;

    #[test]
    fn a_file_is_written_whole_or_the_place_is_named() {
        let folder = tempfile::Builder::new().prefix("whole").tempdir().unwrap();
        let path = folder.path().join("page.html");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        for (place, name) in [
            (folder.path().join("no/page.html"), "no/page.html"),
            (folder.path().into(), "it is a folder"),
        ] {
            let error = check_place("--html", &place).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            let error = write(&place, b"x").unwrap_err();
            assert_eq!(FaultKind::of(&error), FaultKind::Input);
            assert!(!format!("{error:#}").contains(".tmp"), "{error:#}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// Neither a link nor a pipe becomes a file.
    #[cfg(unix)]
    #[test]
    fn what_is_no_file_stays_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (link, target) in [("there", "old"), ("dangling", "new")] {
            std::os::unix::fs::symlink(target, at(link)).unwrap();
        }
        std::fs::write(at("old"), "old").unwrap();
        for link in ["there", "dangling"] {
            write(&at(link), b"page").unwrap();
            assert!(at(link).is_symlink());
        }
        for target in ["old", "new"] {
            assert_eq!(std::fs::read_to_string(at(target)).unwrap(), "page");
        }
        let made = std::process::Command::new("mkfifo").arg(at("pipe")).status();
        assert!(made.unwrap().success());
        let reader = std::thread::spawn({
            let pipe = at("pipe");
            move || std::fs::read_to_string(pipe).unwrap()
        });
        write(&at("pipe"), b"page").unwrap();
        assert_eq!(reader.join().unwrap(), "page");
        assert!(!at("pipe").is_file());
    }
}
