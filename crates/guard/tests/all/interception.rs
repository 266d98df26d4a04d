//! Every way to the driver leads through the guard.

use std::sync::atomic::Ordering::Relaxed;

use crate::stage::{LIMIT, MIB, Stage, built, text};

const FILLED: &str = "total 2048 2048 count 32 code 2 left 0\nafter 1\n";

#[test]
fn every_way_to_the_driver_is_held() {
    for way in ["dlsym", "dlvsym", "default", "old", "runtime", "thread"] {
        let stage = Stage::new().set("WAY", way);
        assert_eq!(stage.run("opened", &["fill"]), FILLED, "{way}");
        assert_eq!(stage.most(0), LIMIT, "{way}");
        assert_eq!(stage.calls(), 33, "{way}: a context and 32 blocks, and nothing past them");
        assert_eq!(stage.charged(), 0, "{way}");
    }
}

#[test]
fn a_linked_program_is_held() {
    let stage = Stage::new();
    assert_eq!(stage.run("linked", &["fill"]), FILLED);
    assert_eq!(stage.most(0), LIMIT);
}

#[test]
fn without_a_run_everything_passes() {
    let stage = Stage::new().set("FAKE_TOTAL", 4096 * MIB);
    let mut command = stage.bare("opened");
    let found =
        text(command.env("LD_PRELOAD", built().join("guard.so")).arg("fill").output().unwrap());
    assert_eq!(found, "total 4096 4096 count 64 code 2 left 0\nafter 1\n");
}

#[test]
fn a_driver_that_is_not_there_is_not_pretended() {
    let stage = Stage::new();
    assert_eq!(stage.run("opened", &["absent"]), "absent 1\n");
    assert_eq!(text(stage.bare("opened").arg("absent").output().unwrap()), "absent 1\n");
}

#[test]
fn other_preloaded_libraries_stay_in_the_chain() {
    for order in [["guard.so", "shim.so"], ["shim.so", "guard.so"]] {
        let stage = Stage::new();
        let chain = order.map(|name| built().join(name).display().to_string()).join(":");
        let output = stage.guarded("linked").env("LD_PRELOAD", chain).arg("fill").output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        // The guard refuses the last allocation, so a library after it does not see that call.
        let seen = if order[0] == "guard.so" { "shim 32" } else { "shim 33" };
        assert_eq!(errors.trim(), seen, "{order:?}");
        assert_eq!(text(output), FILLED, "{order:?}");
        assert_eq!(stage.most(0), LIMIT, "{order:?}");
    }
}

/// A preloaded library that looks for the next library does not find a driver that the program has
/// opened for itself alone; without the guard it would not be called either.
#[test]
fn a_driver_of_the_programs_own_is_called_without_who_cannot_find_it() {
    let chain = ["guard.so", "shim.so"].map(|name| built().join(name).display().to_string());
    for way in ["dlsym", "runtime"] {
        let stage = Stage::new();
        let mut command = stage.guarded("opened");
        let output =
            command.env("LD_PRELOAD", chain.join(":")).env("WAY", way).arg("fill").output();
        assert_eq!(text(output.unwrap()), FILLED, "{way}");
        assert_eq!(stage.most(0), LIMIT, "{way}");
    }
}

#[test]
fn the_only_context_of_the_only_device_is_not_asked_for() {
    let found = |devices: u32| {
        let stage = Stage::new().set("FAKE_DEVICES", devices);
        stage.set("FAKE_FAIL", "cuCtxGetCurrent:2").run("opened", &["fill"])
    };
    assert_eq!(found(1), FILLED);
    // With two devices the driver is asked each time, and again if it does not answer.
    assert_eq!(found(2), FILLED);
}

#[test]
fn the_limit_was_tried() {
    let stage = Stage::new();
    stage.run("opened", &["fill"]);
    let device = stage.device(0);
    assert_eq!(device.verified.load(Relaxed), 1);
    assert_eq!((device.refused.load(Relaxed), device.refused_bytes.load(Relaxed)), (1, 64 * MIB));
}
