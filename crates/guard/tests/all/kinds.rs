//! Every kind of memory is counted, refused above the limit and given back.

use std::sync::atomic::Ordering::Relaxed;

use plimsoll_guard::ledger::flag;
use plimsoll_guard::log::{GuardMemoryKind, GuardOp};
use plimsoll_guard::watch::LedgerClock;

use crate::stage::{LIMIT, MIB, Stage, text};

/// `name: code, code above the limit, code of the free, MiB that it took, whether all came back`.
const KINDS: &str = "\
linear 0 2 0 took 256 back 1
managed 0 2 0 took 256 back 1
pitch 0 2 0 took 256 back 1
array 0 2 0 took 256 back 1
array3 0 2 0 took 256 back 1
mipmap 0 2 0 took 336 back 1
physical 0 2 0 took 256 back 1
on-host 0 0 0 took 0 back 1
stream 0 2 0 took 256 back 1
pool 0 2 0 took 256 back 1
host-pool 0 0 0 took 0 back 1
graph 0 2 0 took 256 back 1
captured 0 2
capture 0 2 0 took 256 back 1
imported 0 2 0 took 0 back 1
imported-handle 0 2 0 took 0 back 1
module 48 launch 16 again 0 unload 48
";

fn with_costs(stage: Stage) -> Stage {
    stage.set("FAKE_CONTEXT", 100 * MIB).set("FAKE_MODULE", 48 * MIB).set("FAKE_LAUNCH", 16 * MIB)
}

#[test]
fn each_kind_is_counted_refused_and_given_back() {
    for way in ["dlsym", "runtime", "thread"] {
        let stage = with_costs(Stage::new().set("WAY", way));
        assert_eq!(stage.run("opened", &["kinds"]), KINDS, "{way}");
        assert!(stage.most(0) <= LIMIT, "{way}: {}", stage.most(0));
        assert_eq!(stage.device(0).driver_peak.load(Relaxed), 164 * MIB, "{way}");
    }
}

#[test]
fn what_the_driver_takes_is_charged_and_room_is_held_back_for_it() {
    let stage = with_costs(Stage::with(|settings| settings.reserve = 128 * MIB));
    let filled = stage.run("opened", &["fill"]);
    // 2048 less 128 reserved and 100 for the context: 28 blocks of 64.
    assert_eq!(filled, "total 2048 2048 count 28 code 2 left 28\nafter 1\n");
    assert_eq!(stage.device(0).residue_most.load(Relaxed), 0);
}

#[test]
fn managed_memory_can_be_left_alone() {
    let stage = Stage::with(|settings| settings.flags = flag::MANAGED_IGNORED);
    let found = stage.run("opened", &["kinds"]);
    assert!(found.contains("managed 0 0 0 took 0 back 1\n"), "{found}");
}

#[test]
fn physical_memory_lives_with_its_mappings() {
    let found = Stage::new().run("opened", &["mappings"]);
    assert_eq!(found, "released 256\nunmapped 256\ngone 0\ntwo 512 none 0\nendless 1 256 none 0\n");
}

#[test]
fn a_pool_in_the_hosts_memory_is_never_charged() {
    let stage = Stage::new();
    assert_eq!(stage.run("opened", &["host-pool"]), "took 0 after 0\n");
    assert_eq!(stage.device(0).peak.load(Relaxed), 0);
}

#[test]
fn contexts_take_with_them_what_was_in_them() {
    let stage = Stage::new().set("FAKE_CONTEXT", 100 * MIB);
    let stage = stage.set("FAKE_MODULE", 48 * MIB).set("FAKE_LAUNCH", 16 * MIB);
    let code = |mib| format!("code {mib} back 1\n").repeat(3);
    let found = stage.run("opened", &["contexts"]);
    assert_eq!(found, format!("took 356 back 1\nreset 1\nprimary 100\n{}", code(64)));
    // Also where a context takes nothing that could be measured.
    let found = Stage::new().run("opened", &["contexts"]);
    assert_eq!(found, format!("took 256 back 1\nreset 1\nprimary 0\n{}", code(0)));
}

/// What a program outside the run takes while a context is made is separated by NVML's list of
/// processes; without that list, the whole difference counts as the context's.
#[test]
fn a_stranger_is_not_charged_to_the_context() {
    let taken = |variable: &'static str, stranger: u64| {
        let stage = Stage::new().set("FAKE_CONTEXT", 100 * MIB).set("FAKE_STRANGER", stranger);
        let stage = stage.set(variable, 1);
        stage.run("opened", &["fill"]);
        stage.device(0).driver_peak.load(Relaxed) / MIB
    };
    assert_eq!(taken("FAKE_NOTHING", 300 * MIB), 100);
    assert_eq!(taken("FAKE_NOTHING", 8 * MIB), 108, "so far apart, the two agree");
    for none in ["FAKE_NO_LIST", "FAKE_NO_FIGURE"] {
        assert_eq!(taken(none, 300 * MIB), 400, "{none}");
    }
}

#[test]
fn nothing_at_all_is_answered_by_the_driver() {
    for way in ["dlsym", "runtime"] {
        let stage = Stage::new().set("WAY", way);
        let bare = text(stage.bare("opened").arg("nulls").output().unwrap());
        assert_eq!(stage.run("opened", &["nulls"]), bare, "{way}");
        assert_eq!(stage.charged(), 0, "{way}");
    }
}

#[test]
fn errors_of_the_driver_leave_the_count_right() {
    use GuardOp::{Allocate, Free};
    for (fail, expected, listed) in [
        ("cuMemAlloc_v2:2", "0 999 0 1 took 0 left 2048\n", &[Allocate, Free][..]),
        // Logged as freed before the driver is called, and then as allocated again.
        (
            "cuMemFree_v2:1",
            "0 0 999 0 took 256 left 1792\n",
            &[Allocate, Allocate, Free, Allocate, Free],
        ),
        ("cuMemFree_v2:2", "0 0 0 999 took 256 left 1792\n", &[Allocate, Allocate, Free]),
    ] {
        let stage = Stage::new().set("FAKE_FAIL", fail);
        let begun = LedgerClock::start();
        assert_eq!(stage.run("opened", &["errors"]), expected, "{fail}");
        assert_eq!(stage.charged(), 0, "{fail}");
        let logs = stage.watch.logs().unwrap();
        let events = logs[0].events.iter().filter(|event| event.kind == GuardMemoryKind::Linear);
        assert_eq!(events.map(|event| event.op).collect::<Vec<_>>(), listed, "{fail}");
        assert!(begun.since_start(logs[0].since).as_secs() < 60, "{fail}");
        assert!(logs[0].since > 0, "{fail}");
    }
}

#[test]
fn any_call_may_fail_and_nothing_passes_the_limit() {
    for name in [
        "cuMemAllocAsync",
        "cuMemPoolGetAttribute",
        "cuGraphLaunch",
        "cuMemCreate",
        "cuMemRelease",
        "cuArrayCreate_v2",
        "cuModuleLoadData",
        "cuMemMap",
        "cuMemUnmap",
        "cuMemGetInfo_v2",
    ] {
        for time in [1, 2] {
            let stage = with_costs(Stage::new().set("FAKE_FAIL", format!("{name}:{time}")));
            for what in ["kinds", "mappings"] {
                stage.run("opened", &[what]);
                assert!(stage.most(0) <= LIMIT, "{name}:{time} {what}");
                assert_eq!(stage.charged(), 0, "{name}:{time} {what}");
            }
        }
    }
}

#[test]
fn devices_have_limits_of_their_own() {
    let stage = Stage::with(|settings| settings.limits = vec![(1, 1024 * MIB)]);
    let stage = stage.set("FAKE_DEVICES", 2);
    assert!(stage.run("opened", &["fill"]).contains("count 32 "));
    let second = text(stage.guarded("opened").arg("fill").env("DEVICE", "1").output().unwrap());
    assert_eq!(second, "total 1024 2048 count 16 code 2 left 0\nafter 1\n");
    assert_eq!((stage.most(0), stage.most(1)), (LIMIT, 1024 * MIB));
}

#[test]
fn unified_memory_keeps_what_must_stay_free() {
    let folder = tempfile::tempdir().unwrap();
    let meminfo = folder.path().join("meminfo");
    std::fs::write(&meminfo, "MemTotal: 8000000 kB\nMemAvailable: 1572864 kB\n").unwrap();
    let stage = Stage::with(|settings| {
        settings.keep_free = 512 * MIB;
        settings.meminfo = meminfo.clone();
    });
    let stage = stage.set("FAKE_INTEGRATED", 1);
    // 1536 MiB available and 512 to keep: nothing larger than 1024 may be granted at once.
    let found = stage.run("opened", &["kinds"]);
    assert!(found.starts_with("linear 0 2 0"), "{found}");
    std::fs::write(&meminfo, "MemAvailable: 524288 kB\n").unwrap();
    let found = stage.run("opened", &["fill"]);
    assert!(found.contains("count 0 code 2 left 0"), "{found}");
}

#[test]
fn on_unified_memory_the_limit_is_below_what_the_system_has() {
    let folder = tempfile::tempdir().unwrap();
    let meminfo = folder.path().join("meminfo");
    std::fs::write(&meminfo, "MemTotal: 1572864 kB\nMemAvailable: 9999999 kB\n").unwrap();
    let filled = |integrated: &'static str| {
        let stage = Stage::with(|settings| {
            settings.keep_free = 512 * MIB;
            settings.meminfo = meminfo.clone();
        });
        stage.set(integrated, 1).run("opened", &["fill"])
    };
    // 1536 MiB in all and 512 to keep, below a limit of 2048.
    assert_eq!(filled("FAKE_INTEGRATED"), "total 1024 1024 count 16 code 2 left 0\nafter 1\n");
    assert_eq!(filled("FAKE_NOTHING"), "total 2048 2048 count 32 code 2 left 0\nafter 1\n");
}
