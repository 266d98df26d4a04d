//! Which processes are alive. Each slot of the ledger has a lock on a byte of the ledger's file,
//! which the kernel releases when the process is gone. It can be tested from every PID namespace.
//!
//! A process opens the ledger once more, locks the byte of its slot for that open file, maps one
//! page of it and closes the descriptor. From then on only the mapping keeps the file open:
//!
//! - it goes with the process's memory: when the last thread has ended (the first may end long
//!   before), and when the process becomes another program by exec;
//! - a child of `fork` does not get it (`MADV_DONTFORK`), so it does not keep its parent alive;
//! - the program cannot close it, whatever descriptors it closes.
//!
//! The kernel closes the program's files, and with them the driver's, before it releases the lock,
//! but in a process of several threads one may be late. So a process in the same PID namespace is
//! also looked up in `/proc`: while one of its threads is exiting, the driver may still be freeing
//! its memory.
//!
//! A child of `fork` has its parent's open files, including the driver's, and the driver keeps the
//! parent's memory until the last of them is closed (seen on an H200). So each slot has a second
//! lock, whose mapping the child does get: where device files are open, this lock says when the
//! memory is gone.

#![expect(unsafe_code, reason = "maps a page of the ledger's file")]

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::ledger::{GuardLedger, Liveness, PROCESSES, USERS_BYTE, state};
use crate::process;
use crate::sys::{self, LockMode, SysFile};

/// The slot of `run` itself, after all others.
#[cfg(not(preload))]
pub(crate) const RUN: usize = PROCESSES;

fn byte_of(slot: usize) -> u64 {
    USERS_BYTE + 1 + slot as u64
}

/// The byte of the lock that is released when nobody has the process's files open any more.
fn files_byte_of(slot: usize) -> u64 {
    byte_of(slot) + PROCESSES as u64 + 1
}

/// Marks the ledger as used for as long as this open file is mapped by anybody. False if somebody
/// is about to remove it.
pub(crate) fn join_users(ledger: &SysFile) -> bool {
    ledger.lock(USERS_BYTE, LockMode::Shared) != Some(false)
}

/// Whether nobody uses the ledger. If so, nobody can from now on: this open file keeps others out.
pub(crate) fn lock_if_unused(ledger: &SysFile) -> bool {
    ledger.lock(USERS_BYTE, LockMode::Exclusive) == Some(true)
}

/// Whether somebody uses the ledger; true where that is unknown.
#[cfg(not(preload))]
pub(crate) fn is_used(ledger: &SysFile) -> bool {
    ledger.is_locked(USERS_BYTE) != Some(false)
}

/// Locks the slot of `run` for as long as this file stays open; returns whether that worked.
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

/// Takes a slot for this process, for as long as it lives. The slot's last owner has died, and what
/// it held is given back. `None` where all slots are taken. Both files are the ledger, opened
/// separately.
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
    // SAFETY: nobody else has this page, and nobody reads it.
    unsafe { sys::madvise(pages[0], 4096, sys::MADV_DONTFORK) };
    Some(slot)
}

/// How many slots are taken before those of dead processes are reused: until then a report can show
/// all processes.
const FEW: usize = 512;

struct SlotTaker<'a> {
    own: &'a SysFile,
    files: &'a SysFile,
    ledger: &'a GuardLedger,
    judge: LivenessCheck<'a>,
}

impl SlotTaker<'_> {
    /// A slot that nobody has had, if fewer than `most` were taken.
    fn untouched(&self, most: usize) -> Option<usize> {
        let taken = &self.ledger.taken;
        loop {
            let slot = taken.load(Acquire) as usize;
            let (from, size) = GuardLedger::room_of(slot);
            // All of its space is allocated: writing to a mapped file that cannot grow would end a
            // program by a signal.
            if slot >= most.min(PROCESSES) || !self.own.allocate_space(from, size) {
                return None;
            }
            let is_mine = self.lock(slot)?;
            // Whoever comes first counts the slot as taken: its owner, or one that goes on to the
            // next.
            let _ = taken.compare_exchange(slot as u32, slot as u32 + 1, AcqRel, Relaxed);
            // Another process may have had it, and died.
            if is_mine && self.ledger.take_over_slot(slot, &self.judge) {
                return Some(slot);
            }
        }
    }

    /// A slot in this state whose owner has died.
    fn used(&self, wanted: u32) -> Option<usize> {
        let slots = self.ledger.processes().iter().enumerate();
        let mut slots = slots.filter(|(_, process)| process.state.load(Acquire) == wanted);
        // A process may have taken it and died meanwhile: what counts is the slot's state now.
        slots.find_map(|(slot, _)| {
            (self.lock(slot)? && self.ledger.take_over_slot(slot, &self.judge)).then_some(slot)
        })
    }

    /// Locks a slot, if nobody has it, nor files of its last owner. `None` where files cannot be
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

/// Tells whether the processes of a ledger are alive.
pub(crate) struct LivenessCheck<'a> {
    file: &'a SysFile,
    ledger: &'a GuardLedger,
    space: u64,
}

impl<'a> LivenessCheck<'a> {
    /// By an open ledger. No byte that will be asked about may be locked through this open file.
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
        // One of those processes dies with a share.
        let dead = watch.slot(7);
        dead.state.store(state::LIVE, Relaxed);
        let file = open();
        let judge = LivenessCheck::new(&file, watch.ledger());
        assert!(judge.is_running(7) && judge.may_hold_memory(7));
        others.unlock(byte_of(7));
        assert!(!judge.is_running(7) && !judge.may_hold_memory(7));
        assert!(judge.is_running(8));
        // A child has its files: they count if they are the driver's, and then the slot stays.
        assert_eq!(others.lock(files_byte_of(7), LockMode::Exclusive), Some(true));
        assert!(!judge.may_hold_memory(7));
        dead.files.store(1, Relaxed);
        assert!(!judge.is_running(7) && judge.may_hold_memory(7));
        watch.reclaim();
        assert_eq!((dead.state.load(Relaxed), take()), (state::LIVE, None));
        others.unlock(files_byte_of(7));
        assert_eq!(take(), Some(7));
        assert_eq!(dead.state.load(Relaxed), state::DEAD, "what it held is given back");
        // Mappings hold the locks, not descriptors.
        assert!(judge.is_running(7));
        assert_eq!(take(), None);
    }
}
