//! The one way memory is counted: asked of the ledger, then of the driver, then kept; and
//! taken out, given to the driver, then given back to the ledger.
//!
//! What every allocation and free goes through is compiled into one piece (`inline(always)`,
//! here and where it leads): entries and events that are handed on in memory, written in parts
//! and read whole, make the processor wait, for a quarter of all that the guard costs.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use super::devices::{self, Place};
use super::{Code, OUT_OF_MEMORY, SUCCESS, tags};
use crate::available;
use crate::here::Here;
use crate::ledger::{NO_LIMIT, flag};
use crate::log::{Event, Kind, Op};
use crate::table::{Class, Entry, Found, Held};

/// A request, before it is granted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) kind: Kind,
    pub(super) class: Class,
    pub(super) bytes: u64,
    pub(super) stream: u64,
}

impl Wish {
    /// Plain memory.
    pub(super) fn linear(kind: Kind, bytes: usize) -> Wish {
        Wish { kind, class: Class::Pointer, bytes: bytes as u64, stream: 0 }
    }

    /// What the driver will take for it on a device.
    #[inline(always)]
    fn charge(&self, here: &Here, device: usize) -> u64 {
        let unified = here.ledger.devices[device].integrated.load(Relaxed) != 0;
        self.kind.charge(self.bytes, unified)
    }

    #[inline(always)]
    pub(super) fn event(&self, op: Op, device: usize, key: u64) -> Event {
        Event {
            op,
            kind: self.kind,
            device: device as u8,
            tag: tags::current(),
            key,
            bytes: self.bytes,
            stream: self.stream,
            stack: 0,
        }
    }
}

/// Asks the ledger; what is charged with it, or nothing if it is refused.
#[inline(always)]
fn admit(here: &Here, device: usize, wish: &Wish, charge: u64) -> Option<u64> {
    let granted = here.ledger.grant(here.process, device, charge).ok();
    let unified = here.ledger.devices[device].integrated.load(Relaxed) != 0;
    if granted.is_some() && (!unified || available::allows(here.ledger, charge)) {
        return granted;
    }
    if granted.is_some() {
        here.ledger.withdraw(here.process, device, charge);
    }
    refused(here, device, wish);
    None
}

#[cold]
fn refused(here: &Here, device: usize, wish: &Wish) {
    here.note(wish.event(Op::Refuse, device, 0));
}

/// Allocates on the current device. `key` reads what the driver has written.
#[inline(always)]
pub(super) fn allocate(
    here: &Here,
    wish: &Wish,
    call: impl FnOnce() -> Code,
    key: impl FnOnce() -> u64,
) -> Code {
    match devices::current(here) {
        Some(place) => allocate_on(here, place, wish, call, key),
        // Without a context the driver refuses by itself, and says why.
        None => call(),
    }
}

/// Allocates on a device.
#[inline(always)]
pub(super) fn allocate_on(
    here: &Here,
    place: Place,
    wish: &Wish,
    call: impl FnOnce() -> Code,
    key: impl FnOnce() -> u64,
) -> Code {
    try_line(here, place.device);
    let charge = wish.charge(here, place.device);
    let Some(charged) = admit(here, place.device, wish, charge) else { return OUT_OF_MEMORY };
    let code = call();
    if code != SUCCESS {
        here.ledger.undo(here.process, place.device, charge);
        return code;
    }
    keep(here, place, wish, key(), charge, charged);
    code
}

/// Tries the line once, the way every allocation goes: one byte too many must be refused, the
/// refusal counted, and the driver not asked. The trial itself is then taken out of the count.
#[inline]
pub(super) fn try_line(here: &Here, device: usize) {
    if here.ledger.devices[device].verified.load(Relaxed) == 0 {
        verify(here, device);
    }
}

#[cold]
fn verify(here: &Here, place: usize) {
    const TRIED: u32 = 1;
    const FAILED: u32 = 2;
    let device = &here.ledger.devices[place];
    let line = device.line(here.ledger.held_back());
    if line == NO_LIMIT || device.verified.compare_exchange(0, FAILED, AcqRel, Relaxed).is_err() {
        return;
    }
    let bytes = line.saturating_add(1);
    let before = here.process.refused.load(Relaxed);
    if here.ledger.grant(here.process, place, bytes).is_ok() {
        here.ledger.undo(here.process, place, bytes);
        return;
    }
    // Refused by the ledger: there is no way from there to the driver.
    let counted = here.process.refused.load(Relaxed) > before;
    here.ledger.forget_refusal(here.process, place, bytes);
    if counted {
        device.verified.store(TRIED, Relaxed);
    }
}

/// Keeps what the driver has handed out: `charge` is its own, `charged` what the device is
/// charged with it.
#[inline(always)]
pub(super) fn keep(here: &Here, place: Place, wish: &Wish, key: u64, charge: u64, charged: u64) {
    let (at, stack) = here.moment_of(Op::Allocate, wish.class, key);
    let event = Event { stack, ..wish.event(Op::Allocate, place.device, key) };
    let tagged = if tags::are_used() { Entry::TAGGED } else { 0 };
    let entry = Entry {
        key,
        class: wish.class,
        kind: wish.kind as u8,
        device: place.device as u8,
        tag: event.tag | tagged,
        bytes: wish.bytes,
        charge,
        extra: place.context,
    };
    let held = here.table.hold();
    if let Some(old) = held.find(wish.class, key) {
        gone(here, &held, old, at);
    }
    let kept = held.add(entry);
    here.note_held(&held, &event, at);
    drop(held);
    if !kept {
        here.ledger.warn(flag::TABLE_FULL);
    }
    if tagged != 0 {
        here.ledger.tag(here.process, event.tag.into(), entry.share());
    }
    here.ledger.granted(here.process, place.device, charged, at);
}

/// What the driver hands out again was freed by a way that we do not see.
#[cold]
fn gone(here: &Here, held: &Held<'_>, old: Found, at: u64) {
    let old = held.remove(old);
    here.note_held(held, &freed(&old, 0), at);
    here.ledger.release(here.process);
    end_free(here, &old);
}

/// Frees: taken out and noted first, as the driver may hand the address to another thread before
/// it returns to this one; given back only when the driver has it. One that the driver refuses
/// is noted as allocated again.
#[inline(always)]
pub(super) fn free(
    here: &Here,
    class: Class,
    key: u64,
    stream: u64,
    call: impl FnOnce() -> Code,
) -> Code {
    let (at, stack) = here.moment_of(Op::Free, class, key);
    let held = here.table.hold();
    let Some(found) = held.find(class, key) else {
        drop(held);
        if key != 0 {
            here.process.foreign_frees.fetch_add(1, Relaxed);
        }
        return call();
    };
    let entry = held.remove(found);
    here.note_held(&held, &Event { stack, ..freed(&entry, stream) }, at);
    drop(held);
    here.ledger.release(here.process);
    let code = call();
    if code == SUCCESS {
        end_free(here, &entry);
    } else {
        kept(here, entry);
    }
    code
}

#[cold]
fn kept(here: &Here, entry: Entry) {
    here.ledger.kept(here.process);
    let (at, stack) = here.moment_of(Op::Allocate, entry.class, entry.key);
    let event = Event { op: Op::Allocate, stack, ..freed(&entry, 0) };
    let held = here.table.hold();
    let kept = held.find(entry.class, entry.key).is_some() || held.add(entry);
    here.note_held(&held, &event, at);
    drop(held);
    if !kept {
        here.ledger.warn(flag::TABLE_FULL);
    }
}

/// Gives back what is no longer held.
#[cold]
pub(super) fn give_back(here: &Here, entry: &Entry, stream: u64) {
    here.ledger.release(here.process);
    here.note(freed(entry, stream));
    end_free(here, entry);
}

/// That an entry is freed.
#[inline(always)]
fn freed(entry: &Entry, stream: u64) -> Event {
    Event {
        op: Op::Free,
        kind: Kind::of(entry.kind).unwrap_or(Kind::Linear),
        device: entry.device,
        tag: entry.tag & !Entry::TAGGED,
        key: entry.key,
        bytes: entry.bytes,
        stream,
        stack: 0,
    }
}

#[inline(always)]
fn end_free(here: &Here, entry: &Entry) {
    if entry.tag & Entry::TAGGED != 0 {
        let tag = entry.tag & !Entry::TAGGED;
        here.ledger.untag(here.process, tag.into(), entry.share());
    }
    here.ledger.released(here.process, entry.device.into(), entry.charge);
}
