//! `--log`: whole lines, or none.
//!
//! A line goes out in one write to a file that is opened for appending, so a kill between
//! two samples leaves complete lines. Where the disk is full, the part of a line that was written
//! is removed, one warning is logged, and the monitor goes on; the log continues when there is
//! space again.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::outcome::OrBadInput;

/// A file that samples are appended to.
pub(super) struct MonitorLog {
    file: File,
    path: PathBuf,
    /// Lines that did not get through since the last that did.
    lost: u64,
    /// The last thing that stands there is not a whole line.
    torn: bool,
}

impl MonitorLog {
    pub(super) fn open(path: &Path) -> anyhow::Result<MonitorLog> {
        let wrong = || format!("cannot append to --log {}", path.display());
        let file = OpenOptions::new().append(true).create(true).open(path).or_bad_input(wrong)?;
        Ok(MonitorLog { torn: ends_torn(path), file, path: path.to_path_buf(), lost: 0 })
    }

    /// Appends a line; what there is to say about it, where there is anything.
    pub(super) fn append(&mut self, line: &str) -> Option<String> {
        let text = format!("{}{line}\n", if self.torn { "\n" } else { "" });
        let before = self.file.metadata().ok().filter(std::fs::Metadata::is_file);
        let name = self.path.display();
        match self.file.write_all(text.as_bytes()) {
            Ok(()) => {
                self.torn = false;
                let lost = std::mem::take(&mut self.lost);
                (lost > 0).then(|| format!("--log {name}: goes on after {lost} lost samples"))
            }
            Err(error) => {
                // Take a part of a line back; where that fails, end it before the next.
                self.torn = before.is_none_or(|b| self.file.set_len(b.len()).is_err());
                self.lost += 1;
                (self.lost == 1).then(|| {
                    format!(
                        "--log {name}: {error}; samples are shown and not logged until there \
                             is room"
                    )
                })
            }
        }
    }
}

/// Whether a kill of another kind left half a line at the end.
fn ends_torn(path: &Path) -> bool {
    let last = || -> std::io::Result<u8> {
        let mut file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(b'\n');
        }
        file.seek(SeekFrom::End(-1))?;
        let mut byte = [0];
        file.read_exact(&mut byte)?;
        Ok(byte[0])
    };
    last().is_ok_and(|byte| byte != b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_is_ended_before_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "{\"a\":1}\n{\"b\":").unwrap();
        let mut log = MonitorLog::open(&path).unwrap();
        assert_eq!(log.append("{}"), None);
        assert_eq!(log.append("{}"), None);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"a\":1}\n{\"b\":\n{}\n{}\n");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_told_once() {
        let mut log = MonitorLog::open(Path::new("/dev/full")).unwrap();
        assert!(log.append("{}").is_some_and(|text| text.contains("No space")));
        assert_eq!(log.append("{}"), None);
    }
}
