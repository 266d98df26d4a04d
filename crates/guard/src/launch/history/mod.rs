//! Reads the events of all processes into one history: the largest blocks, those that were never
//! freed, refusals, and the charge of each device over time. Each event is read once, in the
//! order of time; the memory that this takes does not grow with the number of events.

mod course;
mod peak;
mod trace;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, BufReader, Write};
use std::time::Duration;

use super::Launched;
use super::gather::{EventsInOrder, Gathered, GatheredList, ProcessFigures, ProcessKey};
use crate::log::{GuardMemoryKind, GuardOp};
use crate::watch::{GuardEvent, GuardWatch, LedgerClock, parse_stacks};
use course::CourseBuilder;
use peak::{PeakBuilder, PlaceKey};
use trace::{AllocationTrace, TracedBlock};

pub use course::{ChargeCourse, ChargePoint};
pub use peak::{PeakMemory, PeakPlace};

/// How many blocks or refusals are listed; all are counted.
const LISTED: usize = 20;

/// Memory that a program allocated.
#[derive(Debug, Clone)]
pub struct HistoryBlock {
    /// The process that allocated it.
    pub who: ProcessKey,
    /// The device's place in the ledger.
    pub device: u8,
    /// How it was allocated.
    pub kind: GuardMemoryKind,
    /// Its size.
    pub bytes: u64,
    /// When it was allocated, in seconds since the start.
    pub from: f64,
    /// When it was freed; `None` if it never was.
    pub to: Option<f64>,
    /// Where it was allocated, if call stacks were kept.
    pub stack: Vec<String>,
    stack_number: u16,
}

/// A request that the limit refused.
#[derive(Debug, Clone)]
pub struct HistoryRefusal {
    /// The process that made it.
    pub pid: u32,
    /// The device's place in the ledger.
    pub device: u8,
    /// How the memory was to be allocated.
    pub kind: GuardMemoryKind,
    /// Its size.
    pub bytes: u64,
    /// When, in seconds since the start.
    pub at: f64,
}

/// What the guard recorded of a launch.
#[derive(Debug, Default)]
pub struct LaunchHistory {
    /// The processes that used the driver, in the order in which they first did.
    pub processes: Vec<ProcessFigures>,
    /// How many of them have a list of events.
    pub lists: ListCounts,
    /// The largest blocks.
    pub largest: Vec<HistoryBlock>,
    /// What was never freed.
    pub never_freed: NeverFreedBlocks,
    /// The first refusals.
    pub refused: Vec<HistoryRefusal>,
    /// The charge of each device over time, by its place in the ledger.
    pub courses: HashMap<u8, ChargeCourse>,
    /// What was live at the peak of each device, by its place in the ledger.
    pub at_peak: HashMap<u8, PeakMemory>,
    /// The most that a process had allocated at once on each device, summed over the devices.
    /// Processes of which events are missing are not in it.
    pub peaks: HashMap<ProcessKey, u64>,
    /// How many events are missing: there was no room, or a kill cut them short.
    pub lost: u64,
}

/// What was never freed.
#[derive(Debug, Default)]
pub struct NeverFreedBlocks {
    /// How many bytes.
    pub bytes: u64,
    /// How many blocks.
    pub blocks: usize,
    /// The largest of them.
    pub largest: Vec<HistoryBlock>,
    /// Bytes and blocks of each process.
    pub by_process: HashMap<ProcessKey, (u64, usize)>,
}

/// Which processes and which lists of events belong together.
#[derive(Debug, Default)]
pub struct ListCounts {
    /// Processes without a list.
    pub missing: usize,
    /// Lists whose process is not known any more: another process got its slot.
    pub orphans: usize,
    /// Processes that are known.
    pub known: usize,
}

impl ListCounts {
    fn of(lists: &[GatheredList], processes: &[ProcessFigures]) -> ListCounts {
        let known: HashSet<ProcessKey> = processes.iter().map(|process| process.who).collect();
        let listed: HashSet<ProcessKey> = lists.iter().map(|list| list.who).collect();
        ListCounts {
            missing: known.difference(&listed).count(),
            orphans: listed.difference(&known).count(),
            known: processes.len(),
        }
    }
}

/// Reads the history of a launch, and writes its trace.
pub(super) fn read(
    watch: &GuardWatch,
    launched: &Launched,
    trace: Option<&mut dyn Write>,
) -> (LaunchHistory, io::Result<()>) {
    let gathered = &launched.gathered;
    let processes = gathered.processes(watch);
    let lists = gathered.lists(watch, &processes);
    let mut trace = AllocationTrace::new(trace);
    let times = (launched.clock, launched.watched);
    let mut history = merge(&lists, gathered, &watch.unified(), times, &mut trace);
    let blocks = history.largest.iter_mut().chain(&mut history.never_freed.largest);
    let blocks = blocks.map(|block| (block.who, block.stack_number, &mut block.stack));
    let places = history.at_peak.values_mut().flat_map(|peak| &mut peak.places);
    let places = places.map(|place| (place.who, place.stack_number, &mut place.stack));
    name_stacks(blocks.chain(places).collect(), gathered, watch);
    history.lists = ListCounts::of(&lists, &processes);
    history.processes = processes;
    (history, trace.finish())
}

/// A process, the number of a call stack in it, and where its frames go.
type UnnamedStack<'a> = (ProcessKey, u16, &'a mut Vec<String>);

/// Sets call stacks by their numbers; the file of each process is read once.
fn name_stacks(unnamed: Vec<UnnamedStack<'_>>, gathered: &Gathered, watch: &GuardWatch) {
    let mut wanted: HashMap<ProcessKey, Vec<u16>> = HashMap::new();
    for (who, number, _) in unnamed.iter().filter(|(_, number, _)| *number != 0) {
        wanted.entry(*who).or_default().push(*number);
    }
    let read = |(who, numbers): (ProcessKey, Vec<u16>)| {
        let text = BufReader::new(gathered.stacks(who, watch));
        (who, parse_stacks(text, &numbers).into_iter().collect())
    };
    let stacks: HashMap<ProcessKey, HashMap<u16, Vec<String>>> =
        wanted.into_iter().map(read).collect();
    for (who, number, frames) in unnamed {
        let stack = stacks.get(&who).and_then(|all| all.get(&number));
        *frames = stack.cloned().unwrap_or_default();
    }
}

/// Merges the lists, and writes the trace.
fn merge(
    lists: &[GatheredList],
    gathered: &Gathered,
    unified: &[bool],
    (clock, watched): (LedgerClock, Duration),
    trace: &mut AllocationTrace<'_>,
) -> LaunchHistory {
    let mut reader = EventsInOrder::new(lists, gathered, unified);
    let mut builder = HistoryBuilder::new(watched.as_secs_f64(), trace);
    while let Some((at, list, event)) = reader.next() {
        let time = clock.since_start(at);
        let now = HistoryTime { seconds: time.as_secs_f64(), micros: time.as_micros() };
        match event {
            Some(event) => builder.step((list, lists[list].who), &event, now),
            None => builder.end(list, lists[list].who, now.seconds),
        }
    }
    let mut history = builder.finish(lists);
    history.lost = reader.lost.iter().sum();
    for (list, lost) in lists.iter().zip(&reader.lost) {
        if *lost == 0 {
            // A process without events has allocated nothing.
            history.peaks.entry(list.who).or_insert(0);
        } else {
            history.peaks.remove(&list.who);
        }
    }
    history
}

/// A moment of the run.
#[derive(Clone, Copy)]
struct HistoryTime {
    seconds: f64,
    micros: u128,
}

/// A block that is not freed yet.
struct OpenBlock {
    number: u64,
    bytes: u64,
    from: f64,
    stack: u16,
    stream: u16,
    device: u8,
}

/// What a process has allocated.
#[derive(Default)]
struct ProcessMemory {
    open: HashMap<(GuardMemoryKind, u64), OpenBlock>,
    /// The charge on each device: now, and its peak.
    charged: HashMap<u8, (u64, u64)>,
}

struct HistoryBuilder<'a, 'b> {
    watched: f64,
    trace: &'a mut AllocationTrace<'b>,
    /// How many blocks there were so far.
    count: u64,
    processes: HashMap<usize, ProcessMemory>,
    courses: HashMap<u8, CourseBuilder>,
    at_peak: HashMap<u8, PeakBuilder>,
    largest: LargestBlocks,
    never_freed: LargestBlocks,
    history: LaunchHistory,
}

impl<'a, 'b> HistoryBuilder<'a, 'b> {
    fn new(watched: f64, trace: &'a mut AllocationTrace<'b>) -> HistoryBuilder<'a, 'b> {
        HistoryBuilder {
            watched,
            trace,
            count: 0,
            processes: HashMap::new(),
            courses: HashMap::new(),
            at_peak: HashMap::new(),
            largest: LargestBlocks::default(),
            never_freed: LargestBlocks::default(),
            history: LaunchHistory::default(),
        }
    }

    fn step(&mut self, (list, who): (usize, ProcessKey), event: &GuardEvent, now: HistoryTime) {
        self.hold(list, event);
        self.charge(list, event, now.seconds);
        let GuardEvent { device, kind, bytes, stack, stream, .. } = *event;
        let process = self.processes.entry(list).or_default();
        match event.op {
            GuardOp::Allocate => {
                let number = self.count;
                self.count += 1;
                let open = OpenBlock { number, bytes, from: now.seconds, stack, stream, device };
                self.largest.offer(number, bytes, || block(who, kind, &open));
                if let Some(before) = process.open.insert((kind, event.key), open) {
                    self.add_never_freed(who, kind, &before);
                }
                self.trace.allocate(TracedBlock { number, bytes, stream }, now.micros);
            }
            GuardOp::Free => {
                if let Some(open) = process.open.remove(&(kind, event.key)) {
                    self.largest.freed(open.number, open.bytes, now.seconds);
                    self.trace.free(open.number, event, now.micros);
                }
            }
            GuardOp::Refuse if self.history.refused.len() < LISTED => {
                let (pid, at) = (who.0, now.seconds);
                self.history.refused.push(HistoryRefusal { pid, device, kind, bytes, at });
            }
            GuardOp::Refuse | GuardOp::Charge | GuardOp::Discharge => {}
        }
    }

    /// Changes what the place of an event holds.
    fn hold(&mut self, list: usize, event: &GuardEvent) {
        let peak = self.at_peak.entry(event.device).or_default();
        match event.op {
            GuardOp::Allocate => peak.take(list, PlaceKey::Stack(event.stack), event.charge, 1),
            GuardOp::Charge => peak.take(list, PlaceKey::Driver, event.charge, 0),
            GuardOp::Discharge => peak.give_back(list, PlaceKey::Driver, event.charge, 0),
            GuardOp::Free => {
                let open = self.processes.get(&list);
                let open = open.and_then(|process| process.open.get(&(event.kind, event.key)));
                let stack = open.map_or(0, |open| open.stack);
                peak.give_back(list, PlaceKey::Stack(stack), event.charge, 1);
            }
            GuardOp::Refuse => {}
        }
    }

    /// Changes the charge of a process and of its device.
    fn charge(&mut self, list: usize, event: &GuardEvent, at: f64) {
        let more = match event.op {
            GuardOp::Allocate | GuardOp::Charge => true,
            GuardOp::Free | GuardOp::Discharge => false,
            GuardOp::Refuse => return,
        };
        let changed = |sum: u64| match more {
            true => sum.saturating_add(event.charge),
            false => sum.saturating_sub(event.charge),
        };
        let charged = &mut self.processes.entry(list).or_default().charged;
        let (now, most) = charged.entry(event.device).or_default();
        *now = changed(*now);
        *most = (*most).max(*now);
        let course = self.courses.entry(event.device);
        let course = course.or_insert_with(|| CourseBuilder::new(self.watched));
        course.step(at, changed(course.now));
        let charge = course.now;
        self.at_peak.entry(event.device).or_default().charged(charge, at);
    }

    /// Frees the memory of a process that was found dead.
    fn end(&mut self, list: usize, who: ProcessKey, at: f64) {
        let Some(process) = self.processes.remove(&list) else { return };
        for (device, (charged, _)) in &process.charged {
            if let Some(course) = self.courses.get_mut(device) {
                course.step(at, course.now.saturating_sub(*charged));
            }
        }
        self.at_peak.values_mut().for_each(|peak| peak.end(list));
        self.trace.left(process.open.values().map(|open| TracedBlock {
            number: open.number,
            bytes: open.bytes,
            stream: open.stream,
        }));
        self.close(who, &process);
    }

    /// Records the peak and the remaining blocks of a process after its last event.
    fn close(&mut self, who: ProcessKey, process: &ProcessMemory) {
        let peak = process.charged.values().map(|(_, most)| most).sum();
        self.history.peaks.insert(who, peak);
        for ((kind, _), open) in &process.open {
            self.add_never_freed(who, *kind, open);
        }
    }

    /// Counts a block that was never freed.
    fn add_never_freed(&mut self, who: ProcessKey, kind: GuardMemoryKind, open: &OpenBlock) {
        self.never_freed.offer(open.number, open.bytes, || block(who, kind, open));
        let left = &mut self.history.never_freed;
        let by = left.by_process.entry(who).or_default();
        for (bytes, blocks) in [(&mut left.bytes, &mut left.blocks), (&mut by.0, &mut by.1)] {
            *bytes = bytes.saturating_add(open.bytes);
            *blocks += 1;
        }
    }

    fn finish(mut self, lists: &[GatheredList]) -> LaunchHistory {
        for (list, process) in std::mem::take(&mut self.processes) {
            self.close(lists[list].who, &process);
        }
        let peaks = self.at_peak.into_iter().filter(|(_, peak)| peak.is_known());
        self.history.at_peak =
            peaks.map(|(device, peak)| (device, peak.finish(|list| lists[list].who))).collect();
        let courses = self.courses.into_iter();
        self.history.courses = courses.map(|(device, course)| (device, course.finish())).collect();
        self.history.largest = self.largest.0.into_values().collect();
        self.history.never_freed.largest = self.never_freed.0.into_values().collect();
        self.history
    }
}

fn block(who: ProcessKey, kind: GuardMemoryKind, open: &OpenBlock) -> HistoryBlock {
    let OpenBlock { bytes, from, stack: stack_number, device, .. } = *open;
    HistoryBlock { who, device, kind, bytes, from, to: None, stack: Vec::new(), stack_number }
}

/// The largest blocks; of two of the same size, the earlier one first.
#[derive(Default)]
struct LargestBlocks(BTreeMap<(Reverse<u64>, u64), HistoryBlock>);

impl LargestBlocks {
    fn offer(&mut self, number: u64, bytes: u64, block: impl FnOnce() -> HistoryBlock) {
        let key = (Reverse(bytes), number);
        let is_full = self.0.len() >= LISTED;
        if is_full && self.0.last_key_value().is_some_and(|(last, _)| *last < key) {
            return;
        }
        self.0.insert(key, block());
        if is_full {
            self.0.pop_last();
        }
    }

    fn freed(&mut self, number: u64, bytes: u64, at: f64) {
        if let Some(block) = self.0.get_mut(&(Reverse(bytes), number)) {
            block.to = Some(at);
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
