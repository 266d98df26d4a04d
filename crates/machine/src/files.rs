//! Files of strangers: opened so that nothing waits, read so that nothing is without end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Opens a regular file for reading. Folders, devices and pipes are refused: under a file's
/// name they would be read without end, or keep their reader waiting for good.
///
/// # Errors
/// What the system says, or that it is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Opening a pipe that nobody writes to would wait; it changes nothing for files.
        options.custom_flags(libc::O_NONBLOCK);
    }
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    let what = if kind.is_dir() { "it is a folder" } else { "it is a pipe or a device" };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{what}, and no regular file")))
}

/// The whole of a file that has at most this many bytes.
///
/// # Errors
/// Those of [`open`], and that the file is larger.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    read_bounded(file, length, most)
}

/// All that a reader gives, where that is at most this many bytes; `expected` are likely.
///
/// # Errors
/// What the reader says, and that there is more.
pub fn read_bounded(from: impl Read, expected: u64, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if expected <= most {
        bytes.try_reserve_exact(usize::try_from(expected).unwrap_or(usize::MAX))?;
        from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    if expected > most || bytes.len() as u64 > most {
        let why = format!("it has more than {most} bytes, the most that are read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// Where a link leads to, whether anything is there or not; any other path as it is. Who replaces a file
/// replaces that one, so that the link stays.
#[must_use]
pub fn followed(path: &Path) -> PathBuf {
    let Ok(next) = path.read_link() else { return path.to_path_buf() };
    path.canonicalize().unwrap_or_else(|_| path.parent().unwrap_or(Path::new("")).join(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert!(read(&path, 4).unwrap_err().to_string().contains("more than 4 bytes"));
        assert!(read_bounded(io::repeat(0), 0, 1000).is_err(), "it would never end");
        assert!(read(folder.path(), 9).unwrap_err().to_string().contains("a folder"));
        assert_eq!(read(&folder.path().join("b"), 9).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(open(&path).unwrap_err().to_string().contains("a pipe or a device"));
        assert!(open(Path::new("/dev/zero")).is_err());
    }
}
