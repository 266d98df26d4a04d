//! A limit that NVIDIA's driver holds: an MPS client's, on a machine where a daemon runs.

use std::process::Command;

use plimsoll_machine::machine::Machine;
use plimsoll_memory::backend::{BackendKind, count, open};
use plimsoll_memory::{Bytes, GpuMemoryManager, LimitRequest, MemoryConfig};

const CHILD: &str = "PLIMSOLL_TEST_MPS_CHILD";

fn request() -> LimitRequest {
    LimitRequest::new().with_limit(Bytes::gib(4))
}

/// A client of the daemon; does something only in a process that the test below started.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let manager = GpuMemoryManager::new(MemoryConfig::default()).unwrap();
    manager.add_device(open(BackendKind::Cuda).unwrap());
    println!("{}", manager.apply_limits(&request()).unwrap());
}

#[test]
fn a_client_that_was_told_is_held_by_the_driver() {
    // Children make the contexts: one made here would make this process a client, too.
    let here = Machine::here().mps().map(drop);
    if let Err(error) = here.and_then(|()| count(BackendKind::Cuda).map(drop)) {
        let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
        assert!(!required.contains("mps"), "required: {error}");
        println!("skipped: {error}");
        return;
    }
    let run = |told: bool| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "--nocapture", "child"]).env(CHILD, "1");
        if told {
            let manager = GpuMemoryManager::new(MemoryConfig::default()).unwrap();
            manager.apply_limits(&request()).unwrap().tell(&mut child);
        }
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let told = run(true);
    println!("told:\n{told}");
    assert!(told.contains("Limit type:      hard"), "{told}");
    assert!(told.contains("gate, pool, mps") && told.contains("Verified:        yes"), "{told}");
    let free = run(false);
    println!("not told:\n{free}");
    assert!(free.contains("Limit type:      soft"), "{free}");
    assert!(free.contains("does not limit this process"), "{free}");
}
