//! What processes leave, taken in while the program runs: a process that has ended costs no
//! memory for the rest of the run.
//!
//! Its figures are kept, its list of events and the names of its call stacks go to a file on disk
//! (the spool), and its slot and the memory of its files are free. Where the spool cannot be
//! written, the files stay where they are until the end.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use plimsoll_guard::ledger::{LedgerProcess, state};
use plimsoll_guard::watch::{self, EventLogFile, EventLogHeader, GuardWatch};

/// A process by its number and when it attached: one that becomes another program keeps its
/// number, and numbers are used again.
pub(super) type Who = (u32, u64);

/// What a slot of the ledger says of a process.
#[derive(Debug, Clone)]
pub(super) struct Figures {
    pub(super) who: Who,
    /// When it was found dead, in the kernel's clock.
    pub(super) until: Option<u64>,
    pub(super) program: String,
    pub(super) running: bool,
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) refused: u64,
    pub(super) failed: u64,
    pub(super) frees_of_others: u64,
}

impl Figures {
    fn of(process: &LedgerProcess, running: bool) -> Figures {
        let name = process.name_bytes();
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let (refused, failed) = (process.refused.load(Relaxed), process.failed.load(Relaxed));
        let asked = process.allocs().saturating_sub(process.own.load(Relaxed));
        Figures {
            who: who(process),
            until: Some(process.until.load(Relaxed)).filter(|until| *until > 0),
            program: String::from_utf8_lossy(name).into_owned(),
            running,
            allocations: asked.saturating_sub(refused).saturating_sub(failed),
            frees: process.frees(),
            refused,
            failed,
            frees_of_others: process.foreign_frees.load(Relaxed),
        }
    }
}

fn who(process: &LedgerProcess) -> Who {
    (process.pid.load(Relaxed), process.since.load(Relaxed))
}

/// When a list's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Found dead then.
    At(u64),
    /// It is gone, and its slot was given to another before anybody looked.
    WithItsLastEvent,
    /// It still runs.
    NotYet,
}

/// A list of events, wherever it is.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) who: Who,
    pub(super) end: End,
    pub(super) head: EventLogHeader,
    /// The time of its first event; no later one is before it.
    pub(super) starts: u64,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Where its records begin in the spool.
    Spooled(u64),
    File(PathBuf),
}

/// A part of the spool that holds names of call stacks.
#[derive(Debug)]
struct Names {
    who: Who,
    from: u64,
    size: u64,
}

/// What was taken in so far.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    spool: Option<File>,
    size: u64,
    /// The spool cannot be written any more.
    is_full: bool,
    gone: Vec<Figures>,
    lists: Vec<(Who, EventLogHeader, u64, u64)>,
    names: Vec<Names>,
}

impl Gathered {
    /// Takes in those who are gone. To be called now and then.
    pub(super) fn look(&mut self, watch: &GuardWatch) {
        // What the dead held is given back at once, and the timeline knows when.
        watch.reclaim();
        self.take_dead(watch);
    }

    fn take_dead(&mut self, watch: &GuardWatch) {
        let before = self.gone.len();
        watch.collect_dead(|process| self.gone.push(Figures::of(process, false)));
        if self.gone.len() > before {
            self.spool_all(watch);
        }
    }

    /// Takes in the lists of all who are gone, as long as there is room. Where the folder is gone
    /// there are none; the report will say so.
    fn spool_all(&mut self, watch: &GuardWatch) {
        let lists = watch.log_files().unwrap_or_default();
        // Asked after the lists were looked for: whoever has one has had a slot before.
        let live: HashSet<Who> = live(watch).map(who).collect();
        let is_gone = |list: &&EventLogFile| !live.contains(&(list.pid, list.head.since));
        for list in lists.iter().filter(is_gone) {
            if self.is_full {
                return;
            }
            self.is_full = self.take_in(list).is_err()
                || self.take_names(watch, (list.pid, list.head.since)).is_err();
        }
    }

    fn take_in(&mut self, list: &EventLogFile) -> io::Result<()> {
        let Ok(file) = watch::open(&list.path) else { return Ok(()) };
        let (starts, size) = (first(&file), list.head.records * EventLogHeader::RECORD);
        let from = self.append(file, EventLogHeader::SIZE, size)?;
        // What the file lacks counts as lost when it is read.
        let records = (self.size - from) / EventLogHeader::RECORD;
        let head = EventLogHeader { records, ..list.head };
        self.lists.push(((list.pid, list.head.since), head, starts, from));
        let _ = fs::remove_file(&list.path);
        Ok(())
    }

    fn take_names(&mut self, watch: &GuardWatch, who: Who) -> io::Result<()> {
        let path = watch.stacks(who);
        let Ok(file) = watch::open(&path) else { return Ok(()) };
        let from = self.append(file, 0, MOST_NAMES)?;
        self.names.push(Names { who, from, size: self.size - from });
        let _ = fs::remove_file(&path);
        Ok(())
    }

    /// Copies a part of a file to the end of the spool; where that was.
    fn append(&mut self, mut file: File, from: u64, size: u64) -> io::Result<u64> {
        file.seek(SeekFrom::Start(from))?;
        let spool = match &mut self.spool {
            Some(spool) => spool,
            none => none.insert(on_disk()?),
        };
        let place = self.size;
        spool.seek(SeekFrom::Start(place))?;
        match io::copy(&mut file.take(size), spool) {
            Ok(count) => {
                self.size += count;
                Ok(place)
            }
            Err(error) => {
                let _ = spool.set_len(place);
                Err(error)
            }
        }
    }

    /// Those who used the driver, by when they did first.
    pub(super) fn processes(&self, watch: &GuardWatch) -> Vec<Figures> {
        let running = live(watch).map(|process| Figures::of(process, watch.is_live(process)));
        let mut all: Vec<Figures> = self.gone.iter().cloned().chain(running).collect();
        all.sort_by_key(|process| process.who.1);
        all
    }

    /// Every list there is; without those in the folder where it is gone.
    pub(super) fn sources(&self, watch: &GuardWatch, processes: &[Figures]) -> Vec<Source> {
        let known: HashMap<Who, Option<u64>> =
            processes.iter().map(|process| (process.who, process.until)).collect();
        let end = |who: &Who| match known.get(who) {
            Some(Some(until)) => End::At(*until),
            Some(None) => End::NotYet,
            None => End::WithItsLastEvent,
        };
        let spooled = self.lists.iter().map(|(who, head, starts, from)| Source {
            who: *who,
            end: end(who),
            head: *head,
            starts: *starts,
            place: Place::Spooled(*from),
        });
        let mut all: Vec<Source> = spooled.collect();
        let lists = watch.log_files().unwrap_or_default();
        all.extend(lists.iter().map(|list| {
            let who = (list.pid, list.head.since);
            let starts = watch::open(&list.path).map_or(0, |file| first(&file));
            Source {
                who,
                end: end(&who),
                head: list.head,
                starts,
                place: Place::File(list.path.clone()),
            }
        }));
        all.sort_by_key(|source| source.who.1);
        all
    }

    /// The records of a list.
    pub(super) fn read<'a>(&'a self, source: &Source) -> Box<dyn Read + 'a> {
        /// As many lists are read at once as processes ran at once: 16 MiB for 512 of them.
        const BUFFER: usize = 32 << 10;
        match &source.place {
            Place::Spooled(from) => {
                Box::new(BufReader::with_capacity(BUFFER, self.part(*from, u64::MAX)))
            }
            Place::File(path) => match watch::open(path) {
                Ok(file) if (&file).seek(SeekFrom::Start(EventLogHeader::SIZE)).is_ok() => {
                    Box::new(BufReader::with_capacity(BUFFER, file))
                }
                _ => Box::new(io::empty()),
            },
        }
    }

    /// The names of a process's call stacks.
    pub(super) fn names<'a>(&'a self, who: Who, watch: &GuardWatch) -> Box<dyn Read + 'a> {
        let taken = self.names.iter().find(|names| names.who == who);
        match (taken, watch::open(&watch.stacks(who))) {
            (Some(names), _) => Box::new(self.part(names.from, names.size)),
            (None, Ok(file)) => Box::new(file.take(MOST_NAMES)),
            (None, Err(_)) => Box::new(io::empty()),
        }
    }

    fn part(&self, at: u64, left: u64) -> Part<'_> {
        Part { spool: self.spool.as_ref(), at, left }
    }
}

/// What the guard writes of names for a process, at most.
const MOST_NAMES: u64 = 64 << 20;

fn live(watch: &GuardWatch) -> impl Iterator<Item = &LedgerProcess> {
    let is_live = |p: &&LedgerProcess| matches!(p.state.load(Acquire), state::LIVE | state::DEAD);
    watch.ledger().processes().iter().filter(is_live)
}

/// The time of a list's first event.
fn first(list: &File) -> u64 {
    let mut at = [0; 8];
    list.read_exact_at(&mut at, EventLogHeader::SIZE).map_or(0, |()| u64::from_le_bytes(at))
}

/// A file that is gone with its last descriptor; not in memory, where there is a choice.
fn on_disk() -> io::Result<File> {
    let named = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folder = named.unwrap_or_else(|| Path::new("/var/tmp").into());
    tempfile::tempfile_in(folder).or_else(|_| tempfile::tempfile())
}

/// A part of the spool, read from a place of its own.
struct Part<'a> {
    spool: Option<&'a File>,
    at: u64,
    left: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let Some(spool) = self.spool else { return Ok(0) };
        let most = usize::try_from(self.left).unwrap_or(to.len()).min(to.len());
        let count = spool.read_at(&mut to[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use plimsoll_guard::log::{GuardOp, MAGIC};
    use plimsoll_guard::watch::GuardSettings;

    use super::*;

    /// Writes a list as a process does: events of linear memory on the first device.
    pub(in super::super) fn note(
        watch: &GuardWatch,
        (pid, since): Who,
        events: &[(u64, GuardOp, u64, u64)],
    ) {
        let record = |&(at, op, key, bytes): &(u64, GuardOp, u64, u64)| {
            [at, key, bytes, u64::from_le_bytes([op as u8 | 0x80, 1, 0, 0, 0, 0, 0, 0])]
        };
        let head = [MAGIC, events.len() as u64, 1 << 20, since];
        let words = head.into_iter().chain(events.iter().flat_map(record));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        fs::write(watch.folder().join(format!("log.{pid}.{since}")), bytes).unwrap();
    }

    pub(in super::super) fn figures(who: Who, until: Option<u64>) -> Figures {
        let program = String::new();
        let (allocations, frees, refused, failed, frees_of_others) = (0, 0, 0, 0, 0);
        let running = until.is_none();
        Figures {
            who,
            until,
            program,
            running,
            allocations,
            frees,
            refused,
            failed,
            frees_of_others,
        }
    }

    fn slot(watch: &GuardWatch, place: usize, (pid, since): Who, state: u32) {
        let process = watch.slot(place);
        process.pid.store(pid, Relaxed);
        process.since.store(since, Relaxed);
        process.until.store(if state == state::DEAD { since + 50 } else { 0 }, Relaxed);
        process.state.store(state, Relaxed);
    }

    fn count(gathered: &Gathered, source: &Source) -> usize {
        plimsoll_guard::watch::GuardEventReader::new(
            gathered.read(source),
            source.head.records,
            &[],
        )
        .count()
    }

    #[test]
    fn those_who_are_gone_leave_no_file_and_all_is_known_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        let (dead, lives, orphan) = ((7, 100), (8, 200), (9, 300));
        for (who, events) in [(dead, 3), (lives, 2), (orphan, 1)] {
            let events: Vec<_> =
                (0..events).map(|at| (who.1 + at, GuardOp::Allocate, at, 512)).collect();
            note(&watch, who, &events);
            fs::write(watch.stacks(who), format!("# 5\nplace of {}\n", who.0)).unwrap();
        }
        slot(&watch, 0, dead, state::DEAD);
        slot(&watch, 1, lives, state::LIVE);
        let mut gathered = Gathered::default();
        gathered.take_dead(&watch);
        let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
        left.retain(|entry| entry.file_name() != "ledger");
        left.sort_by_key(fs::DirEntry::file_name);
        let left: Vec<_> = left.iter().map(fs::DirEntry::file_name).collect();
        assert_eq!(left, ["log.8.200", "stacks.8.200"]);
        assert_eq!(watch.slot(0).state.load(Relaxed), state::FREE);

        let processes = gathered.processes(&watch);
        let known: Vec<_> = processes.iter().map(|one| (one.who, one.until)).collect();
        assert_eq!(known, [(dead, Some(150)), (lives, None)]);
        let sources = gathered.sources(&watch, &processes);
        let found: Vec<_> = sources
            .iter()
            .map(|source| (source.who, source.end, source.starts, count(&gathered, source)))
            .collect();
        assert_eq!(
            found,
            [
                (dead, End::At(150), 100, 3),
                (lives, End::NotYet, 200, 2),
                (orphan, End::WithItsLastEvent, 300, 1)
            ]
        );
        for who in [dead, lives, orphan] {
            let mut names = String::new();
            gathered.names(who, &watch).read_to_string(&mut names).unwrap();
            assert_eq!(names, format!("# 5\nplace of {}\n", who.0));
        }
    }

    #[test]
    fn what_cannot_be_taken_in_stays_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        note(&watch, (7, 100), &[(100, GuardOp::Allocate, 1, 512)]);
        slot(&watch, 0, (7, 100), state::DEAD);
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut gathered = Gathered { spool: Some(full), ..Gathered::default() };
        gathered.take_dead(&watch);
        let processes = gathered.processes(&watch);
        let sources = gathered.sources(&watch, &processes);
        assert_eq!((sources.len(), count(&gathered, &sources[0])), (1, 1));
        assert_eq!(sources[0].end, End::At(150));
    }

    #[test]
    fn a_folder_that_was_removed_costs_its_lists_and_no_figures() {
        let folder = tempfile::tempdir().unwrap();
        let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        slot(&watch, 0, (7, 100), state::DEAD);
        drop(folder);
        let mut gathered = Gathered::default();
        gathered.take_dead(&watch);
        let processes = gathered.processes(&watch);
        assert_eq!(processes.len(), 1);
        assert!(gathered.sources(&watch, &processes).is_empty());
    }
}
