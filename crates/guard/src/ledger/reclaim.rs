//! The dead: what they held is given back by those who live.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::account::take;
use super::{DEVICES, Ledger, Process, state};

/// When no process started.
const REPLACED: u64 = u64::MAX;

impl Process {
    /// Whether the process that took this slot still runs, as the program that it was then.
    #[must_use]
    pub fn lives(&self) -> bool {
        let start = self.start.load(Acquire);
        start != REPLACED && crate::process::is_alive(self.pid.load(Acquire), start)
    }

    /// The process has become another program: what it held is gone, as if it were dead.
    pub(crate) fn replace(&self) {
        self.start.store(REPLACED, Release);
    }
}

impl Ledger {
    /// Gives back what dead processes hold. Nobody waits for another who is at it already.
    pub fn reclaim(&self) {
        let me = crate::process::own_pid();
        let holder = self.janitor.load(Acquire);
        // One that was killed at this work has left shares half given back.
        if holder != 0 && !crate::process::is_alive(holder, 0) {
            self.suspicious.store(1, Release);
        } else if holder != 0 {
            return;
        }
        if self.janitor.compare_exchange(holder, me, AcqRel, Relaxed).is_err() {
            return;
        }
        for process in &self.processes {
            if process.state.load(Acquire) == state::LIVE && !process.lives() {
                self.bury(process);
            }
        }
        if self.suspicious.load(Acquire) != 0 {
            self.audit();
        }
        self.janitor.store(0, Release);
    }

    /// A process that begins anew, after exec or with a number that was used before, is not at
    /// work in here. Whoever had its number was stopped half-way.
    pub(crate) fn abandon(&self, pid: u32) {
        if self.janitor.load(Acquire) == pid {
            self.suspicious.store(1, Release);
            let _ = self.janitor.compare_exchange(pid, 0, AcqRel, Relaxed);
        }
        let _ = self.one_at_a_time.compare_exchange(pid, 0, AcqRel, Relaxed);
    }

    /// Gives back what a process holds that is gone, or has become another program. Only the
    /// janitor does.
    fn bury(&self, process: &Process) {
        if !process.is_quiet() {
            self.suspicious.store(1, Release);
        }
        process.until.store(crate::sys::now(), Relaxed);
        // Once it is dead its share counts no more and its slot may be another's. A janitor who is
        // killed behind that leaves too much, for an audit.
        let held: [u64; DEVICES] = core::array::from_fn(|device| process.used(device));
        process.state.store(state::DEAD, Release);
        for (device, held) in self.devices.iter().zip(held) {
            take(&device.used, held);
        }
    }

    fn live(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| process.state.load(Acquire) == state::LIVE)
    }

    /// How many operations there were so far; nothing while one is under way. What was read
    /// between two equal answers was read while nothing moved.
    #[must_use]
    pub fn still(&self) -> Option<u64> {
        self.live().try_fold(0u64, |sum, process| {
            let done = process.done();
            process.is_quiet().then(|| sum.wrapping_add(done))
        })
    }

    /// Sets every device's `used` to the sum of the shares, if nobody is in the middle of an
    /// operation; otherwise it is left for the next time.
    fn audit(&self) {
        let mut settled = true;
        for (index, device) in self.devices.iter().enumerate() {
            let charged = device.used.load(Acquire);
            let before = self.still();
            let sum = self.live().map(|process| process.used(index)).sum();
            let swap = || device.used.compare_exchange(charged, sum, AcqRel, Relaxed).is_ok();
            settled &= before.is_some() && self.still() == before && swap();
        }
        if settled {
            self.suspicious.store(0, Release);
        }
    }
}
