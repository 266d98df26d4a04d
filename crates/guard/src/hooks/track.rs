//! The one way memory is counted: asked of the ledger, then of the driver, then kept; and
//! taken out, given to the driver, then given back to the ledger.
//!
//! What every allocation and free goes through is compiled into one piece (`inline(always)`,
//! here and where it leads): entries and events that are handed on in memory, written in parts
//! and read whole, make the processor wait, for a quarter of all that the guard costs.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use super::devices::{self, Target};
use super::{Code, OUT_OF_MEMORY, SUCCESS, tags};
use crate::available;
use crate::here::Here;
use crate::ledger::{NO_LIMIT, flag};
use crate::log::{Event, Kind, Op};
use crate::table::{Class, Entry, Found, Held, Memory, Place, Tag, Thing};

/// A request, before it is granted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) kind: Kind,
    pub(super) place: Place,
    pub(super) bytes: u64,
    pub(super) stream: u64,
}

impl Wish {
    /// Plain memory.
    pub(super) fn linear(kind: Kind, bytes: usize) -> Wish {
        Wish { kind, place: Place::Pointer, bytes: bytes as u64, stream: 0 }
    }

    /// What the driver will take for it on a device.
    #[inline(always)]
    fn charge(&self, here: &Here, device: usize) -> u64 {
        self.kind.charge(self.bytes, is_unified(here, device))
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

/// Whether a device shares the system's memory.
#[inline(always)]
pub(super) fn is_unified(here: &Here, device: usize) -> bool {
    here.ledger.devices[device].integrated.load(Relaxed) != 0
}

/// Asks the ledger; what is charged with it, or nothing if it is refused. Where the device shares
/// the system's memory, [`settle`] must follow.
#[inline(always)]
fn admit(here: &Here, device: usize, wish: &Wish, charge: u64) -> Option<u64> {
    let granted = here.ledger.grant(here.process, device, charge, || here.reclaim()).ok();
    let unified = is_unified(here, device);
    if granted.is_some() && (!unified || here.system.allows(here.ledger, charge)) {
        return granted;
    }
    if granted.is_some() {
        here.ledger.withdraw(here.process, device, charge);
    }
    refused(here, device, wish);
    None
}

/// The driver has answered: what it took is in the system's figure from now on.
#[inline(always)]
fn settle(here: &Here, device: usize, charge: u64) {
    if is_unified(here, device) {
        available::ended(here.ledger, charge);
    }
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
        Some(target) => allocate_on(here, target, wish, call, key),
        // Without a context the driver refuses by itself, and says why.
        None => call(),
    }
}

/// Allocates on a device.
#[inline(always)]
pub(super) fn allocate_on(
    here: &Here,
    target: Target,
    wish: &Wish,
    call: impl FnOnce() -> Code,
    key: impl FnOnce() -> u64,
) -> Code {
    let device = target.device;
    let granted = ask_first(here, device, wish, call);
    let (charge, charged) = match granted {
        Ok(granted) => granted,
        Err(code) => return code,
    };
    keep(here, target, wish, key(), charge, charged);
    SUCCESS
}

/// Asks the ledger and then the driver: the charge of what both have granted, and what the device
/// is charged with it. [`keep`] or [`keep_as`] must follow.
#[inline(always)]
pub(super) fn ask_first(
    here: &Here,
    device: usize,
    wish: &Wish,
    call: impl FnOnce() -> Code,
) -> Result<(u64, u64), Code> {
    try_limit(here, device);
    let charge = wish.charge(here, device);
    let charged = admit(here, device, wish, charge).ok_or(OUT_OF_MEMORY)?;
    let code = call();
    settle(here, device, charge);
    if code != SUCCESS {
        here.ledger.undo(here.process, device, charge);
        return Err(code);
    }
    Ok((charge, charged))
}

/// Tries the limit once, the way every allocation goes: one byte too many must be refused, the
/// refusal counted, and the driver not asked. The trial itself is then taken out of the count.
#[inline]
pub(super) fn try_limit(here: &Here, device: usize) {
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
    if here.ledger.grant(here.process, place, bytes, || {}).is_ok() {
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
pub(super) fn keep(here: &Here, target: Target, wish: &Wish, key: u64, charge: u64, charged: u64) {
    let &Wish { kind, place, bytes, .. } = wish;
    let (context, device) = (target.context, target.device as u8);
    keep_as(here, wish, key, charged, |tag| Thing::Block {
        place,
        kind,
        device,
        tag,
        bytes,
        charge,
        context,
    });
}

/// As [`keep`], for what is kept as something else than a block.
#[inline(always)]
pub(super) fn keep_as(
    here: &Here,
    wish: &Wish,
    key: u64,
    charged: u64,
    thing: impl FnOnce(Tag) -> Thing,
) {
    let number = tags::current();
    let thing = thing(if tags::are_used() { Tag::counted(number) } else { Tag::NONE });
    let Some(memory) = thing.memory() else { return };
    let device = usize::from(memory.device);
    let class = thing.class();
    let (at, stack) = here.moment_of(Op::Allocate, class, key);
    let event = Event { stack, ..wish.event(Op::Allocate, device, key) };
    let held = here.table.hold();
    if let Some(old) = held.find(class, key) {
        gone(here, &held, old, at);
    }
    let kept = held.add(Entry { key, thing });
    here.note_held(&held, &event, at);
    drop(held);
    if !kept {
        here.ledger.warn(flag::TABLE_FULL);
    }
    if let Some(number) = memory.tag.number() {
        here.ledger.tag(here.process, number.into(), memory.share());
    }
    here.ledger.granted(here.process, device, charged, at);
}

/// What the driver hands out again was freed by a way that we do not see.
#[cold]
fn gone(here: &Here, held: &Held<'_>, old: Found, at: u64) {
    let old = held.remove(old);
    if let Some(memory) = old.thing.memory() {
        here.note_held(held, &freed(old.key, &memory, 0), at);
        here.ledger.release(here.process);
        end_free(here, &memory);
    }
}

/// Frees: taken out and noted first, as the driver may hand the address to another thread before
/// it returns to this one; given back only when the driver has it. One that the driver refuses
/// is noted as allocated again. What was never counted is not freed from the books.
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
    let found = held.find(class, key);
    let removed = found.map(|found| held.remove(found));
    let Some((entry, memory)) = removed.and_then(|entry| Some((entry, entry.thing.memory()?)))
    else {
        drop(held);
        if key != 0 && class != Class::Host {
            here.process.foreign_frees.fetch_add(1, Relaxed);
        }
        return call();
    };
    here.note_held(&held, &Event { stack, ..freed(key, &memory, stream) }, at);
    drop(held);
    here.ledger.release(here.process);
    let code = call();
    if code == SUCCESS {
        end_free(here, &memory);
    } else {
        kept(here, entry, &memory);
    }
    code
}

#[cold]
fn kept(here: &Here, entry: Entry, memory: &Memory) {
    here.ledger.kept(here.process);
    let class = entry.thing.class();
    let (at, stack) = here.moment_of(Op::Allocate, class, entry.key);
    let event = Event { op: Op::Allocate, stack, ..freed(entry.key, memory, 0) };
    let held = here.table.hold();
    let kept = held.find(class, entry.key).is_some() || held.add(entry);
    here.note_held(&held, &event, at);
    drop(held);
    if !kept {
        here.ledger.warn(flag::TABLE_FULL);
    }
}

/// Gives back what is no longer held.
#[cold]
pub(super) fn give_back(here: &Here, entry: &Entry) {
    if let Some(memory) = entry.thing.memory() {
        here.ledger.release(here.process);
        here.note(freed(entry.key, &memory, 0));
        end_free(here, &memory);
    }
}

/// That memory is freed.
#[inline(always)]
fn freed(key: u64, memory: &Memory, stream: u64) -> Event {
    Event {
        op: Op::Free,
        kind: memory.kind,
        device: memory.device,
        tag: memory.tag.number().unwrap_or(0),
        key,
        bytes: memory.bytes,
        stream,
        stack: 0,
    }
}

#[inline(always)]
fn end_free(here: &Here, memory: &Memory) {
    if let Some(number) = memory.tag.number() {
        here.ledger.untag(here.process, number.into(), memory.share());
    }
    here.ledger.released(here.process, memory.device.into(), memory.charge);
}
