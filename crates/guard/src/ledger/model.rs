//! Model check: every interleaving of three processes: two that allocate and one that reclaims.
//! Each may be killed at any step.
//!
//! A step is one operation on an atomic; a process may be killed before any of them. When a
//! process is killed, the kernel frees its GPU memory, then releases its liveness lock. Two things
//! must hold in every case: the driver has never handed out more than the limit, and at the end,
//! every charged byte belongs to a live process.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::cell::Cell;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64 as Plain};
use loom::thread;

use super::thread_counters::ThreadCounterSet;
use super::{GuardLedger, LedgerDevice, LedgerProcess, Liveness, PROCESSES, RobustLock, state};
use crate::sync::{AtomicU32, AtomicU64, survive};

const LIMIT: u64 = 1;
const RUN: usize = PROCESSES;

fn words<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

fn device() -> LedgerDevice {
    let [used, budget, peak, peak_at, refused, refused_bytes, driver, driver_peak] = words();
    let [total, baseline, residue_most, observed, context] = words();
    let [state, ordinal, integrated, verified] = std::array::from_fn(|_| AtomicU32::new(0));
    LedgerDevice {
        used,
        budget,
        peak,
        peak_at,
        state,
        ordinal,
        integrated,
        verified,
        refused,
        refused_bytes,
        driver,
        driver_peak,
        total,
        baseline,
        residue_most,
        observed,
        context,
        uuid: words(),
    }
}

fn process() -> LedgerProcess {
    let [start, space, files, refused, failed, own, foreign_frees, since, until] = words();
    LedgerProcess {
        state: AtomicU32::new(state::LIVE),
        pid: AtomicU32::new(0),
        start,
        space,
        files,
        driver: words(),
        refused,
        failed,
        own,
        foreign_frees,
        since,
        until,
        tagged: words(),
        tagged_peak: words(),
        name: words(),
        threads: ThreadCounterSet::new(),
    }
}

fn ledger() -> GuardLedger {
    let [magic, default_budget, reserve, keep_free, system_admitted, system_ended] = words();
    let [flags, warnings, driver_version, needs_audit, loaded] =
        std::array::from_fn(|_| AtomicU32::new(0));
    GuardLedger {
        magic,
        flags,
        warnings,
        default_budget,
        reserve,
        keep_free,
        budgets: words(),
        driver_version,
        needs_audit,
        reclaim_lock: RobustLock::new(),
        contexts_lock: RobustLock::new(),
        devices_lock: RobustLock::new(),
        loaded,
        taken: AtomicU32::new(PROCESSES as u32),
        system_admitted,
        system_ended,
        meminfo: [0; 256],
        devices: std::array::from_fn(|_| device()),
        processes: std::array::from_fn(|_| process()),
    }
}

struct World {
    ledger: GuardLedger,
    /// The kernel's locks, one for each slot and one for `run`.
    lives: [AtomicBool; PROCESSES + 1],
    /// What the driver has handed out.
    driver: Plain,
}

impl Liveness for World {
    fn is_running(&self, slot: usize) -> bool {
        self.lives[slot].load(Acquire)
    }

    fn may_hold_memory(&self, slot: usize) -> bool {
        self.is_running(slot)
    }
}

impl World {
    fn new() -> Arc<World> {
        let lives = std::array::from_fn(|_| AtomicBool::new(true));
        let world = World { ledger: ledger(), lives, driver: Plain::new(0) };
        world.ledger.devices[0].budget.store(LIMIT, Relaxed);
        Arc::new(world)
    }

    fn reclaim(&self, slot: usize) {
        self.ledger.reclaim(slot, self);
    }

    /// A process that allocates and frees, killed before the step of that number.
    fn run(&self, slot: usize, killed_at: Option<u32>) {
        let held = Cell::new(0);
        let ended = survive(killed_at, || {
            let process = &self.ledger.processes[slot];
            if self.ledger.grant(process, 0, 1, || self.reclaim(slot)).is_none() {
                return;
            }
            let before = self.driver.fetch_add(1, SeqCst);
            held.set(1);
            let limit = self.ledger.devices[0].budget.load(Relaxed);
            assert!(before < limit, "the driver handed out {} of {limit}", before + 1);
            self.ledger.finish_allocation(process, 0, 1, 1);
            self.ledger.begin_free(process);
            self.driver.fetch_sub(1, SeqCst);
            held.set(0);
            self.ledger.finish_free(process, 0, 1);
        });
        if ended.is_err() {
            self.driver.fetch_sub(held.get(), SeqCst);
            self.lives[slot].store(false, Release);
        }
    }

    /// When every process has ended or is idle: only what somebody holds is charged.
    fn check(&self) {
        self.reclaim(RUN);
        let held = self.driver.load(SeqCst);
        assert_eq!(self.ledger.devices[0].used.load(SeqCst), held, "what is charged is held");
        assert_eq!(self.ledger.devices[0].driver.load(SeqCst), 0);
        assert_eq!(self.ledger.needs_audit.load(SeqCst), 0);
    }
}

/// Checks what `scene` does, for a kill at each step and without one.
fn at_each_step(
    steps: u32,
    scene: impl Fn(Arc<World>, Option<u32>) + Sync + Send + Clone + 'static,
) {
    for killed_at in (0..steps).map(Some).chain([None]) {
        let scene = scene.clone();
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || scene(World::new(), killed_at));
    }
}

fn spawn(world: &Arc<World>, work: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || work(&world))
}

#[test]
fn one_is_killed_while_another_allocates() {
    at_each_step(24, |world, killed_at| {
        let one = spawn(&world, move |world| world.run(0, killed_at));
        world.run(1, None);
        one.join().unwrap();
        world.check();
    });
}

#[test]
fn one_who_reclaims_is_killed() {
    at_each_step(40, |world, killed_at| {
        // One process was killed with its share, another in the middle of an allocation.
        world.ledger.devices[0].used.fetch_add(2, AcqRel);
        world.ledger.processes[0].own_counters().add(0, 1);
        world.ledger.processes[2].own_counters().begin_allocation();
        world.lives[0].store(false, Release);
        world.lives[2].store(false, Release);
        let one = spawn(&world, move |world| {
            if survive(killed_at, || world.reclaim(1)).is_err() {
                world.lives[1].store(false, Release);
            }
        });
        world.reclaim(RUN);
        one.join().unwrap();
        world.check();
    });
}

#[test]
fn what_the_dead_left_is_found_while_others_are_at_work() {
    at_each_step(24, |world, killed_at| {
        // One process was killed in the middle of an allocation; another holds something all the
        // time.
        world.ledger.devices[0].budget.store(4, Relaxed);
        world.ledger.devices[0].used.fetch_add(2, AcqRel);
        world.ledger.processes[2].own_counters().begin_allocation();
        world.lives[2].store(false, Release);
        world.ledger.processes[1].own_counters().add(0, 1);
        world.driver.fetch_add(1, SeqCst);
        let one = spawn(&world, move |world| world.run(0, killed_at));
        world.reclaim(RUN);
        one.join().unwrap();
        world.check();
    });
}

#[test]
fn a_slot_is_taken_over_while_another_reclaims() {
    at_each_step(24, |world, killed_at| {
        world.ledger.devices[0].used.fetch_add(1, AcqRel);
        world.ledger.processes[0].own_counters().add(0, 1);
        world.ledger.processes[0].driver[0].store(1, Release);
        world.ledger.devices[0].driver.store(1, Release);
        world.lives[0].store(false, Release);
        let one = spawn(&world, move |world| {
            // The new owner has the lock, and is alive.
            world.lives[0].store(true, Release);
            if survive(killed_at, || _ = world.ledger.take_over_slot(0, world)).is_err() {
                world.lives[0].store(false, Release);
            }
        });
        world.reclaim(RUN);
        one.join().unwrap();
        if world.lives[0].load(Acquire) {
            // It did not wait any longer: such a process would be refused, and end.
            world.lives[0].store(false, Release);
        }
        world.check();
    });
}
