//! What a report warns of.

use std::sync::atomic::Ordering::Relaxed;

use plimsoll_guard::ledger::flag;
use plimsoll_guard::watch::GuardWatch;

use super::answer::Lists;
use super::child::Ended;
use super::events::History;
use super::sys;

/// By which memory may pass the limit uncounted, or a program was refused more than it asked for
/// past the limit.
const ALARMING: [(u32, &str); 6] = [
    (
        flag::NEW_DRIVER,
        "the driver is newer than what the guard knows: new ways to allocate may pass uncounted",
    ),
    (
        flag::REFUSED_DRIVER,
        "because of --strict the program was told that there is no usable driver",
    ),
    (flag::MISSING_CALL, MISSING_CALL),
    (flag::SEPARATE, SEPARATE),
    (
        flag::NO_SLOT,
        "a process was refused all GPU memory: more than 4,096 used the GPU at once, or its counters could not be reached",
    ),
    (
        flag::NO_ROOM,
        "a process was refused all GPU memory: it had no room for the guard's list (64 MiB of addresses; see `ulimit -v`)",
    ),
];

const MISSING_CALL: &str =
    "the driver lacks a call that the guard needs: some allocations passed uncounted";
const SEPARATE: &str = "a program loaded libraries into a link namespace of its own (dlmopen), which the guard does not reach: not held";
const DAMAGED: &str =
    "the guard's counters were damaged while the program ran: what it used is not known";

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

/// What even a quiet run says.
pub(super) fn alarming(watch: &GuardWatch) -> Vec<&'static str> {
    is_damaged(watch).then_some(DAMAGED).into_iter().chain(said(watch, &ALARMING)).collect()
}

/// Why it is not known what the program used, where it is not.
pub(super) fn passed(watch: &GuardWatch) -> Option<&'static str> {
    let damaged = is_damaged(watch).then_some(DAMAGED);
    let passing = [(flag::MISSING_CALL, MISSING_CALL), (flag::SEPARATE, SEPARATE)];
    damaged.or_else(|| said(watch, &passing).next())
}

fn is_damaged(watch: &GuardWatch) -> bool {
    sys::ledger_was_cut() || watch.is_damaged()
}

/// Those of the sentences that the guard has raised a flag for.
fn said(watch: &GuardWatch, words: &[(u32, &'static str)]) -> impl Iterator<Item = &'static str> {
    let bits = watch.ledger().warnings.load(Relaxed);
    words.iter().filter(move |(bit, _)| bits & bit != 0).map(|(_, text)| *text)
}

/// Everything that is not as it should be.
pub(super) fn all(
    watch: &GuardWatch,
    ended: &Ended,
    history: &History,
    lists: &Lists,
) -> Vec<String> {
    let known = alarming(watch).into_iter().chain(said(watch, &INEXACT));
    let mut all: Vec<String> = known.map(str::to_string).collect();
    if history.lost > 0 {
        all.push(format!("{} events are missing from the timeline", history.lost));
    }
    let noted = watch.ledger().warnings.load(Relaxed) & flag::LOG_FULL == 0;
    if lists.missing > 0 && noted {
        let missing = lists.missing;
        all.push(format!(
            "the events of {missing} of {} processes are missing from the timeline: their files were removed while the program ran",
            lists.listed
        ));
    }
    if lists.orphans > 0 {
        let (listed, orphans) = (lists.listed, lists.orphans);
        all.push(format!(
            "{} processes used the GPU; {listed} of them are listed",
            listed + orphans
        ));
    }
    if ended.left_behind > 0 {
        all.push(match ended.left_behind {
            1 => "a process that the program started still runs".to_string(),
            n => format!("{n} processes that the program started still run"),
        });
    }
    all
}
