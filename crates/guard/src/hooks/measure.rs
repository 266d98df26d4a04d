//! What the driver takes for itself: contexts, code, local memory. It cannot be refused, so
//! it is measured around the calls that cause it, and charged. (A context can: once one was
//! made it is known what another takes.)
//!
//! The driver tells what is free on the device; the difference around a call, less what the
//! tree was charged meanwhile, is what the call took. Before the first context there is
//! nobody to ask but NVML, and on unified memory, where NVML does not answer, the system.
//! Nothing of this lies on the way of an allocation.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use super::devices::{self, Target};
use super::{Code, Handle, OUT_OF_MEMORY, SUCCESS, ask, nvml, pool};
use crate::here::Here;
use crate::ledger::flag;
use crate::log::{Kind, Op};
use crate::sys;
use crate::table::{Class, Entry, Thing};

/// What is used on the current device, by anyone, as its driver says.
fn used_now() -> Option<u64> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: two numbers are written.
    let code = ask::unseen(|| unsafe { ask::cuMemGetInfo_v2(&raw mut free, &raw mut total) });
    (code == SUCCESS && total > 0).then(|| total.saturating_sub(free) as u64)
}

/// What the driver reports as used beside what is charged, in one moment.
struct Reading {
    used: u64,
    charged: u64,
}

impl Reading {
    /// What is used and not charged.
    fn beyond(&self) -> i64 {
        self.used as i64 - self.charged as i64
    }
}

/// Reads both while nothing moves: a block that the driver has and the books have not yet, or
/// no longer, would be taken for the driver's own. Nothing if the tree gives no such moment.
fn read(here: &Here, device: usize, used: impl Fn() -> Option<u64>) -> Option<Reading> {
    const TRIES: usize = 8;
    (0..TRIES).find_map(|_| {
        let Some(before) = here.ledger.still() else {
            sys::sched_yield();
            return None;
        };
        let charged = here.ledger.devices[device].used.load(Acquire);
        let reading = Reading { used: used()?, charged };
        (here.ledger.still() == Some(before)).then_some(reading)
    })
}

/// Runs a call that makes the driver take memory, and charges it. The charge is returned.
pub(super) fn around(here: &Here, kind: Kind, call: impl FnOnce() -> Code) -> (Code, u64) {
    let Some(place) = devices::current(here) else { return (call(), 0) };
    let before = read(here, place.device, used_now);
    let code = call();
    let Some((before, after)) = before.zip(read(here, place.device, used_now)) else {
        return (code, 0);
    };
    observe(here, place.device, after.used, after.charged);
    // What the tree itself was charged meanwhile may be part of the call.
    let alone = before.charged == after.charged;
    let taken = if alone { after.beyond() - before.beyond() } else { 0 };
    (code, charge(here, place.device, kind, 0, taken))
}

/// Charges what the driver took; nothing is given back here.
fn charge(here: &Here, device: usize, kind: Kind, key: u64, taken: i64) -> u64 {
    if taken <= 0 {
        return 0;
    }
    let at = pool::note(here, Op::Charge, kind, device, key, taken.unsigned_abs());
    here.ledger.charge_driver(here.process, device, taken, at);
    taken.unsigned_abs()
}

/// Remembers what the driver reports beside what we charge: the difference is the residue.
fn observe(here: &Here, device: usize, used: u64, charged: u64) {
    let device = &here.ledger.devices[device];
    device.observed.store(used, Relaxed);
    // What others hold is what the driver reports beyond us when it is asked first.
    let others = used.saturating_sub(charged);
    let _ = device.baseline.compare_exchange(u64::MAX, others, Relaxed, Relaxed);
    let residue = others.saturating_sub(device.baseline.load(Relaxed));
    device.residue_most.fetch_max(residue, Relaxed);
}

/// Runs a call that makes a context on a device, and charges the context.
pub(super) fn context(
    here: &Here,
    number: i32,
    call: impl FnOnce() -> Code,
    made: impl FnOnce() -> Handle,
) -> Code {
    let Some(device) = devices::of_number(here, number) else { return call() };
    here.alone(|| {
        let counters = &here.ledger.devices[device];
        // What a context takes is known once one was made; another that cannot fit is refused.
        let known = Some(counters.context.load(Relaxed)).filter(|&known| known < u64::MAX);
        let least = known.unwrap_or(0);
        if !fits(here, device, least) {
            here.ledger.refuse_now(here.process, device, least);
            pool::note(here, Op::Refuse, Kind::Context, device, 0, least);
            return OUT_OF_MEMORY;
        }
        let outside = || outside(here, device);
        // Only one who had nothing there before is told by a list: elsewhere, as in another
        // space of process numbers, it may be a stranger who is listed by our number.
        let is_new = own(here, device) == Some(0);
        let before = read(here, device, outside);
        let code = call();
        if code != SUCCESS {
            return code;
        }
        let taken = before.zip(read(here, device, outside));
        let taken = taken.map(|(before, after)| after.beyond() - before.beyond());
        let own = if is_new { own(here, device).filter(|&own| own > 0) } else { None };
        let taken = without_strangers(taken, own).map(|taken| taken.max(0));
        match taken {
            Some(taken) => _ = counters.context.fetch_min(taken.unsigned_abs(), Relaxed),
            None if known.is_none() => here.ledger.warn(flag::UNMEASURED),
            None => {}
        }
        here.note_files();
        let key = made() as u64;
        // Where nothing stands still a context takes what another took.
        let taken = taken.unwrap_or(least as i64);
        let charge = charge(here, device, Kind::Context, key, taken);
        keep(here, key, Thing::Context { device: device as u8, charge });
        code
    })
}

/// Whether so much more stays below the line, the reserve included.
fn fits(here: &Here, device: usize, bytes: u64) -> bool {
    let fits = || here.ledger.devices[device].free(0) >= bytes;
    fits() || {
        here.reclaim();
        fits()
    }
}

/// What is used on a device without a context: NVML says, or the system on unified memory.
fn outside(here: &Here, device: usize) -> Option<u64> {
    let counters = &here.ledger.devices[device];
    if counters.integrated.load(Relaxed) != 0 {
        return crate::available::read(here.ledger).map(|available| u64::MAX / 4 - available);
    }
    nvml::used(counters.uuid.each_ref().map(|word| word.load(Relaxed)))
}

/// What this process uses on a device, as NVML lists it.
fn own(here: &Here, device: usize) -> Option<u64> {
    let counters = &here.ledger.devices[device];
    if counters.integrated.load(Relaxed) != 0 {
        return None;
    }
    nvml::own(counters.uuid.each_ref().map(|word| word.load(Relaxed)))
}

/// What a context took: by the device's own figure, unless that disagrees with the process's,
/// as it does when somebody outside the tree takes or gives back meanwhile.
fn without_strangers(by_device: Option<i64>, own: Option<u64>) -> Option<i64> {
    /// A driver counts a little for the device that it counts for no process.
    const AGREE: u64 = 32 << 20;
    match (by_device, own) {
        (Some(device), Some(own)) if device.abs_diff(own as i64) <= AGREE => Some(device),
        (_, Some(own)) => Some(own as i64),
        (device, None) => device,
    }
}

/// Keeps what something cost, to give it back when it goes.
pub(super) fn keep(here: &Here, key: u64, thing: Thing) {
    if key == 0 || matches!(cost(&thing), None | Some((_, 0))) {
        return;
    }
    // The same context or module again: what it cost before is part of it.
    if let Ok(Some(old)) = here.table.put(Entry { key, thing })
        && let Some((_, before)) = cost(&old.thing)
    {
        here.table.change(thing.class(), key, |thing| match thing {
            Thing::Context { charge, .. } | Thing::Module { charge, .. } => *charge += before,
            _ => {}
        });
    }
}

/// On which device a context or module is, and what the driver took for it.
fn cost(thing: &Thing) -> Option<(usize, u64)> {
    match *thing {
        Thing::Context { device, charge } | Thing::Module { device, charge } => {
            Some((device.into(), charge))
        }
        _ => None,
    }
}

/// Gives back what something cost that is gone.
pub(super) fn gone(here: &Here, class: Class, key: u64) {
    let Some(entry) = here.table.take(class, key) else { return };
    let Some((device, charge)) = cost(&entry.thing) else { return };
    let kind = if class == Class::Context { Kind::Context } else { Kind::Module };
    let at = pool::note(here, Op::Discharge, kind, device, key, charge);
    here.ledger.charge_driver(here.process, device, -(charge as i64), at);
}

/// Where a call is.
pub(super) fn place(here: &Here) -> Option<Target> {
    devices::current(here)
}
