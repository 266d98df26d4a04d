//! From the events that each process noted to one history: the largest blocks, those that were
//! never freed, refusals, and the course of each device's charge. The events pass by once, in
//! the order of time; what is kept of them does not grow with their number.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use plimsoll_bench::stats::TimePoint;
use plimsoll_guard::log::{Kind, Op};
use plimsoll_guard::watch::{Clock, Event};

use super::course::Course;
use super::gather::{Gathered, Source, Who};
use super::order::InOrder;
use super::trace::{Place, Trace};

/// How many of a kind are listed; all are counted.
const LISTED: usize = 20;

/// Something that was allocated.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) who: Who,
    pub(super) device: u8,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    pub(super) from: f64,
    /// `None` if it was never freed.
    pub(super) to: Option<f64>,
    pub(super) stack: u16,
}

/// A request that the limit refused.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) pid: u32,
    pub(super) device: u8,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    pub(super) at: f64,
}

/// Everything that happened, as far as it is shown.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) largest: Vec<Block>,
    pub(super) left: Left,
    /// The first of them.
    pub(super) refused: Vec<Refusal>,
    /// For each device: what a plot shows, and the most that was charged for 20 ms at a stretch.
    pub(super) courses: HashMap<u8, (Vec<TimePoint>, u64)>,
    /// The most that a process held at once, on each device and then all together; nothing where
    /// events of it are missing.
    pub(super) peaks: HashMap<Who, u64>,
    /// Events that are missing: there was no room, or a kill cut them short.
    pub(super) lost: u64,
}

/// What was never freed.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) bytes: u64,
    pub(super) blocks: usize,
    pub(super) largest: Vec<Block>,
    /// Bytes and blocks of each process.
    pub(super) by: HashMap<Who, (u64, usize)>,
}

/// Puts the lists together, and writes the trace.
pub(super) fn merge(
    sources: &[Source],
    gathered: &Gathered,
    unified: &[bool],
    clock: Clock,
    lasted: f64,
    trace: &mut Trace<'_>,
) -> History {
    let mut reader = InOrder::new(sources, gathered, unified);
    let mut build = Build::new(lasted, trace);
    while let Some((at, who, event)) = reader.next() {
        let time = clock.since_start(at);
        let now = Now { seconds: time.as_secs_f64(), micros: time.as_micros() };
        match event {
            Some(event) => build.step((who, sources[who].who), &event, now),
            None => build.end(who, sources[who].who, now.seconds),
        }
    }
    let mut history = build.finish(sources);
    history.lost = reader.lost.iter().sum();
    // A process that had nothing to note held nothing.
    let whole = sources.iter().zip(&reader.lost).map(|(source, lost)| (source.who, *lost == 0));
    for (who, is_whole) in whole {
        if is_whole {
            history.peaks.entry(who).or_insert(0);
        } else {
            history.peaks.remove(&who);
        }
    }
    history
}

/// A moment of the run.
#[derive(Clone, Copy)]
struct Now {
    seconds: f64,
    micros: u128,
}

/// A block that was not freed so far.
struct Open {
    number: u64,
    bytes: u64,
    from: f64,
    stack: u16,
    stream: u16,
    device: u8,
}

/// What a process holds.
#[derive(Default)]
struct Holder {
    open: HashMap<(Kind, u64), Open>,
    /// On each device: now, and at most.
    held: HashMap<u8, (u64, u64)>,
}

struct Build<'a, 'b> {
    lasted: f64,
    trace: &'a mut Trace<'b>,
    /// How many blocks there were.
    count: u64,
    holders: HashMap<usize, Holder>,
    courses: HashMap<u8, Course>,
    largest: Top,
    /// The largest of those that were never freed.
    left_top: Top,
    history: History,
}

impl<'a, 'b> Build<'a, 'b> {
    fn new(lasted: f64, trace: &'a mut Trace<'b>) -> Build<'a, 'b> {
        Build {
            lasted,
            trace,
            count: 0,
            holders: HashMap::new(),
            courses: HashMap::new(),
            largest: Top::default(),
            left_top: Top::default(),
            history: History::default(),
        }
    }

    fn step(&mut self, (source, who): (usize, Who), event: &Event, now: Now) {
        self.charge(source, event, now.seconds);
        let Event { device, kind, bytes, stack, stream, .. } = *event;
        let holder = self.holders.entry(source).or_default();
        match event.op {
            Op::Allocate => {
                let number = self.count;
                self.count += 1;
                let open = Open { number, bytes, from: now.seconds, stack, stream, device };
                self.largest.offer(number, bytes, || block(who, kind, &open));
                if let Some(before) = holder.open.insert((kind, event.key), open) {
                    self.leave(who, kind, &before);
                }
                self.trace.allocate(Place { number, bytes, stream }, now.micros);
            }
            Op::Free => {
                if let Some(open) = holder.open.remove(&(kind, event.key)) {
                    self.largest.freed(open.number, open.bytes, now.seconds);
                    self.trace.free(open.number, event, now.micros);
                }
            }
            Op::Refuse if self.history.refused.len() < LISTED => {
                let (pid, at) = (who.0, now.seconds);
                self.history.refused.push(Refusal { pid, device, kind, bytes, at });
            }
            Op::Refuse | Op::Charge | Op::Discharge => {}
        }
    }

    /// The charge of a process and of its device changes.
    fn charge(&mut self, source: usize, event: &Event, at: f64) {
        let more = match event.op {
            Op::Allocate | Op::Charge => true,
            Op::Free | Op::Discharge => false,
            Op::Refuse => return,
        };
        let changed = |sum: u64| match more {
            true => sum.saturating_add(event.charge),
            false => sum.saturating_sub(event.charge),
        };
        let held = &mut self.holders.entry(source).or_default().held;
        let (now, most) = held.entry(event.device).or_default();
        *now = changed(*now);
        *most = (*most).max(*now);
        let course = self.courses.entry(event.device);
        let course = course.or_insert_with(|| Course::new(self.lasted));
        course.step(at, changed(course.now));
    }

    /// A process was found dead: what it held is free.
    fn end(&mut self, source: usize, who: Who, at: f64) {
        let Some(holder) = self.holders.remove(&source) else { return };
        for (device, (held, _)) in &holder.held {
            if let Some(course) = self.courses.get_mut(device) {
                course.step(at, course.now.saturating_sub(*held));
            }
        }
        self.trace.left(holder.open.values().map(|open| Place {
            number: open.number,
            bytes: open.bytes,
            stream: open.stream,
        }));
        self.close(who, &holder);
    }

    /// What is known of a process of which nothing more comes.
    fn close(&mut self, who: Who, holder: &Holder) {
        let peak = holder.held.values().map(|(_, most)| most).sum();
        self.history.peaks.insert(who, peak);
        for ((kind, _), open) in &holder.open {
            self.leave(who, *kind, open);
        }
    }

    /// A block was never freed.
    fn leave(&mut self, who: Who, kind: Kind, open: &Open) {
        self.left_top.offer(open.number, open.bytes, || block(who, kind, open));
        let left = &mut self.history.left;
        let by = left.by.entry(who).or_default();
        for (bytes, blocks) in [(&mut left.bytes, &mut left.blocks), (&mut by.0, &mut by.1)] {
            *bytes = bytes.saturating_add(open.bytes);
            *blocks += 1;
        }
    }

    fn finish(mut self, sources: &[Source]) -> History {
        for (source, holder) in std::mem::take(&mut self.holders) {
            self.close(sources[source].who, &holder);
        }
        let courses = self.courses.into_iter();
        self.history.courses = courses.map(|(device, course)| (device, course.finish())).collect();
        self.history.largest = self.largest.0.into_values().collect();
        self.history.left.largest = self.left_top.0.into_values().collect();
        self.history
    }
}

fn block(who: Who, kind: Kind, open: &Open) -> Block {
    let Open { bytes, from, stack, device, .. } = *open;
    Block { who, device, kind, bytes, from, to: None, stack }
}

/// The largest blocks; of two that are as large, the earlier.
#[derive(Default)]
struct Top(BTreeMap<(Reverse<u64>, u64), Block>);

impl Top {
    fn offer(&mut self, number: u64, bytes: u64, block: impl FnOnce() -> Block) {
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

#[cfg(test)]
mod tests {
    use plimsoll_guard::watch::{Settings, Watch};

    use super::super::gather::tests::{figures, note};
    use super::*;

    type Noted<'a> = (u32, Option<u64>, &'a [(u64, Op, u64, u64)]);

    /// The history of lists, each with its process and when that was found dead; and the trace.
    fn merged(lists: &[Noted<'_>]) -> (History, Vec<(u64, usize, bool)>, String) {
        let folder = tempfile::tempdir().unwrap();
        let watch = Watch::create(folder.path(), &Settings::default()).unwrap();
        for (pid, _, events) in lists {
            note(&watch, (*pid, u64::from(*pid)), events);
        }
        let gathered = Gathered::default();
        let known: Vec<_> =
            lists.iter().map(|(pid, end, _)| figures((*pid, u64::from(*pid)), *end)).collect();
        let sources = gathered.sources(&watch, &known);
        let mut reader = InOrder::new(&sources, &gathered, &[]);
        let steps = std::iter::from_fn(|| reader.next());
        let steps = steps.map(|(at, who, event)| (at, who, event.is_some())).collect();
        let mut text = Vec::new();
        let mut trace = Trace::new(Some(&mut text));
        let history = merge(&sources, &gathered, &[], watch.clock(), 1.0, &mut trace);
        trace.finish().unwrap();
        (history, steps, String::from_utf8(text).unwrap())
    }

    #[test]
    fn within_a_tick_lists_keep_their_order_and_what_is_given_back_comes_first() {
        use Op::{Allocate, Free};
        // One takes what the other gave back, and is itself found dead in the tick of its last
        // event; its clock was once read late.
        let one = [(1000, Allocate, 1, 512), (4000, Allocate, 2, 512)];
        let two = [(2000, Allocate, 1, 512), (4000, Free, 1, 512), (3000, Allocate, 1, 512)];
        let (history, steps, _) = merged(&[(1, Some(4000), &one), (2, None, &two)]);
        let expected = [
            (1000, 0, true),
            (2000, 1, true),
            (4000, 1, true),
            (4000, 0, true),
            (4000, 0, false),
            (4000, 1, true),
        ];
        assert_eq!(steps, expected);
        assert_eq!((history.peaks[&(1, 1)], history.peaks[&(2, 2)]), (1024, 512));
        assert_eq!((history.left.blocks, history.left.bytes), (3, 1536));
        assert_eq!(history.left.by[&(1, 1)], (1024, 2));
        let most = history.courses[&0].0.iter().map(|point| point.max).fold(0.0, f64::max);
        assert!((most * f64::from(1 << 30) - 1024.0).abs() < 1e-3, "{most}");
    }

    #[test]
    fn what_a_process_left_is_there_for_the_next() {
        use Op::Allocate;
        let one = [(1000, Allocate, 1, 512), (1000, Allocate, 2, 512)];
        let two = [(9000, Allocate, 1, 512)];
        let (history, _, trace) = merged(&[(1, Some(4000), &one), (2, Some(9500), &two)]);
        let ops: Vec<String> = trace.lines().skip(1).map(|l| l[..3].to_string()).collect();
        assert_eq!(ops, ["a,1", "a,2", "f,1", "f,2", "a,3"], "the last one's stays, as a leak");
        assert_eq!(history.left.blocks, 3, "nobody freed them");
    }

    #[test]
    fn of_many_blocks_the_largest_are_kept_with_their_ends() {
        use Op::{Allocate, Free, Refuse};
        let mut events: Vec<(u64, Op, u64, u64)> = Vec::new();
        for key in 0..50 {
            events.push((key, Allocate, key, (key % 25 + 1) << 10));
        }
        // Half of them is freed; one address comes again without having been freed.
        events.extend((0..50).step_by(2).map(|key| (60 + key, Free, key, 0)));
        events.push((200, Allocate, 1, 99 << 10));
        events.extend((0..30).map(|at| (300 + at, Refuse, 0, 1 << 40)));
        let (history, ..) = merged(&[(1, Some(900), &events)]);
        let sizes: Vec<u64> = history.largest.iter().map(|block| block.bytes >> 10).collect();
        let expected: Vec<u64> =
            [99].into_iter().chain((7..=25).rev().flat_map(|n| [n, n])).collect();
        assert_eq!(sizes, expected[..20]);
        // Of two that are as large, the first is the earlier: one of an even number was freed.
        let freed: Vec<bool> = history.largest.iter().map(|block| block.to.is_some()).collect();
        assert_eq!(freed[..5], [false, true, false, false, true]);
        assert_eq!((history.left.blocks, history.left.largest.len()), (26, 20));
        assert_eq!(history.refused.len(), 20);
        assert_eq!(history.lost, 0);
    }
}
