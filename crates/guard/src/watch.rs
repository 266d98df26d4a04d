//! The other side: what `plimsoll run` does with a ledger and with the lists of events.

#![expect(unsafe_code, reason = "maps the ledger that the guarded processes write to")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use crate::ledger::{self, Ledger, NO_LIMIT};
use crate::log::{self, Head, Kind, Op, Record};
use crate::sys;

/// The name of the variable by which a guarded process finds its ledger.
pub const VARIABLE: &str = "PLIMSOLL_GUARD";

/// What a run holds its programs to.
#[derive(Debug, Clone, Default)]
pub struct Settings {
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
pub struct Watch {
    folder: PathBuf,
    ledger: *const Ledger,
    began: u64,
}

// SAFETY: everything in a ledger that is written after it was made is atomic.
unsafe impl Send for Watch {}
// SAFETY: as above.
unsafe impl Sync for Watch {}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `create` with this size, and nobody uses it now.
        unsafe { sys::munmap(self.ledger.cast_mut().cast(), size_of::<Ledger>()) };
    }
}

/// Whether files may be as large here as a run's must be; the library is smaller than a ledger.
///
/// # Errors
///
/// They may not (`ulimit -f`): to write one would end this program by a signal.
pub fn files_may_be_made() -> io::Result<()> {
    let size = size_of::<Ledger>() as u64;
    let mib = size.div_ceil(1 << 20);
    let text = || format!("files may not be as large as {mib} MiB here; raise `ulimit -f`");
    sys::may_write(size).then_some(()).ok_or_else(|| io::Error::other(text()))
}

impl Watch {
    /// Makes a ledger in a folder, which should be the user's alone.
    pub fn create(folder: &Path, settings: &Settings) -> io::Result<Watch> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let mut file = options.open(folder.join("ledger"))?;
        // With all its room: a mapped file that cannot grow would end a program.
        file.write_all(&vec![0; size_of::<Ledger>()])?;
        let at = map(&file)?;
        // SAFETY: zeroed, large enough, aligned to a page, and nobody else has it yet.
        fill(unsafe { &mut *at }, settings);
        Ok(Watch { folder: folder.to_path_buf(), ledger: at, began: sys::now_exactly() })
    }

    /// The counters.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
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
    pub fn clock(&self) -> Clock {
        Clock { began: self.began }
    }

    /// The lists of events, one for each program that used the driver.
    pub fn logs(&self) -> io::Result<Vec<Log>> {
        let mut logs = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let mut parts = name.split('.');
            if let (Some("log"), Some(pid)) = (parts.next(), parts.next())
                && let Ok(pid) = pid.parse()
            {
                logs.push(self.read_log(&entry.path(), pid)?);
            }
        }
        logs.sort_by_key(|log| log.since);
        Ok(logs)
    }

    fn read_log(&self, path: &Path, pid: u32) -> io::Result<Log> {
        let devices = self.ledger().devices.iter();
        let unified: Vec<bool> = devices.map(|d| d.integrated.load(Relaxed) != 0).collect();
        parse_log(File::open(path)?, pid, &unified)
    }

    /// The call stacks that a process has named: their numbers and lines.
    #[must_use]
    pub fn stacks(&self, pid: u32) -> Vec<(u16, Vec<String>)> {
        let text = fs::read(self.folder.join(format!("stacks.{pid}"))).unwrap_or_default();
        parse_stacks(&String::from_utf8_lossy(&text))
    }
}

/// Maps a ledger's file, which must be as large as one.
pub(crate) fn map(file: &File) -> io::Result<*mut Ledger> {
    let size = size_of::<Ledger>();
    if file.metadata()?.len() < size as u64 {
        return Err(io::Error::other("it is too small to be a ledger"));
    }
    let access = sys::PROT_READ | sys::PROT_WRITE;
    // SAFETY: a new mapping of a file that is as large as it.
    let at = unsafe {
        sys::mmap(std::ptr::null_mut(), size, access, sys::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if at as isize == -1 { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}

fn fill(ledger: &mut Ledger, settings: &Settings) {
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
pub struct Clock {
    began: u64,
}

impl Clock {
    /// Since the ledger was made.
    #[must_use]
    pub fn since_start(&self, at: u64) -> Duration {
        Duration::from_nanos(at.saturating_sub(self.began))
    }
}

/// What a program did, in the order in which it noted it.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// Its process.
    pub pid: u32,
    /// When it attached: the [`ledger::Process::since`] of its slot.
    pub since: u64,
    /// The events.
    pub events: Vec<Event>,
    /// How many there was no room for, or that were cut short by a kill.
    pub lost: u64,
}

/// An event as it was noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds of the kernel's clock, as it was at its last tick.
    pub at: u64,
    /// What.
    pub op: Op,
    /// How it was asked for.
    pub kind: Kind,
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

/// Reads a list of events. It comes from a stranger's process, which may have written anything
/// there: what makes no sense is counted as lost. `unified` says which devices share the
/// system's memory.
///
/// # Errors
///
/// The source cannot be read, or has no beginning.
pub fn parse_log(mut from: impl Read, pid: u32, unified: &[bool]) -> io::Result<Log> {
    let mut head = [0; size_of::<Head>()];
    const _: () = assert!(size_of::<Head>() == 4 * 8, "the words below are all that it has");
    match from.read_exact(&mut head) {
        // A process that was killed as it began its list.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(Log { pid, ..Log::default() });
        }
        read => read?,
    }
    let word = |at: usize| {
        head.get(at * 8..at * 8 + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    let (magic, taken, room, since) = (word(0), word(1), word(2), word(3));
    if magic != log::MAGIC {
        return Ok(Log { pid, ..Log::default() });
    }
    let count = taken.min(room).min(log::MOST);
    let mut bytes = Vec::new();
    from.take(count * size_of::<Record>() as u64).read_to_end(&mut bytes)?;
    let records = bytes.chunks_exact(size_of::<Record>());
    let events: Vec<Event> = records.filter_map(|bytes| event(bytes, unified)).collect();
    let lost = taken - events.len() as u64;
    Ok(Log { pid, since, events, lost })
}

/// An event from its bytes; nothing from one that was cut short.
fn event(bytes: &[u8], unified: &[bool]) -> Option<Event> {
    let word = |at: usize| bytes.get(at * 8..at * 8 + 8)?.try_into().ok().map(u64::from_le_bytes);
    let [op, kind, device, tag, s0, s1, t0, t1] = word(3)?.to_le_bytes();
    let (op, kind, bytes) = (Op::of(op.checked_sub(0x80)?)?, Kind::of(kind)?, word(2)?);
    Some(Event {
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

fn parse_stacks(text: &str) -> Vec<(u16, Vec<String>)> {
    let mut stacks: Vec<(u16, Vec<String>)> = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("# ").and_then(|number| number.parse().ok()) {
            Some(number) => stacks.push((number, Vec::new())),
            // The guard's own frames say nothing of the program.
            None if line.contains("libplimsoll_guard.so") => {}
            None => {
                stacks.iter_mut().last().into_iter().for_each(|(_, to)| to.push(line.to_string()));
            }
        }
    }
    stacks
}

/// Whether a ledger's process is alive, in one word for the report.
#[must_use]
pub fn is_live(process: &ledger::Process) -> bool {
    process.state.load(Acquire) == ledger::state::LIVE && process.lives()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(taken: u64, records: &[[u64; 4]]) -> Vec<u8> {
        let head = [log::MAGIC, taken, 1000, 5];
        head.iter().chain(records.iter().flatten()).flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn whole_events_are_read_and_others_counted_as_lost() {
        let what = u64::from_le_bytes([0x81, Kind::Linear as u8, 1, 2, 3, 0, 4, 0]);
        let bytes = list(4, &[[9, 0x7f00, 3 << 20, what], [9, 1, 1, 0], [9, 1, 1, 0xff]]);
        let log = parse_log(&bytes[..], 7, &[false, false]).unwrap();
        assert_eq!((log.pid, log.since, log.events.len(), log.lost), (7, 5, 1, 3));
        let event = log.events[0];
        assert_eq!(
            (event.op, event.kind, event.device, event.tag),
            (Op::Allocate, Kind::Linear, 1, 2)
        );
        assert_eq!((event.stack, event.stream, event.charge), (3, 4, 4 << 20));
        assert!(parse_log(&bytes[..20], 7, &[]).unwrap().events.is_empty());
        assert!(parse_log(&[0; 48][..], 7, &[]).unwrap().events.is_empty());
    }

    #[test]
    fn stacks_have_numbers_and_no_frames_of_ours() {
        let text = "# 3\n/x/libplimsoll_guard.so(a)[0]\nprogram(main)[1]\n# 4\nb\n";
        let stacks = parse_stacks(text);
        assert_eq!(stacks, [(3, vec!["program(main)[1]".into()]), (4, vec!["b".to_string()])]);
    }
}
