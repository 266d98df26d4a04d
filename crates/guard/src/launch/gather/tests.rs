//! Lists of ended processes, and the order of events.

use super::*;
use crate::log::MAGIC;
use crate::watch::GuardSettings;

/// Writes a list as a process does: events of linear memory on the first device.
pub(in crate::launch) fn note(
    watch: &GuardWatch,
    (pid, since): ProcessKey,
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

pub(in crate::launch) fn figures(who: ProcessKey, until: Option<u64>) -> ProcessFigures {
    let program = String::new();
    let (allocations, frees, refused, failed, frees_of_others) = (0, 0, 0, 0, 0);
    let running = until.is_none();
    ProcessFigures {
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

fn slot(watch: &GuardWatch, place: usize, (pid, since): ProcessKey, state: u32) {
    let process = watch.slot(place);
    process.pid.store(pid, Relaxed);
    process.since.store(since, Relaxed);
    process.until.store(if state == state::DEAD { since + 50 } else { 0 }, Relaxed);
    process.state.store(state, Relaxed);
}

fn count(gathered: &Gathered, list: &GatheredList) -> usize {
    GuardEventReader::new(gathered.read(list), list.head.records, &[]).count()
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
    let sources = gathered.lists(&watch, &processes);
    let found: Vec<_> = sources
        .iter()
        .map(|source| (source.who, source.end, source.starts, count(&gathered, source)))
        .collect();
    assert_eq!(
        found,
        [
            (dead, GatheredEnd::At(150), 100, 3),
            (lives, GatheredEnd::NotYet, 200, 2),
            (orphan, GatheredEnd::WithItsLastEvent, 300, 1)
        ]
    );
    for who in [dead, lives, orphan] {
        let mut names = String::new();
        gathered.stacks(who, &watch).read_to_string(&mut names).unwrap();
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
    let sources = gathered.lists(&watch, &processes);
    assert_eq!((sources.len(), count(&gathered, &sources[0])), (1, 1));
    assert_eq!(sources[0].end, GatheredEnd::At(150));
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
    assert!(gathered.lists(&watch, &processes).is_empty());
}

#[test]
fn lists_are_open_only_while_their_processes_ran() {
    let folder = tempfile::tempdir().unwrap();
    let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
    for pid in 1..200 {
        let since = u64::from(pid) * 1000;
        note(&watch, (pid, since), &[(since, GuardOp::Allocate, 1, 512)]);
    }
    let gathered = Gathered::default();
    let sources = gathered.lists(&watch, &[]);
    let mut reader = EventsInOrder::new(&sources, &gathered, &[]);
    let mut steps = 0;
    while reader.next().is_some() {
        steps += 1;
        assert!(reader.open.len() < 3, "{}", reader.open.len());
    }
    assert_eq!(steps, 398);
}
