//! Who lives: a lock on a byte of the ledger's file for each slot, which the kernel drops when
//! its process is gone, and which can be tested from every space of process numbers.
//!
//! A process opens the ledger once more, locks the byte of its slot for that open file, maps one
//! page of it and closes the number. From then on the open file lives in the mapping alone:
//!
//! - it goes with the process's memory: when the last thread has ended (the first may end long
//!   before), and when the process becomes another program;
//! - a child of `fork` does not get it (`MADV_DONTFORK`), so it does not keep its parent alive;
//! - the program cannot close it, whatever numbers it closes.
//!
//! The kernel closes the program's files, and with them the driver's, before it drops the lock,
//! but in a process of several threads one may be late. So a process that can be seen is also
//! looked at: while a thread of it is about to end, the driver may still be at work for it.
//!
//! A child of `fork` has its parent's open files, the driver's too, and the driver keeps the
//! parent's memory until the last of them is closed (seen on an H200). So there is a second lock for
//! each slot, whose mapping the child does get: where device files are open, it is this one that
//! says when the memory is gone.

#![expect(unsafe_code, reason = "maps a page of the ledger's file")]

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::ledger::{GuardLedger, Liveness, PROCESSES, USERS_BYTE, state};
use crate::process;
use crate::sys::{self, LockMode, SysFile};

/// The slot of `run` itself, behind all others.
#[cfg(not(preload))]
pub(crate) const RUN: usize = PROCESSES;

fn byte_of(slot: usize) -> u64 {
    USERS_BYTE + 1 + slot as u64
}

/// The lock that goes when nobody has the process's files any more.
fn files_byte_of(slot: usize) -> u64 {
    byte_of(slot) + PROCESSES as u64 + 1
}

/// Notes that the ledger is in use for as long as this open file is, by whoever has it mapped.
/// Not if somebody is about to remove it.
pub(crate) fn join_users(ledger: &SysFile) -> bool {
    ledger.lock(USERS_BYTE, LockMode::Shared) != Some(false)
}

/// Whether nobody uses the ledger. Then nobody will: this open file keeps others out.
pub(crate) fn lock_if_unused(ledger: &SysFile) -> bool {
    ledger.lock(USERS_BYTE, LockMode::Exclusive) == Some(true)
}

/// Whether somebody uses the ledger, as far as can be told.
#[cfg(not(preload))]
pub(crate) fn is_used(ledger: &SysFile) -> bool {
    ledger.is_locked(USERS_BYTE) != Some(false)
}

/// Locks the slot of `run` for as long as this open file lives; whether it did.
#[cfg(not(preload))]
pub(crate) fn lock_run_slot(ledger: &SysFile) -> bool {
    ledger.lock(byte_of(RUN), LockMode::Exclusive) == Some(true)
}

/// Locks a slot for a moment, if nobody has it.
#[cfg(not(preload))]
pub(crate) fn lock_slot(ledger: &SysFile, slot: usize) -> bool {
    ledger.lock(byte_of(slot), LockMode::Exclusive) == Some(true)
}

/// The opposite of [`lock_slot`].
#[cfg(not(preload))]
pub(crate) fn unlock_slot(ledger: &SysFile, slot: usize) {
    ledger.unlock(byte_of(slot));
}

/// Takes a slot for this process, for as long as it lives. Its last owner is gone, and what it
/// held is given back. Nothing where all are taken. Both files are the ledger, opened by itself.
pub(crate) fn take_slot(own: SysFile, files: SysFile, ledger: &GuardLedger) -> Option<usize> {
    let taker =
        SlotTaker { own: &own, files: &files, ledger, judge: LivenessCheck::new(&own, ledger) };
    let slot = taker
        .used(state::FREE)
        .or_else(|| taker.untouched(FEW))
        .or_else(|| taker.used(state::DEAD))
        .or_else(|| taker.untouched(PROCESSES))
        .or_else(|| taker.used(state::LIVE))?;
    let pages = [&own, &files].map(|file| file.map(4096, sys::PROT_READ));
    if pages.iter().any(|page| page.is_null()) {
        return None;
    }
    // SAFETY: the page is ours, and nobody reads it.
    unsafe { sys::madvise(pages[0], 4096, sys::MADV_DONTFORK) };
    Some(slot)
}

/// So many slots are taken before those of the dead are used again: until then a report can tell of
/// all.
const FEW: usize = 512;

struct SlotTaker<'a> {
    own: &'a SysFile,
    files: &'a SysFile,
    ledger: &'a GuardLedger,
    judge: LivenessCheck<'a>,
}

impl SlotTaker<'_> {
    /// A slot that nobody has had, if there are not so many yet.
    fn untouched(&self, most: usize) -> Option<usize> {
        let taken = &self.ledger.taken;
        loop {
            let slot = taken.load(Acquire) as usize;
            let (from, size) = GuardLedger::room_of(slot);
            // With all its room: a mapped file that cannot grow would end a program.
            if slot >= most.min(PROCESSES) || !self.own.allocate_space(from, size) {
                return None;
            }
            let is_mine = self.lock(slot)?;
            // Whoever comes first counts it, its owner or one who goes on to the next.
            let _ = taken.compare_exchange(slot as u32, slot as u32 + 1, AcqRel, Relaxed);
            // Another may have had it, and gone.
            if is_mine && self.ledger.take_over_slot(slot, &self.judge) {
                return Some(slot);
            }
        }
    }

    /// A slot of this state whose owner is gone.
    fn used(&self, wanted: u32) -> Option<usize> {
        let slots = self.ledger.processes().iter().enumerate();
        let mut slots = slots.filter(|(_, process)| process.state.load(Acquire) == wanted);
        // Somebody may have come, and gone, meanwhile: what counts is what the slot is now.
        slots.find_map(|(slot, _)| {
            (self.lock(slot)? && self.ledger.take_over_slot(slot, &self.judge)).then_some(slot)
        })
    }

    /// Locks a slot, if nobody has it, nor files of its last owner. Nothing where files cannot be
    /// locked.
    fn lock(&self, slot: usize) -> Option<bool> {
        let both = self.own.lock(byte_of(slot), LockMode::Exclusive)?
            && self.files.lock(files_byte_of(slot), LockMode::Exclusive)?;
        if !both {
            self.own.unlock(byte_of(slot));
        }
        Some(both)
    }
}

/// One who can tell whether a process lives.
pub(crate) struct LivenessCheck<'a> {
    file: &'a SysFile,
    ledger: &'a GuardLedger,
    space: u64,
}

impl<'a> LivenessCheck<'a> {
    /// By an open ledger, on which nothing is locked that is asked about.
    pub(crate) fn new(file: &'a SysFile, ledger: &'a GuardLedger) -> LivenessCheck<'a> {
        LivenessCheck { file, ledger, space: process::own_pid_namespace() }
    }

    fn is_free(&self, byte: u64) -> bool {
        self.file.is_locked(byte) == Some(false)
    }
}

impl Liveness for LivenessCheck<'_> {
    fn is_running(&self, slot: usize) -> bool {
        if !self.is_free(byte_of(slot)) {
            return true;
        }
        let Some(process) = self.ledger.processes().get(slot) else { return false };
        let (pid, start) = (process.pid.load(Relaxed), process.start.load(Relaxed));
        let visible = self.space != 0 && process.space.load(Relaxed) == self.space;
        visible && process::is_ending(pid, start)
    }

    fn may_hold_memory(&self, slot: usize) -> bool {
        let process = self.ledger.processes().get(slot);
        let files = process.is_some_and(|process| process.files.load(Relaxed) != 0);
        self.is_running(slot) || files && !self.is_free(files_byte_of(slot))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ffi::CString;

    use super::*;
    use crate::watch::{GuardSettings, GuardWatch};

    #[test]
    fn slots_are_taken_once_and_free_again_with_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        let path = CString::new(folder.path().join("ledger").to_str().unwrap()).unwrap();
        let open = || SysFile::open(&path, sys::O_RDWR, 0).unwrap();
        let others = open();
        for slot in 0..PROCESSES {
            assert_eq!(others.lock(byte_of(slot), LockMode::Exclusive), Some(true));
        }
        let take = || take_slot(open(), open(), watch.ledger());
        assert_eq!(take(), None, "all are taken");
        // One of those dies with a share.
        let dead = watch.slot(7);
        dead.state.store(state::LIVE, Relaxed);
        let file = open();
        let judge = LivenessCheck::new(&file, watch.ledger());
        assert!(judge.is_running(7) && judge.may_hold_memory(7));
        others.unlock(byte_of(7));
        assert!(!judge.is_running(7) && !judge.may_hold_memory(7));
        assert!(judge.is_running(8));
        // A child has its files: they count where they are the driver's, and the slot stays.
        assert_eq!(others.lock(files_byte_of(7), LockMode::Exclusive), Some(true));
        assert!(!judge.may_hold_memory(7));
        dead.files.store(1, Relaxed);
        assert!(!judge.is_running(7) && judge.may_hold_memory(7));
        watch.reclaim();
        assert_eq!((dead.state.load(Relaxed), take()), (state::LIVE, None));
        others.unlock(files_byte_of(7));
        assert_eq!(take(), Some(7));
        assert_eq!(dead.state.load(Relaxed), state::DEAD, "what it held is given back");
        // Mappings hold the locks, and no descriptor does.
        assert!(judge.is_running(7));
        assert_eq!(take(), None);
    }
}
