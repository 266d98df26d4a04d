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

#![expect(unsafe_code, reason = "maps a page of the ledger's file")]

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::ledger::{Ledger, PROCESSES, USERS_BYTE, state};
use crate::process;
use crate::sys::{self, File, Share};

/// The slot of `run` itself, behind all others.
#[cfg(not(preload))]
pub(crate) const RUN: usize = PROCESSES;

fn byte_of(slot: usize) -> u64 {
    USERS_BYTE + 1 + slot as u64
}

/// Notes that the ledger is in use for as long as this open file is, by whoever has it mapped.
/// Not if somebody is about to remove it.
pub(crate) fn use_with_others(ledger: &File) -> bool {
    ledger.lock(USERS_BYTE, Share::Shared) != Some(false)
}

/// Whether nobody uses the ledger. Then nobody will: this open file keeps others out.
pub(crate) fn end_use(ledger: &File) -> bool {
    ledger.lock(USERS_BYTE, Share::Alone) == Some(true)
}

/// Whether somebody uses the ledger, as far as can be told.
#[cfg(not(preload))]
pub(crate) fn is_used(ledger: &File) -> bool {
    ledger.is_locked(USERS_BYTE) != Some(false)
}

/// Locks the slot of `run` for as long as this open file lives; whether it did.
#[cfg(not(preload))]
pub(crate) fn take_run(ledger: &File) -> bool {
    ledger.lock(byte_of(RUN), Share::Alone) == Some(true)
}

/// Locks a slot for a moment, if nobody has it.
#[cfg(not(preload))]
pub(crate) fn lock_slot(ledger: &File, slot: usize) -> bool {
    ledger.lock(byte_of(slot), Share::Alone) == Some(true)
}

/// The opposite of [`lock_slot`].
#[cfg(not(preload))]
pub(crate) fn unlock_slot(ledger: &File, slot: usize) {
    ledger.unlock(byte_of(slot));
}

/// Takes a slot for this process, for as long as it lives. Its last owner is gone, and what it
/// held is given back. Nothing where all are taken.
pub(crate) fn take_slot(file: File, ledger: &Ledger) -> Option<usize> {
    let slot = used_slot(&file, ledger, state::FREE)
        .or_else(|| new_slot(&file, ledger, FEW))
        .or_else(|| used_slot(&file, ledger, state::DEAD))
        .or_else(|| new_slot(&file, ledger, PROCESSES))
        .or_else(|| used_slot(&file, ledger, state::LIVE))?;
    let page = file.map(4096, sys::PROT_READ);
    if page.is_null() {
        return None;
    }
    // SAFETY: the page is ours, and nobody reads it.
    unsafe { sys::madvise(page, 4096, sys::MADV_DONTFORK) };
    Some(slot)
}

/// So many slots are taken before those of the dead are used again: until then a report can tell of
/// all.
const FEW: usize = 512;

/// A slot that nobody has had, if there are not so many yet.
fn new_slot(file: &File, ledger: &Ledger, most: usize) -> Option<usize> {
    loop {
        let slot = ledger.taken.load(Acquire) as usize;
        let (from, size) = Ledger::room_of(slot);
        // With all its room: a mapped file that cannot grow would end a program.
        if slot >= most.min(PROCESSES) || !file.take_room(from, size) {
            return None;
        }
        let is_mine = file.lock(byte_of(slot), Share::Alone)?;
        // Whoever comes first counts it, its owner or one who goes on to the next.
        let _ = ledger.taken.compare_exchange(slot as u32, slot as u32 + 1, AcqRel, Relaxed);
        // Another may have had it, and gone.
        if is_mine && ledger.inherit(slot, |of| of == slot || Judge::new(file).lives(ledger, of)) {
            return Some(slot);
        }
    }
}

/// A slot of this state whose owner is gone.
fn used_slot(file: &File, ledger: &Ledger, wanted: u32) -> Option<usize> {
    let judge = Judge::new(file);
    let slots = ledger.processes().iter().enumerate();
    let mut slots = slots.filter(|(_, process)| process.state.load(Acquire) == wanted);
    slots.find_map(|(slot, _)| {
        let is_mine = file.lock(byte_of(slot), Share::Alone) == Some(true);
        // Somebody may have come, and gone, meanwhile: what counts is what the slot is now.
        (is_mine && ledger.inherit(slot, |of| of == slot || judge.lives(ledger, of)))
            .then_some(slot)
    })
}

/// One who can tell whether a process lives.
pub(crate) struct Judge<'a> {
    ledger: &'a File,
    space: u64,
}

impl Judge<'_> {
    /// By an open ledger, on which nothing is locked that is asked about.
    pub(crate) fn new(ledger: &File) -> Judge<'_> {
        Judge { ledger, space: process::own_space() }
    }

    /// Whether the process of a slot lives, or may: what cannot be told is taken for alive.
    pub(crate) fn lives(&self, ledger: &Ledger, slot: usize) -> bool {
        if self.ledger.is_locked(byte_of(slot)) != Some(false) {
            return true;
        }
        let Some(process) = ledger.processes().get(slot) else { return false };
        let (pid, start) = (process.pid.load(Relaxed), process.start.load(Relaxed));
        let visible = self.space != 0 && process.space.load(Relaxed) == self.space;
        visible && process::is_ending(pid, start)
    }
}
