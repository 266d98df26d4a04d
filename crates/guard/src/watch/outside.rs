//! What a guarded process holds, seen from outside of its run: for monitors.
//!
//! The ledger is found by the process's environment, which the kernel shows to its user and to
//! root, and read by plain reads: nothing is mapped, so a file that somebody cuts short is an
//! error here and no signal, and nothing of it is changed or locked.

use std::fs::{self, File};
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use super::{DESCRIPTOR_VARIABLE, LIMIT_VARIABLE, VARIABLE, open};
use crate::ledger::{DEVICES, GuardLedger, LedgerDevice, LedgerProcess, MAGIC, NO_LIMIT, state};
use crate::sync::{AtomicU32, AtomicU64};
use crate::sys;

/// This many slots of a ledger are looked through; those of a run with more are too many to show.
const MOST_SLOTS: u32 = 512;
/// As much of an environment is read.
const LONGEST_ENVIRONMENT: u64 = 1 << 20;

/// A process that the guard was loaded into.
#[derive(Debug, Clone)]
pub struct GuardedProcess {
    /// Its ledger, as this process reaches it.
    ledger: PathBuf,
    /// Whether that is a descriptor of `run`, which is a link.
    linked: bool,
    /// Its number in its own PID namespace, by which the ledger knows it.
    pid: u32,
}

/// What a process holds of a device, and what its run may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardShare {
    /// The run, by the file of its ledger: the same for all processes that share the limit.
    pub run: (u64, u64),
    /// The device, by its place in the ledger.
    pub place: usize,
    /// The device's UUID, as NVML writes it.
    pub uuid: String,
    /// The device, by the program's own number.
    pub ordinal: u32,
    /// What the run may hold there; `None` where it is only counted.
    pub limit: Option<u64>,
    /// What all processes of the run are charged there.
    pub run_used: u64,
    /// What this process is charged there.
    pub used: u64,
}

impl GuardedProcess {
    /// The guarded process of this number; `None` where it is not guarded, or not ours to see.
    #[must_use]
    pub fn find(pid: u32) -> Option<GuardedProcess> {
        let environment = start_of(&format!("/proc/{pid}/environ"), LONGEST_ENVIRONMENT)?;
        let variable = |name: &str| {
            let start = format!("{name}=");
            let mut all = environment.split(|byte| *byte == 0);
            all.find_map(|text| text.strip_prefix(start.as_bytes())).filter(|v| !v.is_empty())
        };
        let status = start_of(&format!("/proc/{pid}/status"), 4096).unwrap_or_default();
        let own = inner_pid(&String::from_utf8_lossy(&status)).unwrap_or(pid);
        // A container has other files under the same names.
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let below = |path: &[u8]| {
            let path = Path::new(std::ffi::OsStr::from_bytes(path));
            root.join(path.strip_prefix("/").unwrap_or(path))
        };
        let folder = variable(VARIABLE).map(below);
        let by_limit = || {
            variable(LIMIT_VARIABLE)?;
            own_folder(&below(b"/dev/shm"), own)
        };
        let named = folder.or_else(by_limit).map(|folder| folder.join("ledger"));
        let named = named.filter(|path| open(path).is_ok());
        let linked = named.is_none();
        let ledger = named.or_else(|| variable(DESCRIPTOR_VARIABLE).map(below))?;
        Some(GuardedProcess { ledger, linked, pid: own })
    }

    /// What it holds now, by device; empty before it has called the driver.
    ///
    /// # Errors
    ///
    /// The ledger is gone, cut short or of another version.
    pub fn shares(&self) -> io::Result<Vec<GuardShare>> {
        let file = if self.linked { open_link(&self.ledger)? } else { open(&self.ledger)? };
        let facts = file.metadata()?;
        let magic: AtomicU64 = read(&file, offset_of!(GuardLedger, magic) as u64)?;
        if magic.load(Relaxed) != MAGIC {
            return Err(io::Error::other("it is no ledger, or one of another version"));
        }
        let Some(process) = self.slot(&file)? else { return Ok(Vec::new()) };
        let mut shares = Vec::new();
        for place in 0..DEVICES {
            let at = offset_of!(GuardLedger, devices) + place * size_of::<LedgerDevice>();
            let device: LedgerDevice = read(&file, at as u64)?;
            if device.state.load(Relaxed) == 2 {
                shares.push(GuardShare {
                    run: (facts.dev(), facts.ino()),
                    place,
                    uuid: uuid(&device),
                    ordinal: device.ordinal.load(Relaxed),
                    limit: Some(device.budget.load(Relaxed)).filter(|limit| *limit != NO_LIMIT),
                    run_used: device.used.load(Relaxed),
                    used: process.used(place),
                });
            }
        }
        Ok(shares)
    }

    fn slot(&self, file: &File) -> io::Result<Option<LedgerProcess>> {
        let taken: AtomicU32 = read(file, offset_of!(GuardLedger, taken) as u64)?;
        for slot in 0..taken.load(Relaxed).min(MOST_SLOTS) {
            let (at, _) = GuardLedger::room_of(slot as usize);
            let word = |field: usize| -> io::Result<u32> {
                Ok(read::<AtomicU32>(file, at + field as u64)?.load(Relaxed))
            };
            if word(offset_of!(LedgerProcess, pid))? == self.pid
                && word(offset_of!(LedgerProcess, state))? == state::LIVE
            {
                return read(file, at).map(Some);
            }
        }
        Ok(None)
    }
}

/// `GPU-` and the bytes in five groups.
fn uuid(device: &LedgerDevice) -> String {
    let [low, high] = device.uuid.each_ref().map(|word| u128::from(word.load(Relaxed)));
    let bytes = u128::from_be_bytes((low | high << 64).to_le_bytes());
    let part =
        |from: u32, digits: u32| bytes >> (128 - 4 * (from + digits)) & ((1 << (4 * digits)) - 1);
    let [a, b, c, d, e] = [(0, 8), (8, 4), (12, 4), (16, 4), (20, 12)].map(|(at, n)| part(at, n));
    format!("GPU-{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
}

/// Follows a link to a plain file. The program may have named anything, so a pipe must not block.
fn open_link(path: &Path) -> io::Result<File> {
    let flags = sys::O_NONBLOCK | sys::O_CLOEXEC;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let plain = file.metadata()?.is_file();
    plain.then_some(file).ok_or_else(|| io::Error::other("it is not a plain file"))
}

/// The folder that a process with a limit of its own has made: `plimsoll-run-PID-TIME`.
fn own_folder(parent: &Path, pid: u32) -> Option<PathBuf> {
    let start = format!("plimsoll-run-{pid}-");
    let mut entries = fs::read_dir(parent).ok()?.flatten();
    entries.find(|entry| entry.file_name().to_string_lossy().starts_with(&start)).map(|e| e.path())
}

/// The number in the innermost PID namespace: `NSpid:\t4711\t12`.
fn inner_pid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

fn start_of(path: &str, most: u64) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Parts of a ledger: numbers and arrays of them, for which all bytes are valid.
trait LedgerPart {}
impl LedgerPart for AtomicU32 {}
impl LedgerPart for AtomicU64 {}
impl LedgerPart for LedgerDevice {}
impl LedgerPart for LedgerProcess {}

fn read<T: LedgerPart>(file: &File, at: u64) -> io::Result<T> {
    let mut part = MaybeUninit::<T>::zeroed();
    // SAFETY: the bytes of `part`, all of them set, which nobody else has.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(part.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    file.read_exact_at(bytes, at)?;
    // SAFETY: all bytes are set, and any bytes are a valid part.
    Ok(unsafe { part.assume_init() })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::watch::tests::soon;
    use crate::watch::{GuardSettings, GuardWatch};

    /// A child that names a ledger, and its slot in it, as the guard would fill it in.
    #[test]
    fn a_guarded_process_is_found_with_what_it_holds_and_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let settings = GuardSettings { limit: Some(8 << 30), ..GuardSettings::default() };
        let watch = GuardWatch::create(folder.path(), &settings).unwrap();
        let mut sleep = Command::new("sleep");
        let mut child = sleep.arg("60").env(VARIABLE, folder.path()).spawn().unwrap();
        let find = || GuardedProcess::find(child.id());
        assert!(soon(|| find().is_some()), "its environment names the ledger");
        let guarded = find().unwrap();
        assert_eq!(guarded.shares().unwrap(), [], "it has not called the driver");
        let device = &watch.ledger().devices[0];
        device.budget.store(8 << 30, Relaxed);
        device.state.store(2, Relaxed);
        let uuid = 0x2f1c_9e7a_0b3d_4c5e_8f90_a1b2_c3d4_e5f6u128.swap_bytes();
        device.uuid[0].store(uuid as u64, Relaxed);
        device.uuid[1].store((uuid >> 64) as u64, Relaxed);
        let slot = watch.slot(0);
        slot.pid.store(guarded.pid, Relaxed);
        slot.state.store(state::LIVE, Relaxed);
        watch.ledger().recharge(slot, 0, 0, 3 << 20, 1);
        watch.ledger().devices[0].used.fetch_add(1 << 20, Relaxed);
        let shares = guarded.shares().unwrap();
        assert_eq!(shares.len(), 1);
        let held = (shares[0].limit, shares[0].run_used, shares[0].used, shares[0].ordinal);
        assert_eq!(held, (Some(8 << 30), 4 << 20, 3 << 20, 0));
        assert_eq!(shares[0].uuid, "GPU-2f1c9e7a-0b3d-4c5e-8f90-a1b2c3d4e5f6");
        // What is cut short or no ledger is an error, never a signal.
        let file = fs::OpenOptions::new().write(true).open(folder.path().join("ledger")).unwrap();
        file.set_len(64).unwrap();
        assert!(guarded.shares().is_err());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(GuardedProcess::find(std::process::id()).is_none(), "nobody guards this one");
    }

    #[test]
    fn the_number_in_the_innermost_namespace_counts() {
        assert_eq!(inner_pid("Name:\tx\nNSpid:\t4711\t12\n"), Some(12));
        assert_eq!((inner_pid("NSpid:\t7\n"), inner_pid("")), (Some(7), None));
    }
}
