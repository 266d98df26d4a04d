//! The warnings of a report.

use std::sync::atomic::Ordering::Relaxed;

use plimsoll_guard::launch::{LaunchHistory, Launched, Launcher};
use plimsoll_guard::ledger::flag;

/// Memory may have been allocated past the limit without being counted, or a program was refused
/// memory that the limit would have allowed.
const ALARMING: [(u32, &str); 7] = [
    (
        flag::NEW_DRIVER,
        "the driver is newer than what the guard knows: new ways to allocate may pass uncounted",
    ),
    (
        flag::REFUSED_DRIVER,
        "because of --strict the guard reported to the program that there is no usable driver",
    ),
    (flag::MISSING_CALL, MISSING_CALL),
    (flag::SEPARATE, SEPARATE),
    (flag::DEEP_BOUND, DEEP_BOUND),
    (
        flag::NO_SLOT,
        "a process was refused all GPU memory: more than 4,096 used the GPU at once, or its counters could not be reached",
    ),
    (
        flag::NO_ROOM,
        "a process was refused all GPU memory: it had no address space for the guard's counters and list of blocks (about 80 MiB; see `ulimit -v`)",
    ),
];

const MISSING_CALL: &str =
    "the driver lacks a call that the guard needs: some allocations passed uncounted";
const SEPARATE: &str = "a program loaded libraries into a link namespace of its own (dlmopen), which the guard does not reach: not limited";
const DEEP_BOUND: &str = "a program loaded a library that finds the driver before the guard (RTLD_DEEPBIND): what that library allocates is not limited";
const DAMAGED: &str =
    "the guard's counters were damaged while the program ran: what it used is not known";

/// A figure or a list is less exact.
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
        "not every event could be recorded: the timeline and the lists end early, the counters do not",
    ),
];

/// What is shown even with `-q`.
pub(super) fn alarming(launcher: &Launcher) -> Vec<&'static str> {
    launcher
        .is_damaged()
        .then_some(DAMAGED)
        .into_iter()
        .chain(raised(launcher, &ALARMING))
        .collect()
}

/// Why it is not known what the program used, where it is not.
pub(super) fn uncounted(launcher: &Launcher) -> Option<&'static str> {
    let damaged = launcher.is_damaged().then_some(DAMAGED);
    let passing = [
        (flag::MISSING_CALL, MISSING_CALL),
        (flag::SEPARATE, SEPARATE),
        (flag::DEEP_BOUND, DEEP_BOUND),
    ];
    damaged.or_else(|| raised(launcher, &passing).next())
}

/// The warnings whose flag the guard has raised.
fn raised(
    launcher: &Launcher,
    warnings: &[(u32, &'static str)],
) -> impl Iterator<Item = &'static str> {
    let bits = launcher.watch().ledger().warnings.load(Relaxed);
    warnings.iter().filter(move |(bit, _)| bits & bit != 0).map(|(_, text)| *text)
}

/// All warnings.
pub(super) fn all(
    launcher: &Launcher,
    launched: &Launched,
    history: &LaunchHistory,
) -> Vec<String> {
    let known = alarming(launcher).into_iter().chain(raised(launcher, &INEXACT));
    let mut all: Vec<String> = known.map(str::to_string).collect();
    if history.lost > 0 {
        all.push(format!("{} events are missing from the timeline", history.lost));
    }
    let lists = &history.lists;
    let noted = launcher.watch().ledger().warnings.load(Relaxed) & flag::LOG_FULL == 0;
    if lists.missing > 0 && noted {
        let missing = lists.missing;
        all.push(format!(
            "the events of {missing} of {} processes are missing from the timeline: their files were removed, or they ended before they had any",
            lists.known
        ));
    }
    if lists.orphans > 0 {
        let (known, orphans) = (lists.known, lists.orphans);
        all.push(format!("{} processes used the GPU; {known} of them are listed", known + orphans));
    }
    if launched.left_behind > 0 {
        all.push(match launched.left_behind {
            1 => "a process that the program started still runs".to_string(),
            n => format!("{n} processes that the program started still run"),
        });
    }
    all
}
