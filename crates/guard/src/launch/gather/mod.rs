//! Keeps what processes leave behind when they end, and reads it back in the order of time.
//!
//! While the program runs, the launcher takes in the records of every process that has ended: its
//! figures stay in memory, its list of events and the names of its call stacks go to a temporary
//! file on disk (the spool), and its slot of the ledger and its files are free again. So an ended
//! process costs no memory for the rest of the run. Where the spool cannot be written, the files
//! stay where they are until the end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::ledger::{LedgerProcess, state};
use crate::log::{GuardOp, MOST_STACK_BYTES};
use crate::watch::{self, EventLogFile, EventLogHeader, GuardEvent, GuardEventReader, GuardWatch};

/// A process: its number, and when it attached to the ledger. A process that becomes another
/// program keeps its number, and numbers are used again.
pub type ProcessKey = (u32, u64);

/// What the ledger says of a process.
#[derive(Debug, Clone)]
pub struct ProcessFigures {
    /// Which process.
    pub who: ProcessKey,
    /// When it was found dead, in nanoseconds of the kernel's clock.
    pub until: Option<u64>,
    /// The name of its program.
    pub program: String,
    /// Whether it still runs.
    pub running: bool,
    /// Its allocations that succeeded.
    pub allocations: u64,
    /// Its frees.
    pub frees: u64,
    /// Its requests that the limit refused.
    pub refused: u64,
    /// Its requests that the driver refused.
    pub failed: u64,
    /// Its frees of memory that another process allocated.
    pub frees_of_others: u64,
}

impl ProcessFigures {
    fn of(process: &LedgerProcess, running: bool) -> ProcessFigures {
        let name = process.name_bytes();
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let (refused, failed) = (process.refused.load(Relaxed), process.failed.load(Relaxed));
        ProcessFigures {
            who: who(process),
            until: Some(process.until.load(Relaxed)).filter(|until| *until > 0),
            program: String::from_utf8_lossy(name).into_owned(),
            running,
            allocations: process.asked().saturating_sub(refused).saturating_sub(failed),
            frees: process.frees(),
            refused,
            failed,
            frees_of_others: process.foreign_frees.load(Relaxed),
        }
    }
}

fn who(process: &LedgerProcess) -> ProcessKey {
    (process.pid.load(Relaxed), process.since.load(Relaxed))
}

/// When the process of a list ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GatheredEnd {
    /// It was found dead then.
    At(u64),
    /// It has ended, and another process got its slot before the launcher saw it.
    WithItsLastEvent,
    /// It still runs.
    NotYet,
}

/// A list of events, in the spool or still in its file.
#[derive(Debug)]
pub(super) struct GatheredList {
    pub(super) who: ProcessKey,
    end: GatheredEnd,
    head: EventLogHeader,
    /// The time of its first event; no later one is before it.
    starts: u64,
    place: GatheredPlace,
}

#[derive(Debug)]
enum GatheredPlace {
    /// Where its records begin in the spool.
    Spooled(u64),
    File(PathBuf),
}

/// A part of the spool that holds names of call stacks.
#[derive(Debug)]
struct GatheredStacks {
    who: ProcessKey,
    from: u64,
    size: u64,
}

/// The records of processes that have ended.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    spool: Option<File>,
    size: u64,
    /// Whether the spool cannot be written any more.
    is_full: bool,
    ended: Vec<ProcessFigures>,
    lists: Vec<(ProcessKey, EventLogHeader, u64, u64)>,
    stacks: Vec<GatheredStacks>,
}

impl Gathered {
    /// Takes in the records of processes that have ended. To be called periodically.
    pub(super) fn take_ended(&mut self, watch: &GuardWatch) {
        // The memory of dead processes is credited at once, so that the timeline knows when.
        watch.reclaim();
        self.take_dead(watch);
    }

    fn take_dead(&mut self, watch: &GuardWatch) {
        let before = self.ended.len();
        watch.collect_dead(|process| self.ended.push(ProcessFigures::of(process, false)));
        if self.ended.len() > before {
            self.spool_all(watch);
        }
    }

    /// Takes in the lists of all processes that have ended, as long as there is room. Where the
    /// folder was removed there are none; the report says so.
    fn spool_all(&mut self, watch: &GuardWatch) {
        let lists = watch.log_files().unwrap_or_default();
        // Read after the lists: a process that has a list had a slot before.
        let live: HashSet<ProcessKey> = live(watch).map(who).collect();
        let has_ended = |list: &&EventLogFile| !live.contains(&(list.pid, list.head.since));
        for list in lists.iter().filter(has_ended) {
            if self.is_full {
                return;
            }
            self.is_full = self.take_list(list).is_err()
                || self.take_stacks(watch, (list.pid, list.head.since)).is_err();
        }
    }

    fn take_list(&mut self, list: &EventLogFile) -> io::Result<()> {
        let Ok(file) = watch::open(&list.path) else { return Ok(()) };
        let (starts, size) = (first(&file), list.head.records * EventLogHeader::RECORD);
        let from = self.append(file, EventLogHeader::SIZE, size)?;
        // Records that the file lacks count as lost when it is read.
        let records = (self.size - from) / EventLogHeader::RECORD;
        let head = EventLogHeader { records, ..list.head };
        self.lists.push(((list.pid, list.head.since), head, starts, from));
        let _ = fs::remove_file(&list.path);
        Ok(())
    }

    fn take_stacks(&mut self, watch: &GuardWatch, who: ProcessKey) -> io::Result<()> {
        let path = watch.stacks(who);
        let Ok(file) = watch::open(&path) else { return Ok(()) };
        let from = self.append(file, 0, MOST_STACK_BYTES)?;
        self.stacks.push(GatheredStacks { who, from, size: self.size - from });
        let _ = fs::remove_file(&path);
        Ok(())
    }

    /// Copies a part of a file to the end of the spool, and says where that was.
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

    /// The processes that used the driver, in the order in which they first did.
    pub(super) fn processes(&self, watch: &GuardWatch) -> Vec<ProcessFigures> {
        let running =
            live(watch).map(|process| ProcessFigures::of(process, watch.is_live(process)));
        let mut all: Vec<ProcessFigures> = self.ended.iter().cloned().chain(running).collect();
        all.sort_by_key(|process| process.who.1);
        all
    }

    /// Every list there is; where the folder was removed, only those in the spool.
    pub(super) fn lists(
        &self,
        watch: &GuardWatch,
        processes: &[ProcessFigures],
    ) -> Vec<GatheredList> {
        let known: HashMap<ProcessKey, Option<u64>> =
            processes.iter().map(|process| (process.who, process.until)).collect();
        let end = |who: &ProcessKey| match known.get(who) {
            Some(Some(until)) => GatheredEnd::At(*until),
            Some(None) => GatheredEnd::NotYet,
            None => GatheredEnd::WithItsLastEvent,
        };
        let spooled = self.lists.iter().map(|(who, head, starts, from)| GatheredList {
            who: *who,
            end: end(who),
            head: *head,
            starts: *starts,
            place: GatheredPlace::Spooled(*from),
        });
        let mut all: Vec<GatheredList> = spooled.collect();
        let lists = watch.log_files().unwrap_or_default();
        all.extend(lists.iter().map(|list| {
            let who = (list.pid, list.head.since);
            let starts = watch::open(&list.path).map_or(0, |file| first(&file));
            GatheredList {
                who,
                end: end(&who),
                head: list.head,
                starts,
                place: GatheredPlace::File(list.path.clone()),
            }
        }));
        all.sort_by_key(|source| source.who.1);
        all
    }

    /// The records of a list.
    fn read<'a>(&'a self, list: &GatheredList) -> Box<dyn Read + 'a> {
        /// As many lists are open at once as processes ran at once: 16 MiB for 512 of them.
        const BUFFER: usize = 32 << 10;
        match &list.place {
            GatheredPlace::Spooled(from) => {
                Box::new(BufReader::with_capacity(BUFFER, self.part(*from, u64::MAX)))
            }
            GatheredPlace::File(path) => match watch::open(path) {
                Ok(file) if (&file).seek(SeekFrom::Start(EventLogHeader::SIZE)).is_ok() => {
                    Box::new(BufReader::with_capacity(BUFFER, file))
                }
                _ => Box::new(io::empty()),
            },
        }
    }

    /// The names of a process's call stacks.
    pub(super) fn stacks<'a>(&'a self, who: ProcessKey, watch: &GuardWatch) -> Box<dyn Read + 'a> {
        let taken = self.stacks.iter().find(|stacks| stacks.who == who);
        match (taken, watch::open(&watch.stacks(who))) {
            (Some(stacks), _) => Box::new(self.part(stacks.from, stacks.size)),
            (None, Ok(file)) => Box::new(file.take(MOST_STACK_BYTES)),
            (None, Err(_)) => Box::new(io::empty()),
        }
    }

    fn part(&self, at: u64, left: u64) -> SpoolPart<'_> {
        SpoolPart { spool: self.spool.as_ref(), at, left }
    }
}

fn live(watch: &GuardWatch) -> impl Iterator<Item = &LedgerProcess> {
    let is_live = |p: &&LedgerProcess| matches!(p.state.load(Acquire), state::LIVE | state::DEAD);
    watch.ledger().processes().iter().filter(is_live)
}

/// The time of a list's first event.
fn first(list: &File) -> u64 {
    let mut at = [0; 8];
    list.read_exact_at(&mut at, EventLogHeader::SIZE).map_or(0, |()| u64::from_le_bytes(at))
}

/// A file without a name, on a disk rather than in memory where there is a choice.
fn on_disk() -> io::Result<File> {
    let named = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folder = named.unwrap_or_else(|| Path::new("/var/tmp").into());
    tempfile::tempfile_in(folder).or_else(|_| tempfile::tempfile())
}

/// A part of the spool, with a read position of its own.
struct SpoolPart<'a> {
    spool: Option<&'a File>,
    at: u64,
    left: u64,
}

impl Read for SpoolPart<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let Some(spool) = self.spool else { return Ok(0) };
        let most = usize::try_from(self.left).unwrap_or(to.len()).min(to.len());
        let count = spool.read_at(&mut to[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// The events of all lists in the order of time, with the moments when processes were found dead.
/// Events of one list keep their order. The clock has steps of milliseconds, so events of several
/// lists often have the same time: then those that free memory come first, as they must have
/// where the limit is reached.
pub(super) struct EventsInOrder<'a> {
    lists: &'a [GatheredList],
    gathered: &'a Gathered,
    unified: &'a [bool],
    /// Lists that are not opened yet, the next one last: only those lists are open at once whose
    /// processes ran at once.
    waiting: Vec<usize>,
    open: HashMap<usize, OpenList<'a>>,
    /// The next event of each open list, by its time; allocations come after frees.
    heads: BTreeMap<(u64, bool, usize), Option<GuardEvent>>,
    /// How many events are missing of each list.
    pub(super) lost: Vec<u64>,
}

struct OpenList<'a> {
    events: GuardEventReader<'a, Box<dyn Read + 'a>>,
    /// Times of a list never go back, and its process ends after its last event.
    time: u64,
}

impl<'a> EventsInOrder<'a> {
    pub(super) fn new(
        lists: &'a [GatheredList],
        gathered: &'a Gathered,
        unified: &'a [bool],
    ) -> EventsInOrder<'a> {
        let mut waiting: Vec<usize> = (0..lists.len()).collect();
        waiting.sort_by_key(|list| Reverse(lists[*list].starts));
        let (open, heads) = (HashMap::new(), BTreeMap::new());
        EventsInOrder { lists, gathered, unified, waiting, open, heads, lost: vec![0; lists.len()] }
    }

    /// The next event: its time, its list, and the event; no event where the process of that list
    /// was found dead.
    pub(super) fn next(&mut self) -> Option<(u64, usize, Option<GuardEvent>)> {
        while let Some(next) = self.waiting.last().copied() {
            let head = self.heads.first_key_value();
            if head.is_some_and(|((at, ..), _)| *at < self.lists[next].starts) {
                break;
            }
            self.waiting.pop();
            let list = &self.lists[next];
            let records = self.gathered.read(list);
            let events = GuardEventReader::new(records, list.head.records, self.unified);
            self.open.insert(next, OpenList { events, time: 0 });
            self.advance(next);
        }
        let ((at, _, who), event) = self.heads.pop_first()?;
        self.advance(who);
        Some((at, who, event))
    }

    /// Reads a list's next event.
    fn advance(&mut self, who: usize) {
        let Some(open) = self.open.get_mut(&who) else { return };
        if let Some(event) = open.events.next() {
            open.time = open.time.max(event.at);
            let adds = matches!(event.op, GuardOp::Allocate | GuardOp::Charge);
            self.heads.insert((open.time, adds, who), Some(event));
            return;
        }
        let (list, whole, time) = (&self.lists[who], open.events.whole(), open.time);
        self.lost[who] = list.head.taken.saturating_sub(whole);
        self.open.remove(&who);
        let end = match list.end {
            GatheredEnd::At(end) => end,
            GatheredEnd::WithItsLastEvent => 0,
            GatheredEnd::NotYet => return,
        };
        self.heads.insert((end.max(time), false, who), None);
    }
}

#[cfg(not(loom))]
#[cfg(test)]
pub(super) mod tests;
