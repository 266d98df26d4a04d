//! The events of all lists in one order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use plimsoll_guard::log::GuardOp;
use plimsoll_guard::watch::{GuardEvent, GuardEventReader};

use super::gather::{End, Gathered, Source};

/// All events by their times, and when processes were found dead; those of one list stay in its
/// order. The clock goes in steps of milliseconds, so lists often meet: then what gives memory
/// back goes first, as it must have where the limit is reached.
pub(super) struct InOrder<'a> {
    sources: &'a [Source],
    gathered: &'a Gathered,
    unified: &'a [bool],
    /// Lists that nothing was read of so far, the next last: only those are open at once whose
    /// processes ran at once.
    waiting: Vec<usize>,
    reading: HashMap<usize, Reading<'a>>,
    /// The next of each list, by its time; what adds comes second.
    heads: BTreeMap<(u64, bool, usize), Option<GuardEvent>>,
    /// For each list, how many events of it are missing.
    pub(super) lost: Vec<u64>,
}

struct Reading<'a> {
    events: GuardEventReader<'a, Box<dyn Read + 'a>>,
    /// A list's time never goes back, and its process ends after all that it did.
    time: u64,
}

impl<'a> InOrder<'a> {
    pub(super) fn new(
        sources: &'a [Source],
        gathered: &'a Gathered,
        unified: &'a [bool],
    ) -> InOrder<'a> {
        let mut waiting: Vec<usize> = (0..sources.len()).collect();
        waiting.sort_by_key(|source| Reverse(sources[*source].starts));
        let (reading, heads) = (HashMap::new(), BTreeMap::new());
        InOrder {
            sources,
            gathered,
            unified,
            waiting,
            reading,
            heads,
            lost: vec![0; sources.len()],
        }
    }

    /// The next: when, of which list, and what; nothing where its process was found dead.
    pub(super) fn next(&mut self) -> Option<(u64, usize, Option<GuardEvent>)> {
        while let Some(next) = self.waiting.last().copied() {
            let head = self.heads.first_key_value();
            if head.is_some_and(|((at, ..), _)| *at < self.sources[next].starts) {
                break;
            }
            self.waiting.pop();
            let source = &self.sources[next];
            let records = self.gathered.read(source);
            let events = GuardEventReader::new(records, source.head.records, self.unified);
            self.reading.insert(next, Reading { events, time: 0 });
            self.advance(next);
        }
        let ((at, _, who), event) = self.heads.pop_first()?;
        self.advance(who);
        Some((at, who, event))
    }

    /// Reads a list's next event.
    fn advance(&mut self, who: usize) {
        let Some(reading) = self.reading.get_mut(&who) else { return };
        if let Some(event) = reading.events.next() {
            reading.time = reading.time.max(event.at);
            let adds = matches!(event.op, GuardOp::Allocate | GuardOp::Charge);
            self.heads.insert((reading.time, adds, who), Some(event));
            return;
        }
        let (source, whole, time) = (&self.sources[who], reading.events.whole(), reading.time);
        self.lost[who] = source.head.taken.saturating_sub(whole);
        self.reading.remove(&who);
        let end = match source.end {
            End::At(end) => end,
            End::WithItsLastEvent => 0,
            End::NotYet => return,
        };
        self.heads.insert((end.max(time), false, who), None);
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_guard::watch::{GuardSettings, GuardWatch};

    use super::super::gather::tests::note;
    use super::*;

    #[test]
    fn lists_are_open_only_while_their_processes_ran() {
        let folder = tempfile::tempdir().unwrap();
        let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        for pid in 1..200 {
            let since = u64::from(pid) * 1000;
            note(&watch, (pid, since), &[(since, GuardOp::Allocate, 1, 512)]);
        }
        let gathered = Gathered::default();
        let sources = gathered.sources(&watch, &[]);
        let mut reader = InOrder::new(&sources, &gathered, &[]);
        let mut steps = 0;
        while reader.next().is_some() {
            steps += 1;
            assert!(reader.reading.len() < 3, "{}", reader.reading.len());
        }
        assert_eq!(steps, 398);
    }
}
