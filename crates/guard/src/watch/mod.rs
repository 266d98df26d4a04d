//! The side of `plimsoll run`: makes the ledger, and reads it and the event logs.

#![expect(unsafe_code, reason = "maps the ledger that the guarded processes write to")]

mod events;
mod outside;
mod stacks;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

pub use events::{
    EventLogFile, EventLogHeader, GuardEvent, GuardEventReader, ProcessLog, parse_log,
};
pub use outside::{GuardShare, GuardedProcess};
pub use stacks::parse_stacks;

use crate::ledger::{
    self, DEVICES, GuardLedger, LedgerDevice, LedgerProcess, LedgerSetup, Liveness, NO_LIMIT, state,
};
use crate::liveness::{self, LivenessCheck};
use crate::{join, sys};

/// The environment variable by which a guarded process finds its ledger.
pub const VARIABLE: &str = join::FOLDER;
/// The environment variable that names the ledger's file itself, for the case that its folder is
/// gone.
pub const DESCRIPTOR_VARIABLE: &str = join::DESCRIPTOR;
/// The environment variable that sets a limit without `run`; with `_N` appended, that of one
/// device.
pub const LIMIT_VARIABLE: &str = join::LIMIT;

/// The limits that a run enforces.
#[derive(Debug, Clone, Default)]
pub struct GuardSettings {
    /// The limit of every device; `None` only counts.
    pub limit: Option<u64>,
    /// Limits of single devices, by the program's own device numbers.
    pub limits: Vec<(usize, u64)>,
    /// Reserved below the limit for what the driver takes for itself.
    pub reserve: u64,
    /// What must stay available on unified memory.
    pub keep_free: u64,
    /// Bits of [`ledger::flag`].
    pub flags: u32,
    /// Where the system's memory is read.
    pub meminfo: PathBuf,
}

impl GuardSettings {
    fn setup(&self) -> LedgerSetup<'_> {
        let mut limits = [0; DEVICES];
        for (device, limit) in &self.limits {
            if let Some(of_device) = limits.get_mut(*device) {
                *of_device = *limit;
            }
        }
        LedgerSetup {
            limit: self.limit.unwrap_or(NO_LIMIT),
            limits,
            reserve: self.reserve,
            keep_free: self.keep_free,
            flags: self.flags,
            meminfo: self.meminfo.as_os_str().as_encoded_bytes(),
        }
    }
}

/// A ledger in its folder, mapped.
#[derive(Debug)]
pub struct GuardWatch {
    folder: PathBuf,
    /// The ledger's file: it stays reachable by its descriptor if its folder is removed.
    file: sys::SysFile,
    ledger: *const GuardLedger,
}

// SAFETY: everything in a ledger that is written after it was made is atomic.
unsafe impl Send for GuardWatch {}
// SAFETY: as above.
unsafe impl Sync for GuardWatch {}

impl Drop for GuardWatch {
    fn drop(&mut self) {
        // SAFETY: `create` made the mapping with this size, and nobody uses it now.
        unsafe { sys::munmap(self.ledger.cast_mut().cast(), size_of::<GuardLedger>()) };
    }
}

/// Checks that this process may write files as large as a ledger; the guard's library is smaller.
///
/// # Errors
///
/// The limit is too low (`ulimit -f`): writing such a file would end this program by a signal.
pub fn files_may_be_made() -> io::Result<()> {
    let size = size_of::<GuardLedger>() as u64;
    let mib = size.div_ceil(1 << 20);
    let text = || format!("files may not be as large as {mib} MiB here; raise `ulimit -f`");
    sys::file_size_allowed(size).then_some(()).ok_or_else(|| io::Error::other(text()))
}

impl GuardWatch {
    /// Makes a ledger in a folder, to which only the user should have access.
    pub fn create(folder: &Path, settings: &GuardSettings) -> io::Result<GuardWatch> {
        let path = CString::new(folder.join("ledger").as_os_str().as_bytes())?;
        let flags = sys::O_RDWR | sys::O_CREAT | sys::O_EXCL;
        let size = size_of::<GuardLedger>();
        let file = sys::SysFile::open(&path, flags, 0o600).map_err(|problem| {
            io::Error::other(format!("cannot make the counters: {problem:?}"))
        })?;
        // Space is allocated: writing to a mapped file that cannot grow would end a program by a
        // signal.
        if !file.set_size(size as u64) || !file.allocate_space(0, GuardLedger::room()) {
            return Err(io::Error::other("no room for the counters"));
        }
        if !liveness::lock_run_slot(&file) || !liveness::join_users(&file) {
            return Err(io::Error::other("files cannot be locked there"));
        }
        let at = file.map(size, sys::PROT_READ | sys::PROT_WRITE).cast::<GuardLedger>();
        // SAFETY: zeroed, large enough, aligned to a page, and nobody else has it yet.
        let ledger = unsafe { at.as_mut() };
        let ledger = ledger.ok_or_else(|| io::Error::other("no memory to map the counters"))?;
        settings.setup().fill(ledger);
        Ok(GuardWatch { folder: folder.to_path_buf(), file, ledger: at })
    }

    /// The counters.
    #[must_use]
    pub fn ledger(&self) -> &GuardLedger {
        // SAFETY: mapped for as long as `self` lives; what changes in it is atomic.
        unsafe { &*self.ledger }
    }

    /// The devices that were used.
    pub fn devices(&self) -> impl Iterator<Item = &LedgerDevice> {
        self.ledger().devices.iter().filter(|device| device.state.load(Acquire) == 2)
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Gives back what processes held that have died.
    pub fn reclaim(&self) {
        self.ledger().reclaim(liveness::RUN, &LivenessCheck::new(&self.file, self.ledger()));
    }

    /// Whether a process of the ledger is running; true where that is unknown.
    #[must_use]
    pub fn is_live(&self, process: &LedgerProcess) -> bool {
        let slot = self.ledger().processes().iter().position(|other| std::ptr::eq(other, process));
        process.state.load(Acquire) == state::LIVE
            && slot
                .is_some_and(|slot| LivenessCheck::new(&self.file, self.ledger()).is_running(slot))
    }

    /// The descriptor of the ledger's file, valid for as long as this value lives.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.file.number()
    }

    /// Whether the ledger was truncated or overwritten.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        let size = self.file.status().map_or(0, |facts| facts.size);
        size < size_of::<GuardLedger>() as u64 || self.ledger().magic.load(Acquire) != ledger::MAGIC
    }

    /// Passes every process that has died to `keep`, once, and frees its slot.
    pub fn collect_dead(&self, mut keep: impl FnMut(&LedgerProcess)) {
        for (slot, process) in self.ledger().processes().iter().enumerate() {
            // Only the holder of a slot's lock may change the slot.
            if process.state.load(Acquire) == state::DEAD && liveness::lock_slot(&self.file, slot) {
                if process.state.load(Acquire) == state::DEAD {
                    keep(process);
                    process.state.store(state::FREE, Release);
                }
                liveness::unlock_slot(&self.file, slot);
            }
        }
    }

    /// The event logs in the folder, one for each program that used the driver. Other files are
    /// left out: programs can write to the folder.
    ///
    /// # Errors
    ///
    /// The folder cannot be read.
    pub fn log_files(&self) -> io::Result<Vec<EventLogFile>> {
        let mut lists = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let mut parts = name.split('.');
            if let (Some("log"), Some(pid)) = (parts.next(), parts.next())
                && let Ok(pid) = pid.parse()
                && let Ok(Some(head)) = open(&entry.path()).and_then(EventLogHeader::read)
            {
                lists.push(EventLogFile { pid, head, path: entry.path() });
            }
        }
        lists.sort_by_key(|list| list.head.since);
        Ok(lists)
    }

    /// The events of all logs.
    ///
    /// # Errors
    ///
    /// The folder cannot be read.
    pub fn logs(&self) -> io::Result<Vec<ProcessLog>> {
        let unified = self.unified();
        let read = |list: &EventLogFile| parse_log(open(&list.path)?, list.pid, &unified);
        self.log_files()?.iter().map(read).collect()
    }

    /// Which devices share the system's memory.
    #[must_use]
    pub fn unified(&self) -> [bool; DEVICES] {
        let devices = &self.ledger().devices;
        std::array::from_fn(|place| devices[place].integrated.load(Relaxed) != 0)
    }

    /// The file to which a process writes its call stacks.
    #[must_use]
    pub fn stacks(&self, (pid, since): (u32, u64)) -> PathBuf {
        self.folder.join(format!("stacks.{pid}.{since}"))
    }

    /// A slot with its space allocated in the file, for tests that fill it in.
    #[doc(hidden)]
    #[must_use]
    pub fn slot(&self, place: usize) -> &LedgerProcess {
        let ledger = self.ledger();
        let (from, size) = GuardLedger::room_of(place);
        self.file.allocate_space(from, size);
        ledger.taken.fetch_max(place as u32 + 1, Relaxed);
        &ledger.processes[place]
    }
}

/// Opens a file of the folder for reading. Programs may put anything there, so a pipe must not
/// block the reader and a link must not lead it elsewhere.
///
/// # Errors
///
/// It cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    const O_NOFOLLOW: i32 = if cfg!(target_arch = "aarch64") { 0o100_000 } else { 0o400_000 };
    let flags = sys::O_NONBLOCK | O_NOFOLLOW | sys::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let plain = file.metadata()?.is_file();
    plain.then_some(file).ok_or_else(|| io::Error::other("it is not a plain file"))
}

/// Whether any process uses the ledger at this path, in any PID namespace. A folder without a
/// ledger of its own may have a link to one.
#[must_use]
pub fn is_in_use(path: &Path) -> bool {
    let path = fs::canonicalize(path).map(|path| CString::new(path.as_os_str().as_bytes()));
    let Ok(Ok(path)) = path else { return false };
    let opened = sys::SysFile::open(&path, sys::O_RDONLY, 0);
    opened.is_ok_and(|file| liveness::is_used(&file))
}

/// Converts times of the ledger and of events to the time since a program was started.
#[derive(Debug, Clone, Copy)]
pub struct LedgerClock {
    began: u64,
}

impl LedgerClock {
    /// Starts now.
    #[must_use]
    pub fn start() -> LedgerClock {
        LedgerClock { began: sys::now_exactly() }
    }

    /// The time from the start until a time of the ledger; zero for one before it.
    #[must_use]
    pub fn since_start(&self, at: u64) -> Duration {
        Duration::from_nanos(at.saturating_sub(self.began))
    }

    /// The time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.since_start(sys::now_exactly())
    }
}
