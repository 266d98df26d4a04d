//! From the events that each process noted to one history: blocks with a beginning and an
//! end, refusals, the course of each device's charge, and a trace that `replay` reads.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use plimsoll_guard::log::{Kind, Op};
use plimsoll_guard::watch::{Clock, Event, Log};

/// Something that was allocated.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) pid: u32,
    /// When its process attached: one that becomes another program keeps its number.
    pub(super) since: u64,
    pub(super) device: u8,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    pub(super) from: f64,
    /// `None` if it was never freed.
    pub(super) to: Option<f64>,
    pub(super) stack: u16,
}

/// A request that the line refused.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) pid: u32,
    pub(super) device: u8,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    pub(super) at: f64,
}

/// Everything that happened.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) blocks: Vec<Block>,
    pub(super) refused: Vec<Refusal>,
    /// For each device: what was charged from this second on.
    pub(super) course: HashMap<u8, Vec<(f64, u64)>>,
    pub(super) trace: String,
    /// The most that a process held at once, on each device and then all together, by its number
    /// and when it attached; nothing where events of it are missing.
    pub(super) peaks: HashMap<(u32, u64), u64>,
    /// Events that are missing: there was no room, or a kill cut them short.
    pub(super) lost: u64,
}

impl History {
    /// What was charged on a device from each second on.
    pub(super) fn course_of(&self, device: u8) -> &[(f64, u64)] {
        self.course.get(&device).map_or(&[], Vec::as_slice)
    }
}

/// Puts the lists together. `ends` says for each when its process was found dead: what it held
/// is free then.
pub(super) fn merge(logs: &[Log], clock: Clock, ends: &[Option<u64>]) -> History {
    let lost = logs.iter().map(|log| log.lost).sum();
    let mut history = History { lost, ..History::default() };
    let mut open: HashMap<(usize, Kind, u64), usize> = HashMap::new();
    let mut course = Course::default();
    let mut trace = Trace::new();
    for Step { at, who, event } in in_order(logs, ends) {
        let (pid, since) = logs.get(who).map_or((0, 0), |log| (log.pid, log.since));
        let time = clock.since_start(at);
        let seconds = time.as_secs_f64();
        let Some(event) = event else {
            course.end(who, seconds);
            trace.left(open.extract_if(|(of, ..), _| *of == who).map(|(_, place)| place));
            continue;
        };
        course.step(who, &event, seconds);
        let key = (who, event.kind, event.key);
        match event.op {
            Op::Allocate => {
                history.blocks.push(block((pid, since), &event, seconds));
                open.insert(key, history.blocks.len() - 1);
                trace.allocate(&event, time.as_micros());
            }
            Op::Free => {
                if let Some(place) = open.remove(&key) {
                    history.blocks[place].to = Some(seconds);
                    trace.free(place, &event, time.as_micros());
                }
            }
            Op::Refuse => history.refused.push(refusal(pid, &event, seconds)),
            Op::Charge | Op::Discharge => {}
        }
    }
    history.trace = trace.text;
    let whole = logs.iter().enumerate().filter(|(_, log)| log.lost == 0);
    history.peaks = whole.map(|(who, log)| ((log.pid, log.since), course.peak_of(who))).collect();
    history.course = course.lines;
    history
}

/// What `replay` reads: each allocation under its number, and its free.
struct Trace {
    text: String,
    streams: HashMap<u16, usize>,
    /// The rest of each allocation's line.
    blocks: Vec<(u64, usize)>,
    /// What processes held when they ended. It was never freed, and stays so where nobody
    /// allocates after them; where somebody does, it was there for them.
    left: Vec<usize>,
}

impl Trace {
    fn new() -> Trace {
        let text = "op,id,size,stream,t_us\n".to_string();
        Trace { text, streams: HashMap::new(), blocks: Vec::new(), left: Vec::new() }
    }

    fn left(&mut self, places: impl Iterator<Item = usize>) {
        self.left.extend(places);
        self.left.sort_unstable();
    }

    fn allocate(&mut self, event: &Event, micros: u128) {
        for place in std::mem::take(&mut self.left) {
            if let Some((bytes, stream)) = self.blocks.get(place).copied() {
                self.line('f', place, bytes, stream, micros);
            }
        }
        let stream = self.stream(event);
        self.blocks.push((event.bytes, stream));
        self.line('a', self.blocks.len() - 1, event.bytes, stream, micros);
    }

    fn free(&mut self, place: usize, event: &Event, micros: u128) {
        let stream = self.stream(event);
        self.line('f', place, event.bytes, stream, micros);
    }

    fn stream(&mut self, event: &Event) -> usize {
        let next = self.streams.len();
        *self.streams.entry(event.stream).or_insert(next)
    }

    fn line(&mut self, op: char, place: usize, bytes: u64, stream: usize, micros: u128) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{op},{},{bytes},{stream},{micros}", place + 1);
    }
}

/// One step of the history.
struct Step {
    at: u64,
    /// Whose list it is from.
    who: usize,
    /// `None` when the process was found dead.
    event: Option<Event>,
}

/// All steps by their times; those of one list stay in its order. The clock goes in steps of
/// milliseconds, so lists often meet: then what gives memory back goes first, as it must have
/// where the line is full.
fn in_order(logs: &[Log], ends: &[Option<u64>]) -> Vec<Step> {
    let mut lists: Vec<_> = logs.iter().map(|log| log.events.iter().copied().peekable()).collect();
    let mut ends = ends.to_vec();
    ends.resize(lists.len(), None);
    // A list's time never goes back, and its process ends after all that it did.
    let mut times = vec![0; lists.len()];
    let mut next = |who: usize| {
        let event = lists.get_mut(who)?.next();
        let at = event.map(|event| event.at).or_else(|| ends.get_mut(who)?.take())?;
        let time = times.get_mut(who)?;
        *time = at.max(*time);
        Some(Step { at: *time, who, event })
    };
    let mut heads: BTreeMap<(u64, bool, usize), Step> = BTreeMap::new();
    let key = |step: &Step| {
        let adds = |event: Event| matches!(event.op, Op::Allocate | Op::Charge);
        (step.at, step.event.is_some_and(adds), step.who)
    };
    for step in (0..logs.len()).filter_map(&mut next) {
        heads.insert(key(&step), step);
    }
    let mut steps = Vec::new();
    while let Some((_, step)) = heads.pop_first() {
        if let Some(step) = next(step.who) {
            heads.insert(key(&step), step);
        }
        steps.push(step);
    }
    steps
}

/// The most that was charged for so long at a stretch, up to the end of the run: what one who
/// looks now and then, as nvidia-smi does, can see.
pub(super) fn lasting(course: &[(f64, u64)], until: f64, seconds: f64) -> u64 {
    let (mut most, mut rising) = (0, Vec::<(f64, u64)>::new());
    for (at, charge) in course.iter().copied().chain([(until, 0)]) {
        let mut since = at;
        while let Some((from, level)) = rising.pop_if(|(_, level)| *level >= charge) {
            since = from;
            if at - from >= seconds {
                most = most.max(level);
            }
        }
        rising.push((since, charge));
    }
    most
}

fn block((pid, since): (u32, u64), event: &Event, from: f64) -> Block {
    let Event { device, kind, bytes, stack, .. } = *event;
    Block { pid, since, device, kind, bytes, from, to: None, stack }
}

fn refusal(pid: u32, event: &Event, at: f64) -> Refusal {
    let Event { device, kind, bytes, .. } = *event;
    Refusal { pid, device, kind, bytes, at }
}

/// The charge of every device as it goes.
#[derive(Default)]
struct Course {
    now: HashMap<u8, u64>,
    held: HashMap<(usize, u8), u64>,
    most: HashMap<(usize, u8), u64>,
    lines: HashMap<u8, Vec<(f64, u64)>>,
}

impl Course {
    fn step(&mut self, who: usize, event: &Event, at: f64) {
        let more = match event.op {
            Op::Allocate | Op::Charge => true,
            Op::Free | Op::Discharge => false,
            Op::Refuse => return,
        };
        let change = |sum: &mut u64| {
            *sum = if more { *sum + event.charge } else { sum.saturating_sub(event.charge) };
        };
        let held = self.held.entry((who, event.device)).or_default();
        change(held);
        let most = self.most.entry((who, event.device)).or_default();
        *most = (*most).max(*held);
        change(self.now.entry(event.device).or_default());
        self.mark(event.device, at);
    }

    fn end(&mut self, who: usize, at: f64) {
        let gone: Vec<(usize, u8)> = self.held.keys().filter(|(w, _)| *w == who).copied().collect();
        for key in gone {
            let held = self.held.remove(&key).unwrap_or(0);
            let now = self.now.entry(key.1).or_default();
            *now = now.saturating_sub(held);
            self.mark(key.1, at);
        }
    }

    fn peak_of(&self, who: usize) -> u64 {
        self.most.iter().filter(|((w, _), _)| *w == who).map(|(_, most)| most).sum()
    }

    fn mark(&mut self, device: u8, at: f64) {
        let now = self.now.get(&device).copied().unwrap_or(0);
        self.lines.entry(device).or_default().push((at, now));
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_guard::watch::{Settings, Watch};

    use super::*;

    #[test]
    fn a_moment_is_no_lasting_peak() {
        let course = [(0.0, 10), (1.0, 50), (1.01, 30), (2.0, 40), (2.02, 35), (3.0, 0)];
        assert_eq!(lasting(&course, 4.0, 0.0), 50);
        assert_eq!(lasting(&course, 4.0, 0.02), 40);
        assert_eq!(lasting(&course, 4.0, 0.03), 35);
        assert_eq!(lasting(&course, 4.0, 1.9), 30);
        assert_eq!(lasting(&course, 4.0, 2.5), 10);
        assert_eq!(lasting(&[(0.0, 7)], 1.0, 1.0), 7);
        assert_eq!(lasting(&[], 1.0, 0.0), 0);
    }

    fn list(pid: u32, events: &[(u64, Op, u64)]) -> Log {
        let event = |&(at, op, key)| Event {
            at,
            op,
            kind: Kind::Linear,
            device: 0,
            tag: 0,
            key,
            bytes: 512,
            charge: 512,
            stream: 0,
            stack: 0,
        };
        Log { pid, events: events.iter().map(event).collect(), ..Log::default() }
    }

    #[test]
    fn within_a_tick_lists_keep_their_order_and_what_is_given_back_comes_first() {
        use Op::{Allocate, Free};
        // One takes what the other gave back, and is itself found dead in the tick of its last
        // event; its clock was once read late.
        let one = list(1, &[(1000, Allocate, 1), (4000, Allocate, 2)]);
        let two = list(2, &[(2000, Allocate, 1), (4000, Free, 1), (3000, Allocate, 1)]);
        let clock = Watch::create(tempfile::tempdir().unwrap().path(), &Settings::default());
        let steps: Vec<(u64, usize, bool)> = in_order(&[one.clone(), two.clone()], &[Some(4000)])
            .iter()
            .map(|step| (step.at, step.who, step.event.is_some()))
            .collect();
        let expected = [(1000, 0), (2000, 1), (4000, 1), (4000, 0), (4000, 0), (4000, 1)];
        assert_eq!(steps.iter().map(|step| (step.0, step.1)).collect::<Vec<_>>(), expected);
        assert!(!steps[4].2);
        let history = merge(&[one, two], clock.unwrap().clock(), &[Some(4000)]);
        let charges: Vec<u64> = history.course[&0].iter().map(|(_, charge)| *charge).collect();
        assert_eq!(charges, [512, 1024, 512, 1024, 0, 512]);
        assert_eq!((history.peaks[&(1, 0)], history.peaks[&(2, 0)]), (1024, 512));
        assert_eq!(history.blocks.iter().filter(|block| block.to.is_none()).count(), 3);
    }

    #[test]
    fn what_a_process_left_is_there_for_the_next() {
        use Op::Allocate;
        let one = list(1, &[(1000, Allocate, 1), (1000, Allocate, 2)]);
        let two = list(2, &[(9000, Allocate, 1)]);
        let clock = Watch::create(tempfile::tempdir().unwrap().path(), &Settings::default());
        let history = merge(&[one, two], clock.unwrap().clock(), &[Some(4000), Some(9500)]);
        let ops: Vec<String> = history.trace.lines().skip(1).map(|l| l[..3].to_string()).collect();
        assert_eq!(ops, ["a,1", "a,2", "f,1", "f,2", "a,3"], "the last one's stays, as a leak");
        assert!(history.blocks.iter().all(|block| block.to.is_none()), "nobody freed them");
    }
}
