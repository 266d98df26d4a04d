//! Processes in other PID namespaces, where PIDs mean other processes: they share the limit, and
//! what they held is given back when they end, whichever process looks.

use std::process::Command;
use std::time::Duration;

use crate::needs::{has, works};
use crate::stage::{MIB, Running, Stage, built, soon};

const GIB: u64 = 1024 * MIB;

/// Ways into another PID namespace. Killing the first process ends all that is inside.
const UNSHARE: &[&str] = &["unshare", "-fp", "--mount-proc", "--kill-child"];
const BUBBLEWRAP: &[&str] =
    &["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--die-with-parent"];

/// The ways that work on this machine.
fn ways() -> Vec<&'static [&'static str]> {
    let is_there = |way: &[&str]| works(way[0], &[&way[1..], &["true"]].concat());
    let all = [("namespaces", UNSHARE), ("bubblewrap", BUBBLEWRAP)];
    all.into_iter().filter(|(name, way)| has(name, is_there(way))).map(|(_, way)| way).collect()
}

fn stage() -> Stage {
    Stage::with(|settings| settings.limit = Some(GIB))
}

/// A program in a namespace of its own.
fn within(stage: &Stage, way: &[&str], program: &str, words: &[&str]) -> Command {
    let mut command = stage.guarded(way[0]);
    command.args(&way[1..]).arg(built().join(program)).args(words);
    command
}

fn keeper(stage: &Stage, way: &[&str]) -> Running {
    Running::new(&mut within(stage, way, "attacker", &["keep", "700"]))
}

#[test]
fn processes_of_other_namespaces_share_the_budget() {
    for way in ways() {
        let stage = stage();
        let mut first = keeper(&stage, way);
        assert_eq!(first.line(), "keeps 1 refused 0", "{way:?}");
        let mut second = keeper(&stage, way);
        assert_eq!(second.line(), "keeps 0 refused 1", "{way:?}");
        let mut outside = stage.speak("attacker", &["keep", "700"]);
        assert_eq!(outside.line(), "keeps 0 refused 1", "{way:?}");
        assert_eq!(stage.charged(), 700 * MIB, "{way:?}: whoever looks, it lives");
        assert!(stage.most(0) <= GIB, "{way:?}: {} MiB", stage.most(0) / MIB);
        assert!([first, second, outside].into_iter().all(|held| held.end().success()), "{way:?}");
        assert_eq!(stage.charged(), 0, "{way:?}");
    }
}

#[test]
fn a_holder_outside_is_seen_to_live_from_inside() {
    for way in ways() {
        let stage = stage();
        let mut outside = stage.speak("attacker", &["keep", "700"]);
        assert_eq!(outside.line(), "keeps 1 refused 0", "{way:?}");
        let mut inside = keeper(&stage, way);
        assert_eq!(inside.line(), "keeps 0 refused 1", "{way:?}");
        assert!(stage.most(0) <= GIB, "{way:?}: {} MiB", stage.most(0) / MIB);
    }
}

#[test]
fn what_died_in_a_namespace_is_given_back_to_everybody() {
    for way in ways() {
        let stage = stage();
        for _ in 0..3 {
            let mut held = keeper(&stage, way);
            assert_eq!(held.line(), "keeps 1 refused 0", "{way:?}");
            held.kill();
            assert!(soon(|| stage.charged() == 0), "{way:?}");
        }
        let mut held = keeper(&stage, way);
        assert_eq!(held.line(), "keeps 1 refused 0", "{way:?}");
        held.kill();
        // Found by the next process, in another namespace.
        let found = soon(|| keeper(&stage, way).line() == "keeps 1 refused 0");
        assert!(found && stage.most(0) <= GIB, "{way:?}: {} MiB", stage.most(0) / MIB);
    }
}

#[test]
fn the_dead_outside_are_found_from_inside() {
    for way in ways() {
        let stage = stage();
        let mut held = stage.speak("attacker", &["keep", "700"]);
        assert_eq!(held.line(), "keeps 1 refused 0", "{way:?}");
        held.kill();
        let mut inside = keeper(&stage, way);
        assert_eq!(inside.line(), "keeps 1 refused 0", "{way:?}");
        assert!(stage.most(0) <= GIB, "{way:?}: {} MiB", stage.most(0) / MIB);
    }
}

/// Contexts too: a process that NVML lists under this process's PID may be another one.
#[test]
fn contexts_of_other_namespaces_are_counted_while_they_live() {
    for way in ways() {
        let stage = stage().set("FAKE_CONTEXT", 100 * MIB);
        let mut held: Vec<_> = (0..2)
            .map(|_| Running::new(&mut within(&stage, way, "attacker", &["keep", "300"])))
            .collect();
        held.iter_mut().for_each(|held| assert_eq!(held.line(), "keeps 1 refused 0", "{way:?}"));
        assert_eq!(stage.charged(), 800 * MIB, "{way:?}");
        drop(held);
        assert!(soon(|| stage.charged() == 0), "{way:?}");
    }
}

/// Processes that are killed in the middle of any operation, in any namespace, even while they hold
/// a lock.
#[test]
fn racers_of_many_namespaces_die_and_leave_nothing_behind() {
    for way in ways() {
        let stage = Stage::new().set("WAY", "runtime");
        let race = ["race", "4", "9"];
        let racer = |round: u32| match round % 3 {
            0 => Running::new(stage.guarded("opened").args(race)),
            _ => Running::new(&mut within(&stage, way, "opened", &race)),
        };
        let mut racers: Vec<_> = (0..4).map(racer).collect();
        for round in 0..10 {
            std::thread::sleep(Duration::from_millis(50 + 7 * u64::from(round)));
            std::mem::replace(&mut racers[round as usize % 4], racer(round)).kill();
        }
        racers.into_iter().for_each(Running::kill);
        assert!(soon(|| stage.charged() == 0), "{way:?}: {} left", stage.charged());
        assert!(stage.most(0) <= crate::stage::LIMIT, "{way:?}: {}", stage.most(0));
        // The kernel ends the processes inside a namespace some time after its first process, and
        // one of them may allocate once more before that.
        let fill = || stage.run("opened", &["fill"]).contains("count 32 code 2");
        assert!(soon(fill), "{way:?}: {} left", stage.charged());
    }
}
