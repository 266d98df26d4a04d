//! From the events that each process noted to one history: blocks with a beginning and an
//! end, refusals, the course of each device's charge, and a trace that `replay` reads.

use std::collections::HashMap;
use std::fmt::Write as _;

use plimsoll_guard::log::{Kind, Op};
use plimsoll_guard::watch::{Clock, Event, Log};

/// Something that was allocated.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) pid: u32,
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
    /// Events that are missing: there was no room, or a kill cut them short.
    pub(super) lost: u64,
}

/// Puts the lists together. `ends` says for each, in ticks, when its process was found dead:
/// what it held is free then.
pub(super) fn merge(logs: &[Log], clock: Clock, ends: &[Option<u64>]) -> History {
    let mut all: Vec<(usize, Event)> = Vec::new();
    for (index, log) in logs.iter().enumerate() {
        all.extend(log.events.iter().map(|event| (index, *event)));
    }
    all.sort_by_key(|(_, event)| event.at);
    let mut history = History { trace: "op,id,size,stream,t_us\n".into(), ..History::default() };
    history.lost = logs.iter().map(|log| log.lost).sum();
    let mut open: HashMap<(usize, Kind, u64), usize> = HashMap::new();
    let mut course = Course::new(ends, clock);
    let mut streams: HashMap<u16, usize> = HashMap::new();
    for (who, event) in all {
        let pid = logs.get(who).map_or(0, |log| log.pid);
        let time = clock.since_start(event.at);
        let seconds = time.as_secs_f64();
        course.step(who, &event, seconds);
        let next = streams.len();
        let stream = *streams.entry(event.stream).or_insert(next);
        let key = (who, event.kind, event.key);
        let place = match event.op {
            Op::Allocate => {
                history.blocks.push(block(pid, &event, seconds));
                open.insert(key, history.blocks.len() - 1);
                Some((history.blocks.len() - 1, 'a'))
            }
            Op::Free => open.remove(&key).map(|place| (place, 'f')),
            Op::Refuse => {
                history.refused.push(refusal(pid, &event, seconds));
                None
            }
            Op::Charge | Op::Discharge => None,
        };
        let Some((place, op)) = place else { continue };
        if op == 'f' {
            history.blocks[place].to = Some(seconds);
        }
        // Writing to a String cannot fail.
        let _ = writeln!(
            history.trace,
            "{op},{},{},{stream},{}",
            place + 1,
            event.bytes,
            time.as_micros()
        );
    }
    history.course = course.finish();
    history
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

fn block(pid: u32, event: &Event, from: f64) -> Block {
    let Event { device, kind, bytes, stack, .. } = *event;
    Block { pid, device, kind, bytes, from, to: None, stack }
}

fn refusal(pid: u32, event: &Event, at: f64) -> Refusal {
    let Event { device, kind, bytes, .. } = *event;
    Refusal { pid, device, kind, bytes, at }
}

/// The charge of every device as it goes.
struct Course {
    now: HashMap<u8, u64>,
    held: HashMap<(usize, u8), u64>,
    lines: HashMap<u8, Vec<(f64, u64)>>,
    ends: Vec<(f64, usize)>,
}

impl Course {
    fn new(ends: &[Option<u64>], clock: Clock) -> Course {
        let seconds = |(who, end): (usize, &Option<u64>)| {
            end.map(|end| (clock.since_start(end).as_secs_f64(), who))
        };
        let mut ends: Vec<(f64, usize)> = ends.iter().enumerate().filter_map(seconds).collect();
        ends.sort_by(|a, b| b.0.total_cmp(&a.0));
        Course { now: HashMap::new(), held: HashMap::new(), lines: HashMap::new(), ends }
    }

    fn step(&mut self, who: usize, event: &Event, at: f64) {
        while let Some((end, gone)) = self.ends.pop_if(|(end, _)| *end <= at) {
            self.end(gone, end);
        }
        let more = match event.op {
            Op::Allocate | Op::Charge => true,
            Op::Free | Op::Discharge => false,
            Op::Refuse => return,
        };
        let change = |sum: &mut u64| {
            *sum = if more { *sum + event.charge } else { sum.saturating_sub(event.charge) };
        };
        change(self.held.entry((who, event.device)).or_default());
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

    fn mark(&mut self, device: u8, at: f64) {
        let now = self.now.get(&device).copied().unwrap_or(0);
        self.lines.entry(device).or_default().push((at, now));
    }

    fn finish(mut self) -> HashMap<u8, Vec<(f64, u64)>> {
        while let Some((end, gone)) = self.ends.pop() {
            self.end(gone, end);
        }
        self.lines
    }
}

#[cfg(test)]
mod tests {
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
}
