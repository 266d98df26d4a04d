//! Results of tries, kept for the next call of the same command.
//!
//! A file for each command, named by a number made of what the results depend on. That is also in
//! the file and compared, so that two commands never share results. The first line has a checksum
//! of the rest: results that were changed or cut are not used.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use std::{env, fs};

use anyhow::Context;
use plimsoll::{Bytes, files};
use serde::{Deserialize, Serialize};

const MAGIC: &str = "plimsoll fit 1";
/// A try takes about 150 bytes, and there are never a hundred.
const LARGEST: u64 = 1 << 20;
/// Variables that change what a program allocates begin so.
const VARIABLES: [&str; 8] =
    ["CUDA_", "PYTORCH_", "XLA_", "TF_", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "OMP_"];

/// A try whose result is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TryRecord {
    pub(super) value: u64,
    /// Whether the program ran to its end.
    pub(super) ran: bool,
    pub(super) peak_bytes: Option<u64>,
    /// The enforced limit of the device.
    pub(super) limit_bytes: Option<u64>,
    /// Requests that were refused. Where the program ran all the same, it recovered from them.
    pub(super) refused: u64,
    pub(super) refused_bytes: u64,
    pub(super) exit_code: u8,
    pub(super) seconds: f64,
    /// Whether an earlier call made it.
    #[serde(default)]
    pub(super) kept: bool,
}

/// What results depend on, as far as it can be known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TryConditions {
    version: String,
    program: Vec<String>,
    folder: String,
    vary: String,
    limit_bytes: u64,
    reserve_bytes: u64,
    /// Files among the program's words: size, and time of the last change.
    files: BTreeMap<String, (u64, u128)>,
    variables: BTreeMap<String, String>,
    /// The driver and the GPUs, as the system names them.
    gpus: Vec<String>,
}

impl TryConditions {
    /// Reads them.
    pub(super) fn of(words: &[OsString], vary: &str, limit: Bytes, reserve: Bytes) -> Self {
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let file = |word: &OsString| {
            let about = fs::metadata(word).ok().filter(fs::Metadata::is_file)?;
            let changed = about.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
            Some((text(word), (about.len(), changed.as_nanos())))
        };
        let variables = env::vars_os().map(|(name, value)| (text(&name), text(&value)));
        let matters =
            |(name, _): &(String, String)| VARIABLES.iter().any(|start| name.starts_with(start));
        TryConditions {
            version: env!("CARGO_PKG_VERSION").to_string(),
            program: words.iter().map(text).collect(),
            folder: env::current_dir().map_or_else(|_| String::new(), |path| text(&path.into())),
            vary: vary.to_string(),
            limit_bytes: limit.get(),
            reserve_bytes: reserve.get(),
            files: words.iter().filter_map(file).collect(),
            variables: variables.filter(matters).collect(),
            gpus: gpus(Path::new("/proc/driver/nvidia")),
        }
    }
}

/// The driver's version and the models of its GPUs; empty without NVIDIA's driver.
fn gpus(folder: &Path) -> Vec<String> {
    let first_line = |path: PathBuf| {
        let bytes = files::read(&path, 1 << 16).ok()?;
        Some(String::from_utf8_lossy(&bytes).lines().next()?.to_string())
    };
    let mut found: Vec<String> = fs::read_dir(folder.join("gpus"))
        .into_iter()
        .flatten()
        .filter_map(|entry| first_line(entry.ok()?.path().join("information")))
        .collect();
    found.sort();
    found.extend(first_line(folder.join("version")));
    found
}

/// The results of one command.
#[derive(Debug)]
pub(super) struct KeptTries {
    path: Option<PathBuf>,
    conditions: TryConditions,
}

/// What a file holds behind its first line.
#[derive(Debug, Serialize, Deserialize)]
struct KeptFile {
    conditions: TryConditions,
    tries: Vec<TryRecord>,
}

impl KeptTries {
    /// In the user's cache folder; nowhere where there is none.
    pub(super) fn of(conditions: TryConditions) -> KeptTries {
        let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache"));
        let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.filter(|path| path.is_absolute()).or_else(home);
        KeptTries::in_folder(cache.map(|cache| cache.join("plimsoll/fit")), conditions)
    }

    fn in_folder(folder: Option<PathBuf>, conditions: TryConditions) -> KeptTries {
        let name = serde_json::to_vec(&conditions).map(|text| checksum(&text)).unwrap_or(0);
        let path = folder.map(|folder| folder.join(format!("{name:016x}.txt")));
        KeptTries { path, conditions }
    }

    /// Where they are kept.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// What is known already; an error says what is wrong with the file, which is then not used.
    pub(super) fn read(&self) -> Result<Vec<TryRecord>, String> {
        let Some(path) = &self.path else { return Ok(Vec::new()) };
        let bytes = match files::read(path, LARGEST) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(format!("cannot be read and was not used ({error})")),
        };
        let kept = parse(&bytes).map_err(|why| format!("is damaged and was not used ({why})"))?;
        // Another command whose number happens to be the same.
        let own = kept.conditions == self.conditions;
        let tries = if own { kept.tries } else { Vec::new() };
        Ok(tries.into_iter().map(|record| TryRecord { kept: true, ..record }).collect())
    }

    /// Writes all results, whole or not at all.
    pub(super) fn write(&self, tries: &[TryRecord]) -> anyhow::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let file = KeptFile { conditions: self.conditions.clone(), tries: tries.to_vec() };
        let body = serde_json::to_string_pretty(&file)?;
        let text = format!("{MAGIC} {:016x}\n{body}\n", checksum(body.as_bytes()));
        let write = || -> io::Result<()> {
            let folder = path.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(text.as_bytes())?;
            file.persist(path).map_err(|error| error.error)?;
            Ok(())
        };
        write().with_context(|| format!("cannot keep the results in {}", path.display()))
    }

    /// Removes them.
    pub(super) fn forget(&self) -> anyhow::Result<()> {
        match self.path.as_ref().map(fs::remove_file) {
            Some(Err(error)) if error.kind() != ErrorKind::NotFound => {
                Err(error).context("cannot remove the kept results")
            }
            _ => Ok(()),
        }
    }
}

/// Reads the file of a command. It is the user's own, and may have been cut or changed.
fn parse(bytes: &[u8]) -> Result<KeptFile, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_string())?;
    let (head, body) = text.split_once('\n').ok_or("it has one line only")?;
    let sum = head.strip_prefix(MAGIC).ok_or("it does not begin as such a file does")?;
    let sum = u64::from_str_radix(sum.trim(), 16).map_err(|_| "it has no checksum".to_string())?;
    let body = body.strip_suffix('\n').ok_or("its end is missing")?;
    if checksum(body.as_bytes()) != sum {
        return Err("its checksum is not that of its content".to_string());
    }
    serde_json::from_str(body).map_err(|error| error.to_string())
}

/// FNV-1a: it must tell accidents, not attacks.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn conditions(word: &str) -> TryConditions {
        TryConditions::of(&[word.into()], "batch 1..8", Bytes::gib(1), Bytes::mib(128))
    }

    fn record(value: u64) -> TryRecord {
        TryRecord {
            value,
            ran: value < 5,
            peak_bytes: Some(value << 20),
            limit_bytes: Some(1 << 30),
            refused: 0,
            refused_bytes: 0,
            exit_code: 0,
            seconds: 0.25,
            kept: false,
        }
    }

    fn in_folder(folder: &Path, word: &str) -> KeptTries {
        KeptTries::in_folder(Some(folder.join("new/fit")), conditions(word))
    }

    #[test]
    fn results_come_back_for_the_same_command_only() {
        let folder = tempfile::tempdir().unwrap();
        let kept = in_folder(folder.path(), "a");
        assert_eq!(kept.read(), Ok(vec![]));
        kept.write(&[record(1), record(7)]).unwrap();
        let read = kept.read().unwrap();
        assert_eq!(read[1], TryRecord { kept: true, ..record(7) });
        assert_eq!(in_folder(folder.path(), "b").read(), Ok(vec![]));
        // A file of the same name for another command.
        let other = KeptTries { path: kept.path.clone(), conditions: conditions("b") };
        assert_eq!(other.read(), Ok(vec![]));
        kept.forget().unwrap();
        assert_eq!(kept.read(), Ok(vec![]));
        kept.forget().unwrap();
    }

    #[test]
    fn a_changed_file_of_the_program_is_another_command() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.py");
        fs::write(&script, "1").unwrap();
        let before = conditions(script.to_str().unwrap());
        fs::write(&script, "22").unwrap();
        assert_ne!(before, conditions(script.to_str().unwrap()));
    }

    proptest! {
        #[test]
        fn a_damaged_file_is_never_read(at in 0usize..10_000, to in any::<u8>(), cut in any::<bool>()) {
            let folder = tempfile::tempdir().unwrap();
            let kept = in_folder(folder.path(), "a");
            kept.write(&[record(1), record(7)]).unwrap();
            let path = kept.path().unwrap();
            let mut bytes = fs::read(path).unwrap();
            let at = at % bytes.len();
            prop_assume!(cut || bytes[at] != to);
            if cut { bytes.truncate(at) } else { bytes[at] = to }
            fs::write(path, bytes).unwrap();
            // The case of the checksum's own digits does not matter.
            if let Ok(read) = kept.read() {
                prop_assert_eq!(read, [1, 7].map(|value| TryRecord { kept: true, ..record(value) }));
            }
        }
    }
}
