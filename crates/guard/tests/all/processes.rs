//! One limit for all processes of a run, however they end.

use std::io::{BufRead, BufReader};
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_guard::ledger::state;

use crate::stage::{LIMIT, MIB, Stage};

#[test]
fn eight_processes_of_sixteen_threads_never_pass_the_limit() {
    let stage = Stage::new().set("WAY", "runtime");
    let racers: Vec<_> = (0..8).map(|_| stage.start("opened", &["race", "16", "1.5"])).collect();
    let mut raced = 0;
    for racer in racers {
        let output = racer.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stdout)
        );
        raced += usize::from(output.stdout == b"raced 1\n");
    }
    assert!(raced > 0, "nobody was both granted and refused something");
    let most = stage.most(0);
    assert!(most <= LIMIT, "{most} is {} past the limit", most - LIMIT);
    assert!(most > LIMIT / 2, "the race came nowhere near the limit: {most}");
    assert_eq!(stage.charged(), 0);
    // Contexts take nothing here: what the other processes allocated meanwhile must not count as a
    // context.
    assert_eq!(stage.device(0).driver_peak.load(Relaxed), 0);
}

#[test]
fn what_a_killed_process_held_is_given_back() {
    let stage = Stage::new();
    let mut holder = stage.start("opened", &["hold"]);
    let mut line = String::new();
    BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "holds 0\n");
    assert!(stage.run("opened", &["fill"]).contains("total 2048 2048 count 16 code 2"));
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(stage.run("opened", &["fill"]).contains("count 32 code 2"));
    assert_eq!((stage.most(0), stage.charged()), (LIMIT, 0));
}

#[test]
fn racers_that_are_killed_leave_nothing_behind() {
    let stage = Stage::new().set("WAY", "runtime");
    for round in 0..4 {
        let mut racers: Vec<_> =
            (0..4).map(|_| stage.start("opened", &["race", "4", "9"])).collect();
        std::thread::sleep(std::time::Duration::from_millis(200 + 37 * round));
        racers.iter_mut().for_each(|racer| racer.kill().unwrap());
        racers.iter_mut().for_each(|racer| assert!(!racer.wait().unwrap().success()));
        assert_eq!(stage.charged(), 0, "round {round}");
    }
    assert!(stage.run("opened", &["fill"]).contains("count 32 code 2"));
    assert!(stage.most(0) <= LIMIT);
}

#[test]
fn some_are_killed_while_others_race_on() {
    let stage = Stage::new().set("WAY", "runtime");
    let racer = || stage.start("opened", &["race", "4", "9"]);
    let mut racers: Vec<_> = (0..4).map(|_| racer()).collect();
    for round in 0..12 {
        std::thread::sleep(std::time::Duration::from_millis(60 + 7 * round));
        let mut killed = std::mem::replace(&mut racers[round as usize % 4], racer());
        killed.kill().unwrap();
        assert!(!killed.wait().unwrap().success());
    }
    racers.iter_mut().for_each(|racer| racer.kill().unwrap());
    racers.iter_mut().for_each(|racer| assert!(!racer.wait().unwrap().success()));
    assert_eq!(stage.charged(), 0);
    assert!(stage.most(0) <= LIMIT, "{} past the limit", stage.most(0) - LIMIT);
    assert!(stage.run("opened", &["fill"]).contains("count 32 code 2"));
}

#[test]
fn a_forked_child_counts_for_itself() {
    let stage = Stage::new();
    let found = stage.run("opened", &["fork"]);
    let expected = ["parent 0\n", "child 0 2\n", "parent 0 left 2048\n"];
    assert!(expected.iter().all(|line| found.contains(line)), "{found}");
    assert_eq!(stage.charged(), 0);
    let slots = stage.watch.ledger().processes();
    let used = slots.iter().filter(|slot| slot.state.load(Relaxed) != state::FREE).count();
    assert_eq!(used, 2);
}

#[test]
fn a_program_that_becomes_another_starts_anew() {
    let stage = Stage::new();
    assert!(stage.run("opened", &["exec"]).contains("count 32 code 2 left 0\nafter 1\n"));
    assert_eq!(stage.charged(), 0);
}

#[test]
fn every_event_is_noted() {
    let stage = Stage::new();
    stage.run("opened", &["fill"]);
    let logs = stage.watch.logs().unwrap();
    assert_eq!(logs.len(), 1);
    use plimsoll_guard::log::GuardOp;
    let count = |op| logs[0].events.iter().filter(|event| event.op == op).count();
    assert_eq!(
        (count(GuardOp::Allocate), count(GuardOp::Free), count(GuardOp::Refuse)),
        (32, 32, 1)
    );
    assert!(logs[0].events.iter().all(|event| event.bytes == 64 * MIB));
    assert_eq!(logs[0].lost, 0);
    assert!(logs[0].events.is_sorted_by_key(|event| event.at));
}
