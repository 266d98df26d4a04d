//! The folder of a run: reports are replaced as a whole, metrics are appended by whole lines.
//!
//! A report is written to a temporary file beside its place and renamed, so that a reader sees
//! the old one or the new one, also after a kill. Metrics and the log are appended by whole
//! lines; half a line that a full disk leaves is removed. A failure is reported once. After that
//! reports are tried again without a message, and appending stops.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use plimsoll::text;
use thiserror::Error;

use super::html::{self, Picture};
use super::{csv, markdown};
use crate::record::BenchRecord;
use crate::record::time::folder_name;

/// What went wrong with a run's files.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FilesError {
    /// The name of the run cannot be that of a folder.
    #[error("run name {name:?} {why}; use letters, digits, '.', '_' and '-', such as night-1")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file or folder could not be written.
    #[error("cannot {what} {path}: {source}; {remedy}", path = .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
        /// What to do.
        remedy: String,
    },
}

/// The flag that says where a run's folder is.
const OF_FOLDER: &str = "--output-dir";

fn failed(what: &'static str, path: &Path, source: io::Error) -> FilesError {
    failed_by(OF_FOLDER, what, path, source)
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// For a file whose place another flag says.
fn failed_by(flag: &str, what: &'static str, path: &Path, source: io::Error) -> FilesError {
    let room = if is_full(&source) { "make room, or " } else { "" };
    let remedy = format!("{room}choose another place with {flag}");
    FilesError::Io { what, path: path.to_path_buf(), source, remedy }
}

/// Every file of a report, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// `report.json`.
    pub json: String,
    /// `report.md`.
    pub markdown: String,
    /// `report.html`.
    pub html: String,
    /// `summary.csv`.
    pub csv: String,
}

impl Rendered {
    /// Renders every file. This fails only for a number that JSON does not have (NaN).
    pub fn new(record: &BenchRecord, pictures: &[Picture]) -> Result<Rendered, serde_json::Error> {
        Ok(Rendered {
            json: json(record)?,
            markdown: markdown::render(record),
            html: html::render(record, pictures),
            csv: csv::render(record),
        })
    }
}

/// The record as JSON, ending with a line break.
fn json(record: &BenchRecord) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(record).map(|text| plimsoll::text::json(&text).into_owned() + "\n")
}

/// Whether a report was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ReportWritten {
    /// Completely.
    Whole,
    /// Not; the last complete one stays, and the reason was reported before.
    Not,
}

/// The folder of a run.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    name: String,
    reported: bool,
}

/// Whether a run can have this name.
pub(crate) fn check_name(name: &str) -> Result<(), FilesError> {
    let fine = |c: char| c.is_alphanumeric() || "._-".contains(c);
    let why = match name {
        "" => "is empty",
        name if name.len() > 100 => "is longer than 100 bytes",
        name if name.starts_with(['.', '-']) => "starts with '.' or '-'",
        LATEST => "is that of the link to the last run",
        name if !name.chars().all(fine) => "holds a character that a folder's name must not",
        _ => return Ok(()),
    };
    Err(FilesError::Name { name: name.to_string(), why })
}

impl RunFolder {
    /// Makes `<output_dir>/<run_name>/`, named by the time where no name is given. Where
    /// there is such a folder already the new one ends in `-2`, `-3`, …, so that no run
    /// overwrites another. The link `latest` beside it then leads to it.
    pub fn create(
        output_dir: &Path,
        run_name: Option<&str>,
        now: SystemTime,
    ) -> Result<RunFolder, FilesError> {
        let base = run_name.map_or_else(|| folder_name(now), str::to_string);
        check_name(&base)?;
        let make = |what, path: &Path, e| failed(what, path, e);
        fs::create_dir_all(output_dir).map_err(|e| make("make the folder", output_dir, e))?;
        for attempt in 1u32.. {
            let name = if attempt == 1 { base.clone() } else { format!("{base}-{attempt}") };
            let path = output_dir.join(&name);
            match fs::create_dir(&path) {
                Ok(()) => {
                    link_latest(output_dir, &name);
                    return Ok(RunFolder { path, name, reported: false });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && attempt < 10_000 => {}
                Err(e) => return Err(make("make the folder", &path, e)),
            }
        }
        Err(FilesError::Name { name: base, why: "is taken too often" })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name that the run was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `metrics.jsonl`, to append to.
    pub fn metrics(&self) -> Result<Journal, FilesError> {
        Journal::open(&self.path.join("metrics.jsonl"))
    }

    /// `run.log`, to append to.
    pub fn log(&self) -> Result<Journal, FilesError> {
        Journal::open(&self.path.join("run.log"))
    }

    /// Writes all reports: first all temporary files, then all renames, so that a full disk
    /// changes none of them. The first failure is an error; later ones are
    /// [`ReportWritten::Not`].
    pub fn write(&mut self, rendered: &Rendered) -> Result<ReportWritten, FilesError> {
        match self.replace_all(rendered) {
            Ok(()) => Ok(ReportWritten::Whole),
            Err(_) if self.reported => Ok(ReportWritten::Not),
            Err(error) => {
                self.reported = true;
                Err(error)
            }
        }
    }

    fn replace_all(&self, rendered: &Rendered) -> Result<(), FilesError> {
        let files = [
            ("report.json", &rendered.json),
            ("report.md", &rendered.markdown),
            ("report.html", &rendered.html),
            ("summary.csv", &rendered.csv),
        ];
        let place = |name: &str| (self.path.join(format!(".{name}.new")), self.path.join(name));
        let beside = files.iter().try_for_each(|(name, text)| {
            let (temporary, last) = place(name);
            // A full disk is about the report; what else fails is in the way of the file beside it.
            whole(&temporary, text.as_bytes()).map_err(|e| {
                let named = if is_full(&e) { &last } else { &temporary };
                failed("write", named, e)
            })
        });
        let done = beside.and_then(|()| {
            files.iter().try_for_each(|(name, _)| {
                let (temporary, last) = place(name);
                fs::rename(&temporary, &last).map_err(|e| failed("write", &last, e))
            })
        });
        if done.is_err() {
            // The disk may be full: leave no partial files. If that fails too, nothing is lost.
            for (name, _) in files {
                drop(fs::remove_file(place(name).0));
            }
        }
        done
    }
}

/// The link to the last run, beside the folders of runs.
const LATEST: &str = "latest";

/// Makes `latest` a link to the run that starts. It is a convenience: where there cannot be links,
/// or something else has that name, there is none, and the run goes on.
fn link_latest(output_dir: &Path, name: &str) {
    let link = output_dir.join(LATEST);
    let free = match fs::symlink_metadata(&link) {
        Ok(found) => found.is_symlink(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    #[cfg(unix)]
    if free {
        // Replaced as a whole, so that there is always one; a link of this name may be left by a
        // run that was killed here.
        let temporary = output_dir.join(format!(".{LATEST}-{name}"));
        drop(fs::remove_file(&temporary));
        let made = std::os::unix::fs::symlink(name, &temporary);
        if made.and_then(|()| fs::rename(&temporary, &link)).is_err() {
            drop(fs::remove_file(&temporary));
        }
    }
    #[cfg(not(unix))]
    let _ = (free, name);
}

fn whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    // Some file systems report that they are full only here.
    file.sync_data()
}

/// A file that lines are appended to.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    /// The flag that says where it is.
    flag: &'static str,
    pending: Vec<u8>,
    length: u64,
    broken: bool,
}

/// Splits lines into the pieces that are written at once; `at` is the place in the file. A kill
/// can end a write at the end of a page, so a piece ends with the last line before one, and a
/// line across two pages is a piece by itself.
fn pieces(lines: &[u8], at: u64) -> impl Iterator<Item = &[u8]> {
    const PAGE: u64 = 4096;
    let mut rest = lines;
    std::iter::from_fn(move || {
        let room = (PAGE - (at + (lines.len() - rest.len()) as u64) % PAGE) as usize;
        let ends = |part: &[u8]| part.iter().rposition(|byte| *byte == b'\n');
        let end = match rest.get(..room) {
            None => rest.len(),
            Some(page) => match ends(page).or_else(|| rest.iter().position(|b| *b == b'\n')) {
                Some(end) => end + 1,
                None => rest.len(),
            },
        };
        let (piece, behind) = rest.split_at(end);
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// This much is gathered before it is written: one system call per frame would slow the run.
const GATHER: usize = 32 << 10;

impl Journal {
    /// Opens a file to append to, making it where there is none.
    pub fn open(path: &Path) -> Result<Journal, FilesError> {
        Journal::of_flag(path, OF_FOLDER)
    }

    /// The same for a file that a flag of its own names.
    pub(crate) fn of_flag(path: &Path, flag: &'static str) -> Result<Journal, FilesError> {
        let failed = |e| failed_by(flag, "open", path, e);
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let pending = Vec::with_capacity(GATHER * 2);
        Ok(Journal { file, path: path.to_path_buf(), flag, pending, length, broken: false })
    }

    /// Appends a line; line breaks inside it become spaces. The first failure is an error,
    /// after which nothing is written any more.
    pub fn line(&mut self, text: &str) -> Result<(), FilesError> {
        self.push(&text::one_line(text.trim_end()))
    }

    fn push(&mut self, line: &str) -> Result<(), FilesError> {
        if self.broken {
            return Ok(());
        }
        self.pending.extend_from_slice(line.as_bytes());
        self.pending.push(b'\n');
        if self.pending.len() >= GATHER { self.flush() } else { Ok(()) }
    }

    /// Appends a value as a line of JSON.
    pub fn json(&mut self, value: &impl serde::Serialize) -> Result<(), FilesError> {
        match serde_json::to_string(value) {
            Ok(text) => self.push(&text::json(&text)),
            Err(e) => Err(failed_by(self.flag, "write", &self.path, io::Error::other(e))),
        }
    }

    /// Writes what was gathered. To be called every second or so, and at the end.
    pub fn flush(&mut self) -> Result<(), FilesError> {
        if self.broken || self.pending.is_empty() {
            return Ok(());
        }
        let mut file = &self.file;
        let written =
            pieces(&self.pending, self.length).try_for_each(|piece| file.write_all(piece));
        match written {
            Ok(()) => {
                self.length += self.pending.len() as u64;
                self.pending.clear();
                Ok(())
            }
            Err(e) => {
                self.broken = true;
                self.pending = Vec::new();
                // Remove half a line. A device that cannot do that is not read again.
                drop(self.file.set_len(self.length));
                Err(failed_by(self.flag, "append to", &self.path, e))
            }
        }
    }

    /// Whether appending has stopped.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // A caller who wants the error calls `flush`.
        drop(self.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn pieces_end_with_lines_and_lie_within_pages_where_they_can() {
        let lines: Vec<u8> =
            (1..400).flat_map(|n| [vec![b'x'; n % 97], vec![b'\n']].concat()).collect();
        for at in [0, 1, 4000, 4095, 4096] {
            let cut: Vec<&[u8]> = pieces(&lines, at).collect();
            assert_eq!(cut.concat(), lines);
            let mut from = at;
            for piece in cut {
                let to = from + piece.len() as u64;
                assert!(piece.ends_with(b"\n"));
                let within = from / 4096 == (to - 1) / 4096;
                assert!(within || piece.iter().filter(|byte| **byte == b'\n').count() == 1);
                from = to;
            }
        }
        assert_eq!(pieces(b"no end", 4094).collect::<Vec<_>>(), [b"no end"]);
    }
}
