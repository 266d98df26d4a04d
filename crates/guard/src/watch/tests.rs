use std::time::{Duration, Instant};

use super::*;
use crate::log::{self, GuardMemoryKind, GuardOp};

/// Whether something comes true. Some of what the kernel does takes a moment: it shows the
/// environment of a program after the start, and a child that another test has just forked has all
/// our files open, with their locks, until it becomes its program.
pub(crate) fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

fn list(taken: u64, records: &[[u64; 4]]) -> Vec<u8> {
    let head = [log::MAGIC, taken, 1000, 5];
    head.iter().chain(records.iter().flatten()).flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn whole_events_are_read_and_others_counted_as_lost() {
    let what = u64::from_le_bytes([0x81, GuardMemoryKind::Linear as u8, 1, 2, 3, 0, 4, 0]);
    let bytes = list(4, &[[9, 0x7f00, 3 << 20, what], [9, 1, 1, 0], [9, 1, 1, 0xff]]);
    let log = parse_log(&bytes[..], 7, &[false, false]).unwrap();
    assert_eq!((log.pid, log.since, log.events.len(), log.lost), (7, 5, 1, 3));
    let event = log.events[0];
    assert_eq!(
        (event.op, event.kind, event.device, event.tag),
        (GuardOp::Allocate, GuardMemoryKind::Linear, 1, 2)
    );
    assert_eq!((event.stack, event.stream, event.charge), (3, 4, 4 << 20));
    assert!(parse_log(&bytes[..20], 7, &[]).unwrap().events.is_empty());
    assert!(parse_log(&[0; 48][..], 7, &[]).unwrap().events.is_empty());
}

#[test]
fn only_plain_files_are_lists_and_nothing_holds_up_who_looks() {
    use std::os::unix::fs::symlink;
    use std::process::Command;
    let folder = tempfile::tempdir().unwrap();
    let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("log.1.2.3"), list(1, &[[9, 1, 512, 0x0181]])).unwrap();
    fs::write(at("log.2.2.3"), "no list").unwrap();
    symlink(at("log.1.2.3"), at("log.3.2.3")).unwrap();
    symlink("/dev/zero", at("log.4.2.3")).unwrap();
    fs::create_dir(at("log.5.2.3")).unwrap();
    assert!(Command::new("mkfifo").arg(at("log.6.2.3")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(at("log.7.2.3")).unwrap();
    let huge = File::create(at("log.8.2.3")).unwrap();
    huge.set_len(1 << 40).unwrap();
    let found: Vec<u32> = watch.log_files().unwrap().iter().map(|list| list.pid).collect();
    assert_eq!(found, [1]);
    assert_eq!(watch.logs().unwrap()[0].events.len(), 1);
    let names = ["log.3.2.3", "log.5.2.3", "log.6.2.3", "log.7.2.3", "stacks.9"];
    assert!(names.iter().all(|name| open(&at(name)).is_err()));
    drop(folder);
    assert!(watch.log_files().is_err(), "its folder is gone");
}

#[test]
fn a_ledger_is_in_use_for_as_long_as_somebody_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    assert!(!is_in_use(&path), "there is none");
    let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(is_in_use(&path) && is_in_use(&link));
    // Closing another descriptor of the same file releases no lock.
    drop(File::open(&path).unwrap());
    assert!(is_in_use(&path));
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let other = sys::SysFile::open(&name, sys::O_RDWR, 0).unwrap();
    assert!(liveness::join_users(&other));
    drop(watch);
    assert!(is_in_use(&path), "another still has it");
    drop(other);
    assert!(soon(|| !is_in_use(&path)));
    fs::remove_file(&path).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(pipe.success() && !is_in_use(&path));
}

#[test]
fn the_dead_are_collected_once_and_make_room() {
    let folder = tempfile::tempdir().unwrap();
    let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
    let slots = [0, 1, 2].map(|place| watch.slot(place));
    for (slot, state) in slots.iter().zip([state::LIVE, state::DEAD, state::DEAD]) {
        slot.state.store(state, Relaxed);
    }
    slots[1].pid.store(77, Relaxed);
    // Another process has taken the last one over, and fills it in.
    let name = CString::new(folder.path().join("ledger").as_os_str().as_bytes()).unwrap();
    let other = sys::SysFile::open(&name, sys::O_RDWR, 0).unwrap();
    assert!(liveness::lock_slot(&other, 2));
    let mut found = Vec::new();
    watch.collect_dead(|process| found.push(process.pid.load(Relaxed)));
    watch.collect_dead(|process| found.push(process.pid.load(Relaxed)));
    assert_eq!(found, [77]);
    let states = slots.map(|slot| slot.state.load(Relaxed));
    assert_eq!(states, [state::LIVE, state::FREE, state::DEAD]);
    assert!(liveness::lock_slot(&other, 1), "it is anybody's again");
}

#[test]
fn a_ledger_that_was_cut_or_written_over_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
    assert!(!watch.is_damaged());
    watch.ledger().magic.store(0, Relaxed);
    assert!(watch.is_damaged());
    watch.ledger().magic.store(ledger::MAGIC, Relaxed);
    let file = OpenOptions::new().write(true).open(folder.path().join("ledger")).unwrap();
    file.set_len(4096).unwrap();
    assert!(watch.is_damaged(), "its length says so, before its memory is looked at");
}

#[test]
fn stacks_have_numbers_and_no_frames_of_ours() {
    let text = "# 3\n/x/libplimsoll_guard.so(a)[0]\nprogram(main)[1]\n# 4\nb\n";
    let stacks = |wanted| parse_stacks(text.as_bytes(), wanted);
    let (three, four) = ((3, vec!["program(main)[1]".to_string()]), (4, vec!["b".to_string()]));
    assert_eq!(stacks(&[3, 4]), [three, four.clone()]);
    assert_eq!(stacks(&[4, 5]), [four]);
}
