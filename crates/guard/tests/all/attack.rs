//! Attacks that once exceeded the limit: each of these did, and the simulated driver's own count
//! shows whether it does again.

use std::sync::atomic::Ordering::Relaxed;

use crate::needs::has;
use crate::stage::{LIMIT, MIB, Stage, soon, text};

const GIB: u64 = 1024 * MIB;

fn one_gib() -> Stage {
    Stage::with(|settings| settings.limit = Some(GIB))
}

/// The kernel shows such a process as a zombie, and it holds memory as any other.
#[test]
fn a_process_whose_main_thread_has_ended_holds_what_it_took() {
    let stage = one_gib();
    let mut leader = stage.speak("attacker", &["leader", "before"]);
    assert_eq!((leader.line(), leader.line()), ("took 0".into(), "main ended".into()));
    let mut other = stage.speak("attacker", &["keep", "700"]);
    assert_eq!(other.line(), "keeps 0 refused 1");
    assert_eq!(stage.charged(), 700 * MIB);
    assert!(stage.most(0) <= GIB, "{} MiB", stage.most(0) / MIB);
    leader.end();
    assert!(other.end().success());
    assert_eq!(stage.charged(), 0);
}

#[test]
fn what_is_taken_after_the_main_thread_has_ended_comes_back() {
    let stage = one_gib();
    let mut leader = stage.speak("attacker", &["leader", "after"]);
    assert_eq!(leader.line(), "main ended");
    // Dead processes are looked for meanwhile.
    assert_eq!(stage.charged(), 0);
    let mut other = stage.speak("attacker", &["keep", "1"]);
    assert_eq!(other.line(), "keeps 1 refused 0");
    leader.tell();
    assert_eq!(leader.line(), "took 0");
    assert_eq!(stage.charged(), 701 * MIB);
    let mut second = stage.speak("attacker", &["keep", "700"]);
    assert_eq!(second.line(), "keeps 0 refused 1");
    leader.end();
    let mut third = stage.speak("attacker", &["keep", "700"]);
    assert_eq!(third.line(), "keeps 1 refused 0");
    assert!(stage.most(0) <= GIB, "{} MiB", stage.most(0) / MIB);
}

#[test]
fn mappings_that_the_driver_refuses_to_unmap_stay_counted() {
    let stage = Stage::new();
    let found = stage.run("attacker", &["unmap"]);
    assert!(stage.most(0) <= LIMIT, "{} MiB: {found}", stage.most(0) / MIB);
    assert_eq!(
        found, "held 1024 refused 1 1 held 1024\nmore 64 unmapped 0\nleft 1024\n",
        "so many mappings, and none forgotten"
    );
}

#[test]
fn a_handle_retained_by_an_address_inside_a_mapping_keeps_the_memory() {
    let found = Stage::new().run("attacker", &["inside"]);
    assert_eq!(found, "0 0 held 256 released 0 held 0\n");
}

#[test]
fn a_program_that_becomes_one_without_cuda_has_given_everything_back() {
    let stage = one_gib();
    let mut before = stage.speak("attacker", &["become"]);
    assert_eq!(before.line(), "took 0");
    assert!(soon(|| stage.charged() == 0), "it runs on, and holds nothing");
    let mut other = stage.speak("attacker", &["keep", "700"]);
    assert_eq!(other.line(), "keeps 1 refused 0");
    assert!(before.end().success() && stage.most(0) <= GIB);
}

/// There are slots for 512 processes before those of dead ones are reused. A process that gets no
/// slot is refused: nothing is taken uncounted.
#[test]
fn more_processes_than_there_are_places_are_refused_and_none_waits() {
    let stage = one_gib();
    let found = stage.run("attacker", &["crowd", "600", "2"]);
    assert!(stage.most(0) <= GIB, "{} MiB: {found}", stage.most(0) / MIB);
    let numbers: Vec<u32> = found.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers.iter().sum::<u32>(), 600, "each has its answer: {found}");
    assert!(numbers[0] >= 500, "those that have a place are held, not refused: {found}");
    assert_eq!(stage.charged(), 0);
    assert!(stage.run("opened", &["fill"]).contains("count 16 code 2"));
}

/// Also far below the limit, where a count that misses some is not noticed by a refusal.
#[test]
fn however_many_processes_there_are_each_is_in_the_sum() {
    let stage = Stage::new();
    let found = stage.run("attacker", &["crowd", "560", "1"]);
    let counted = stage.device(0).peak.load(Relaxed);
    assert_eq!(counted / MIB, stage.most(0) / MIB, "counted, and handed out: {found}");
    assert_eq!(stage.charged(), 0);
}

#[test]
fn no_child_of_a_threaded_program_waits_for_a_thread_that_it_has_not() {
    let found = Stage::new().run("attacker", &["forks", "30"]);
    assert_eq!(found, "ended 30 hung 0\n");
}

#[test]
fn contexts_go_with_their_processes() {
    let stage = one_gib().set("FAKE_CONTEXT", 40 * MIB);
    for _ in 0..10 {
        assert_eq!(stage.run("attacker", &["keep", "10", "1", "0"]), "keeps 1 refused 0\n");
    }
    assert_eq!(stage.charged(), 0);
    let device = stage.device(0);
    // The processes ran one after the other, so one context existed at a time.
    let most = (device.peak.load(Relaxed), device.driver_peak.load(Relaxed));
    assert_eq!(most, (50 * MIB, 40 * MIB), "what the driver had is {} MiB", stage.most(0) / MIB);
    assert_eq!(device.driver.load(Relaxed), 0);
    // And for processes that are killed.
    let mut held = stage.speak("attacker", &["keep", "10"]);
    assert_eq!(held.line(), "keeps 1 refused 0");
    held.kill();
    stage.run("attacker", &["keep", "10", "1", "0"]);
    assert_eq!((stage.charged(), device.driver.load(Relaxed)), (0, 0));
    assert_eq!(device.driver_peak.load(Relaxed), 40 * MIB);
}

/// Without the guard, the driver itself reports what each format takes.
#[test]
fn arrays_are_counted_by_their_formats() {
    let stage = Stage::new();
    let driver = text(stage.bare("attacker").arg("formats").output().unwrap());
    let guard = stage.run("attacker", &["formats"]);
    assert_eq!(driver.lines().count(), 64, "{driver}");
    assert!(driver.lines().all(|line| line.contains(": 0 0 0 ") && line.ends_with("back 1")));
    let wrong: Vec<_> = driver.lines().zip(guard.lines()).filter(|(a, b)| a != b).collect();
    assert!(wrong.is_empty(), "the driver's, the guard's: {wrong:#?}");
}

#[test]
fn two_that_launch_graphs_at_once_do_not_count_the_same_memory() {
    let stage = Stage::new().set("FAKE_SLOW_LAUNCH", 50_000);
    let found = stage.run("attacker", &["launches"]);
    assert!(stage.most(0) <= LIMIT, "{} MiB: {found}", stage.most(0) / MIB);
    assert_eq!(found, "first 0 block 0 at once 1\n");
    assert_eq!(stage.charged(), 0);
}

/// Drivers still export the versions from before CUDA 3.2.
#[test]
fn the_first_versions_of_calls_are_held() {
    for words in [&["old"][..], &["old", "asked"]] {
        let stage = Stage::new();
        let found = stage.run("attacker", words);
        assert!(stage.most(0) <= LIMIT, "{words:?}: {} MiB: {found}", stage.most(0) / MIB);
        assert_eq!(found, "alloc 32 freed 0 again 0 pitch 0 array 0 array3 0\n", "{words:?}");
        assert_eq!(stage.charged(), 0, "{words:?}");
    }
}

/// A thread that spins for a lock, at a priority that keeps the holder from running.
#[test]
fn a_real_time_thread_does_not_starve_those_it_waits_for() {
    let found = Stage::new().run("attacker", &["fifo"]);
    if !has("real-time", found != "not permitted\n") {
        return;
    }
    let most: u64 = found.trim().strip_prefix("most ").unwrap().parse().unwrap();
    assert!(most < 100, "one call spun for {most} ms, until the kernel stepped in");
}

/// The limit does not depend on the ledger's name in the file system.
#[test]
fn with_the_folder_removed_nothing_passes_uncounted() {
    let stage = one_gib();
    let mut held = stage.speak("attacker", &["keep", "700"]);
    assert_eq!(held.line(), "keeps 1 refused 0");
    let mut second = stage.speak("attacker", &["ask", "700", "1"]);
    assert_eq!(second.line(), "ready");
    std::fs::remove_dir_all(stage.folder()).unwrap();
    // A process that was attached before, and one that starts now.
    second.tell();
    assert_eq!(second.line(), "granted 0");
    let after = stage.guarded("attacker").args(["keep", "64", "64", "0"]).output().unwrap();
    let after = String::from_utf8_lossy(&after.stdout).into_owned();
    assert!(stage.most(0) <= GIB, "{} MiB: {after}", stage.most(0) / MIB);
    assert_eq!(stage.charged(), 700 * MIB);
    assert!(held.end().success());
    assert_eq!(stage.charged(), 0);
}

/// The driver keeps the memory of a process until its files are closed everywhere, and a child of
/// `fork` has them open. Where there are no such files, the memory is freed with the process.
#[test]
fn what_a_child_of_fork_keeps_of_its_parents_is_not_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("nvidia0");
    for files in [true, false] {
        let stage = one_gib();
        let stage = if files { stage.set("FAKE_FILES", device.display()) } else { stage };
        let mut orphan = stage.speak("attacker", &["orphan", "700"]);
        assert_eq!(orphan.line(), "took 0");
        orphan.ended();
        let expected = if files { "keeps 0 refused 1\n" } else { "keeps 1 refused 0\n" };
        let keep = || stage.run("attacker", &["keep", "700", "1", "0"]);
        assert_eq!(keep(), expected, "files: {files}");
        drop(orphan);
        assert!(soon(|| keep() == "keeps 1 refused 0\n"), "the child has ended, too");
        assert!(stage.most(0) <= GIB, "{} MiB", stage.most(0) / MIB);
    }
}
