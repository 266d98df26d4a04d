//! Files that are written whole or not at all, and refused before any work where they never can be.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, anyhow};
use plimsoll_points::write::Partial;

use crate::outcome::BadInput;
use crate::stop;

/// Refuses a place where no file can be written, before the work is done.
pub(crate) fn check_place(flag: &str, path: &Path) -> anyhow::Result<()> {
    match why_not(path) {
        None => Ok(()),
        Some(why) => {
            Err(BadInput::new(format!("cannot write {flag} {}: {why}", path.display())).into())
        }
    }
}

fn why_not(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => Some(format!("there is no folder {}; make it first", folder.display())),
        None => path.is_dir().then(|| "it is a folder".to_string()),
    }
}

/// Writes a file so that a reader never finds half of it, and what was there stays if it fails. A link
/// stays, and what it leads to is replaced; a device or a pipe is written to as it is. A
/// place that cannot be written to is the caller's to put right; a full disk is not.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let written = match why_not(path) {
        Some(why) => Err(BadInput::new(why).into()),
        None if is_open(path) || path.exists() && !path.is_file() => write_through(path, bytes),
        None => write_whole(path, bytes),
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Names of files that are open are links to what may have no name.
fn is_open(path: &Path) -> bool {
    let open = ["/dev/fd", "/dev/stdout", "/dev/stderr", "/proc"];
    open.iter().any(|place| path.starts_with(place))
}

fn write_through(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let file = File::options().write(true).open(path);
    let mut file = file.map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::NotFound => BadInput::new(error).into(),
        _ => anyhow!(error),
    })?;
    Ok(file.write_all(bytes)?)
}

fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    stop::end_after_this();
    let mut file = Partial::create(path, "the file")?;
    file.write_all(bytes)?;
    Ok(file.finish()?)
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
