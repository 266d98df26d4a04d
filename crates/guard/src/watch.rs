//! The other side: what `plimsoll run` does with a ledger and with the lists of events.

#![expect(unsafe_code, reason = "maps the ledger that the guarded processes write to")]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Read};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use crate::ledger::{self, DEVICES, GuardLedger, LedgerProcess, Liveness, NO_LIMIT, state};
use crate::liveness::{self, LivenessCheck};
use crate::log::{self, EventRecord, GuardMemoryKind, GuardOp, MappedLogHeader};
use crate::sys;

/// The name of the variable by which a guarded process finds its ledger.
pub const VARIABLE: &str = "PLIMSOLL_GUARD";
/// The name of the variable that names the ledger's file itself, for where its folder is gone.
pub const DESCRIPTOR_VARIABLE: &str = "PLIMSOLL_GUARD_FD";
/// The variable that names a limit where there is no `run`; with `_N` behind it, that of one
/// device.
pub const LIMIT_VARIABLE: &str = "PLIMSOLL_GPU_MEM_LIMIT";

/// What a run holds its programs to.
#[derive(Debug, Clone, Default)]
pub struct GuardSettings {
    /// The line of every device; `None` only counts.
    pub limit: Option<u64>,
    /// Lines of single devices, by the program's own numbers.
    pub limits: Vec<(usize, u64)>,
    /// Held back for what the driver takes for itself.
    pub reserve: u64,
    /// What must stay available on unified memory.
    pub keep_free: u64,
    /// Bits of [`ledger::flag`].
    pub flags: u32,
    /// Where the system's memory is read.
    pub meminfo: PathBuf,
}

/// A ledger in its folder, mapped.
#[derive(Debug)]
pub struct GuardWatch {
    folder: PathBuf,
    /// The ledger's file: it stays reachable by its descriptor where its folder is removed.
    file: sys::SysFile,
    ledger: *const GuardLedger,
    began: u64,
}

// SAFETY: everything in a ledger that is written after it was made is atomic.
unsafe impl Send for GuardWatch {}
// SAFETY: as above.
unsafe impl Sync for GuardWatch {}

impl Drop for GuardWatch {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `create` with this size, and nobody uses it now.
        unsafe { sys::munmap(self.ledger.cast_mut().cast(), size_of::<GuardLedger>()) };
    }
}

/// Whether files may be as large here as a run's must be; the library is smaller than a ledger.
///
/// # Errors
///
/// They may not (`ulimit -f`): to write one would end this program by a signal.
pub fn files_may_be_made() -> io::Result<()> {
    let size = size_of::<GuardLedger>() as u64;
    let mib = size.div_ceil(1 << 20);
    let text = || format!("files may not be as large as {mib} MiB here; raise `ulimit -f`");
    sys::file_size_allowed(size).then_some(()).ok_or_else(|| io::Error::other(text()))
}

impl GuardWatch {
    /// Makes a ledger in a folder, which should be the user's alone.
    pub fn create(folder: &Path, settings: &GuardSettings) -> io::Result<GuardWatch> {
        let path = CString::new(folder.join("ledger").as_os_str().as_bytes())?;
        let flags = sys::O_RDWR | sys::O_CREAT | sys::O_EXCL;
        let size = size_of::<GuardLedger>();
        let file = sys::SysFile::open(&path, flags, 0o600).map_err(|problem| {
            io::Error::other(format!("cannot make the counters: {problem:?}"))
        })?;
        // With its room: a mapped file that cannot grow would end a program.
        if !file.set_size(size as u64) || !file.allocate_space(0, GuardLedger::room()) {
            return Err(io::Error::other("no room for the counters"));
        }
        if !liveness::lock_run_slot(&file) || !liveness::join_users(&file) {
            return Err(io::Error::other("files cannot be locked there"));
        }
        let at = file.map(size, sys::PROT_READ | sys::PROT_WRITE).cast::<GuardLedger>();
        // SAFETY: zeroed, large enough, aligned to a page, and nobody else has it yet.
        let ledger = unsafe { at.as_mut() };
        fill(ledger.ok_or_else(|| io::Error::other("no memory to map the counters"))?, settings);
        let began = sys::now_exactly();
        Ok(GuardWatch { folder: folder.to_path_buf(), file, ledger: at, began })
    }

    /// The counters.
    #[must_use]
    pub fn ledger(&self) -> &GuardLedger {
        // SAFETY: mapped for as long as `self` lives; what changes in it is atomic.
        unsafe { &*self.ledger }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How times of the ledger and of events become those of the run.
    #[must_use]
    pub fn clock(&self) -> LedgerClock {
        LedgerClock { began: self.began }
    }

    /// Gives back what dead processes hold.
    pub fn reclaim(&self) {
        self.ledger().reclaim(liveness::RUN, &LivenessCheck::new(&self.file, self.ledger()));
    }

    /// Whether a process of the ledger's runs, or may.
    #[must_use]
    pub fn is_live(&self, process: &LedgerProcess) -> bool {
        let slot = self.ledger().processes().iter().position(|other| std::ptr::eq(other, process));
        process.state.load(Acquire) == state::LIVE
            && slot
                .is_some_and(|slot| LivenessCheck::new(&self.file, self.ledger()).is_running(slot))
    }

    /// The ledger's file, for as long as this lives.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.file.number()
    }

    /// Whether the ledger is not what it was made as any more: truncated, or written over.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        let size = self.file.status().map_or(0, |facts| facts.size);
        size < size_of::<GuardLedger>() as u64 || self.ledger().magic.load(Acquire) != ledger::MAGIC
    }

    /// Hands every process that is gone to `keep`, once, and its slot to whoever comes next.
    pub fn collect_dead(&self, mut keep: impl FnMut(&LedgerProcess)) {
        for (slot, process) in self.ledger().processes().iter().enumerate() {
            // Whoever has its lock may change a slot.
            if process.state.load(Acquire) == state::DEAD && liveness::lock_slot(&self.file, slot) {
                if process.state.load(Acquire) == state::DEAD {
                    keep(process);
                    process.state.store(state::FREE, Release);
                }
                liveness::unlock_slot(&self.file, slot);
            }
        }
    }

    /// The lists of events in the folder, one for each program that used the driver. What is no
    /// list is left out: the folder is open to the programs.
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

    /// The events of all lists.
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

    /// Where a process names its call stacks.
    #[must_use]
    pub fn stacks(&self, (pid, since): (u32, u64)) -> PathBuf {
        self.folder.join(format!("stacks.{pid}.{since}"))
    }

    /// A slot with its room in the file, for tests that fill it in.
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

/// Opens a file of the folder to read it. A program may put anything there: what is not a plain
/// file neither holds up the reader nor leads it elsewhere.
///
/// # Errors
///
/// It cannot be opened, or is not a plain file.
pub fn open(path: &Path) -> io::Result<File> {
    const O_NOFOLLOW: i32 = if cfg!(target_arch = "aarch64") { 0o100_000 } else { 0o400_000 };
    let flags = sys::O_NONBLOCK | O_NOFOLLOW | sys::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let plain = file.metadata()?.is_file();
    plain.then_some(file).ok_or_else(|| io::Error::other("it is not a plain file"))
}

/// Whether any process uses the ledger at this path, in whatever space of process numbers. A
/// folder without a ledger of its own may have a link to one.
#[must_use]
pub fn is_in_use(path: &Path) -> bool {
    let path = fs::canonicalize(path).map(|path| CString::new(path.as_os_str().as_bytes()));
    let Ok(Ok(path)) = path else { return false };
    let opened = sys::SysFile::open(&path, sys::O_RDONLY, 0);
    opened.is_ok_and(|file| liveness::is_used(&file))
}

fn fill(ledger: &mut GuardLedger, settings: &GuardSettings) {
    let limit = settings.limit.unwrap_or(NO_LIMIT);
    ledger.default_budget.store(limit, Relaxed);
    for (device, limit) in &settings.limits {
        if let Some(budget) = ledger.budgets.get(*device) {
            budget.store(*limit, Relaxed);
        }
    }
    ledger.reserve.store(settings.reserve, Relaxed);
    ledger.keep_free.store(settings.keep_free, Relaxed);
    ledger.flags.store(settings.flags, Relaxed);
    let path = settings.meminfo.as_os_str().as_encoded_bytes();
    let count = path.len().min(ledger.meminfo.len() - 1);
    ledger.meminfo[..count].copy_from_slice(&path[..count]);
    ledger.magic.store(ledger::MAGIC, Release);
}

/// From the kernel's clock to the time of a run.
#[derive(Debug, Clone, Copy)]
pub struct LedgerClock {
    began: u64,
}

impl LedgerClock {
    /// Since the ledger was made.
    #[must_use]
    pub fn since_start(&self, at: u64) -> Duration {
        Duration::from_nanos(at.saturating_sub(self.began))
    }
}

/// What a program did, in the order in which it noted it.
#[derive(Debug, Clone, Default)]
pub struct ProcessLog {
    /// Its process.
    pub pid: u32,
    /// When it attached: the [`ledger::LedgerProcess::since`] of its slot.
    pub since: u64,
    /// The events.
    pub events: Vec<GuardEvent>,
    /// How many there was no room for, or that were cut short by a kill.
    pub lost: u64,
}

/// An event as it was noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardEvent {
    /// When, in nanoseconds of the kernel's clock, as it was at its last tick.
    pub at: u64,
    /// What.
    pub op: GuardOp,
    /// How it was asked for.
    pub kind: GuardMemoryKind,
    /// The device's place in the ledger.
    pub device: u8,
    /// The tag of the thread that asked.
    pub tag: u8,
    /// An address or a handle.
    pub key: u64,
    /// As it was asked for.
    pub bytes: u64,
    /// What was charged for it.
    pub charge: u64,
    /// A number for the stream; 0 for none.
    pub stream: u16,
    /// The number of the call stack; 0 for none.
    pub stack: u16,
}

/// A list of events in the folder.
#[derive(Debug, Clone)]
pub struct EventLogFile {
    /// Whose it is.
    pub pid: u32,
    /// What its beginning says.
    pub head: EventLogHeader,
    /// Where it is.
    pub path: PathBuf,
}

/// The beginning of a list.
#[derive(Debug, Clone, Copy, Default)]
pub struct EventLogHeader {
    /// When its process attached: the [`ledger::LedgerProcess::since`] of its slot.
    pub since: u64,
    /// The events that were to be noted.
    pub taken: u64,
    /// The records that the list has.
    pub records: u64,
}

impl EventLogHeader {
    /// Bytes of it.
    pub const SIZE: u64 = size_of::<MappedLogHeader>() as u64;
    /// Bytes of a record.
    pub const RECORD: u64 = size_of::<EventRecord>() as u64;

    /// Reads it; the records follow. Nothing where it is no list: a process may be killed as it
    /// begins one.
    ///
    /// # Errors
    ///
    /// The source cannot be read.
    pub fn read(mut from: impl Read) -> io::Result<Option<EventLogHeader>> {
        let mut head = [0; size_of::<MappedLogHeader>()];
        const _: () =
            assert!(size_of::<MappedLogHeader>() == 4 * 8, "the words below are all that it has");
        match from.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let [magic, taken, room, since] = std::array::from_fn(|at| word(&head, at).unwrap_or(0));
        let records = taken.min(room).min(log::MOST);
        Ok((magic == log::MAGIC).then_some(EventLogHeader { since, taken, records }))
    }
}

/// Events read one after the other from their records. They come from a stranger's process, which
/// may have written anything there: what makes no sense is left out.
#[derive(Debug)]
pub struct GuardEventReader<'a, R> {
    from: R,
    left: u64,
    whole: u64,
    unified: &'a [bool],
}

impl<'a, R: Read> GuardEventReader<'a, R> {
    /// So many records from a reader, which should be buffered. `unified` says which devices
    /// share the system's memory.
    pub fn new(from: R, records: u64, unified: &'a [bool]) -> GuardEventReader<'a, R> {
        GuardEventReader { from, left: records, whole: 0, unified }
    }

    /// How many events were read.
    pub fn whole(&self) -> u64 {
        self.whole
    }
}

impl<R: Read> Iterator for GuardEventReader<'_, R> {
    type Item = GuardEvent;

    fn next(&mut self) -> Option<GuardEvent> {
        let mut record = [0; size_of::<EventRecord>()];
        while self.left > 0 {
            self.left -= 1;
            // What cannot be read is as lost as what was never written.
            if self.from.read_exact(&mut record).is_err() {
                self.left = 0;
            } else if let Some(event) = event(&record, self.unified) {
                self.whole += 1;
                return Some(event);
            }
        }
        None
    }
}

/// Reads a whole list of events; what makes no sense in it is counted as lost.
///
/// # Errors
///
/// The source cannot be read.
pub fn parse_log(mut from: impl Read, pid: u32, unified: &[bool]) -> io::Result<ProcessLog> {
    let head = EventLogHeader::read(&mut from)?.unwrap_or_default();
    let events: Vec<GuardEvent> = GuardEventReader::new(from, head.records, unified).collect();
    let lost = head.taken - events.len() as u64;
    Ok(ProcessLog { pid, since: head.since, events, lost })
}

/// A number of eight bytes, by its place.
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at * 8..at * 8 + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// An event from its bytes; nothing from one that was cut short.
fn event(bytes: &[u8], unified: &[bool]) -> Option<GuardEvent> {
    let word = |at: usize| word(bytes, at);
    let [op, kind, device, tag, s0, s1, t0, t1] = word(3)?.to_le_bytes();
    let (op, kind, bytes) =
        (GuardOp::of(op.checked_sub(0x80)?)?, GuardMemoryKind::of(kind)?, word(2)?);
    Some(GuardEvent {
        at: word(0)?,
        op,
        kind,
        device,
        tag,
        key: word(1)?,
        bytes,
        charge: kind.charge(bytes, unified.get(usize::from(device)).is_some_and(|u| *u)),
        stream: u16::from_le_bytes([t0, t1]),
        stack: u16::from_le_bytes([s0, s1]),
    })
}

/// Reads those call stacks that are wanted, by their numbers. Where a number comes twice, as with
/// a process that became another program, the last counts.
pub fn parse_stacks(from: impl BufRead, wanted: &[u16]) -> Vec<(u16, Vec<String>)> {
    /// What the guard may write for a process.
    const MOST: u64 = 64 << 20;
    let mut stacks: Vec<(u16, Vec<String>)> = Vec::new();
    let mut reading = false;
    let lines = from.take(MOST).split(b'\n').map_while(Result::ok);
    for line in lines.map(|line| String::from_utf8_lossy(&line).into_owned()) {
        if let Some(number) = line.strip_prefix("# ").and_then(|number| number.parse().ok()) {
            reading = wanted.contains(&number);
            if reading {
                stacks.retain(|(other, _)| *other != number);
                stacks.push((number, Vec::new()));
            }
        // The guard's own frames say nothing of the program.
        } else if reading && !line.contains("libplimsoll_guard.so") {
            stacks.last_mut().into_iter().for_each(|(_, to)| to.push(line.clone()));
        }
    }
    stacks
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn list(taken: u64, records: &[[u64; 4]]) -> Vec<u8> {
        let head = [log::MAGIC, taken, 1000, 5];
        head.iter().chain(records.iter().flatten()).flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn whole_events_are_read_and_others_counted_as_lost() {
        let what = u64::from_le_bytes([0x81, GuardMemoryKind::Linear as u8, 1, 2, 3, 0, 4, 0]);
        let bytes = list(4, &[[9, 0x7f00, 3 << 20, what], [9, 1, 1, 0], [9, 1, 1, 0xff]]);
        let log = parse_log(&bytes[..], 7, &[false, false]).unwrap();
        assert_eq!((log.pid, log.since, log.events.len(), log.lost), (7, 5, 1, 3));
        let event = log.events[0];
        assert_eq!(
            (event.op, event.kind, event.device, event.tag),
            (GuardOp::Allocate, GuardMemoryKind::Linear, 1, 2)
        );
        assert_eq!((event.stack, event.stream, event.charge), (3, 4, 4 << 20));
        assert!(parse_log(&bytes[..20], 7, &[]).unwrap().events.is_empty());
        assert!(parse_log(&[0; 48][..], 7, &[]).unwrap().events.is_empty());
    }

    #[test]
    fn only_plain_files_are_lists_and_nothing_holds_up_who_looks() {
        use std::os::unix::fs::symlink;
        use std::process::Command;
        let folder = tempfile::tempdir().unwrap();
        let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("log.1.2.3"), list(1, &[[9, 1, 512, 0x0181]])).unwrap();
        fs::write(at("log.2.2.3"), "no list").unwrap();
        symlink(at("log.1.2.3"), at("log.3.2.3")).unwrap();
        symlink("/dev/zero", at("log.4.2.3")).unwrap();
        fs::create_dir(at("log.5.2.3")).unwrap();
        assert!(Command::new("mkfifo").arg(at("log.6.2.3")).status().unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(at("log.7.2.3")).unwrap();
        let huge = File::create(at("log.8.2.3")).unwrap();
        huge.set_len(1 << 40).unwrap();
        let found: Vec<u32> = watch.log_files().unwrap().iter().map(|list| list.pid).collect();
        assert_eq!(found, [1]);
        assert_eq!(watch.logs().unwrap()[0].events.len(), 1);
        let names = ["log.3.2.3", "log.5.2.3", "log.6.2.3", "log.7.2.3", "stacks.9"];
        assert!(names.iter().all(|name| open(&at(name)).is_err()));
        drop(folder);
        assert!(watch.log_files().is_err(), "its folder is gone");
    }

    #[test]
    fn a_ledger_is_in_use_for_as_long_as_somebody_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        assert!(!is_in_use(&path), "there is none");
        let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(is_in_use(&path) && is_in_use(&link));
        // A descriptor of the same file that is closed takes no lock with it.
        drop(File::open(&path).unwrap());
        assert!(is_in_use(&path));
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        let other = sys::SysFile::open(&name, sys::O_RDWR, 0).unwrap();
        assert!(liveness::join_users(&other));
        drop(watch);
        assert!(is_in_use(&path), "another still has it");
        drop(other);
        assert!(!is_in_use(&path));
        fs::remove_file(&path).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(pipe.success() && !is_in_use(&path));
    }

    #[test]
    fn the_dead_are_collected_once_and_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        let slots = [0, 1, 2].map(|place| watch.slot(place));
        for (slot, state) in slots.iter().zip([state::LIVE, state::DEAD, state::DEAD]) {
            slot.state.store(state, Relaxed);
        }
        slots[1].pid.store(77, Relaxed);
        // Somebody has taken the last one over, and fills it in.
        let name = CString::new(folder.path().join("ledger").as_os_str().as_bytes()).unwrap();
        let other = sys::SysFile::open(&name, sys::O_RDWR, 0).unwrap();
        assert!(liveness::lock_slot(&other, 2));
        let mut found = Vec::new();
        watch.collect_dead(|process| found.push(process.pid.load(Relaxed)));
        watch.collect_dead(|process| found.push(process.pid.load(Relaxed)));
        assert_eq!(found, [77]);
        let states = slots.map(|slot| slot.state.load(Relaxed));
        assert_eq!(states, [state::LIVE, state::FREE, state::DEAD]);
        assert!(liveness::lock_slot(&other, 1), "it is anybody's again");
    }

    #[test]
    fn a_ledger_that_was_cut_or_written_over_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        assert!(!watch.is_damaged());
        watch.ledger().magic.store(0, Relaxed);
        assert!(watch.is_damaged());
        watch.ledger().magic.store(ledger::MAGIC, Relaxed);
        let file = OpenOptions::new().write(true).open(folder.path().join("ledger")).unwrap();
        file.set_len(4096).unwrap();
        assert!(watch.is_damaged(), "its length says so, before its memory is looked at");
    }

    #[test]
    fn stacks_have_numbers_and_no_frames_of_ours() {
        let text = "# 3\n/x/libplimsoll_guard.so(a)[0]\nprogram(main)[1]\n# 4\nb\n";
        let stacks = |wanted| parse_stacks(text.as_bytes(), wanted);
        let (three, four) = ((3, vec!["program(main)[1]".to_string()]), (4, vec!["b".to_string()]));
        assert_eq!(stacks(&[3, 4]), [three, four.clone()]);
        assert_eq!(stacks(&[4, 5]), [four]);
    }
}
