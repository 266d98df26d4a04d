//! Pinned host memory: on an integrated device it is the device's memory, and counts.

use std::path::Path;

use crate::stage::{LIMIT, MIB, Running, Stage};

fn meminfo(folder: &Path, available: u64) -> std::path::PathBuf {
    let path = folder.join("meminfo");
    let available = available >> 10;
    std::fs::write(&path, format!("MemTotal: 99999999 kB\nMemAvailable: {available} kB\n"))
        .unwrap();
    path
}

const WAYS: [&str; 9] = [
    "pinned",
    "allocated",
    "registered",
    "physical-2",
    "pool-2",
    "physical-3",
    "pool-3",
    "physical-4",
    "pool-4",
];

#[test]
fn the_hosts_memory_counts_where_the_device_is_integrated() {
    let folder = tempfile::tempdir().unwrap();
    let system = meminfo(folder.path(), 64 << 30);
    for way in ["dlsym", "runtime", "old"] {
        let stage = Stage::with(|settings| settings.meminfo = system.clone());
        let stage = stage.set("FAKE_INTEGRATED", 1).set("WAY", way);
        let found = stage.run("attacker", &["host"]);
        let expected = WAYS.map(|name| format!("{name} 0 2 0 took 256 back 1\n")).concat();
        assert!(stage.most(0) <= LIMIT, "{way}: {} MiB: {found}", stage.most(0) / MIB);
        assert_eq!(found, expected, "{way}");
        assert_eq!(stage.charged(), 0, "{way}");
    }
}

#[test]
fn the_hosts_memory_is_nobodys_elsewhere() {
    let stage = Stage::new();
    let expected = WAYS.map(|name| format!("{name} 0 0 0 took 0 back 1\n")).concat();
    assert_eq!(stage.run("attacker", &["host"]), expected);
    assert_eq!((stage.most(0), stage.charged()), (0, 0));
}

#[test]
fn errors_of_the_driver_leave_the_count_of_pinned_memory_right() {
    let folder = tempfile::tempdir().unwrap();
    let system = meminfo(folder.path(), 64 << 30);
    for call in ["cuMemHostAlloc", "cuMemAllocHost_v2", "cuMemFreeHost", "cuMemHostRegister_v2"] {
        for time in [1, 2] {
            let stage = Stage::with(|settings| settings.meminfo = system.clone());
            let stage = stage.set("FAKE_INTEGRATED", 1).set("FAKE_FAIL", format!("{call}:{time}"));
            stage.run("attacker", &["host"]);
            assert!(stage.most(0) <= LIMIT, "{call}:{time}: {} MiB", stage.most(0) / MIB);
            assert_eq!(stage.charged(), 0, "{call}:{time}");
        }
    }
}

/// Two processes that use the same reading of the system's memory cannot both be granted it: what
/// the driver has not taken yet is not in the reading.
#[test]
fn two_that_go_by_one_reading_of_the_system_pass_once() {
    const KEEP: u64 = 512 * MIB;
    // Above what one reading may grant, and below it.
    for (each, room) in [(80, 100), (40, 60)] {
        for processes in [1, 2] {
            let folder = tempfile::tempdir().unwrap();
            let system = meminfo(folder.path(), KEEP + room * MIB);
            let stage = Stage::with(|settings| {
                settings.keep_free = KEEP;
                settings.meminfo = system.clone();
            });
            let stage = stage.set("FAKE_INTEGRATED", 1).set("FAKE_SLOW_TAKE", 30_000);
            let stage = stage.set("FAKE_MEMINFO", system.display());
            let stage = stage.set("FAKE_AVAILABLE", KEEP + room * MIB);
            let words = ["ask", &each.to_string(), &(2 / processes).to_string()];
            let mut askers: Vec<_> =
                (0..processes).map(|_| stage.speak("attacker", &words)).collect();
            askers.iter_mut().for_each(|asker| assert_eq!(asker.line(), "ready"));
            askers.iter_mut().for_each(Running::tell);
            let granted: Vec<_> = askers.iter_mut().map(Running::line).collect();
            let what = format!("{each} of {room} MiB by {processes} processes: {granted:?}");
            assert!(stage.most(0) <= room * MIB, "{what}: {} MiB", stage.most(0) / MIB);
            assert!(granted.iter().any(|one| one == "granted 1"), "{what}: one has room");
        }
    }
}
