//! What a report warns of.

use std::sync::atomic::Ordering::Relaxed;

use plimsoll_guard::ledger::flag;
use plimsoll_guard::watch::Watch;

use super::child::Ended;
use super::events::History;
use super::flags::Line;
use super::reach::Reach;

/// By which memory may pass the line uncounted.
const UNCOUNTED: [(u32, &str); 5] = [
    (
        flag::NEW_DRIVER,
        "the driver is newer than what the guard knows: new ways to allocate may pass uncounted",
    ),
    (
        flag::REFUSED_DRIVER,
        "because of --strict the program was told that there is no usable driver",
    ),
    (
        flag::MISSING_CALL,
        "the driver lacks a call that the guard needs: some allocations passed uncounted",
    ),
    (
        flag::NO_SLOT,
        "more processes used the GPU at once than can be counted: some passed uncounted",
    ),
    (
        flag::NO_ROOM,
        "a process had no room for the guard's list (64 MiB of addresses; see `ulimit -v`): its memory passed uncounted",
    ),
];

/// By which a figure or a list says less.
const INEXACT: [(u32, &str); 3] = [
    (
        flag::UNMEASURED,
        "what a context takes could not be measured (no NVML): it is not in the figures",
    ),
    (
        flag::TABLE_FULL,
        "more than a million blocks were live at once: some stayed charged after they were freed",
    ),
    (
        flag::LOG_FULL,
        "not every event could be noted: the timeline and the lists end early, the counters do not",
    ),
];

/// Why memory may have passed the line uncounted.
pub(super) fn uncounted(watch: &Watch) -> impl Iterator<Item = &'static str> {
    said(watch, &UNCOUNTED)
}

/// Those of the sentences that the guard has raised a flag for.
fn said(watch: &Watch, words: &[(u32, &'static str)]) -> impl Iterator<Item = &'static str> {
    let bits = watch.ledger().warnings.load(Relaxed);
    words.iter().filter(move |(bit, _)| bits & bit != 0).map(|(_, text)| *text)
}

/// Everything that is not as it should be, or as it was asked for.
pub(super) fn all(
    line: &Line,
    reach: &Reach,
    watch: &Watch,
    ended: &Ended,
    history: &History,
) -> Vec<String> {
    let mut all: Vec<String> = line.notes.clone();
    all.extend(reach.why_not.clone());
    all.extend(uncounted(watch).chain(said(watch, &INEXACT)).map(str::to_string));
    if history.lost > 0 {
        all.push(format!("{} events are missing from the timeline", history.lost));
    }
    if ended.left_behind > 0 {
        all.push(match ended.left_behind {
            1 => "a process that the program started still runs".to_string(),
            n => format!("{n} processes that the program started still run"),
        });
    }
    all
}
